"""Tracing a model takes seconds and depends on its arguments alone: once is enough."""

from tests.driver.conftest import trace_each_model_once

__all__ = ["trace_each_model_once"]
