"""The learning rate, against its definition."""

from __future__ import annotations

import math

import pytest

from schedc.runtime.learning_rate import learning_rate


def test_warm_up_rises_by_equal_parts_to_the_peak() -> None:
    # Three steps of warm-up: peak/3, 2/3 peak, peak, by definition; then constant.
    rates = [learning_rate(s, peak=3e-3, warmup=3, steps=30) for s in range(6)]
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3, 3e-3, 3e-3, 3e-3], rel=1e-12)


def test_cosine_falls_from_the_end_of_the_warm_up_to_the_last_step() -> None:
    # Peak at step 2 (the third of warm-up), minimum at step 10, so step 6 is half way: their mean.
    def rate(step: int) -> float:
        return learning_rate(step, peak=1.0, warmup=3, steps=11, schedule="cosine", minimum=0.1)

    assert rate(2) == 1.0
    assert rate(6) == pytest.approx(0.55, rel=1e-12)
    assert rate(4) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2, rel=1e-12)
    assert rate(10) == 0.1
    assert rate(11) == rate(1000) == 0.1
    falling = [rate(step) for step in range(2, 11)]
    assert falling == sorted(falling, reverse=True)


def test_without_warm_up_cosine_begins_at_the_peak() -> None:
    rates = [learning_rate(s, peak=2.0, steps=3, schedule="cosine") for s in range(3)]
    assert rates == pytest.approx([2.0, 1.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_warm_up_as_long_as_the_run_or_longer(steps: int) -> None:
    for step in range(steps):
        rate = learning_rate(step, peak=1.0, warmup=4, steps=steps, schedule="cosine")
        assert rate == (step + 1) / 4
