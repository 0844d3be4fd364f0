"""500 seeded runs over a network that fails, between processes that die: nothing lost, nothing twice.

Three in ten messages are lost, late, repeated or altered; silos restart from their ledgers, before they
answer and after they were charged; the coordinator restarts from its checkpoint, also before a round was
written. Time is virtual: nobody sleeps.
"""

import random
from pathlib import Path

import pytest

from federations import CASES, Party, coordinator_of, deliver, parties_of, result_bytes
from fedpower.errors import ProtocolError
from fedpower.protocol import Coordinator, decode, encode
from fedpower.protocol.coordinator import Recorded
from fedpower.protocol.messages import decode_as
from networks import Network

RUN = "a-run"
DEADLINE, ASK_AGAIN = 14.0, 6.0
MOST_EVENTS = 20_000
SEEDS_A_TEST = 20
N_RUNS = 500
"""Each case comes 33 times at least."""


class DiedError(Exception):
    """A process was killed."""


class CoordinatorProcess:
    """A coordinator that keeps time, writes its checkpoint, and dies now and then."""

    def __init__(self, case: str, parties: dict[str, Party], network: Network, chance: random.Random) -> None:
        self.case, self.parties, self.network, self.chance = case, parties, network, chance
        self.stored: list[bytes] = []
        self.n_starts = 0
        self.start()
        self.tick()

    def start(self) -> None:
        """Take up the run from its checkpoint, as a new process does."""
        self.n_starts += 1
        recorded = [decode_as(each, Recorded) for each in self.stored]
        self.coordinator = coordinator_of(
            self.case, run=RUN, recorded=recorded, min_silos=3, on_closed=self.write
        )
        assert self.coordinator.n_replayed == len(recorded)
        self.opened = self.network.now

    def write(self, closed: Recorded) -> None:
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
            self.or_start_again(lambda running: running.deadline())
        for question in self.coordinator.next():
            to = self.parties[question.silo]
            self.network.send(encode(question), lambda raw, to=to: self.at_silo(to, raw))
        self.network.call(ASK_AGAIN, self.tick)

    def at_silo(self, party: Party, raw: bytes) -> None:
        try:
            question = decode(raw)
        except ProtocolError:
            return
        if self.chance.random() < 0.05:
            party.restart()
        answer = party.answer(question)
        if self.chance.random() < 0.05:
            party.restart()  # killed between the charge and the answer
            return
        self.network.send(encode(answer), self.arrived)

    def arrived(self, raw: bytes) -> None:
        try:
            answer = decode(raw)
        except ProtocolError:
            return
        self.or_start_again(lambda running: running.receive(answer))

    def or_start_again(self, act: object) -> None:
        """Do something to the coordinator; one that dies of it or ends the run is started anew."""
        try:
            act(self.coordinator)  # type: ignore[operator]
        except (DiedError, ProtocolError):
            self.start()


def run_to_its_end(case: str, seed: int, folder: Path | None) -> CoordinatorProcess:
    chance = random.Random(seed)
    network = Network(chance)
    process = CoordinatorProcess(case, parties_of(case, seed=seed, folder=folder), network, chance)
    while not process.coordinator.done:
        network.step()
        assert network.n_events < MOST_EVENTS, "the run hangs"
    return process


def without_faults(case: str, seed: int, process: CoordinatorProcess) -> Coordinator:
    """Return the run in which the same silos heard the same in the same order, and all went well."""
    answers = {}
    for name, party in parties_of(case, seed=seed).items():
        for number, question in process.parties[name].asked.items():
            answers[name, number] = party.answer(question)
    coordinator = coordinator_of(case, run=RUN, min_silos=3)
    for closed in process.coordinator.history:
        for name in closed.answers:
            coordinator.receive(answers[name, closed.number])
        if not coordinator.done and coordinator.history[-1].number == closed.number:
            coordinator.deadline()
    return coordinator


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, N_RUNS, SEEDS_A_TEST))
def test_a_run_ends_with_the_same_bytes_and_every_charge_is_made_once(first: int, tmp_path: Path) -> None:
    n_restarted = n_absent = 0
    for seed in range(first, first + SEEDS_A_TEST):
        case = list(CASES)[seed % len(CASES)]
        folder = None
        if seed % 20 == 0:
            folder = tmp_path / str(seed)
            folder.mkdir()
        process = run_to_its_end(case, seed, folder)
        coordinator, parties = process.coordinator, process.parties
        assert not any(each.refused for each in coordinator.history)
        for party in parties.values():
            assert party.n_charged == party.n_due(), (seed, case, party.name)
        expected = without_faults(case, seed, process)
        assert result_bytes(case, coordinator) == result_bytes(case, expected), (seed, case)
        if all(tuple(each.answers) == each.asked for each in coordinator.history):
            unbroken, plain = coordinator_of(case, run=RUN), parties_of(case, seed=seed)
            deliver(unbroken, plain)
            assert result_bytes(case, coordinator) == result_bytes(case, unbroken), (seed, case)
        assert len(process.stored) == len(coordinator.history)
        n_restarted += process.n_starts > 1
        n_absent += sum(set(closed.asked) != set(closed.answers) for closed in coordinator.history)
        for party in parties.values():
            party.stop()
    assert n_restarted > 2, "processes die"
    assert n_absent > 2, "rounds go on without somebody"
