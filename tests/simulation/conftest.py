"""``--seed N`` runs one seed instead of many: to see a failure again."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="simulate this seed only")
