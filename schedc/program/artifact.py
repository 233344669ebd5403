"""The compiled folder: written as a whole, read strictly, nothing outside it needed.

::

    NAME/manifest.json        all but programs and graphs, with hashes of the graphs' files
    NAME/rank0.prog …         the programs' canonical text, one a pipeline rank
    NAME/rank0.eval.prog …    those of an evaluation
    NAME/graphs/G.py, G.json  a graph's generated Python and its signature
    NAME/timeline.json        the prediction, where there is one

Programs may be edited by hand, and ``timeline.json`` is rewritten by ``schedc simulate``; both are
not hashed. Graphs are: a file that differs from what was compiled is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.program.manifest import Manifest
from schedc.program.manifest_json import (
    is_manifest,
    manifest_from_json,
    manifest_to_json,
    signature_from_json,
    signature_to_json,
)
from schedc.program.parse import parse_program
from schedc.program.print import print_program
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model, Signature

MANIFEST = "manifest.json"
TIMELINE = "timeline.json"
GRAPHS = "graphs"
PROGRAM = re.compile(r"rank\d+(\.eval)?\.prog", re.ASCII)
GRAPH_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled plan: programs of a training step, and of one pass of an evaluation.

    ``graphs`` holds the Python of each graph of the manifest, by its name.
    """

    manifest: Manifest
    programs: Programs
    evaluation: Programs
    graphs: dict[str, str]
    timeline_json: str | None = None

    @property
    def model(self) -> Model:
        """The model as the verifier and the simulator want it."""
        manifest = self.manifest
        return Model(manifest.units, manifest.signatures, self.graphs, manifest.config)


