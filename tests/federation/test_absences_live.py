"""A coordinator and four silos as separate processes, of which one is late, full, spent or gone.

Every test asserts on the result and on the ledgers: nothing lost, nothing charged twice, no hang.
"""

import json

import numpy as np
import pytest
from ground import SILOS, Ground, held_up, wait_for

from fedpower.errors import ProtocolError
from fedpower.privacy.ledger import Ledger
from fedpower.report.result import read_result

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def held():
    with held_up():
        yield


@pytest.fixture(scope="module")
def lenient(held, tmp_path_factory):
    """A federation that goes on with three; only who is held up is longer than the grace."""
    ground = Ground(tmp_path_factory.mktemp("lenient"), min_silos=3, deadline=20.0, grace=4.0)
    ground.start()
    yield ground
    ground.stop()


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
def prepared(held, tmp_path_factory):
    """A federation that finds its own scales and goes on with three."""
    folder = tmp_path_factory.mktemp("prepared")
    ground = Ground(folder, min_silos=3, deadline=20.0, grace=2.0, prepared=True)
    ground.start()
    yield ground
    ground.stop()


def test_a_silo_that_vanishes_between_tallies_and_moment_is_named_and_not_counted(prepared):
    prepared.fresh()
    prepared.hold("west", "before-5")
    run = prepared.run("vanished")
    prepared.reached("west", "before-5")
    prepared.kill("west")
    prepared.release("west", "before-5")
    run.result()
    found = read_result(prepared.folder / "vanished")
    assert found.absent == ("west",)
    assert found.silo_sizes == {"north": 400, "south": 450, "east": 500}
    assert found.n_samples == 1350
    assert len(prepared.charges("west")) == 4
    prepared.start("west")


def test_a_study_run_again_while_a_silo_is_away_says_so_and_charges_nothing(prepared):
    prepared.fresh()
    first = prepared.run("complete").result()
    charges = {name: prepared.charges(name) for name in SILOS}
    prepared.kill("west")
    wait_for(lambda: prepared.gone("west"), "the end of west's node")
    with pytest.raises(ProtocolError, match="without west, so it asks other questions") as caught:
        prepared.run("incomplete", patience=1.0).result()
    assert "run again without --resume" in str(caught.value)
    prepared.start("west")
    again = prepared.run("again").result()
    assert np.array_equal(again["components"], first["components"])
    assert {name: prepared.charges(name) for name in SILOS} == charges


@pytest.fixture(scope="module")
def summed(held, tmp_path_factory):
    """A secure sum over all four or none."""
    ground = Ground(tmp_path_factory.mktemp("summed"), min_silos=4, deadline=25.0, secure=True)
    ground.start()
    yield ground
    ground.stop()


def test_a_silo_killed_between_roll_call_and_upload_is_called_to_a_new_roll(summed):
    """Its key died with it; the others' uploads come from their ledgers, and the next session is summed."""
    summed.fresh()
    summed.hold("west", "before-2")
    run = summed.run("session-died")
    summed.reached("west", "before-2")
    others = SILOS[:3]
    wait_for(lambda: all(summed.charges(name) for name in others), "the others' uploads")
    summed.kill("west")
    wait_for(lambda: summed.gone("west"), "the end of west's node")
    summed.release("west", "before-2")
    summed.start("west")
    run.result()
    charged = {name: len(summed.charges(name)) for name in SILOS}
    assert charged == {"north": 2, "south": 2, "east": 2, "west": 1}
    assert [each["restarted"] for each in summed.rounds] == [[], [], ["west"], [], []]
    kinds = [each["kind"] for each in summed.rounds]
    assert kinds == ["enrol", "open-session", "moment", "open-session", "moment"]
    stated = json.loads((summed.folder / "session-died" / "run.json").read_text())["privacy"]
    spent = max(np.sqrt(sum(mu**2 for _, _, mu, _ in summed.charges(name))) for name in SILOS)
    assert stated["protections"][1]["mu"] == pytest.approx(spent)
