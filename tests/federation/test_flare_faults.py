"""A coordinator and four silos as separate processes, mutual TLS on the loopback; what befalls them.

Every test asserts on the result and on the ledgers: nothing lost, nothing charged twice, no hang.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ground import SILOS, Ground, in_process, wait_for

from fedpower.federation import policy
from fedpower.federation.kits import COORDINATOR
from fedpower.privacy.ledger import Ledger

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def held():
    """Let FLARE load the classes that can be held up; only the tests' own kits allow them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "CONTROLLER", "federation_apps.HeldController")
        patch.setattr(policy, "EXECUTOR", "federation_apps.HeldSilo")
        patch.setattr(policy, "JOB_CHECK", "federation_apps.HeldJobCheck")
        here = str(Path(__file__).parent)
        patch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture(scope="module")
def strict(held, tmp_path_factory):
    """A federation that goes on only with all four."""
    ground = Ground(tmp_path_factory.mktemp("strict"), min_silos=4, deadline=25.0)
    ground.start()
    yield ground
    ground.stop()


@pytest.fixture(scope="module")
def lenient(held, tmp_path_factory):
    """A federation that goes on with three; stragglers get a second."""
    ground = Ground(tmp_path_factory.mktemp("lenient"), min_silos=3, deadline=20.0, grace=1.0)
    ground.start()
    yield ground
    ground.stop()


@pytest.fixture(scope="module")
def expected(strict, tmp_path_factory):
    """What the same study gives in this process, with the same noise."""
    folder = tmp_path_factory.mktemp("in-process") / "run"
    return in_process(strict, folder)


def assert_as_expected(ground, run, expected):
    node, charges = expected
    found = node.result
    arrays = run.result()
    np.testing.assert_array_equal(arrays["components"], found.components)
    np.testing.assert_array_equal(arrays["explained_variance"], found.explained_variance)
    assert {name: ground.charges(name) for name in SILOS} == charges


def test_separate_processes_give_the_bytes_of_one_process(strict, expected):
    strict.fresh()
    assert_as_expected(strict, strict.run("plain"), expected)
    assert [each["answered"] for each in strict.rounds] == [list(SILOS)] * 5
    record = json.loads((strict.folder / "plain" / "run.json").read_text())
    assert record["federation"]["agreement"] == strict.study.digest
    assert record["study"]["hash"] == expected[0].study.digest


def test_a_silo_killed_within_a_round_comes_back_without_a_second_charge(strict, expected):
    strict.fresh()
    strict.hold("west", "after-2")
    run = strict.run("silo-killed")
    strict.reached("west", "after-2")
    assert len(strict.charges("west")) == 2, "charged before it leaves"
    strict.kill("west")
    strict.release("west", "after-2")
    strict.start("west")
    assert_as_expected(strict, run, expected)


def test_a_coordinator_killed_within_a_round_goes_on_with_it(strict, expected):
    strict.fresh()
    strict.hold("west", "before-2")
    run = strict.run("coordinator-killed-within")
    strict.reached("west", "before-2")
    wait_for(lambda: len(strict.charges("north")) == 2, "north's second release")
    strict.kill(COORDINATOR)
    strict.release("west", "before-2")
    strict.start(COORDINATOR)
    assert_as_expected(strict, run, expected)


def test_a_coordinator_killed_between_rounds_and_a_damaged_checkpoint_are_survived(
    strict, expected
):
    strict.fresh()
    strict.hold(COORDINATOR, "between-3")
    run = strict.run("coordinator-killed-between")
    strict.reached(COORDINATOR, "between-3")
    strict.kill(COORDINATOR)
    strict.release(COORDINATOR, "between-3")
    journal = max(
        (strict.place(COORDINATOR) / "runs").glob("*/rounds.journal"), key=os.path.getmtime
    )
    content = bytearray(journal.read_bytes())
    content[-200] ^= 1
    journal.write_bytes(content)
    before = {name: strict.charges(name) for name in SILOS}
    strict.start(COORDINATOR)
    assert_as_expected(strict, run, expected)
    assert all(strict.charges(name)[: len(old)] == old for name, old in before.items())
    assert "damaged bytes" in strict.log(COORDINATOR)


RUNNER = """
import sys
from pathlib import Path
from fedpower.federation import policy
from fedpower.federation.runner import Runner
policy.CONTROLLER, policy.EXECUTOR = "federation_apps.HeldController", "federation_apps.HeldSilo"
kit, place = map(Path, sys.argv[1:])
Runner(kit=kit, patience=90.0, say=print, on_round=print).run(place, resume=False)
"""


def test_a_runner_that_is_killed_takes_its_run_up_again(strict, expected, tmp_path):
    strict.fresh()
    strict.hold("west", "before-2")
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(strict.runner), str(tmp_path)])
    strict.reached("west", "before-2")
    runner.kill()
    runner.wait()
    strict.release("west", "before-2")
    assert_as_expected(strict, strict.run("resumed", resume=True), expected)