def write_artifact(artifact: Artifact, folder: Path) -> None:
    """Write ``artifact`` as ``folder``, replacing a compiled folder that is there.

    The folder is made beside its place and then renamed, so that it is never half written. What
    others put into an older folder (anything but the files above) is kept. The hashes of the
    graphs' files are added to those of the manifest.

    Raises DiagnosticError (E901) where ``folder`` exists and is not one of ours.
    """
    _refuse_foreign(Path(folder))
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".new", dir=folder.parent))
    try:
        fresh.chmod(0o777 & ~_umask())
        for name, data in _files(artifact).items():
            path = fresh / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        _swap(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def load_artifact(folder: Path) -> Artifact:
    """Read a compiled folder.

    Raises DiagnosticError: E901 names the file that is missing or damaged, E507 the place in a
    program that does not parse.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise _refused(folder, "there is no such folder", _COMPILE)
    text = _read(folder, MANIFEST)
    try:
        manifest = manifest_from_json(text, lambda name: _signature(folder, name))
    except ValueError as error:
        raise _refused(folder / MANIFEST, f"this is no manifest: {error}", _COMPILE) from error
    graphs = {name: _read(folder, f"{GRAPHS}/{name}.py") for name in manifest.signatures}
    _check_hashes(folder, manifest)
    programs, evaluation = (_programs(folder, manifest, evaluates) for evaluates in (False, True))
    names = {program_file(program) for program in (*programs, *evaluation)}
    for path in sorted(folder.glob("rank*.prog")):
        if PROGRAM.fullmatch(path.name) and path.name not in names:
            raise _refused(path, f"the mesh has only {manifest.mesh.pp} pipeline ranks", _COMPILE)
    timeline = _read(folder, TIMELINE) if (folder / TIMELINE).exists() else None
    return Artifact(manifest, programs, evaluation, graphs, timeline)


def program_file(program: RankProgram) -> str:
    """The name of a program's file."""
    return _program_file(program.rank, program.evaluates)


def _program_file(rank: int, evaluates: bool) -> str:
    return f"rank{rank}.eval.prog" if evaluates else f"rank{rank}.prog"


def artifact_digest(folder: Path) -> str:
    """A hash over all that a run depends on, to compare what two ranks have loaded.

    That is every file of the layout but the timeline, by name and bytes. Raises DiagnosticError
    (E901) where ``folder`` is no compiled folder.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise _refused(folder / MANIFEST, "the file is missing", _COMPILE)
    names = [MANIFEST, *(p.name for p in folder.iterdir() if PROGRAM.fullmatch(p.name))]
    graphs = folder / GRAPHS
    if graphs.is_dir():
        names += [f"{GRAPHS}/{p.name}" for p in graphs.iterdir() if p.suffix in (".py", ".json")]
    digest = hashlib.sha256()
    for name in sorted(names):
        data = (folder / name).read_bytes()
        digest.update(f"{len(name.encode())} {name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


_COMPILE = "compile the plan again"


def _refused(path: Path, what: str, help: str | None = None) -> DiagnosticError:
    return DiagnosticError(Diagnostic("E901", f"{path}: {what}", help=help))


def _files(artifact: Artifact) -> dict[str, bytes]:
    """The folder's files; the manifest last, with the hashes of the graphs."""
    manifest = artifact.manifest
    missing = sorted(set(manifest.signatures) ^ set(artifact.graphs))
    assert not missing, f"graphs without source or without signature: {missing}"
    texts: dict[str, str] = {}
    for name, signature in sorted(manifest.signatures.items()):
        assert GRAPH_NAME.fullmatch(name), f"the graph {name!r} cannot name a file"
        texts[f"{GRAPHS}/{name}.py"] = artifact.graphs[name]
        texts[f"{GRAPHS}/{name}.json"] = signature_to_json(signature)
    files = {name: text.encode() for name, text in texts.items()}
    hashes = manifest.hashes | {name: _hash(data) for name, data in files.items()}
    for program in (*artifact.programs, *artifact.evaluation):
        files[program_file(program)] = print_program(program).encode()
    if artifact.timeline_json is not None:
        files[TIMELINE] = artifact.timeline_json.encode()
    files[MANIFEST] = manifest_to_json(replace(manifest, hashes=hashes)).encode()
    return files


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _refuse_foreign(folder: Path) -> None:
    """Refuses to replace what is not a compiled folder."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise _refused(folder, "this is a file, and a folder is to be written here")
    if not any(folder.iterdir()):
        return
    manifest = folder / MANIFEST
    text = manifest.read_text("utf-8", "replace") if manifest.is_file() else ""
    if not is_manifest(text):
        what = "the folder exists and is not a compiled one; it was left as it is"
        raise _refused(folder, what, "choose another folder, or empty this one")


def _swap(fresh: Path, folder: Path) -> None:
    """Put ``fresh`` in the place of ``folder``, and keep what others put there."""
    if not folder.exists():
        fresh.rename(folder)
        return
    old = fresh.with_suffix(".old")
    folder.rename(old)
    fresh.rename(folder)
    for path in sorted(old.iterdir()):
        ours = path.name in (MANIFEST, TIMELINE, GRAPHS) or PROGRAM.fullmatch(path.name)
        if not ours:
            path.rename(folder / path.name)
    shutil.rmtree(old)


def _read(folder: Path, name: str) -> str:
    path = folder / name
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise _refused(path, "the file is missing", _COMPILE) from None
    except UnicodeDecodeError as error:
        raise _refused(path, f"the file is damaged: {error}", _COMPILE) from error
    except OSError as error:
        raise _refused(path, f"the file cannot be read: {error.strerror}") from error


def _signature(folder: Path, name: str) -> Signature:
    path = f"{GRAPHS}/{name}.json"
    if not GRAPH_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a graph")
    text = _read(folder, path)
    try:
        signature = signature_from_json(text)
    except ValueError as error:
        raise _refused(folder / path, f"this is no signature: {error}", _COMPILE) from error
    if signature.name != name:
        raise _refused(folder / path, f"this is the signature of {signature.name!r}", _COMPILE)
    return signature


def _programs(folder: Path, manifest: Manifest, evaluates: bool) -> Programs:
    """Programs of the manifest's pipeline. What they do is the verifier's to judge."""
    names = [_program_file(rank, evaluates) for rank in range(manifest.mesh.pp)]
    programs = tuple(parse_program(_read(folder, name), str(folder / name)) for name in names)
    microbatches = manifest.evaluation_microbatches if evaluates else manifest.microbatches
    for rank, program in enumerate(programs):
        held = tuple((s, manifest.stages[s]) for s, r in enumerate(manifest.rank_of) if r == rank)
        for what, found, wanted in (
            ("its rank is", program.rank, rank),
            ("its number of ranks is", program.ranks, manifest.mesh.pp),
            ("its number of microbatches is", program.microbatches, microbatches),
            ("whether it is an evaluation's is", program.evaluates, evaluates),
            ("it holds", _stages(program.stages), _stages(held)),
        ):
            if found != wanted:
                message = f"{what} {found}, and the manifest says {wanted}"
                raise _refused(folder / names[rank], message)
    return programs


def _stages(stages: tuple[tuple[int, tuple[str, ...]], ...]) -> str:
    return ", ".join(f"stage {stage} of {' '.join(units)}" for stage, units in stages)


def _check_hashes(folder: Path, manifest: Manifest) -> None:
    for graph in manifest.signatures:
        for name in (f"{GRAPHS}/{graph}.py", f"{GRAPHS}/{graph}.json"):
            expected = manifest.hashes.get(name)
            found = _hash((folder / name).read_bytes())
            if expected is None:
                raise _refused(folder / MANIFEST, f"the hash of {name} is missing", _COMPILE)
            if found != expected:
                what = f"the file is not the one that was compiled (sha256 {found[:12]}…"
                raise _refused(folder / name, f"{what}, expected {expected[:12]}…)", _COMPILE)
