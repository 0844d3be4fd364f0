"""A coordinator and four silos as separate processes, mutual TLS on the loopback; what befalls them.

Every test asserts on the result and on the ledgers: nothing lost, nothing charged twice, no hang.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from ground import SILOS, Ground, held_up, in_process, wait_for

from fedpower.federation.kits import COORDINATOR

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def held():
    with held_up():
        yield


@pytest.fixture(scope="module")
def strict(held, tmp_path_factory):
    """A federation that goes on only with all four."""
    ground = Ground(tmp_path_factory.mktemp("strict"), min_silos=4, deadline=25.0)
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


def test_a_coordinator_killed_between_rounds_and_a_damaged_checkpoint_are_survived(strict, expected):
    strict.fresh()
    strict.hold(COORDINATOR, "between-3")
    run = strict.run("coordinator-killed-between")
    strict.reached(COORDINATOR, "between-3")
    strict.kill(COORDINATOR)
    strict.release(COORDINATOR, "between-3")
    journal = max((strict.place(COORDINATOR) / "runs").glob("*/rounds.journal"), key=os.path.getmtime)
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
from fedpower.federation.runner import Runner
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


def test_a_replayed_round_gets_the_same_bytes_and_junk_gets_none_and_neither_is_charged(strict, expected):
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
    assert reported == {"malformed": 0, "empty": 0, "oversized": None}
    assert strict.log("north").count("refused what is no question of this study") == 2
