"""Secure sums whose coordinator equivocates, and a silo that restarts in the middle of one."""

import pytest

from adversary.hostile import SILOS, Peer, Stage, wait_for
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


class Chair:
    """A coordinator that calls sessions and asks for sums as it likes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.terms, _, _ = stage.study.terms()
        self.links = Peer(stage, COORDINATOR).preside(*SILOS)
        self.number = 0

    def ask(self, silo: str, body):
        self.number += 1
        message = Message(study=self.terms.digest, run="a" * 16, round=self.number, silo=silo, body=body)
        answer = self.links.asked(silo, encode(message), self.number)
        assert answer, "an answer"
        return decode(answer).body

    def session(self, *members: Member) -> Session:
        return Session(study=self.terms.digest, run="a" * 16, attempt=1, members=members)

    def signed(self) -> tuple[Member, ...]:
        """Return the places of a session that all silos have signed."""
        keys = {name: self.ask(name, OpenSession(attempt=1)) for name in SILOS}
        assert all(isinstance(key, SessionKey) for key in keys.values())
        return tuple(
            Member(silo=name, n_rows=key.n_rows, key=key.key, signature=key.signature)
            for name, key in keys.items()
        )

    def masked(self, *members: Member):
        return self.ask("north", AskQuery(index=0, label="moment", session=self.session(*members)))

    def charges(self) -> int:
        return len(self.stage.record().charges["north"])


@pytest.fixture(scope="module")
def chair(tmp_path_factory):
    stage = Stage(tmp_path_factory.mktemp("secure"), secure=True)
    stage.start(*SILOS)
    made = Chair(stage)
    yield made
    made.links.leave()
    stage.stop()


def test_a_silo_that_restarts_in_the_middle_of_a_sum_has_lost_its_key_and_says_so(chair):
    members = chair.signed()
    chair.stage.stop("north")
    wait_for(lambda: "north" not in chair.links.connected(), "north's end")
    chair.stage.start("north")
    wait_for(lambda: "north" in chair.links.connected(), "north's return")
    assert isinstance(chair.masked(*members), KeyGone)
    assert chair.charges() == 0


def test_forged_places_and_second_sessions_are_refused_and_one_sum_is_charged_once(chair):
    """Two sums over different silos with the same noise give one silo away by their difference."""
    members = north, south, east = chair.signed()
    before = chair.charges()
    for n_rows, key in ((10**9, east.key), (400, bytes(32)), (400, south.key)):
        forged = Member(silo="east", n_rows=n_rows, key=key, signature=east.signature)
        assert isinstance(chair.masked(north, south, forged), Refusal)
    assert isinstance(chair.masked(north), Refusal)
    assert isinstance(chair.ask("north", ASK_MOMENT), Refusal)
    assert chair.charges() == before
    first = chair.masked(*members)
    assert isinstance(first, QueryAnswer)
    assert isinstance(chair.masked(north, south), Refusal | KeyGone)
    assert chair.masked(*members).words.tobytes() == first.words.tobytes()
    assert chair.charges() == before + 1