def test_a_replayed_round_gets_the_same_bytes_and_junk_gets_none_and_neither_is_charged(
    strict, expected
):
    strict.fresh()
    strict.hold(COORDINATOR, "replay-2")
    strict.hold(COORDINATOR, "junk")
    assert_as_expected(strict, strict.run("replayed"), expected)
    place = strict.place(COORDINATOR)
    replayed = json.loads((place / "replayed.json").read_text())
    for name in SILOS:
        sent = [line.split() for line in (strict.place(name) / "sent").read_text().splitlines()]
        assert {digest for number, _, digest in sent if number == "2"} == {replayed[name]}
    reported = json.loads((place / "junk.json").read_text())
    assert {tuple(each) for each in reported.values()} == {("BAD_TASK_DATA", False)}
    for refusal in ("at most", "checksum does not match", "must be bytes"):
        assert refusal in strict.log("north")


def test_a_silo_that_sleeps_past_the_deadline_is_left_out_and_asked_again(lenient):
    lenient.fresh()
    lenient.hold("west", "before-2")
    run = lenient.run("straggler")
    wait_for(lambda: any(each["round"] == 2 for each in lenient.rounds), "round 2")
    lenient.release("west", "before-2")
    run.result()
    silent = {each["round"]: each["silent"] for each in lenient.rounds}
    assert silent[2] == ["west"]
    assert silent[1] == []
    for name in SILOS:
        assert len({key for key, *_ in lenient.charges(name)}) == len(lenient.charges(name)) <= 4
    assert len(lenient.charges("north")) == 4


def test_a_silo_whose_disk_is_full_releases_nothing_and_the_others_go_on(lenient):
    lenient.fresh()
    lenient.hold("west", "before-2")
    run = lenient.run("disk-full")
    lenient.reached("west", "before-2")
    before = lenient.charges("west")
    lenient.hold("west", "full")
    lenient.release("west", "before-2")
    run.result()
    assert lenient.charges("west") == before
    refused = {each["round"]: each["refused"] for each in lenient.rounds if each["refused"]}
    sentences = {sentence for each in refused.values() for sentence in each.values()}
    assert all(set(each) == {"west"} for each in refused.values())
    assert sentences <= {"the silo could not answer; its operator's log says why"}
    assert refused
    assert "the silo could not answer" in lenient.log("west")
    assert len(lenient.charges("north")) == 4


def test_a_budget_that_runs_out_meanwhile_is_not_overspent(lenient):
    lenient.fresh()
    lenient.hold("west", "before-2")
    run = lenient.run("budget-gone")
    lenient.reached("west", "before-2")
    with Ledger.open(lenient.ledger("west")) as ledger:
        spent = ledger.spent().epsilon
        ledger.set_cap(spent * 1.0001, ledger.cap[1], reason="a test of running out")
    before = lenient.charges("west")
    lenient.release("west", "before-2")
    run.result()
    assert lenient.charges("west") == before
    with Ledger.open(lenient.ledger("west")) as ledger:
        assert ledger.spent().epsilon <= ledger.cap[0]
    refused = [sentence for each in lenient.rounds for sentence in each["refused"].values()]
    assert refused
    assert all("left" in sentence or "spend" in sentence for sentence in refused)
    assert len(lenient.charges("north")) == 4


@pytest.fixture(scope="module")
def summed(held, tmp_path_factory):
    """A secure sum over all four or none."""
    ground = Ground(tmp_path_factory.mktemp("summed"), min_silos=4, deadline=25.0, secure=True)
    ground.start()
    yield ground
    ground.stop()


def test_a_silo_killed_between_roll_call_and_upload_is_called_to_a_new_roll(summed):
    """Its key died with it; the others' uploads come from their ledgers, and the next roll is summed."""
    summed.fresh()
    summed.hold("west", "before-2")
    run = summed.run("roll-died")
    summed.reached("west", "before-2")
    others = SILOS[:3]
    wait_for(lambda: all(summed.charges(name) for name in others), "the others' uploads")
    summed.kill("west")
    wait_for(lambda: summed.gone("west"), "the end of west's job")
    summed.release("west", "before-2")
    summed.start("west")
    run.result()
    charged = {name: len(summed.charges(name)) for name in SILOS}
    assert charged == {"north": 2, "south": 2, "east": 2, "west": 1}
    assert [each["restarted"] for each in summed.rounds] == [[], [], ["west"], [], []]
    kinds = [each["kind"] for each in summed.rounds]
    assert kinds == ["enrol", "call-roll", "masked-moment", "call-roll", "masked-moment"]
    stated = json.loads((summed.folder / "roll-died" / "run.json").read_text())["privacy"]
    spent = max(np.sqrt(sum(mu**2 for _, _, mu, _ in summed.charges(name))) for name in SILOS)
    assert stated["protections"][1]["mu"] == pytest.approx(spent)
