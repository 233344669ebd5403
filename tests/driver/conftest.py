"""Tracing a model takes seconds and depends on its arguments alone: once is enough."""

from collections.abc import Iterator

import pytest

from tests.driver.plans import traced_once


@pytest.fixture(scope="package", autouse=True)
def trace_each_model_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("schedc.driver.build.build_model", traced_once)
        yield
