"""Secure sums whose coordinator equivocates, and a silo that restarts in the middle of one."""

import numpy as np
import pytest

from adversary.hostile import HONEST, SILOS, Peer, Stage, wait_for
from federations import ASK_MOMENT
from fedpower.federation.kits import COORDINATOR
from fedpower.protocol.messages import (
    AskQuery,
    KeyGone,
    Member,
    Message,
    OpenSession,
    QueryAnswer,
    Refusal,
    Session,
    SessionKey,
    decode,
    encode,
)

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    made = Stage(tmp_path_factory.mktemp("secure"), secure=True)
    made.start(*SILOS)
    yield made
    made.stop()


class Chair:
    """A coordinator that calls sessions and asks for sums as it likes."""

    def __init__(self, stage) -> None:
        self.terms, _, _ = stage.study.terms()
        self.links = Peer(stage, COORDINATOR).preside(*SILOS)
        self.number = 0

    def ask(self, silo: str, body, *, run="a" * 16):
        self.number += 1
        message = Message(study=self.terms.digest, run=run, round=self.number, silo=silo, body=body)
        answer = self.links.asked(silo, encode(message), self.number)
        assert answer, "an answer"
        return decode(answer).body

    def session(self, attempt: int, *silos: str, run="a" * 16) -> Session:
        """Return a session that these silos have signed."""
        places = []
        for name in silos:
            each = self.ask(name, OpenSession(attempt=attempt), run=run)
            assert isinstance(each, SessionKey), each
            place = Member(silo=name, n_rows=each.n_rows, key=each.key, signature=each.signature)
            places.append(place)
        return Session(study=self.terms.digest, run=run, attempt=attempt, members=tuple(places))

    def masked(self, silo: str, session: Session):
        return self.ask(silo, AskQuery(index=0, label="moment", session=session), run=session.run)


@pytest.fixture(scope="module")
def chair(stage):
    made = Chair(stage)
    yield made
    made.links.leave()


def charges(stage, name="north") -> int:
    return len(stage.record().charges[name])


def test_a_silo_that_restarts_in_the_middle_of_a_sum_has_lost_its_key_and_says_so(stage, chair):
    session = chair.session(1, *SILOS)
    stage.stop("north")
    wait_for(lambda: "north" not in chair.links.connected(), "north's end")
    stage.start("north")
    wait_for(lambda: "north" in chair.links.connected(), "north's return")
    assert isinstance(chair.masked("north", session), KeyGone)
    assert charges(stage) == 0
    assert set(HONEST) <= set(chair.links.connected())


def test_a_forged_place_and_all_but_masked_sums_are_refused_and_cost_nothing(stage, chair):
    honest = chair.session(1, *SILOS)
    before = charges(stage)
    for place in (
        Member(silo="east", n_rows=10**9, key=honest.members[2].key, signature=honest.members[2].signature),
        Member(silo="east", n_rows=400, key=bytes(32), signature=honest.members[2].signature),
        Member(silo="east", n_rows=400, key=honest.members[1].key, signature=honest.members[1].signature),
    ):
        forged = Session(study=honest.study, run=honest.run, attempt=1, members=(*honest.members[:2], place))
        assert isinstance(chair.masked("north", forged), Refusal)
    single = Session(study=honest.study, run=honest.run, attempt=1, members=honest.members[:1])
    assert isinstance(chair.masked("north", single), Refusal)
    assert isinstance(chair.ask("north", ASK_MOMENT), Refusal)
    assert charges(stage) == before


def test_a_second_session_of_an_attempt_is_refused(stage, chair):
    """Two sums over different silos with the same noise give one silo away by their difference."""
    before = charges(stage)
    three = chair.session(1, *SILOS)
    two = Session(study=three.study, run=three.run, attempt=1, members=three.members[:2])
    first = chair.masked("north", three)
    assert isinstance(first, QueryAnswer)
    assert isinstance(chair.masked("north", two), Refusal | KeyGone)
    again = chair.masked("north", three)
    assert again.words.tobytes() == first.words.tobytes()
    assert charges(stage) == before + 1


def test_silos_with_different_sessions_give_a_sum_that_says_nothing(stage, chair):
    three = chair.session(2, *SILOS)
    two = Session(study=three.study, run=three.run, attempt=2, members=three.members[:2])
    north, south = chair.masked("north", three), chair.masked("south", two)
    total = (north.words + south.words).view(np.int64)
    assert np.abs(total.astype(float)).max() > 2.0**60, "masks that do not cancel"


def test_attempts_end_where_the_study_says_whatever_runs_are_called(stage, chair):
    given = []
    for number in range(6):
        run = f"{number:016x}"
        try:
            session = chair.session(number + 1 if number < chair.terms.attempts else 1, *SILOS, run=run)
        except AssertionError:  # a refusal in place of a signature
            continue
        given.append(chair.masked("north", session))
    assert sum(isinstance(answer, QueryAnswer) for answer in given) <= chair.terms.attempts
    assert charges(stage) <= chair.terms.attempts
