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

from fedpower.federation.study_file import COORDINATOR
from fedpower.privacy.ledger import Ledger

pytestmark = pytest.mark.federation


@pytest.fixture
def ground(request, tmp_path):
    with running(tmp_path, **request.param) as made:
        yield made


def runs_on(**terms):
    """Give a test a running federation of these terms."""
    return pytest.mark.parametrize("ground", [terms], indirect=True, ids=[""])


RUNNER = """
import sys
from pathlib import Path
from fedpower.federation.kits import Kit
from fedpower.federation.runner import Runner
from fedpower.federation.study_file import read_study
kit, place = map(Path, sys.argv[1:])
study = read_study(kit.parents[1] / "study.toml")
Runner(kit=Kit(kit), study=study, patience=90.0, say=print, on_round=print).run(place, resume=False)
"""


@runs_on(deadline=25.0)
def test_a_killed_runner_silo_and_coordinator_and_a_damaged_checkpoint_are_survived(ground, tmp_path):
    """The result is that of the same study in this process, with the same noise."""
    for what in ("before-2", "after-2"):
        ground.hold("west", what)
    (tmp_path / "lost").mkdir()
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(ground.runner), str(tmp_path / "lost")])
    ground.reached("west", "before-2")
    wait_for(lambda: len(ground.charges("north")) == 2, "north's second release")
    runner.kill()
    runner.wait()
    ground.kill(COORDINATOR)  # within a round
    ground.release("west", "before-2")
    ground.reached("west", "after-2")
    assert len(ground.charges("west")) == 2, "charged before it leaves"
    ground.kill("west")
    ground.release("west", "after-2")
    ground.hold(COORDINATOR, "between-3")
    ground.start(COORDINATOR, "west")
    run = ground.run("resumed", resume=True)
    ground.reached(COORDINATOR, "between-3")
    ground.kill(COORDINATOR)  # between rounds
    ground.release(COORDINATOR, "between-3")
    last = max((ground.place(COORDINATOR) / "runs").glob("*/rounds/3.round"), key=os.path.getmtime)
    content = bytearray(last.read_bytes())
    content[-200] ^= 1
    last.write_bytes(content)
    before = {name: ground.charges(name) for name in SILOS}
    ground.start(COORDINATOR)
    arrays, (expected, charges) = run(), in_process(ground, tmp_path / "in-process")
    np.testing.assert_array_equal(arrays["components"], expected.result.components)
    np.testing.assert_array_equal(arrays["explained_variance"], expected.result.explained_variance)
    assert {name: ground.charges(name) for name in SILOS} == charges
    assert all(ground.charges(name)[: len(old)] == old for name, old in before.items())
    assert "round 3 of the checkpoint is damaged" in ground.log(COORDINATOR)


@runs_on(min_silos=3, deadline=20.0, grace=4.0)
def test_a_silo_that_sleeps_or_whose_disk_or_budget_is_full_is_left_out_and_charged_nothing(ground):
    for number in (1, 2, 3):
        ground.hold("west", f"before-{number}")
    run = ground.run("straggler")
    ground.closed(1)
    ground.release("west", "before-1")
    ground.reached("west", "before-2")
    before = ground.charges("west")
    ground.hold("west", "full")
    ground.release("west", "before-2")
    ground.closed(2)
    assert ground.charges("west") == before
    ground.reached("west", "before-3")
    ground.release("west", "full")
    with Ledger.open(ground.ledger("west")) as ledger:
        ledger.set_cap(ledger.spent().epsilon * 1.0001, ledger.spent().delta, reason="a test of running out")
    ground.release("west", "before-3")
    run()
    assert ground.charges("west") == before
    with Ledger.open(ground.ledger("west")) as ledger:
        assert ledger.spent().epsilon <= ledger.spent().cap
    silent = {closed["round"]: closed["silent"] for closed in ground.rounds}
    assert (silent[0], silent[1]) == ([], ["west"])
    refused = {closed["round"]: closed["refused"] for closed in ground.rounds if closed["refused"]}
    assert all(set(each) == {"west"} for each in refused.values())
    assert refused[2]["west"] == "the silo could not answer; its operator can read why in the silo's log"
    assert all("left" in refused[number]["west"] or "spend" in refused[number]["west"] for number in (3, 4))
    assert "the silo could not answer" in ground.log("west")
    for name in SILOS:
        assert len({key for key, *_ in ground.charges(name)}) == len(ground.charges(name)) <= 4
    assert len(ground.charges("north")) == 4


@runs_on(kind="secure", deadline=25.0)
def test_a_silo_killed_between_session_and_upload_is_called_to_a_new_session(ground):
    """Its key died with it; the others' uploads come from their ledgers, and the next session is ground."""
    ground.hold("west", "before-2")
    run = ground.run("session-died")
    ground.reached("west", "before-2")
    wait_for(lambda: all(ground.charges(name) for name in SILOS[:3]), "the others' uploads")
    ground.kill("west")
    ground.gone("west")
    ground.release("west", "before-2")
    ground.start("west")
    run()
    charged = {name: len(ground.charges(name)) for name in SILOS}
    assert charged == {"north": 2, "south": 2, "east": 2, "west": 1}
    assert [closed["restarted"] for closed in ground.rounds] == [[], [], ["west"], [], []]
    kinds = [closed["kind"] for closed in ground.rounds]
    assert kinds == ["enrol", "open-session", "covariance", "open-session", "covariance"]
    stated = json.loads((ground.folder / "session-died" / "run.json").read_text())["privacy"]
    spent = max(np.sqrt(sum(mu**2 for _, _, mu, _ in ground.charges(name))) for name in SILOS)
    assert stated["protections"][1]["mu"] == pytest.approx(spent)
