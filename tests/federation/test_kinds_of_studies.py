"""Kinds of studies as their parties run them: resumed, repeated, charged once, plain and with secure sums."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ground import fedpower
from studies import (
    COLUMNS,
    RUN,
    SIZES,
    open_silos,
    run_study,
    secure_tables,
    silo_rows,
    write_rows,
    write_silo,
    write_study,
)

from fedpower import FedMoment, FedPCA, read_moment
from fedpower.analyses import Completion
from fedpower.errors import InputError
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.local import rehearsal_data
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.solvers.angles import DETERMINED
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import table_rules
from fedpower.sums.survey import STAGES

CLIPPED = {"noise": "clipped", "energy": 0.5}
SCORES = {"scores_epsilon": 0.25}
PREPARED = {"row_norm": None}
TALLIES = [*STAGES, "moment"]
PRODUCTS = ["moment", *(f"product {step}" for step in range(1, 7))]
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "moment": ({}, {}, ["moment"]),
    "clipped": ({}, CLIPPED, PRODUCTS),
    "clipped, uncentred": ({"center": False}, CLIPPED, PRODUCTS),
    "prepared": (PREPARED, {}, TALLIES),
    "scores": ({}, SCORES, ["moment", "scores"]),
    "prepared scores": (PREPARED, SCORES, [*TALLIES, "scores"]),
}
"""By name: the tables [rows] and [privacy] of a study, and the kinds of its releases."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_study_is_resumed_and_run_again_and_charged_once(tmp_path: Path, kind: str):
    rows, privacy, kinds = KINDS[kind]
    study = write_study(tmp_path, rows=rows, privacy=privacy)
    journal = tmp_path / "runs" / RUN / "rounds.journal"
    with open_silos(study, tmp_path, cap=1.0) as silos:
        silos.finish(StudyRun(study, run=RUN, checkpoint=journal), rounds=1)
        run = StudyRun(study, run=RUN, checkpoint=journal)
        assert run.coordinator.n_replayed == 1
        silos.finish(run)
        again = StudyRun(study, run=RUN, checkpoint=journal)
        other = StudyRun(study, run="another", checkpoint=tmp_path / "other.journal")
        silos.finish(other)
    result = run.result
    run.write_result(tmp_path / "result")
    assert [row["kind"] for row in result.rounds if row["kind"] != "enrol"] == kinds
    assert result.privacy.is_private
    for repeated in (again.result, other.result):
        assert np.array_equal(repeated.components, result.components)
        if rows == PREPARED:
            assert repeated.code_book.treatment == result.code_book.treatment
        for name in study.silos if privacy == SCORES else ():
            assert np.array_equal(repeated.score_counts.counts[name], result.score_counts.counts[name])
    assert (tmp_path / "result" / "codebook.toml").exists() == (rows == PREPARED)
    assert (tmp_path / "result" / "score_counts.csv").exists() == (privacy == SCORES)
    for name in study.silos:
        with Ledger.open(tmp_path / f"{name}.ledger") as ledger:
            assert ledger.spent().n_releases == len(kinds)
            assert 0.5 < ledger.spent().epsilon <= 1.0  # at the ledger's own, larger delta


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "moment"])
def test_a_study_with_secure_sums_is_resumed_and_charged_once(tmp_path: Path, kind: str):
    rows, privacy, kinds = KINDS[kind]
    study = write_study(tmp_path, rows=rows, **secure_tables(tmp_path, **privacy))
    journal = tmp_path / "rounds.journal"
    with open_silos(study, tmp_path) as silos:
        silos.finish(StudyRun(study, run=RUN, checkpoint=journal), rounds=2)
        run = StudyRun(study, run=RUN, checkpoint=journal)
        assert run.coordinator.n_replayed == 2
        silos.finish(run)
        assert silos.charges() == [len(kinds)] * 3
    result = run.result
    assert [row["kind"] for row in result.rounds] == ["open-session", *kinds]
    assert privacy != SCORES or list(result.score_counts.counts) == ["all silos"]
    run.write_result(tmp_path / "result")
    assert (tmp_path / "result" / "codebook.toml").exists() == (rows == PREPARED)
    again = StudyRun(study, run=RUN, checkpoint=journal)
    assert np.array_equal(again.result.components, result.components)


def test_more_than_half_of_epsilon_for_scores_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="at most half"):
        write_study(tmp_path, privacy={"epsilon": 1.0, "scores_epsilon": 0.9})


@pytest.mark.parametrize("asked", ["auto", 0.3])
def test_as_many_components_as_are_determined_are_kept(tmp_path: Path, asked: str | float):
    components = {"n_components": asked}
    study = write_study(tmp_path, components=components, privacy={"epsilon": 50.0}, rows={"row_norm": 8.0})
    run = run_study(study, tmp_path, cap=60.0)
    result = run.result
    record = json.loads((tmp_path / "result" / "run.json").read_text())
    assert result.spectrum is not None
    assert result.determined[0]
    assert asked != "auto" or result.subspace_angles[-1] <= DETERMINED
    assert result.spectrum.size == 5
    assert record["angles"]["determined"] == result.determined
    again = StudyRun(study, run=RUN, checkpoint=tmp_path / f"{RUN}.journal")
    assert again.coordinator.done
    assert again.result.n_components == result.n_components


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_a_moment_that_is_kept_gives_the_same_numbers(tmp_path: Path, aggregation: str):
    tables = secure_tables(tmp_path) if aggregation == "secure" else {}
    study = write_study(tmp_path, **tables)
    run = run_study(study, tmp_path)
    moment = read_moment(tmp_path / "result")
    model = FedPCA(study.options.n_components, standardize=False).fit_moment(moment)
    assert np.array_equal(model.components_, run.result.components)
    assert moment.record.federation.agreement == study.digest


