"""A run taken up from its closed rounds ends as if it had never stopped, and asks nothing twice."""

import numpy as np
import pytest
from msgspec import structs

from federations import (
    ASK_MOMENT,
    CASES,
    Party,
    closed_rounds,
    coordinator_of,
    deliver,
    outcome_of,
    parties_of,
    result_bytes,
)
from fedpower.protocol.coordinator import Round
from fedpower.protocol.messages import AskSteps, Message, encode, read_only


def n_asked(parties: dict[str, Party]) -> list[int]:
    return [party.n_asked for party in parties.values()]


RELEASED_ONCE = ["upload, covariance", "krylov, covariance"]


@pytest.mark.parametrize(
    "case",
    [
        *RELEASED_ONCE,
        *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case not in RELEASED_ONCE),
    ],
)
def test_resumed_after_any_round_it_equals_the_uninterrupted_run_bit_for_bit(case):
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


@pytest.mark.parametrize("case", ["fedpower, step", "krylov, covariance", "upload, covariance"])
def test_a_round_that_was_answered_but_not_written_down_is_asked_again_free_of_charge(case):
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


def test_what_is_played_back_is_reported_but_not_written_down_again():
    case = "krylov"
    first, parties = coordinator_of(case), parties_of(case)
    deliver(first, parties, rounds=3)
    digested: list[Round] = []
    written: list[Round] = []
    hooks = {"on_round": digested.append, "on_closed": written.append}
    second = coordinator_of(case, recorded=closed_rounds(first), **hooks)
    assert ([each.number for each in digested], written) == ([0, 1, 2], [])
    deliver(second, parties)
    numbers = [each.number for each in second.history]
    assert [each.number for each in digested] == numbers
    assert [each.number for each in written] == numbers[3:]


@pytest.mark.parametrize(("altered", "how"), [*enumerate(["study", "run", "question", "asked"])], ids=str)
def test_a_record_that_answers_another_question_is_ignored_from_there_on(altered, how):
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


# A noised moment knows its first run: to the public, only that one may promise a smaller epsilon.


def public_epsilon(case: str, parties: dict[str, Party], run: str) -> tuple[float, float]:
    coordinator = coordinator_of(case, run=run)
    deliver(coordinator, parties)
    inside, outside = outcome_of(case, coordinator).privacy.protections
    return inside.epsilon, outside.epsilon


@pytest.mark.parametrize("case", RELEASED_ONCE)
def test_the_first_run_of_an_upload_promises_the_public_more_and_another_does_not(case):
    """Rounds of products promise the public no more than the coordinator."""
    parties = parties_of(case)
    inside, outside = public_epsilon(case, parties, "first")
    assert (outside < inside) == (case == "upload, covariance")
    assert public_epsilon(case, parties, "second") == (inside, inside)
    assert [party.n_charged for party in parties.values()] == [1] * len(parties)


@pytest.mark.parametrize("n_asked", [1, 4], ids=["one silo", "a run that was not finished"])
def test_an_older_release_takes_the_promise_away(n_asked):
    case = "upload, covariance"
    parties = parties_of(case)
    for name, party in [*parties.items()][:n_asked]:
        party.answer(Message(study=party.study.digest, run="earlier", round=9, silo=name, body=ASK_MOMENT))
    inside, outside = public_epsilon(case, parties, "first")
    assert outside == inside


@pytest.mark.parametrize(
    "body",
    [ASK_MOMENT, AskSteps(basis=read_only(np.eye(6)[:, :3]), n_local_steps=2, center=np.zeros(6))],
    ids=["covariance", "steps"],
)
def test_a_silo_s_answer_is_the_same_bytes_for_every_run_and_after_every_restart(body):
    party = parties_of("upload, covariance")["north"]
    sent = set()
    for run in ("first", "second", "first", "third"):
        asked = Message(study=party.study.digest, run=run, round=1, silo="north", body=body)
        answer = party.answer(asked)
        assert answer.body.made_for == "first"  # type: ignore[union-attr]
        sent.add(encode(structs.replace(answer, run="")))
        party.restart()
    assert len(sent) == 1
