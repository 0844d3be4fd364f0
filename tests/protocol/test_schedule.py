"""Schedules against a brute-force reading of the equations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower.errors import InputError
from fedpower.protocol import decaying, every, explicit, halving

steps = st.integers(1, 60)
intervals = st.integers(1, 12)


@given(intervals, steps)
def test_every_p_is_equation_3_1(p: int, n_steps: int) -> None:
    assert every(p).rounds(n_steps) == tuple(t for t in range(1, n_steps + 1) if t % p == 0)


@given(intervals, steps)
def test_decaying_p_is_equation_3_11(p: int, n_steps: int) -> None:
    expected = {sum(max(p - i, 1) for i in range(last + 1)) for last in range(n_steps + 1)} & set(
        range(1, n_steps + 1)
    )
    assert decaying(p).rounds(n_steps) == tuple(sorted(expected))


@given(intervals, steps)
def test_halving_p_halves_the_interval_until_it_is_one(p: int, n_steps: int) -> None:
    expected = {sum(max(p // 2**i, 1) for i in range(last + 1)) for last in range(n_steps + 1)} & set(
        range(1, n_steps + 1)
    )
    assert halving(p).rounds(n_steps) == tuple(sorted(expected))


def test_the_paper_s_setting_takes_nine_rounds() -> None:
    assert decaying(2).rounds(10) == (2, 3, 4, 5, 6, 7, 8, 9, 10)


def test_an_explicit_schedule_is_taken_as_it_is() -> None:
    assert explicit([5, 2, 9]).rounds(7) == (2, 5)
    assert explicit({10}).rounds(10) == (10,)
    assert explicit({4}).last_step == 4


@pytest.mark.parametrize("bad", [lambda: every(0), lambda: explicit([]), lambda: explicit([0, 2])])
def test_a_schedule_that_cannot_be_is_refused_in_one_sentence(bad: object) -> None:
    with pytest.raises(InputError, match="must be"):
        bad()  # type: ignore[operator]
