"""Which schedules and plans there are: a file's own, those it imports, and the bundled ones."""

from __future__ import annotations

import functools
import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path

from schedc.diagnostics import Diagnostic, DiagnosticError, Label, Span
from schedc.sema.compile import CompiledSchedule, compile_schedule
from schedc.sema.plan import check_plan
from schedc.syntax import ast
from schedc.syntax.hints import did_you_mean
from schedc.syntax.parse import make_source, parse_file

Named = ast.Schedule | ast.Plan


class Library:
    """Schedules and plans by name. ``local`` are those that the file itself defines, in order.

    Names are looked up in the file and its imports first, then among the bundled ones.
    """

    def __init__(self, named: dict[str, Named], local: tuple[str, ...]) -> None:
        self._named = named
        self.local = local
        self._compiled: dict[str, CompiledSchedule] = {}

    @property
    def schedules(self) -> tuple[str, ...]:
        """The names of the schedules of the file and its imports."""
        return tuple(n for n, item in self._named.items() if isinstance(item, ast.Schedule))

    @property
    def plans(self) -> tuple[str, ...]:
        """The names of the plans of the file and its imports."""
        return tuple(n for n, item in self._named.items() if isinstance(item, ast.Plan))

    @property
    def local_schedules(self) -> tuple[str, ...]:
        return tuple(name for name in self.local if isinstance(self._named[name], ast.Schedule))

    @property
    def local_plans(self) -> tuple[str, ...]:
        return tuple(name for name in self.local if isinstance(self._named[name], ast.Plan))

    def find(self, name: str) -> Named | None:
        found = self._named.get(name)
        if found is None and self is not bundled():
            found = bundled()._named.get(name)
        return found

    def schedule(self, name: str, span: Span | None = None) -> ast.Schedule:
        """The schedule ``name``; ``span`` is where it is asked for."""
        found = self.find(name)
        if isinstance(found, ast.Schedule):
            return found
        if found is not None:
            raise DiagnosticError(Diagnostic("E215", f"`{name}` is a plan, not a schedule", span))
        raise DiagnosticError(self._unknown("schedule", name, self.schedules, span))

    def plan(self, name: str, span: Span | None = None) -> ast.Plan:
        """The plan ``name``; ``span`` is where it is asked for."""
        found = self.find(name)
        if isinstance(found, ast.Plan):
            return found
        if found is not None:
            raise DiagnosticError(Diagnostic("E215", f"`{name}` is a schedule, not a plan", span))
        raise DiagnosticError(self._unknown("plan", name, self.plans, span))

    def _unknown(
        self, what: str, name: str, known: tuple[str, ...], span: Span | None
    ) -> Diagnostic:
        others = bundled().schedules if what == "schedule" else bundled().plans
        every = sorted({*known, *others})
        return Diagnostic(
            "E215",
            f"there is no {what} `{name}`",
            span,
            notes=(f"there are {', '.join(f'`{n}`' for n in every)}",) if every else (),
            help=did_you_mean(name, every),
        )

    def compiled(self, name: str) -> CompiledSchedule:
        """The schedule ``name`` compiled; done once."""
        if name not in self._compiled:
            self._compiled[name] = compile_schedule(self.schedule(name))
        return self._compiled[name]

    def check(self) -> None:
        """Check the form and names of all that the file defines; raises all mistakes together."""
        mistakes: list[Diagnostic] = []
        for name in self.local:
            item = self._named[name]
            try:
                if isinstance(item, ast.Schedule):
                    self.compiled(name)
                else:
                    check_plan(item)
            except DiagnosticError as error:
                mistakes += error.diagnostics
        if mistakes:
            raise DiagnosticError(mistakes)


# ---- loading ------------------------------------------------------------------------------------


class _Loader:
    """Reads a file and what it imports, each file once."""

    def __init__(self) -> None:
        self.named: dict[str, Named] = {}
        self.done: set[str] = set()
        self.open: list[str] = []
        self.mistakes: list[Diagnostic] = []

    def load(self, file: ast.File, key: str, folder: Path | None) -> tuple[str, ...]:
        """Add the names of ``file``, imports first; returns its own names."""
        self.open.append(key)
        for item in file.items:
            if isinstance(item, ast.Import):
                self._import(item, folder)
        local: list[str] = []
        for item in file.items:
            if isinstance(item, ast.Schedule | ast.Plan):
                self._add(item)
                local.append(item.name)
            elif isinstance(item, ast.Reserved):
                self._later(item)
        self.open.pop()
        self.done.add(key)
        return tuple(dict.fromkeys(local))

    def _add(self, item: Named) -> None:
        first = self.named.get(item.name)
        if first is None:
            self.named[item.name] = item
            return
        code = "E202" if first.span.source is item.span.source else "E214"
        self.mistakes.append(
            Diagnostic(
                code,
                f"the name `{item.name}` is taken",
                item.name_span,
                (Label(first.name_span, "first here"),),
            )
        )

    def _later(self, item: ast.Reserved) -> None:
        span = item.span
        word = Span(span.source, span.line, span.column, span.line, span.column + len(item.word))
        self.mistakes.append(Diagnostic("E110", f"`{item.word}` is not supported yet", word))

    def _import(self, item: ast.Import, folder: Path | None) -> None:
        name, span = item.path.value, item.path.span
        beside = folder / name if folder is not None else None
        if beside is not None and beside.is_file():
            key, read = str(beside.resolve()), functools.partial(_read, beside, str(beside), span)
            inner: Path | None = beside.parent
        else:
            resource = _bundled_files().get(name)
            if resource is None:
                self.mistakes.append(_missing(name, folder, span))
                return
            key, inner = f"bundled:{name}", None
            read = functools.partial(_read, resource, name, span)
        if key in self.open:
            self.mistakes.append(
                Diagnostic("E213", f'importing "{name}" goes round in a circle', span)
            )
            return
        if key in self.done:
            return
        try:
            self.load(read(), key, inner)
        except DiagnosticError as error:
            self.mistakes += error.diagnostics

    def finish(self, local: tuple[str, ...]) -> Library:
        library = Library(self.named, local)
        try:
            library.check()
        except DiagnosticError as error:
            self.mistakes += error.diagnostics
        if self.mistakes:
            raise DiagnosticError(self.mistakes)
        return library


