"""Times measured in turn: ratios within a repeat, exponents of powers, text."""

import math
from collections import Counter
from typing import Any

import pytest

from benchmarks.speed.measuring import (
    exponent,
    exponents,
    in_turn,
    most,
    of_way,
    ratios,
    reported,
    times,
)


def measurement(way: str, repeat: int, **found: Any) -> dict[str, Any]:
    return {"way": way, "repeat": repeat, **found}


def test_every_way_has_its_turn_once_a_repeat_and_the_order_is_the_same_every_time() -> None:
    turns = list(in_turn("abc", 20))
    assert Counter(turns) == Counter((repeat, way) for repeat in range(20) for way in "abc")
    assert [repeat for repeat, _ in turns] == sorted(repeat for repeat, _ in turns)
    assert turns == list(in_turn("abc", 20))
    assert len({tuple(way for each, way in turns if each == repeat) for repeat in range(20)}) > 1


def test_ratios_are_taken_within_a_repeat_whatever_the_order() -> None:
    ours = [measurement("a", 1, seconds=4.0), measurement("a", 0, seconds=1.0)]
    base = [measurement("b", 0, seconds=2.0), measurement("b", 1, seconds=2.0)]
    assert ratios(of_way([*ours, *base], way="a"), base) == [0.5, 2.0]


def test_what_did_not_finish_has_no_ratio_and_is_told_in_words() -> None:
    ours = [measurement("a", 0, seconds=1.0), measurement("a", 1, ended="did not finish in 9 s")]
    base = [measurement("b", 0, seconds=2.0), measurement("b", 1, seconds=2.0)]
    assert ratios(ours, base) == [0.5]
    assert ratios(base, ours) == [2.0]
    assert times(ours) == "did not finish in 9 s"
    assert times(base) == "2.00 (2.00 to 2.00)"
    assert most(ours[1:], "seconds", ".1f") == ""


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5])
def test_the_exponent_of_a_power_is_that_power(power: float) -> None:
    sizes = [10, 100, 1_000]
    assert math.isclose(exponent(sizes, [3 * size**power for size in sizes]), power, abs_tol=1e-12)


def test_there_is_an_exponent_for_every_repeat_in_which_all_sizes_finished() -> None:
    measured = [
        {"size": size, "repeat": repeat, "seconds": float(size) ** (1 + repeat)}
        for size in (1, 10, 100)
        for repeat in range(2)
    ]
    assert exponents(measured, (1, 10, 100)) == pytest.approx([1.0, 2.0])
    del measured[-1]["seconds"]
    assert exponents(measured, (1, 10, 100)) == pytest.approx([1.0])
    assert exponents(measured, (1, 10)) == pytest.approx([1.0, 2.0])


def test_text_has_three_digits_and_the_range() -> None:
    assert reported([0.01234, 123456.0, 1.0]) == "1.00 (0.0123 to 123,456)"
    assert reported([]) == ""
