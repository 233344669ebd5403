"""Options of a run: defaults, the file, the command line, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.runtime.config import CHECKS, KEYS, RunConfig, make_config


def test_every_key_is_checked() -> None:
    assert set(CHECKS) == set(KEYS)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('steps = 7\nlr-schedule = "cosine"\nlr = 1\ndata = "text"\nshuffle = false\n')
    config = make_config({"steps": 9, "lr": None, "betas": (0.5, 0.6)}, file)
    assert config == RunConfig(
        steps=9, lr_schedule="cosine", lr=1.0, data=(Path("text"),), shuffle=False, betas=(0.5, 0.6)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = -1", "steps has to be at least 0, it is -1"),
        ("steps = 1.5", "steps has to be a whole number, it is 1.5"),
        ("steps = true", "steps has to be a whole number"),
        ("timeout = 0", "timeout has to be at least 1"),
        ("timeout = 0.99", "timeout has to be at least 1"),
        ("betas = [0.9, 1.0]", "betas has to be at least 0 and below 1"),
        ("betas = 0.9", "betas has to be two numbers"),
        ("lr = nan", "lr has to be at least 0"),
        ("lr-schedule = 'linear'", "lr-schedule has to be one of constant, cosine"),
        ("data = 3", "data has to be a path"),
        ("seeed = 3", "unknown key 'seeed'"),
        ("steps = ", "is no TOML"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(DiagnosticError) as caught:
        make_config({"data": ("x",)} if "data" not in text else {}, file)
    assert all(d.code == "E904" for d in caught.value.diagnostics)
    assert message in caught.value.diagnostics[0].message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError, match="cannot read"):
        make_config({}, tmp_path / "none.toml")