@pytest.mark.parametrize("default", [{"rows": {"rows_per_unit": 1}}], ids=str)
def test_a_default_that_is_written_out_is_the_same_agreement(tmp_path: Path, default: dict[str, Any]):
    assert write_study(tmp_path, **default).digest == write_study(tmp_path).digest


# Persons
UNIT = {"unit": "patient_id"}


def write_visits(path: Path, name: str) -> None:
    """Write rows of persons with two visits each, all first visits before all second ones."""
    rows = silo_rows(name)
    ids = np.arange(len(rows)) % (len(rows) // 2)
    write_rows(path, np.column_stack([rows, ids]), (*COLUMNS, "patient_id"))


@pytest.mark.parametrize("rows", [{}, PREPARED], ids=["bounded", "prepared"])
def test_silos_count_persons(tmp_path: Path, rows: dict[str, Any]):
    study = write_study(tmp_path, rows={**UNIT, **rows})
    result = run_study(study, tmp_path, write=write_visits).result
    assert result.silo_sizes == {name: size // 2 for name, size in SIZES.items()}
    assert result.privacy.unit == "one person of one silo"
    assert "one person of one silo" in (tmp_path / "result" / "privacy.txt").read_text()
    assert "75 persons" in (tmp_path / "result" / "report.html").read_text()


def test_a_silo_without_the_column_of_persons_is_refused_before_it_connects(tmp_path: Path):
    study, own = write_study(tmp_path, rows=UNIT), write_silo(tmp_path, "north")
    refused = pytest.raises(InputError, match="must have the column 'patient_id' that says whose")
    with refused, open_silo(study, own):
        pass


def test_a_study_whose_unit_is_a_feature_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"unit must be no feature.*'age' among the columns"):
        write_study(tmp_path, rows={"unit": "age"})


# Ratings
FILMS = ["alien", "brazil", "casablanca"]
RATING = {"user": "person", "film": "item", "stars": {"kind": "rating", "range": [1, 5], "items": FILMS}}
RATINGS = {
    "columns": {"names": ["user", "film", "stars"]},
    "rules": RATING,
    "rows": {"row_norm": None, "normalize": True, "center": False},
    "components": {"n_components": 1},
}


def write_ratings(path: Path, name: str, persons: int = 60) -> None:
    """Write one rating per row, of three items, each of which two persons in three rated."""
    rng = np.random.default_rng(sum(name.encode()))
    lines = [
        f"{name}-{person},{item},{rng.integers(1, 6)}"
        for person in range(persons)
        for item in FILMS
        if rng.random() < 2 / 3 or item == "alien"
    ]
    rng.shuffle(lines)
    path.write_text("\n".join(["user,film,stars", *lines]) + "\n")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["plain", "exact", "secure"])
def test_ratings_are_completed_from_the_moment_of_a_study(tmp_path: Path, kind: str):
    privacy: dict[str, Any] = {
        "plain": {"privacy": {}},
        "exact": {"privacy": {"epsilon": float("inf"), "delta": None}},
        "secure": secure_tables(tmp_path),
    }[kind]
    study = write_study(tmp_path, **RATINGS, **privacy)
    assert study.columns[:2] == ("alien", "alien known")
    run_study(study, tmp_path, write=write_ratings)
    moment = read_moment(tmp_path / "result")
    assert moment.silo_sizes == dict.fromkeys(study.silos, 60)
    assert tuple(Completion(1).fit(moment).items_) == tuple(FILMS)
    if kind == "exact":
        book = CodeBook(rules=table_rules(RATING, "the test"), normalize=True)
        central = FedMoment(epsilon=float("inf"), center=False, codebook=book)
        central.fit_silos({name: tmp_path / f"{name}.csv" for name in study.silos})
        assert np.abs(moment.pooled.moment - central.moment_.pooled.moment).max() < 1e-8


def test_ratings_that_are_made_up_for_a_rehearsal_keep_to_the_rules(tmp_path: Path):
    study = write_study(tmp_path, **RATINGS, privacy={"epsilon": float("inf"), "delta": None})
    for name, path in rehearsal_data(study, 3, tmp_path / "rows", None, lambda _: None).items():
        (tmp_path / f"{name}.toml").write_text(f'silo = "{name}"\n[data]\npath = "{path}"\n')
        with open_silo(study, read_silo(tmp_path / f"{name}.toml")) as node:
            assert node.moment.source.columns == study.columns


@pytest.mark.federation
def test_ratings_are_rehearsed_over_flare_with_one_command(tmp_path: Path):
    """Fails with probability below 1e-9: a count is known to within 2% at epsilon = 20."""
    write_study(tmp_path, **RATINGS, privacy={"epsilon": 20.0})
    (tmp_path / "rows").mkdir()
    for name in SIZES:
        write_ratings(tmp_path / "rows" / f"{name}.csv", name, persons=400)
    done = fedpower("run", "study.toml", "--local=3", "--data=rows", "-o", "result", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_samples"] == 1200
    derived = fedpower("derive", "result", "complete", "-k1", "--json", cwd=tmp_path)
    assert derived.returncode == 0, derived.stderr
    facts = json.loads(derived.stdout)
    assert facts["items"] == FILMS
    assert facts["weight"][0] > 1.2 * max(facts["weight"][1:])
