"""The documents' outputs and figures are what the commands print and draw today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from schedc.ir.text import print_order
from schedc.ir.verify import verify_order
from schedc.sema.library import bundled, load_text
from schedc.sema.schedule import instantiate

ROOT = Path(__file__).resolve().parents[2]


def test_generated_blocks_are_fresh() -> None:
    command = [sys.executable, "docs/generate.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, f"run `make docs`:\n{result.stdout}{result.stderr}"


def test_sources_shown_in_the_readme_are_the_bundled_ones() -> None:
    """Each schedule or plan the README shows is bundled word for word, but for comments."""

    def words(text: str) -> str:
        return re.sub(r"#.*", "", text).split().__str__()

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\n((?:schedule|plan) (\w+) \{.*?\n\})\n```", readme, re.DOTALL)
    assert {name for _, name in shown} == {"zb_h1", "llama_tiny_zb"}
    for text, name in shown:
        bundled = next((ROOT / "schedules").rglob(f"{name}.sched")).read_text(encoding="utf-8")
        for line in text.splitlines():
            assert words(line) in {words(known) for known in bundled.splitlines()}, line


def test_the_sources_of_the_language_reference_are_bundled() -> None:
    text = (ROOT / "docs/language.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```\n((?:schedule|plan) .*?)```", text, re.DOTALL)
    library = load_text("language.md", "\n".join(blocks))
    library.check()
    written_out = {"gpipe", "one_f_one_b", "zb_h1", "interleaved"}
    made = {"zb_1p_plain", "v_min_plain"}
    assert set(library.local_schedules) == written_out | made
    assert library.local_plans == ("llama_tiny_zb",)
    for name in made:
        verify_order(instantiate(library, name, 4, 6, {}).order)
    v_min = instantiate(library, "v_min_plain", 4, 6, {}).order
    known = instantiate(bundled(), "v_min", 4, 6, {}).order
    assert print_order(v_min).splitlines()[2:] == print_order(known).splitlines()[2:]
    for name in written_out:
        mine, known = (instantiate(lib, name, 4, 6, {}) for lib in (library, bundled()))
        assert print_order(mine.order) == print_order(known.order)


def test_files_named_in_the_documents_exist() -> None:
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / target).exists(), f"{name} links to {target}"
        for path in re.findall(r"`((?:schedc|runtime|tests|docs|schedules)/[\w./]+)`", text):
            if "NAME" not in path and "CODE" not in path:
                assert (ROOT / path).exists(), f"{name} names {path}"