def _missing(name: str, folder: Path | None, span: Span) -> Diagnostic:
    beside = sorted(path.name for path in folder.glob("*.sched")) if folder is not None else []
    return Diagnostic(
        "E212",
        f'there is no file "{name}", neither beside this one nor bundled',
        span,
        help=did_you_mean(name, [*beside, *_bundled_files()]),
    )


def _read(path: Path | Traversable, name: str, span: Span | None) -> ast.File:
    return parse_file(make_source(name, read_text(path, name, span)))


def read_text(path: Path | Traversable, name: str, span: Span | None = None) -> str:
    """The text of a file; raises a diagnostic where it cannot be read."""
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        help = (
            "a compiled folder is for `schedc simulate` and `schedc viz`" if span is None else None
        )
        raise DiagnosticError(
            Diagnostic("E212", f"cannot read {name}: it is a folder", span, help=help)
        ) from None
    except OSError as error:
        raise DiagnosticError(
            Diagnostic("E212", f"cannot read {name}: {error.strerror or error}", span)
        ) from None
    return decode(content, name, span)


def decode(content: bytes, name: str, span: Span | None = None) -> str:
    """The text of a file's bytes; raises a diagnostic where they are none."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DiagnosticError(
            Diagnostic("E107", f"{name} is not UTF-8 text (byte {error.start})", span)
        ) from None


def load_file(path: Path) -> Library:
    """The library of a file: its schedules and plans, those it imports, and the bundled ones."""
    name = str(path)
    loader = _Loader()
    return loader.finish(loader.load(_read(path, name, None), str(path.resolve()), path.parent))


def load_text(name: str, text: str, folder: Path | None = None) -> Library:
    """The library of a text; what it imports is looked for in ``folder``, else bundled."""
    loader = _Loader()
    file = parse_file(make_source(name, text))
    return loader.finish(loader.load(file, f"text:{name}", folder))


def _bundled_files() -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for package in ("schedc.schedules", "schedc.schedules.plans"):
        files = importlib.resources.files(package).iterdir()
        for file in sorted(files, key=lambda file: file.name):
            if file.name.endswith(".sched"):
                found[file.name] = file
    return found


@functools.cache
def bundled() -> Library:
    """The schedules and plans that come with schedc."""
    named: dict[str, Named] = {}
    for name, resource in _bundled_files().items():
        for item in _read(resource, name, None).items:
            assert isinstance(item, ast.Schedule | ast.Plan), f"{name} holds something else"
            assert item.name not in named, f"{name} repeats the name {item.name}"
            named[item.name] = item
    return Library(named, tuple(named))


def open_library(name: str | Path) -> tuple[Library, str | None]:
    """What a user names on the command line: FILE, FILE:NAME or a bundled name.

    Returns the library and the name chosen, None where only a file was given.
    """
    text = str(name)
    if bundled().find(text) is not None and not Path(text).is_file():
        return bundled(), text
    path, colon, chosen = text.rpartition(":")
    if Path(text).is_file() or not colon:
        if not Path(text).exists() and not text.endswith(".sched"):
            raise DiagnosticError(_nothing_called(text))
        return load_file(Path(text)), None
    if not Path(path).is_file() and bundled().find(chosen) is not None and not path:
        return bundled(), chosen
    library = load_file(Path(path))
    if library.find(chosen) is None:
        every = [*library.schedules, *library.plans]
        raise DiagnosticError(
            Diagnostic(
                "E215",
                f"there is nothing called `{chosen}` in {path}",
                notes=(f"it has {', '.join(f'`{n}`' for n in every)}",),
                help=did_you_mean(chosen, every),
            )
        )
    return library, chosen


def _nothing_called(name: str) -> Diagnostic:
    every = [*bundled().schedules, *bundled().plans]
    return Diagnostic(
        "E215",
        f"there is no file and nothing bundled called `{name}`",
        notes=(f"bundled are {', '.join(f'`{n}`' for n in every)}",),
        help=did_you_mean(name, every),
    )
