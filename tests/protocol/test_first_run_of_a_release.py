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


@pytest.mark.parametrize("case", CASES)
def test_the_first_run_of_an_upload_promises_the_public_more_and_another_does_not(case: str) -> None:
    """Rounds of products promise the public no more than the coordinator."""
    parties = parties_of(case)
    inside, outside = public_epsilon(case, parties, "first")
    assert (outside < inside) == (case == "upload, moment")
    assert public_epsilon(case, parties, "second") == (inside, inside)
    assert [party.n_charged for party in parties.values()] == [1] * len(parties)


@pytest.mark.parametrize("n_asked", [1, 4], ids=["one silo", "a run that was not finished"])
def test_an_older_release_takes_the_promise_away(n_asked: int) -> None:
    case = "upload, moment"
    parties = parties_of(case)
    for name, party in [*parties.items()][:n_asked]:
        party.answer(Message(study=party.study.digest, run="earlier", round=9, silo=name, body=ASK_MOMENT))
    inside, outside = public_epsilon(case, parties, "first")
    assert outside == inside


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
        assert result_bytes(case, again) == result_bytes(case, first)  # the statement too


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
