"""The compiled folder: what goes in comes out, damage is named, nothing foreign is lost."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.ir.mesh import Mesh
from schedc.ir.precision import Precision
from schedc.program.artifact import Artifact, artifact_digest, load_artifact, write_artifact
from schedc.program.manifest import Manifest
from schedc.program.signature import Parameter, Signature, Unit, Value
from schedc.program.text import print_program
from schedc.program.verify import verify_programs
from tests.program.programs import compiled, compiled_evaluation


@pytest.fixture
def artifact() -> Artifact:
    programs, model = compiled("zb_h1", 2, 3)
    first = replace(
        model.units[0],
        parameters=(("weight", Parameter("model.w", (256, 64), "fp32", "normal 0.02")),),
    )
    units: tuple[Unit, ...] = (first, *model.units[1:])
    rotary = Signature("rotary", "", (), (), 0, 0, 0, 0)
    late = model.graphs["embedding.W"]
    gradient = Value("grad", "weight", (256, 64), "fp32", (64, 1))
    signatures = model.graphs | {
        "rotary": rotary,
        "embedding.W": replace(late, outputs=(gradient,)),
    }
    manifest = Manifest(
        name="tiny",
        schedule="zb_h1",
        mesh=Mesh(dp=2, pp=2),
        sequence=128,
        batch=12,
        microbatch=2,
        microbatches=3,
        precision=Precision("fp32"),
        optimizer="adamw",
        evaluation=8,
        rank_of=(0, 1),
        stages=(("embedding", "layers.0"), ("layers.1", "head")),
        units=units,
        signatures=signatures,
        config={"hidden_size": 64, "rope_scaling": None, "eps": 1e-5, "archs": ["Llama"]},
        sources={"a b … .sched": {10: "  for m in 0..M {", 2: "schedule ü"}},
        hashes={"source": "12", "model": "34"},
    )
    graphs = {name: f"def {name.replace('.', '_')}(): ...\n" for name in signatures}
    evaluation, _ = compiled_evaluation("zb_h1", 2, 2)
    return Artifact(manifest, programs, evaluation, graphs, '{"schema": "schedc timeline 1"}\n')


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refusal(folder: Path) -> str:
    with pytest.raises(DiagnosticError) as caught:
        load_artifact(folder)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E901"
    return diagnostic.message


@pytest.mark.parametrize("name", ["build", "with space", "ünï…code", "deep/er/still"])
def test_round_trip(artifact: Artifact, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    write_artifact(artifact, folder)
    loaded = load_artifact(folder)
    hashes = loaded.manifest.hashes
    assert set(hashes) - set(artifact.manifest.hashes) == {
        f"graphs/{name}.{kind}" for name in artifact.graphs for kind in ("py", "json")
    }
    assert replace(loaded.manifest, hashes=artifact.manifest.hashes) == artifact.manifest
    assert loaded.graphs == artifact.graphs
    assert loaded.timeline_json == artifact.timeline_json
    for one, other in zip(loaded.programs, artifact.programs, strict=True):
        assert list(one.stream) == list(other.stream)
    verify_programs(loaded.programs, loaded.model, loaded.manifest.mesh.dp)


def test_layout(artifact: Artifact, tmp_path: Path) -> None:
    write_artifact(artifact, tmp_path / "b")
    graphs = [f"graphs/{name}.{kind}" for name in artifact.graphs for kind in ("json", "py")]
    programs = ["rank0.prog", "rank1.prog", "rank0.eval.prog", "rank1.eval.prog"]
    names = ["manifest.json", *programs, "timeline.json", *graphs]
    assert sorted(files(tmp_path / "b")) == sorted(names)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]  # nothing left beside it
    mode = stat.S_IMODE((tmp_path / "b").stat().st_mode)
    (tmp_path / "plain").mkdir()
    assert mode == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_same_input_same_bytes(artifact: Artifact, tmp_path: Path) -> None:
    write_artifact(artifact, tmp_path / "a")
    write_artifact(artifact, tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert artifact_digest(tmp_path / "a") == artifact_digest(tmp_path / "b")
    write_artifact(load_artifact(tmp_path / "a"), tmp_path / "c")
    assert files(tmp_path / "a") == files(tmp_path / "c")
    assert str(tmp_path).encode() not in b"".join(files(tmp_path / "a").values())


def test_no_timeline(artifact: Artifact, tmp_path: Path) -> None:
    write_artifact(replace(artifact, timeline_json=None), tmp_path / "b")
    assert load_artifact(tmp_path / "b").timeline_json is None


def test_an_edited_program_is_what_is_loaded(artifact: Artifact, tmp_path: Path) -> None:
    write_artifact(artifact, tmp_path / "b")
    before = artifact_digest(tmp_path / "b")
    path = tmp_path / "b" / "rank0.prog"
    path.write_text(path.read_text().replace("wait  report", "wait  norm"))
    assert artifact_digest(tmp_path / "b") != before
    loaded = load_artifact(tmp_path / "b")
    assert print_program(loaded.programs[0]) != print_program(artifact.programs[0])
    path.write_text(path.read_text().replace("wait  norm", "wait  what"))
    with pytest.raises(DiagnosticError) as caught:
        load_artifact(tmp_path / "b")
    (first, *_) = caught.value.diagnostics
    assert first.code == "E507"
    assert str(first.span).startswith(str(path))


def test_the_timeline_does_not_count_in_the_digest(artifact: Artifact, tmp_path: Path) -> None:
    write_artifact(artifact, tmp_path / "b")
    before = artifact_digest(tmp_path / "b")
    (tmp_path / "b" / "timeline.json").write_text("{}")
    (tmp_path / "b" / "metrics.jsonl").write_text("{}")
    assert artifact_digest(tmp_path / "b") == before


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def put(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text)  # type: ignore[return-value]


def edit_manifest(key: str, value: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "manifest.json"
        fields = json.loads(path.read_text())
        if value is None:
            del fields[key]
        else:
            fields[key] = value
        path.write_text(json.dumps(fields))

    return edit


SEALED = "manifest.json: this is no manifest: it was changed after it was compiled"


def freeze(folder: Path) -> None:
    """Says of a trained parameter that it is frozen."""
    units = json.loads((folder / "manifest.json").read_text())["units"]
    units[0]["parameters"][0]["frozen"] = True
    edit_manifest("units", units)(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (freeze, SEALED),
        (remove("manifest.json"), "manifest.json: the file is missing"),
        (remove("rank1.prog"), "rank1.prog: the file is missing"),
        (remove("graphs/head.F.py"), "graphs/head.F.py: the file is missing"),
        (remove("graphs/head.F.json"), "graphs/head.F.json: the file is missing"),
        (put("manifest.json", "{"), "manifest.json: this is no manifest: "),
        (put("manifest.json", "[]"), "manifest.json: this is no manifest: a manifest must be an"),
        (put("manifest.json", "{}"), "this is no manifest: the schema is None, and this schedc"),
        (edit_manifest("schema", "schedc build 2"), "the schema is 'schedc build 2', and this"),
        (edit_manifest("batch", None), "`batch` is missing"),
        (edit_manifest("batch", "8"), "`batch` must be a whole number"),
        (edit_manifest("batch", True), "`batch` must be a whole number"),
        (edit_manifest("stages", [["a"], "b"]), "`stages` must hold lists"),
        (edit_manifest("rank_of", [1, 0]), SEALED),
        (edit_manifest("microbatches", 4), SEALED),
        (edit_manifest("optimizer", "what"), SEALED),
        (edit_manifest("config", {}), SEALED),
        (edit_manifest("graphs", ["rotary"]), SEALED),
        (edit_manifest("hashes", {}), SEALED),
        (edit_manifest("more", 1), SEALED),
        (edit_manifest("graphs", ["../x"]), "'../x' is no name of a graph"),
        (put("graphs/head.F.py", "import os\n"), "head.F.py: the file is not the one that was"),
        (put("graphs/head.F.json", "{}"), "head.F.json: this is no signature: `name` is missing"),
        (put("rank2.prog", ""), "rank2.prog: the mesh has only 2 pipeline ranks"),
    ],
)
def test_damage_is_named(
    artifact: Artifact, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    write_artifact(artifact, tmp_path / "b")
    damage(tmp_path / "b")
    found = refusal(tmp_path / "b")
    assert message in found
    assert str(tmp_path / "b") in found


def test_bytes_that_are_no_text(artifact: Artifact, tmp_path: Path) -> None:
    write_artifact(artifact, tmp_path / "b")
    (tmp_path / "b" / "rank0.prog").write_bytes(b"\xff\xfe\x00")
    assert "rank0.prog: the file is damaged" in refusal(tmp_path / "b")


def test_no_folder(tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(tmp_path / "nothing")
    with pytest.raises(DiagnosticError):
        artifact_digest(tmp_path)


def test_an_older_build_is_replaced(artifact: Artifact, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    write_artifact(artifact, folder)
    (folder / "graphs" / "old.py").write_text("")
    (folder / "rank7.prog").write_text("")
    (folder / "run").mkdir()
    (folder / "run" / "metrics.jsonl").write_text("mine")
    write_artifact(replace(artifact, timeline_json=None), folder)
    names = files(folder)
    assert names.pop("run/metrics.jsonl") == b"mine"
    write_artifact(replace(artifact, timeline_json=None), tmp_path / "fresh")
    assert names == files(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "fresh"]


@pytest.mark.parametrize("manifest", [None, "{}", '{"schema": "something else"}', "no json"])
def test_a_foreign_folder_is_left_alone(
    artifact: Artifact, tmp_path: Path, manifest: str | None
) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("years of work")
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    with pytest.raises(DiagnosticError) as caught:
        write_artifact(artifact, folder)
    assert caught.value.diagnostics[0].code == "E901"
    assert (folder / "chapter1.tex").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def test_a_file_in_the_way(artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "b").write_text("a file")
    with pytest.raises(DiagnosticError) as caught:
        write_artifact(artifact, tmp_path / "b")
    assert "this is a file" in caught.value.diagnostics[0].message


def test_an_empty_folder_and_a_relative_path(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("b")
    write_artifact(artifact, Path("b"))
    assert load_artifact(Path("b")).manifest.name == "tiny"


def test_a_link_to_a_build(artifact: Artifact, tmp_path: Path) -> None:
    write_artifact(artifact, tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    write_artifact(replace(artifact, timeline_json=None), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load_artifact(tmp_path / "real").timeline_json is None
