"""Schedules against a brute-force reading of the equations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower.errors import InputError
from fedpower.protocol import decaying, every, explicit, halving


@given(p=st.integers(1, 12), n_steps=st.integers(1, 60))
def test_rounds_are_those_of_the_equations(p: int, n_steps: int) -> None:
    """[FP eqs. 3.1 and 3.11], and intervals that are halved."""
    possible, places = set(range(1, n_steps + 1)), range(n_steps + 1)
    for schedule, interval in ((decaying(p), lambda i: p - i), (halving(p), lambda i: p // 2**i)):
        expected = {sum(max(interval(i), 1) for i in range(last + 1)) for last in places} & possible
        assert schedule.rounds(n_steps) == tuple(sorted(expected))
    assert every(p).rounds(n_steps) == tuple(t for t in range(1, n_steps + 1) if t % p == 0)


def test_the_paper_s_setting_takes_nine_rounds_and_explicit_steps_are_taken_as_they_are() -> None:
    assert decaying(2).rounds(10) == (2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert explicit([5, 2, 9]).rounds(7) == (2, 5)
    assert explicit({10}).rounds(10) == (10,)
    assert explicit({4}).last_step == 4


@pytest.mark.parametrize("bad", [lambda: every(0), lambda: explicit([]), lambda: explicit([0, 2])])
def test_a_schedule_that_cannot_be_is_refused_in_one_sentence(bad: object) -> None:
    with pytest.raises(InputError, match="must be"):
        bad()  # type: ignore[operator]
