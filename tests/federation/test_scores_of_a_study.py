"""A study that counts scores: run over its parties' own files, taken up again and charged once."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from studies import write_silo, write_study
from test_checkpoint import KEYS, RUN, Counted, secure_silos_of

from fedpower.errors import InputError
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.silo_file import open_silo
from fedpower.privacy.ledger import Ledger

pytestmark = pytest.mark.slow

PRIVACY = {"epsilon": 1.0, "scores_epsilon": 0.25}


@pytest.mark.parametrize("prepared", [False, True])
def test_scores_of_a_plain_study_are_counted_once_however_often_it_is_run(tmp_path, prepared):
    rows = {"row_norm": None} if prepared else {}
    study = write_study(tmp_path, rows=rows, privacy=PRIVACY)
    path = tmp_path / "runs" / RUN / "rounds.journal"
    with ExitStack() as stack:
        silos = Counted(
            {
                name: stack.enter_context(open_silo(study, write_silo(tmp_path, name, cap=1.0)))
                for name in study.silos
            }
        )
        first = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(first, rounds=1)
        node = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(node)
        other = StudyRun(study, run="another", checkpoint=tmp_path / "other.journal")
        silos.finish(other)
    found = node.result
    node.write_result(tmp_path / "result")
    assert [row["kind"] for row in found.rounds][-1] == "scores"
    assert (tmp_path / "result" / "score_counts.csv").exists()
    for name in study.silos:
        counts = found.score_counts.counts[name]
        assert np.array_equal(counts, other.result.score_counts.counts[name])
        with Ledger.open(tmp_path / f"{name}.ledger") as ledger:
            assert ledger.spent().n_releases == (7 if prepared else 2)
            assert 0.8 < ledger.spent().epsilon <= 1.0  # at the ledger's own, larger delta


@pytest.mark.parametrize("prepared", [False, True])
def test_scores_of_a_study_with_secure_sums_are_its_last_sum(tmp_path: Path, prepared):
    for name, key in KEYS.items():
        key.save(tmp_path / f"{name}.pem")
    study = write_study(
        tmp_path,
        rows={"row_norm": None} if prepared else {},
        privacy={**PRIVACY, "aggregation": "secure"},
        identities={name: key.public for name, key in KEYS.items()},
    )
    n_sums = 7 if prepared else 2
    with secure_silos_of(study, tmp_path) as silos:
        node = StudyRun(study, run=RUN, checkpoint=tmp_path / "rounds.journal")
        silos.finish(node)
        assert silos.charges() == [n_sums] * 3
        found = node.result
    assert [row["kind"] for row in found.rounds] == ["call-roll"] + ["masked-sum"] * n_sums
    assert list(found.score_counts.counts) == ["all silos"]


def test_a_study_with_scores_is_another_and_more_than_half_for_them_is_refused(tmp_path: Path):
    plain = write_study(tmp_path)
    scored = write_study(tmp_path, privacy=PRIVACY)
    assert plain.digest != scored.digest
    with pytest.raises(InputError, match="at most half"):
        write_study(tmp_path, privacy={"epsilon": 1.0, "scores_epsilon": 0.9})
