"""A noised moment knows its first run: to the public, only that one may promise a smaller epsilon."""

import numpy as np
import pytest
from msgspec.structs import replace

from federations import (
    ASK_MOMENT,
    Party,
    closed_rounds,
    coordinator_of,
    deliver,
    outcome_of,
    parties_of,
    result_bytes,
)
from fedpower.protocol.messages import AskMoment, AskSteps, Message, encode, read_only

CASES = ["upload, moment", "krylov, moment"]


def public_epsilon(case: str, parties: dict[str, Party], run: str) -> tuple[float, float]:
    coordinator = coordinator_of(case, run=run)
    deliver(coordinator, parties)
    inside, outside = outcome_of(case, coordinator).privacy.protections
    return inside.epsilon, outside.epsilon


def test_the_first_run_of_a_release_promises_the_public_more() -> None:
    inside, outside = public_epsilon("upload, moment", parties_of("upload, moment"), "first")
    assert outside < inside


def test_rounds_of_products_promise_the_public_no_more_than_the_coordinator() -> None:
    inside, outside = public_epsilon("krylov, moment", parties_of("krylov, moment"), "first")
    assert outside == inside


@pytest.mark.parametrize("case", CASES)
def test_another_run_does_not_and_costs_nothing(case: str) -> None:
    parties = parties_of(case)
    inside, _ = public_epsilon(case, parties, "first")
    assert public_epsilon(case, parties, "second") == (inside, inside)
    assert [party.n_charged for party in parties.values()] == [1] * len(parties)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_keeps_its_promise(case: str) -> None:
    parties = parties_of(case)
    first = coordinator_of(case, run="first")
    deliver(first, parties)
    for n_rounds in range(len(first.history) + 1):
        for party in parties.values():
            party.restart()
        again = coordinator_of(case, run="first", recorded=closed_rounds(first)[:n_rounds])
        deliver(again, parties)
        assert result_bytes(case, again) == result_bytes(case, first)
    _, outside = outcome_of(case, again).privacy.protections
    inside, _ = outcome_of(case, again).privacy.protections
    assert (outside.epsilon < inside.epsilon) == (case == "upload, moment")


@pytest.mark.parametrize("case", CASES)
def test_one_silo_whose_release_is_older_takes_the_promise_away(case: str) -> None:
    parties = parties_of(case)
    north = parties["north"]
    north.answer(Message(study=north.study.digest, run="earlier", round=99, silo="north", body=ASK_MOMENT))
    inside, outside = public_epsilon(case, parties, "first")
    assert outside == inside


def test_a_run_that_was_begun_and_not_finished_is_the_first_all_the_same() -> None:
    case = "krylov, moment"
    parties = parties_of(case)
    deliver(coordinator_of(case, run="abandoned"), parties, rounds=3)
    inside, outside = public_epsilon(case, parties, "second")
    assert outside == inside


@pytest.mark.parametrize(
    "body",
    [ASK_MOMENT, AskSteps(basis=read_only(np.eye(6)[:, :3]), n_local_steps=2, center=np.zeros(6))],
    ids=["moment", "steps"],
)
def test_a_silo_s_answer_is_the_same_bytes_for_every_run_and_after_every_restart(
    body: AskMoment | AskSteps,
) -> None:
    party = parties_of("upload, moment")["north"]
    sent = set()
    for run in ("first", "second", "first", "third"):
        asked = Message(study=party.study.digest, run=run, round=1, silo="north", body=body)
        answer = party.answer(asked)
        assert answer.body.made_for == "first"  # type: ignore[union-attr]
        sent.add(encode(replace(answer, run="")))
        party.restart()
    assert len(sent) == 1
