"""A study with ``noise = "clipped"`` as the parties of a federation run it."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from studies import write_silo, write_study
from test_checkpoint import KEYS, RUN, Counted, secure_silos_of

from fedpower.federation.coordinator import StudyRun
from fedpower.federation.silo_file import open_silo
from fedpower.privacy.ledger import Ledger

CLIPPED = {"epsilon": 1.0, "noise": "clipped", "energy": 0.5}


@pytest.mark.parametrize("center", [True, False])
def test_a_clipped_study_is_run_taken_up_again_and_charged_once(tmp_path: Path, center: bool):
    study = write_study(tmp_path, rows={"center": center}, privacy=CLIPPED)
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
        again = StudyRun(study, run=RUN, checkpoint=path)
        other = StudyRun(study, run="another", checkpoint=tmp_path / "other.journal")
        silos.finish(other)
    assert [row["kind"] for row in node.result.rounds] == ["moment"] + ["noised-sum"] * 6
    for one in (again.result, other.result):
        assert np.array_equal(one.components, node.result.components)
    for name in study.silos:
        with Ledger.open(tmp_path / f"{name}.ledger") as ledger:
            assert ledger.spent().n_releases == 7
            assert 0.5 < ledger.spent().epsilon <= 1.0  # at the ledger's own delta


def test_a_clipped_study_over_secure_sums_is_taken_up_again(tmp_path: Path):
    for name, key in KEYS.items():
        key.save(tmp_path / f"{name}.pem")
    study = write_study(
        tmp_path,
        privacy=CLIPPED | {"aggregation": "secure"},
        identities={name: key.public for name, key in KEYS.items()},
    )
    path = tmp_path / "runs" / RUN / "rounds.journal"
    with secure_silos_of(study, tmp_path) as silos:
        first = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(first, rounds=4)
        node = StudyRun(study, run=RUN, checkpoint=path)
        assert node.coordinator.n_replayed == 4
        silos.finish(node)
        assert silos.charges() == [7, 7, 7]
    assert [row["kind"] for row in node.result.rounds] == ["call-roll"] + ["masked-sum"] * 7
    again = StudyRun(study, run=RUN, checkpoint=path)
    assert np.array_equal(again.result.components, node.result.components)
