"""A study that agrees on no centre, scale or bound: the run finds them."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
from studies import write_silo, write_study
from test_checkpoint import KEYS, RUN, Counted, secure_silos_of

from fedpower.federation.coordinator import StudyRun
from fedpower.federation.silo_file import open_silo
from fedpower.privacy.ledger import Ledger


def test_a_study_without_public_numbers_is_run_taken_up_again_and_charged_once(tmp_path: Path):
    study = write_study(tmp_path, rows={"row_norm": None}, privacy={"epsilon": 1.0})
    path = tmp_path / "runs" / RUN / "rounds.journal"
    with ExitStack() as stack:
        silos = Counted(
            {
                name: stack.enter_context(open_silo(study, write_silo(tmp_path, name, cap=1.5)))
                for name in study.silos
            }
        )
        node = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(node)
        found = node.result
        node.write_result(tmp_path / "result")
        again = StudyRun(study, run=RUN, checkpoint=path)
        other = StudyRun(study, run="another", checkpoint=tmp_path / "other.journal")
        silos.finish(other)
    assert [row["kind"] for row in found.rounds] == ["tally"] * 5 + ["prepared-moment"]
    assert found.privacy.is_private
    assert (tmp_path / "result" / "codebook.toml").exists()
    assert found.code_book is not None
    for one in (again.result, other.result):
        assert np.array_equal(one.components, found.components)
        assert one.code_book is not None
        assert one.code_book.treatment == found.code_book.treatment
    for name in study.silos:
        with Ledger.open(tmp_path / f"{name}.ledger") as ledger:
            assert ledger.spent().n_releases == 6


def test_a_study_with_secure_sums_and_without_public_numbers_is_run_and_taken_up_again(tmp_path: Path):
    for name, key in KEYS.items():
        key.save(tmp_path / f"{name}.pem")
    study = write_study(
        tmp_path,
        rows={"row_norm": None},
        privacy={"epsilon": 1.0, "aggregation": "secure"},
        identities={name: key.public for name, key in KEYS.items()},
    )
    path = tmp_path / "runs" / RUN / "rounds.journal"
    with secure_silos_of(study, tmp_path) as silos:
        first = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(first, rounds=4)
        node = StudyRun(study, run=RUN, checkpoint=path)
        assert node.coordinator.n_replayed == 4
        silos.finish(node)
        assert silos.charges() == [6, 6, 6]
        found = node.result
        node.write_result(tmp_path / "result")
    assert [row["kind"] for row in found.rounds] == ["call-roll"] + ["masked-sum"] * 6
    assert (tmp_path / "result" / "codebook.toml").exists()
    again = StudyRun(study, run=RUN, checkpoint=path)
    assert np.array_equal(again.result.components, found.components)
