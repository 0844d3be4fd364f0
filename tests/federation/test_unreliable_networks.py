"""500 seeded runs over a network that fails, between processes that die: nothing lost, nothing twice.

Three in ten messages are lost, late, repeated or altered; silos restart from their ledgers, before they
answer and after they were charged; the coordinator restarts from its checkpoint, also before a round was
written. Time is virtual: nobody sleeps.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from federations import CASES, Party, coordinator_of, parties_of, result_bytes
from fedpower.exceptions import ProtocolError
from fedpower.protocol.coordinator import Coordinator, Round
from fedpower.protocol.messages import decode, decode_as, encode

Deliver = Callable[[bytes], None]

USUAL, LATEST = 1.0, 60.0
"""How long a message takes, and a late one at most."""


class Network:
    """Carries bytes; each message meets a fault with a given probability, drawn from ``chance``.

    Nobody sleeps: :meth:`step` delivers what is next and puts the clock forward.
    """

    def __init__(self, chance: random.Random, *, faults: float = 0.3) -> None:
        self.now = 0.0
        self.n_events = 0
        self._chance = chance
        self._faults = faults
        self._under_way: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def send(self, content: bytes, deliver: Deliver) -> None:
        """Take a message; what becomes of it is for chance to say."""
        fault = None
        if self._chance.random() < self._faults:
            fault = self._chance.choice(("lost", "late", "repeated", "altered"))
        if fault == "lost":
            return
        if fault == "altered":
            turned = bytearray(content)
            turned[self._chance.randrange(len(turned))] ^= 1 << self._chance.randrange(8)
            content = bytes(turned)
        copies = self._chance.randrange(2, 4) if fault == "repeated" else 1
        for _ in range(copies):
            slow = fault in ("late", "repeated")
            delay = self._chance.uniform(USUAL / 2, LATEST if slow else 2 * USUAL)
            self.call(delay, lambda: deliver(content))

    def call(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._under_way, (self.now + delay, next(self._number), action))

    def step(self) -> None:
        self.now, _, action = heapq.heappop(self._under_way)
        self.n_events += 1
        action()


RUN = "a-run"
DEADLINE, ASK_AGAIN = 14.0, 6.0
MOST_EVENTS = 20_000
SEEDS_A_TEST = 20
N_RUNS = 500
"""Each case comes 33 times at least."""


class DiedError(Exception):
    """A process was killed."""


class Run:
    """A run to its end, whose coordinator keeps time, writes its checkpoint, and dies now and then."""

    def __init__(self, case: str, seed: int, folder: Path | None) -> None:
        self.case, self.chance = case, random.Random(seed)
        self.network, self.parties = Network(self.chance), parties_of(case, seed=seed, folder=folder)
        self.stored: list[bytes] = []
        self.n_starts = 0
        self.start()
        self.tick()
        while not self.coordinator.done:
            self.network.step()
            assert self.network.n_events < MOST_EVENTS, "the run hangs"

    def start(self) -> None:
        self.n_starts += 1
        recorded = [decode_as(each, Round) for each in self.stored]
        self.coordinator = coordinator_of(
            self.case, run=RUN, recorded=recorded, min_silos=3, on_closed=self.write
        )
        assert self.coordinator.n_replayed == len(recorded)
        self.opened = self.network.now

    def write(self, closed: Round) -> None:
        if self.chance.random() < 0.05:
            raise DiedError
        self.stored.append(encode(closed))
        self.opened = self.network.now

    def tick(self) -> None:
        """Ask those who have not answered once more, or close the round when its time is over."""
        if self.coordinator.done:
            return
        if self.chance.random() < 0.02:
            self.start()
        elif self.network.now - self.opened >= DEADLINE:
            self.or_start_again(self.coordinator.deadline)
        for question in self.coordinator.next():
            to = self.parties[question.silo]
            self.network.send(encode(question), lambda raw, to=to: self.at_silo(to, raw))
        self.network.call(ASK_AGAIN, self.tick)

    def at_silo(self, party: Party, raw: bytes) -> None:
        with suppress(ProtocolError):  # it was altered on the way
            question = decode(raw)
            if self.chance.random() < 0.05:
                party.restart()
            answer = party.answer(question)
            if self.chance.random() < 0.05:
                party.restart()  # killed between the charge and the answer
            else:
                self.network.send(encode(answer), self.arrived)

    def arrived(self, raw: bytes) -> None:
        with suppress(ProtocolError):
            answer = decode(raw)
            self.or_start_again(lambda: self.coordinator.receive(answer))

    def or_start_again(self, act: Callable[[], object]) -> None:
        """Do something to the coordinator; one that dies of it or ends the run is started anew."""
        try:
            act()
        except (DiedError, ProtocolError):
            self.start()


def without_faults(seed: int, run: Run) -> Coordinator:
    """Return the run in which the same silos heard the same in the same order, and all went well."""
    answers = {
        (name, number): party.answer(question)
        for name, party in parties_of(run.case, seed=seed).items()
        for number, question in run.parties[name].asked.items()
    }
    coordinator = coordinator_of(run.case, run=RUN, min_silos=3)
    for closed in run.coordinator.history:
        for name in closed.answers:
            coordinator.receive(answers[name, closed.number])
        if not coordinator.done and coordinator.history[-1].number == closed.number:
            coordinator.deadline()
    return coordinator


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, N_RUNS, SEEDS_A_TEST))
def test_a_run_ends_with_the_same_bytes_and_every_charge_is_made_once(first, tmp_path):
    n_restarted = n_absent = 0
    for seed in range(first, first + SEEDS_A_TEST):
        case = list(CASES)[seed % len(CASES)]
        folder = None
        if seed % 20 == 0:
            folder = tmp_path / str(seed)
            folder.mkdir()
        run = Run(case, seed, folder)
        history, parties = run.coordinator.history, run.parties
        assert not any(each.refused for each in history)
        for party in parties.values():
            assert party.n_charged == party.n_due(), (seed, case, party.name)
        expected = without_faults(seed, run)
        assert result_bytes(case, run.coordinator) == result_bytes(case, expected), (seed, case)
        assert len(run.stored) == len(history)
        n_restarted += run.n_starts > 1
        n_absent += sum(set(closed.asked) != set(closed.answers) for closed in history)
        for party in parties.values():
            party.stop()
    assert n_restarted > 2, "processes die"
    assert n_absent > 2, "rounds go on without somebody"
