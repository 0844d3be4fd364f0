"""A coordinator and four silos as separate processes, of which some are killed, late, full, spent or gone.

Every test asserts on the result and on the ledgers: nothing lost, nothing charged twice, no hang.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from ground import SILOS, in_process, running, wait_for

from fedpower.federation.kits import COORDINATOR
from fedpower.privacy.ledger import Ledger

pytestmark = pytest.mark.federation


@pytest.fixture
def strict(tmp_path):
    """A federation that goes on only with all four."""
    with running(tmp_path, deadline=25.0) as ground:
        yield ground


RUNNER = """
import sys
from pathlib import Path
from fedpower.federation.kits import Kit
from fedpower.federation.runner import Runner
kit, place = map(Path, sys.argv[1:])
Runner(kit=Kit(kit), patience=90.0, say=print, on_round=print).run(place, resume=False)
"""


def test_a_killed_runner_silo_and_coordinator_and_a_damaged_checkpoint_are_survived(strict, tmp_path):
    """The result is that of the same study in this process, with the same noise."""
    for what in ("before-2", "after-2"):
        strict.hold("west", what)
    (tmp_path / "lost").mkdir()
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(strict.runner), str(tmp_path / "lost")])
    strict.reached("west", "before-2")
    wait_for(lambda: len(strict.charges("north")) == 2, "north's second release")
    runner.kill()
    runner.wait()
    strict.kill(COORDINATOR)  # within a round
    strict.release("west", "before-2")
    strict.reached("west", "after-2")
    assert len(strict.charges("west")) == 2, "charged before it leaves"
    strict.kill("west")
    strict.release("west", "after-2")
    strict.hold(COORDINATOR, "between-3")
    strict.start(COORDINATOR, "west")
    run = strict.run("resumed", resume=True)
    strict.reached(COORDINATOR, "between-3")
    strict.kill(COORDINATOR)  # between rounds
    strict.release(COORDINATOR, "between-3")
    last = max((strict.place(COORDINATOR) / "runs").glob("*/rounds/3.round"), key=os.path.getmtime)
    content = bytearray(last.read_bytes())
    content[-200] ^= 1
    last.write_bytes(content)
    before = {name: strict.charges(name) for name in SILOS}
    strict.start(COORDINATOR)
    arrays, (expected, charges) = run(), in_process(strict, tmp_path / "in-process")
    np.testing.assert_array_equal(arrays["components"], expected.result.components)
    np.testing.assert_array_equal(arrays["explained_variance"], expected.result.explained_variance)
    assert {name: strict.charges(name) for name in SILOS} == charges
    assert all(strict.charges(name)[: len(old)] == old for name, old in before.items())
    assert "round 3 of the checkpoint is damaged" in strict.log(COORDINATOR)


@pytest.fixture
def lenient(tmp_path):
    """A federation that goes on with three of four."""
    with running(tmp_path, min_silos=3, deadline=20.0, grace=4.0) as ground:
        yield ground


def test_a_silo_that_sleeps_or_whose_disk_or_budget_is_full_is_left_out_and_charged_nothing(lenient):
    for number in (1, 2, 3):
        lenient.hold("west", f"before-{number}")
    run = lenient.run("straggler")
    lenient.closed(1)
    lenient.release("west", "before-1")
    lenient.reached("west", "before-2")
    before = lenient.charges("west")
    lenient.hold("west", "full")
    lenient.release("west", "before-2")
    lenient.closed(2)
    assert lenient.charges("west") == before
    lenient.reached("west", "before-3")
    lenient.release("west", "full")
    with Ledger.open(lenient.ledger("west")) as ledger:
        ledger.set_cap(ledger.spent().epsilon * 1.0001, ledger.spent().delta, reason="a test of running out")
    lenient.release("west", "before-3")
    run()
    assert lenient.charges("west") == before
    with Ledger.open(lenient.ledger("west")) as ledger:
        assert ledger.spent().epsilon <= ledger.spent().cap
    silent = {closed["round"]: closed["silent"] for closed in lenient.rounds}
    assert (silent[0], silent[1]) == ([], ["west"])
    refused = {closed["round"]: closed["refused"] for closed in lenient.rounds if closed["refused"]}
    assert all(set(each) == {"west"} for each in refused.values())
    assert refused[2]["west"] == "the silo could not answer; its operator's log says why"
    assert all("left" in refused[number]["west"] or "spend" in refused[number]["west"] for number in (3, 4))
    assert "the silo could not answer" in lenient.log("west")
    for name in SILOS:
        assert len({key for key, *_ in lenient.charges(name)}) == len(lenient.charges(name)) <= 4
    assert len(lenient.charges("north")) == 4


@pytest.fixture
def summed(tmp_path):
    """A federation that sums securely over all four or not at all."""
    with running(tmp_path, "secure", deadline=25.0) as ground:
        yield ground


def test_a_silo_killed_between_session_and_upload_is_called_to_a_new_session(summed):
    """Its key died with it; the others' uploads come from their ledgers, and the next session is summed."""
    summed.hold("west", "before-2")
    run = summed.run("session-died")
    summed.reached("west", "before-2")
    wait_for(lambda: all(summed.charges(name) for name in SILOS[:3]), "the others' uploads")
    summed.kill("west")
    summed.gone("west")
    summed.release("west", "before-2")
    summed.start("west")
    run()
    charged = {name: len(summed.charges(name)) for name in SILOS}
    assert charged == {"north": 2, "south": 2, "east": 2, "west": 1}
    assert [closed["restarted"] for closed in summed.rounds] == [[], [], ["west"], [], []]
    kinds = [closed["kind"] for closed in summed.rounds]
    assert kinds == ["enrol", "open-session", "moment", "open-session", "moment"]
    stated = json.loads((summed.folder / "session-died" / "run.json").read_text())["privacy"]
    spent = max(np.sqrt(sum(mu**2 for _, _, mu, _ in summed.charges(name))) for name in SILOS)
    assert stated["protections"][1]["mu"] == pytest.approx(spent)
