"""A run taken up from its closed rounds ends as if it had never stopped, and asks nothing twice."""

import numpy as np
import pytest
from msgspec import structs

from federations import (
    CASES,
    Party,
    closed_rounds,
    coordinator_of,
    deliver,
    parties_of,
    result_bytes,
    study_of,
)
from fedpower.protocol import Coordinator


def n_asked(parties: dict[str, Party]) -> list[int]:
    return [party.n_asked for party in parties.values()]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_resumed_after_any_round_it_equals_the_uninterrupted_run_bit_for_bit(case: str) -> None:
    whole, unbroken = coordinator_of(case), parties_of(case)
    deliver(whole, unbroken)
    expected = result_bytes(case, whole)
    assert len(whole.history) >= 2
    for stopped_after in range(len(whole.history) + 1):
        parties = parties_of(case)
        first = coordinator_of(case)
        deliver(first, parties, rounds=stopped_after)
        for party in parties.values():
            party.restart()
        second = coordinator_of(case, recorded=closed_rounds(first))
        assert second.n_replayed == stopped_after
        deliver(second, parties)
        assert result_bytes(case, second) == expected
        assert n_asked(parties) == n_asked(unbroken)
        charges = [party.n_charged for party in unbroken.values()]
        assert [party.n_charged for party in parties.values()] == charges


@pytest.mark.parametrize("case", ["fedpower, step", "krylov, moment", "upload, moment"])
def test_a_round_that_was_answered_but_not_written_down_is_asked_again_free_of_charge(case: str) -> None:
    whole, unbroken = coordinator_of(case), parties_of(case)
    deliver(whole, unbroken)
    for lost in range(1, len(whole.history)):
        parties = parties_of(case)
        first = coordinator_of(case)
        deliver(first, parties, rounds=lost)
        second = coordinator_of(case, recorded=closed_rounds(first)[:-1])
        deliver(second, parties)
        assert result_bytes(case, second) == result_bytes(case, whole)
        assert all(party.n_charged == unbroken[name].n_charged for name, party in parties.items())


def test_what_is_played_back_is_reported_but_not_written_down_again() -> None:
    case = "krylov"
    first, parties = coordinator_of(case), parties_of(case)
    deliver(first, parties, rounds=3)
    digested: list[int] = []
    written: list[int] = []
    second = coordinator_of(
        case,
        recorded=closed_rounds(first),
        on_round=lambda closed: digested.append(closed.number),
        on_closed=lambda closed: written.append(closed.number),
    )
    assert (digested, written) == ([0, 1, 2], [])
    deliver(second, parties)
    numbers = [each.number for each in second.history]
    assert (digested, written) == (numbers, numbers[3:])


@pytest.mark.parametrize(("altered", "how"), [*enumerate(["study", "run", "question", "asked"])], ids=str)
def test_a_record_that_answers_another_question_is_ignored_from_there_on(altered: int, how: str) -> None:
    case = "fedpower"
    whole, parties = coordinator_of(case), parties_of(case)
    deliver(whole, parties)
    records = closed_rounds(whole)
    assert coordinator_of(case, recorded=records * 2).done
    other = ("north",) if how == "asked" else "0" * 64
    records[altered] = structs.replace(records[altered], **{how: other})
    again = parties_of(case)
    second = coordinator_of(case, recorded=records)
    assert second.n_replayed == altered
    deliver(second, again)
    assert result_bytes(case, second) == result_bytes(case, whole)
    assert n_asked(again) == [len(whole.history) - altered] * len(again)


def test_rounds_of_another_start_basis_are_not_taken_for_this_run_s() -> None:
    case = "fedpower"
    other = Coordinator(
        CASES[case].solve(np.random.default_rng(99)),
        tuple(parties_of(case)),
        study=study_of(case),
        run="a-run",
    )
    deliver(other, parties_of(case))
    resumed, parties = coordinator_of(case, recorded=closed_rounds(other)), parties_of(case)
    assert resumed.n_replayed == 2  # enrolment and mean are the same questions for all
    deliver(resumed, parties)
    whole = coordinator_of(case)
    deliver(whole, parties_of(case))
    assert result_bytes(case, resumed) == result_bytes(case, whole)
