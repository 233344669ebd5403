"""The repository's own rules: codes, file names, links and resources."""

from __future__ import annotations

import ast
import importlib.resources
import re
import sys
from pathlib import Path

import pytest

from schedc.catalogue import CATALOGUE
from schedc.sema.library import bundled

ROOT = Path(__file__).parents[1]
FOLDERS = ("runtime", "visualize", "grammar", "schedules")
CODE = re.compile(r"E[1-9]\d\d")


def python_files(*folders: str) -> list[Path]:
    """The Python files of some folders, links not followed."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    linked = [ROOT / "schedc" / name for name in FOLDERS]
    return [path for path in found if not any(link in path.parents for link in linked)]


def codes_in(path: Path) -> set[str]:
    """The codes that a file's texts are: not those that prose mentions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    return {text for text in texts if isinstance(text, str) and CODE.fullmatch(text)}


def test_every_code_that_is_used_has_a_page_and_every_page_is_used() -> None:
    catalogue = ROOT / "schedc" / "catalogue.py"
    used: dict[str, list[str]] = {}
    for path in python_files("schedc", "runtime", "visualize"):
        for code in codes_in(path) if path != catalogue else ():
            used.setdefault(code, []).append(path.relative_to(ROOT).as_posix())
    assert {c: at for c, at in used.items() if c not in CATALOGUE} == {}
    assert set(CATALOGUE) - set(used) == set(), "pages that nothing refers to"


def test_pages_are_in_order_and_say_something() -> None:
    assert list(CATALOGUE) == sorted(CATALOGUE)
    titles = [page.title for page in CATALOGUE.values()]
    assert len(set(titles)) == len(titles)
    for code, page in CATALOGUE.items():
        assert len(page.explanation) > 40, code
        assert page.explanation.endswith((".", ".)")), code
        assert not page.title.endswith("."), code


@pytest.mark.parametrize("folder", ["runtime", "visualize"])
def test_no_file_is_named_like_a_module_of_the_standard_library(folder: str) -> None:
    """torchrun puts runtime/ first on sys.path: runtime/types.py would break every import."""
    names = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    names |= {path.name for path in (ROOT / folder).iterdir() if path.is_dir()} - {"__pycache__"}
    assert len(names) > 5
    assert names & set(sys.stdlib_module_names) == set()


@pytest.mark.parametrize("name", FOLDERS)
def test_the_links_of_the_package_are_relative_and_resolve(name: str) -> None:
    link = ROOT / "schedc" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
    assert link.resolve() == ROOT / name
    assert (link / "__init__.py").is_file()


def test_bundled_files_are_found_through_the_package() -> None:
    for package, folder in (("schedc.schedules", "."), ("schedc.schedules.plans", "plans")):
        files = importlib.resources.files(package)
        found = {file.name for file in files.iterdir() if file.name.endswith(".sched")}
        assert found == {path.name for path in (ROOT / "schedules" / folder).glob("*.sched")}
        assert found
    assert importlib.resources.files("schedc.grammar").joinpath("sched.lark").is_file()
    assert set(bundled().schedules) >= {"gpipe", "one_f_one_b", "interleaved", "zb_h1"}
    assert "llama_tiny_zb" in bundled().plans


def test_a_bundled_file_is_named_after_what_it_holds() -> None:
    for name in (*bundled().schedules, *bundled().plans):
        item = bundled().find(name)
        assert item is not None
        assert item.span.source.name == f"{name}.sched"
