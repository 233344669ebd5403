"""Numbers for people."""

from __future__ import annotations

import pytest

from schedc.visualize import scale
from schedc.visualize.scale import Unit


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (33.0, "33"),
        (1725, "1725"),
        (4.5, "4.5"),
        (1 / 3, "0.333"),
        (12345.678, "12346"),
        (0.00012345, "0.000123"),
        (-2.5, "−2.5"),
        (2.9999999999999, "3"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert scale.number(value) == text


def test_the_formula_adds_up_as_printed() -> None:
    for makespan, busiest in ((0.33894, 0.29516), (28.5, 24.0), (1.0, 0.99994), (100 / 3, 80 / 3)):
        text = scale.formula(makespan, busiest, Unit(1, ""))
        whole, used, lost = (
            float(part.split(" (")[0])
            for part in text.split("= ", 2)[2].replace("= ", "− ").split("− ")
        )
        assert whole - used == pytest.approx(lost, abs=1e-9)


@pytest.mark.parametrize(
    ("span", "step"), [(33, 2), (27, 2), (1725, 100), (0.338, 0.02), (1, 0.1), (7e-5, 5e-6)]
)
def test_ticks_are_nice_and_far_enough_apart(span: float, step: float) -> None:
    times = scale.ticks(span, 1050, 60)
    assert times[0] == 0
    assert times[1] == pytest.approx(step)
    assert span - step < times[-1] <= span * (1 + 1e-9)
    assert 1050 * step / span >= 60 * (1 - 1e-9)


def test_tick_labels_have_the_decimals_of_the_step() -> None:
    assert [scale.tick_label(v, 0.5) for v in (0, 0.5, 1.0)] == ["0.0", "0.5", "1.0"]
    assert [scale.tick_label(v, 20) for v in (0, 20, 40)] == ["0", "20", "40"]


def test_units() -> None:
    assert scale.time_unit("s", 3.0).name == "s"
    assert scale.time_unit("s", 0.3).name == "ms"
    assert scale.time_unit("s", 3e-5).name == "µs"
    assert scale.time_unit("", 3e-5) == Unit(1, "")
    assert scale.memory_unit("bytes", 3 * 2**30).name == "GiB"
    assert scale.memory_unit("units", 3 * 2**30) == Unit(1, "units")


def test_wrapping_loses_nothing_until_it_says_so() -> None:
    text = "one two three four five six"
    assert " ".join(scale.wrap(text, 10, 60, 9)) == text
    assert scale.wrap(text, 10, 60, 2)[-1].endswith("…")
