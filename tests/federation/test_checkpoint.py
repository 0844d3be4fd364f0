"""The checkpoint on disk: whatever happens to the file, the run ends with the same bytes."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import RUN, open_silos, secure_tables, write_study

from fedpower.errors import ProtocolError
from fedpower.federation.coordinator import Checkpoint, StudyRun
from fedpower.protocol import journal

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


def reported(node: StudyRun) -> bytes:
    result = node.result
    arrays = (result.components, result.explained_variance, result.mean)
    rows = [closed.as_row() for closed in node.coordinator.history]
    content = b"".join(np.asarray(array).tobytes() for array in arrays)
    return content + repr((rows, node.outcome.privacy)).encode()


@pytest.mark.parametrize("settings", SETTINGS)
def test_resumed_after_any_round_nothing_is_asked_or_charged_twice(settings: str, tmp_path: Path) -> None:
    study, path = write_study(tmp_path, **SETTINGS[settings]), tmp_path / "runs" / RUN / "rounds.journal"
    with open_silos(study, tmp_path, cap=2.0) as silos:
        whole = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(whole)
        expected, charges, asked = reported(whole), silos.charges(), silos.n
        content = path.read_bytes()
        for place, end in enumerate(journal.read(content).ends):
            path.write_bytes(content[:end])
            silos.n = 0
            resumed = StudyRun(study, run=RUN, checkpoint=path)
            assert resumed.coordinator.n_replayed == place
            silos.finish(resumed)
            earlier = whole.coordinator.history[:place]
            assert silos.n == asked - sum(len(closed.asked) for closed in earlier)
            assert reported(resumed) == expected
            assert path.read_bytes() == content
        assert silos.charges() == charges


@pytest.mark.slow
def test_cut_short_or_with_a_bit_turned_anywhere_it_is_refused_or_ends_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    study, path, chance = write_study(tmp_path), tmp_path / "rounds.journal", random.Random(0)
    with open_silos(study, tmp_path, cap=2.0) as silos:
        whole = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(whole)
        content, expected = path.read_bytes(), reported(whole)
        # `test_journal` shows for every byte which rounds stand; here is what becomes of the file.
        spoilt = [content[:cut] for cut in {*journal.read(content).ends, *range(0, len(content), 61)}]
        opening = len(journal.opening(whole.study.digest, RUN))
        for place in [*range(0, opening, 7), *range(opening, len(content), 53)]:
            turned = bytearray(content)
            turned[place] ^= 1 << chance.randrange(8)
            if place >= opening:
                spoilt.append(bytes(turned))
                continue
            path.write_bytes(turned)
            with pytest.raises(ProtocolError, match="start the run again"):
                StudyRun(study, run=RUN, checkpoint=path)
            assert path.read_bytes() == turned
        for start in spoilt:
            path.write_bytes(start)
            resumed = StudyRun(study, run=RUN, checkpoint=path)
            assert resumed.checkpoint.n_lost > 0 or content.startswith(start)
            silos.finish(resumed)
            assert reported(resumed) == expected
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
    with open_silos(study, tmp_path, cap=2.0) as silos:
        whole = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(whole)
        content, expected = path.read_bytes(), reported(whole)
        held = journal.read(content)
        assert len(held.rounds) >= 3
        asked_otherwise = held.rounds[1]
        asked_otherwise.question = "0" * 64
        strange = journal.record(asked_otherwise)
        path.write_bytes(content[: held.ends[1]] + strange + content[held.ends[2] :])
        resumed = StudyRun(study, run=RUN, checkpoint=path)
        assert resumed.coordinator.n_replayed == 1
        assert path.read_bytes() == content[: held.ends[1]]
        silos.finish(resumed, rounds=1)
        assert path.read_bytes() == content[: held.ends[2]]
        silos.finish(resumed)
        assert reported(resumed) == expected


def test_the_result_folder_says_what_the_run_was(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    with open_silos(study, tmp_path, cap=2.0) as silos:
        path = tmp_path / "rounds.journal"
        silos.finish(StudyRun(study, run=RUN, checkpoint=path), rounds=1)
        node = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(node)
        record = node.write_result(tmp_path / "result")
    assert record["federation"] == {
        "name": study.name,
        "agreement": study.digest,
        "run": RUN,
        "rounds_resumed": 1,
        "silent": {"north": 0, "south": 0, "east": 0},
    }
    assert (tmp_path / "result" / "run.json").is_file()
    assert not any("budget" in each for each in record["silos"])  # a silo's ledger is its own
    page = (tmp_path / "result" / "report.html").read_text(encoding="utf-8")
    assert study.name in page
    assert "known to that silo only" in page
    assert str(tmp_path) not in page


def test_a_run_whose_session_died_with_its_silos_is_taken_up_with_a_new_session(tmp_path: Path) -> None:
    """Silos keep the keys of a session in memory, so those that end with a session open take them along."""
    study, path = write_study(tmp_path, **secure_tables(tmp_path)), tmp_path / "rounds.journal"
    with open_silos(study, tmp_path) as silos:
        node = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(node, rounds=2)
        for asked in node.coordinator.next()[:2]:
            node.coordinator.receive(silos.silos[asked.silo].answer(asked))
        assert silos.charges() == [1, 1, 0]
    with open_silos(study, tmp_path) as silos:
        resumed = StudyRun(study, run=RUN, checkpoint=path)
        assert resumed.coordinator.n_replayed == 2
        silos.finish(resumed, rounds=1)
        assert silos.charges() == [1, 1, 0], "the dead session is asked once more, and costs nothing"
    with open_silos(study, tmp_path) as silos:
        again = StudyRun(study, run=RUN, checkpoint=path)
        assert again.coordinator.n_replayed == 3, "that the session is dead is on disk"
        silos.finish(again)
        assert silos.charges() == [2, 2, 1]
        statement = again.outcome.privacy
        spent = max(ledger.spent().mu for ledger in silos.ledgers.values())
        assert statement.protections[1].mu >= spent * (1 - 1e-12)


def test_the_statement_of_a_new_run_counts_what_an_abandoned_one_has_cost(tmp_path: Path) -> None:
    study = write_study(tmp_path, **secure_tables(tmp_path))
    for run, rounds in (("0" * 16, 2), ("1" * 16, 10)):
        with open_silos(study, tmp_path) as silos:
            node = StudyRun(study, run=run, checkpoint=tmp_path / f"{run}.journal")
            silos.finish(node, rounds=rounds)
            for asked in node.coordinator.next()[:2]:
                silos.silos[asked.silo].answer(asked)
            charges = silos.charges()
            spent = max(ledger.spent().mu for ledger in silos.ledgers.values())
    assert charges == [2, 2, 1]
    assert node.outcome.privacy.protections[1].mu == pytest.approx(spent)
    assert "for 2 attempts, runs before this one counted" in str(node.outcome.privacy)
