"""The checkpoint on disk: whatever happens to the file, the run ends with the same bytes."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import write_silo, write_study

from fedpower.errors import ProtocolError
from fedpower.federation.coordinator_node import Checkpoint, CoordinatorNode
from fedpower.federation.silo_node import SiloNode, open_silo
from fedpower.federation.study_file import StudyFile
from fedpower.protocol import journal
from fedpower.protocol.silo import Silo

RUN = "0123456789abcdef"
SETTINGS: dict[str, dict[str, Any]] = {
    "upload": {},
    "fedpower, step": {
        "privacy": {"noise": "step"},
        "solver": {"solver": "fedpower", "n_steps": 4, "local_steps": 2},
    },
    "krylov, moment": {"solver": {"solver": "krylov"}},
    "exact krylov": {"privacy": {"epsilon": float("inf"), "delta": None},
                     "solver": {"solver": "krylov"}},
}  # fmt: skip


@contextmanager
def silos_of(study: StudyFile, folder: Path) -> Iterator[dict[str, SiloNode]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(open_silo(study, write_silo(folder, name)))
            for name in study.silos
        }


class Counted:
    """Counts the questions that reach silos."""

    def __init__(self, nodes: dict[str, SiloNode]) -> None:
        self.silos: dict[str, Silo] = {name: node.silo for name, node in nodes.items()}
        self.ledgers = {name: node.ledger for name, node in nodes.items()}
        self.n = 0

    def charges(self) -> list[int]:
        return [0 if each is None else each.spent().n_releases for each in self.ledgers.values()]

    def finish(self, node: CoordinatorNode, rounds: int = 10**6) -> None:
        for _ in range(rounds):
            if node.coordinator.done:
                return
            for asked in node.coordinator.next():
                self.n += 1
                node.coordinator.receive(self.silos[asked.silo].answer(asked))


def told(node: CoordinatorNode) -> bytes:
    model = node.fitted()
    arrays = (model.components_, model.explained_variance_, model.mean_)
    rows = [each.as_row() for each in node.coordinator.history]
    return (
        b"".join(np.asarray(each).tobytes() for each in arrays)
        + repr((rows, node.outcome.privacy)).encode()
    )


@pytest.fixture(params=SETTINGS)
def federation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    study = write_study(tmp_path, **SETTINGS[request.param])
    with silos_of(study, tmp_path) as nodes:
        yield study, Counted(nodes), tmp_path / "runs" / RUN / "rounds.journal"


def test_resumed_after_any_round_nothing_is_asked_or_charged_twice(federation: Any) -> None:
    study, silos, path = federation
    whole = CoordinatorNode(study, run=RUN, checkpoint=path)
    silos.finish(whole)
    expected, charges, asked = told(whole), silos.charges(), silos.n
    content = path.read_bytes()
    ends = journal.read(content).ends
    for place, end in enumerate(ends):
        path.write_bytes(content[:end])
        silos.n = 0
        resumed = CoordinatorNode(study, run=RUN, checkpoint=path)
        assert resumed.coordinator.n_replayed == place
        silos.finish(resumed)
        assert silos.n == asked - sum(len(each.asked) for each in whole.coordinator.history[:place])
        assert told(resumed) == expected
        assert path.read_bytes() == content
    assert silos.charges() == charges


def test_cut_short_anywhere_it_ends_with_the_same_bytes_and_no_further_charge(
    tmp_path: Path,
) -> None:
    study = write_study(tmp_path)
    path = tmp_path / "rounds.journal"
    with silos_of(study, tmp_path) as nodes:
        silos = Counted(nodes)
        whole = CoordinatorNode(study, run=RUN, checkpoint=path)
        silos.finish(whole)
        content, expected = path.read_bytes(), told(whole)
        # `test_journal` shows for every byte which rounds stand; here is what becomes of the file.
        for cut in {*journal.read(content).ends, *range(0, len(content), 61)}:
            path.write_bytes(content[:cut])
            resumed = CoordinatorNode(study, run=RUN, checkpoint=path)
            silos.finish(resumed)
            assert told(resumed) == expected
            assert path.read_bytes() == content
        assert silos.charges() == [1, 1, 1]


def test_with_a_bit_turned_anywhere_it_is_refused_or_ends_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    study = write_study(tmp_path)
    path = tmp_path / "rounds.journal"
    chance = random.Random(0)
    with silos_of(study, tmp_path) as nodes:
        silos = Counted(nodes)
        whole = CoordinatorNode(study, run=RUN, checkpoint=path)
        silos.finish(whole)
        content, expected = path.read_bytes(), told(whole)
        opening = len(journal.opening(whole.study.digest, RUN))
        for place in [*range(0, opening, 7), *range(opening, len(content), 53)]:
            turned = bytearray(content)
            turned[place] ^= 1 << chance.randrange(8)
            path.write_bytes(turned)
            if place < opening:
                with pytest.raises(ProtocolError, match="start the run anew: silos give the same"):
                    CoordinatorNode(study, run=RUN, checkpoint=path)
                assert path.read_bytes() == turned
                continue
            resumed = CoordinatorNode(study, run=RUN, checkpoint=path)
            assert resumed.checkpoint.n_lost > 0
            silos.finish(resumed)
            assert told(resumed) == expected
            assert path.read_bytes() == content
        assert silos.charges() == [1, 1, 1]


@pytest.mark.parametrize("other", [{"run": "f" * 16}, {"study": "0" * 64}])
def test_rounds_of_another_run_or_study_are_refused(other: dict[str, str], tmp_path: Path) -> None:
    whose = {"study": "5" * 64, "run": RUN}
    path = tmp_path / "rounds.journal"
    Checkpoint(path, **whose)
    before = path.read_bytes()
    with pytest.raises(ProtocolError, match=r"must belong to run .*, got run .*; start a new run"):
        Checkpoint(path, **{**whose, **other})
    assert path.read_bytes() == before


def test_records_of_other_questions_make_room_for_the_right_ones(tmp_path: Path) -> None:
    """Another version or machine may ask otherwise; what it wrote must not hide what follows."""
    study = write_study(tmp_path, **SETTINGS["krylov, moment"])
    path = tmp_path / "rounds.journal"
    with silos_of(study, tmp_path) as nodes:
        silos = Counted(nodes)
        whole = CoordinatorNode(study, run=RUN, checkpoint=path)
        silos.finish(whole)
        content, expected = path.read_bytes(), told(whole)
        held = journal.read(content)
        assert len(held.rounds) >= 3
        asked_otherwise = held.rounds[1]
        asked_otherwise.question = "0" * 64
        strange = journal.record(asked_otherwise, whole.study.digest, RUN)
        path.write_bytes(content[: held.ends[1]] + strange + content[held.ends[2] :])
        resumed = CoordinatorNode(study, run=RUN, checkpoint=path)
        assert resumed.coordinator.n_replayed == 1
        assert path.read_bytes() == content[: held.ends[1]]
        silos.finish(resumed, rounds=1)
        assert path.read_bytes() == content[: held.ends[2]]
        silos.finish(resumed)
        assert told(resumed) == expected


def test_the_result_folder_says_what_the_run_was(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    with silos_of(study, tmp_path) as nodes:
        silos = Counted(nodes)
        path = tmp_path / "rounds.journal"
        silos.finish(CoordinatorNode(study, run=RUN, checkpoint=path), rounds=1)
        node = CoordinatorNode(study, run=RUN, checkpoint=path)
        silos.finish(node)
        record = node.write_result(tmp_path / "result")
    assert record["federation"] == {
        "name": study.name,
        "agreement": study.digest,
        "run": RUN,
        "rounds_resumed": 1,
        "silent": {"north": 0, "south": 0, "east": 0},
        "set_aside": {},
    }
    assert (tmp_path / "result" / "run.json").is_file()
    assert not any("budget" in each for each in record["silos"])  # a silo's ledger is its own
    page = (tmp_path / "result" / "report.html").read_text(encoding="utf-8")
    assert study.name in page
    assert "known to that silo alone" in page
    assert str(tmp_path) not in page
