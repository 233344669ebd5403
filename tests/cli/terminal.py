"""The command line as a person meets it: arguments in, exit status and two streams out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from schedc.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def shown(self) -> str:
        return self.out + self.err


class Terminal:
    """Runs ``schedc`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Outcome:
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 99
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(code, captured.out, captured.err)


@pytest.fixture
def schedc(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "SCHEDC_TRACEBACK", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return Terminal(capsys)
