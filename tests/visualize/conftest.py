"""Goldens: ``pytest tests/visualize --update-goldens`` writes them anew."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # another folder's conftest has it already
        parser.addoption("--update-goldens", action="store_true", help="write goldens anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of that name; a missing file fails."""
    update = request.config.getoption("--update-goldens", default=False)

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
        assert path.exists(), f"no golden {name}: run pytest tests/visualize --update-goldens"
        assert text == path.read_bytes().decode()

    return compare
