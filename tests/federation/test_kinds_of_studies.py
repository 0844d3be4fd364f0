"""Kinds of studies as their parties run them: resumed, repeated, charged once, plain and with secure sums."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from studies import (
    COLUMNS,
    EXACT,
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

from fedpower import FedCommunities, FedMoment, FedPCA, comparisons, read_moment
from fedpower.analyses import Communities, Completion, Ranking
from fedpower.errors import CellError, InputError
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.local import rehearsal_data
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.federation.study_file import StudyFile, read_study
from fedpower.protocol.solvers.angles import DETERMINED
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import table_rules
from fedpower.sums.survey import STAGES
from layers import names_of, planted, write_layer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

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
@pytest.mark.parametrize("aggregation", ["plain", "secure"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_is_resumed_and_run_again_and_charged_once(tmp_path: Path, kind: str, aggregation: str):
    rows, privacy, kinds = KINDS[kind]
    secure = aggregation == "secure"
    tables = secure_tables(tmp_path, **privacy) if secure else {"privacy": privacy}
    study = write_study(tmp_path, rows=rows, **tables)
    rounds, first = tmp_path / "rounds", 2 if secure else 1
    with open_silos(study, tmp_path, cap=5.0 if secure else 1.0) as silos:
        silos.finish(StudyRun(study, run=RUN, checkpoint=rounds), rounds=first)
        run = StudyRun(study, run=RUN, checkpoint=rounds)
        assert run.coordinator.n_replayed == first
        silos.finish(run)
        repeated = [StudyRun(study, run=RUN, checkpoint=rounds)]
        if not secure:
            repeated.append(StudyRun(study, run="another", checkpoint=tmp_path / "other"))
            silos.finish(repeated[-1])
        assert silos.charges() == [len(kinds)] * 3
        spent = [ledger.spent().epsilon for ledger in silos.ledgers.values()]
        assert secure or all(0.5 < epsilon <= 1.0 for epsilon in spent)  # at the ledgers' own, larger delta
    result = run.result
    run.write_result(tmp_path / "result")
    assert [row["kind"] for row in result.rounds] == ["open-session"] * secure + kinds
    assert result.privacy.is_private
    counts = ["all silos"] if secure else list(study.silos)
    assert privacy != SCORES or list(result.score_counts.counts) == counts
    for again in (each.result for each in repeated):
        assert np.array_equal(again.components, result.components)
        assert rows != PREPARED or again.code_book.treatment == result.code_book.treatment
        for name in counts if privacy == SCORES else ():
            assert np.array_equal(again.score_counts.counts[name], result.score_counts.counts[name])
    assert (tmp_path / "result" / "codebook.toml").exists() == (rows == PREPARED)
    assert (tmp_path / "result" / "score_counts.csv").exists() == (privacy == SCORES)


@pytest.mark.parametrize("asked", ["auto", 0.3])
def test_as_many_components_as_are_determined_are_kept(tmp_path: Path, asked: str | float):
    components = {"n_components": asked}
    study = write_study(tmp_path, components=components, privacy={"epsilon": 50.0}, rows={"row_norm": 8.0})
    result = run_study(study, tmp_path, cap=60.0).result
    record = json.loads((tmp_path / "result" / "run.json").read_text())
    assert result.spectrum is not None
    assert result.spectrum.size == 5
    assert result.determined[0]
    assert asked != "auto" or result.subspace_angles[-1] <= DETERMINED
    assert record["angles"]["determined"] == result.determined
    again = StudyRun(study, run=RUN, checkpoint=tmp_path / RUN)
    assert again.coordinator.done
    assert again.result.n_components == result.n_components


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_a_moment_that_is_kept_gives_the_same_numbers(tmp_path: Path, aggregation: str):
    study = write_study(tmp_path, **(secure_tables(tmp_path) if aggregation == "secure" else {}))
    run = run_study(study, tmp_path)
    moment = read_moment(tmp_path / "result")
    model = FedPCA(study.options.n_components, standardize=False).fit_moment(moment)
    assert np.array_equal(model.components_, run.result.components)
    assert moment.record.federation.agreement == study.digest


# --- persons ---

UNIT = {"unit": "patient_id"}


def write_visits(path: Path, name: str) -> None:
    """Write rows of persons with two visits each, all first visits before all second ones."""
    rows = silo_rows(name)
    ids = np.arange(len(rows)) % (len(rows) // 2)
    write_rows(path, np.column_stack([rows, ids]), (*COLUMNS, "patient_id"))


@pytest.mark.parametrize("rows", [{}, PREPARED], ids=["bounded", "prepared"])
def test_silos_count_persons(tmp_path: Path, rows: dict[str, Any]):
    study = write_study(tmp_path, rows={**UNIT, **rows})
    with pytest.raises(InputError, match=r"unit must be a column of .* got 'patient_id'"):
        run_study(study, tmp_path)
    result = run_study(study, tmp_path, write=write_visits).result
    assert result.silo_sizes == {name: size // 2 for name, size in SIZES.items()}
    assert result.privacy.unit == "one person of one silo"
    assert "one person of one silo" in (tmp_path / "result" / "privacy.txt").read_text()
    assert "75 persons" in (tmp_path / "result" / "report.html").read_text()


# --- rules ---


def check_made_up(study: StudyFile, folder: Path) -> None:
    """Assert that rows that are made up for a rehearsal keep to the study's rules."""
    made = rehearsal_data(study, len(study.silos), folder / "rows", None, lambda _: None)
    for name, path in made.items():
        (folder / f"{name}.toml").write_text(f'silo = "{name}"\n[data]\npath = "{path}"\n')
        with open_silo(study, read_silo(folder / f"{name}.toml")) as node:
            assert node.moment.source.columns == study.columns


MIXED = {
    "columns": {"names": ["age", "sex", "cd 4", "seen"]},
    "rules": {
        "pid": "drop",
        "sex": {"levels": ["F", "M"]},
        "cd 4": {"kind": "number", "range": [0, 1500], "missing": "offset", "indicator": True},
        "seen": {"kind": "date", "origin": "2000-01-01", "unit": "years", "range": [0, 30]},
    },
    "rows": PREPARED,
    "privacy": EXACT,
}
FEATURES = ("age", "sex=F", "sex=M", "sex=other", "cd 4", "cd 4 missing", "seen")


def patients(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        {
            "seen": rng.choice(["2001-01-01", "2004-12-31"], 60),
            "pid": np.arange(60),
            "sex": rng.choice(["F", "M"], 60),
            "age": rng.normal(50, 9, 60),
            "cd 4": rng.normal(400, 90, 60).round(),
        }
    )
    made.loc[::5, "cd 4"] = np.nan
    return made


def test_a_silo_applies_the_rules_of_the_study_to_its_own_table(tmp_path: Path):
    study = write_study(tmp_path, **MIXED)
    assert study.columns == FEATURES
    assert study.terms()[0].groups == ((1, 2, 3),)
    own = write_silo(tmp_path, cap=None)
    patients(1).to_csv(tmp_path / "north.csv", index=False)
    with open_silo(study, own) as node:
        assert node.moment.n_rows == 60
        assert node.moment.source.columns == FEATURES
    bad = patients(1)
    bad.loc[3, "seen"] = "Zaphod"
    bad.loc[4, "age"] = np.nan
    bad.to_csv(tmp_path / "north.csv", index=False)
    refused = pytest.raises(CellError, match=r"(?s)got 2 problems in 1 table.*column 'seen' must hold dates")
    with refused as caught, open_silo(study, own):
        pass
    assert "Zaphod" not in str(caught.value)
    check_made_up(study, tmp_path)


def test_rules_are_in_the_hash_and_travel_with_the_study(tmp_path: Path):
    study = write_study(tmp_path, **MIXED)
    text = (tmp_path / "study.toml").read_text()
    (tmp_path / "moved.toml").write_text(study.with_coordinator("elsewhere.example", 9))
    again = read_study(tmp_path / "moved.toml")
    assert (again.digest, again.rules, again.dropped) == (study.digest, study.rules, ("pid",))

    def changed(old: str, new: str) -> StudyFile:
        assert old in text
        (tmp_path / "other.toml").write_text(text.replace(old, new))
        return read_study(tmp_path / "other.toml")

    for old, new in (('"F", "M"', '"M", "F"'), ("0, 1500", "0, 1600")):
        assert changed(old, new).digest != study.digest
    assert changed("pid =", "height =").dropped == ("height",)
    for old, new, sentence in (
        ('pid = "drop"', 'height = "number"', "must be of the columns in"),
        ('"F", "M"', '"F", "other"', "without 'other'"),
    ):
        with pytest.raises(InputError, match=sentence):
            changed(old, new)


# --- ratings, comparisons, networks: analysed from what a study leaves ---

FILMS = ["alien", "brazil", "casablanca"]
RATING = {"user": "person", "film": "item", "stars": {"kind": "rating", "range": [1, 5], "items": FILMS}}
TREES = ["ash", "birch", "cedar", "oak"]
D = 40
LAYERS = {name: planted(D, seed=seed)[0] for seed, name in enumerate(SIZES)}
ANALYSED: dict[str, dict[str, Any]] = {
    "ratings": {
        "columns": {"names": ["user", "film", "stars"]},
        "rules": RATING,
        "rows": {"row_norm": None, "normalize": True, "center": False},
        "components": {"n_components": 1},
    },
    "games": {
        "columns": {"names": ["winner", "loser"]},
        "rules": {"winner": {"items": TREES, "against": "loser"}},
        "rows": {"row_norm": None},
        "components": {"n_components": 1},
    },
    "network": {
        "columns": {"names": list(names_of(D))},
        "rows": {"network": "edge", "row_norm": None, "center": None},
    },
}


def write_ratings(path: Path, name: str) -> None:
    """Write one rating per row, of three items, each of which two persons in three rated."""
    rng = np.random.default_rng(sum(name.encode()))
    cells = [(f"{name}-{person}", item, rng.integers(1, 6)) for person in range(60) for item in FILMS]
    kept = [cell for cell in cells if rng.random() < 2 / 3 or cell[1] == "alien"]
    table = pd.DataFrame(kept, columns=["user", "film", "stars"]).sample(frac=1, random_state=0)
    table.to_csv(path, index=False)


def write_games(path: Path, name: str, trees: list[str] = TREES) -> None:
    rng = np.random.default_rng(list(SIZES).index(name))
    first = rng.integers(0, 4, 300)
    winner, loser = np.asarray(trees)[[first, (first + rng.integers(1, 4, 300)) % 4]]
    pd.DataFrame({"winner": winner, "loser": loser}).to_csv(path, index=False)


def write_network(path: Path, name: str) -> None:
    write_layer(path, LAYERS[name])


WRITES = {"ratings": write_ratings, "games": write_games, "network": write_network}


@pytest.mark.parametrize(
    ("subject", "model", "analysis"),
    [
        (
            "ratings",
            FedMoment(
                epsilon=math.inf,
                center=False,
                codebook=CodeBook(rules=table_rules(RATING, "the test"), normalize=True),
            ),
            Completion(1),
        ),
        ("games", FedMoment(epsilon=math.inf, codebook=comparisons(TREES)), Ranking()),
        ("network", FedCommunities(2, nodes=names_of(D), epsilon=math.inf), Communities(2)),
    ],
)
def test_what_a_study_leaves_is_analysed_as_what_a_fit_leaves(
    subject: str, model: Any, analysis: Any, tmp_path: Path
):
    study = write_study(tmp_path, **ANALYSED[subject], privacy=EXACT, solver={"solver": "moment"})
    run_study(study, tmp_path, write=WRITES[subject])
    moment = read_moment(tmp_path / "result")
    central = model.fit_silos({name: tmp_path / f"{name}.csv" for name in SIZES}).moment_
    assert moment.silo_sizes == central.silo_sizes
    assert np.abs(moment.pooled.moment - central.pooled.moment).max() < 1e-8
    analysis.fit(moment)
    check_made_up(study, tmp_path)


@pytest.mark.slow
def test_an_edge_of_a_network_is_protected_by_the_noise_of_a_secure_sum(tmp_path: Path):
    study = write_study(tmp_path, **ANALYSED["network"], **secure_tables(tmp_path))
    run_study(study, tmp_path, write=write_network)
    moment = read_moment(tmp_path / "result")
    assert moment.privacy.unit == "one edge of one layer of one silo"
    assert moment.record.clipping is None  # no row is shortened
    noise = moment.pooled.moment - sum(LAYERS.values()) / 3
    # 780 normal numbers: their mean square is off by 25% with a chance of 10⁻⁶ at most.
    mean_square = np.mean(noise[np.tril_indices(D, -1)] ** 2)
    assert abs(mean_square / (moment.noise_std**2 / 2) - 1) < 0.25
    plain = FedCommunities(2, delta=1e-6).fit_silos(list(LAYERS.values())).moment_
    assert moment.noise_std < plain.noise_std


def test_items_are_part_of_the_agreement_and_others_are_refused_before_a_silo_connects(tmp_path: Path):
    tables = ANALYSED["games"]
    agreed = write_study(tmp_path, **tables)
    more = {"winner": {"items": [*TREES, "yew"], "against": "loser"}}
    assert write_study(tmp_path, **{**tables, "rules": more}).digest != agreed.digest
    own = write_silo(tmp_path, "north", cap=1.5)
    write_games(tmp_path / "north.csv", "north", [*TREES[:3], "yew"])
    refused = pytest.raises(CellError, match="must name items of the public list and nothing else")
    with refused, open_silo(agreed, own):
        pass
    network = write_study(tmp_path, **ANALYSED["network"])
    (tmp_path / "north.csv").write_text("source,target\nv000,nobody\n")
    with pytest.raises(InputError, match="another name in row 1"), open_silo(network, own):
        pass
    rule = {"items": TREES, "against": "loser", "margin": "points", "range": [-3, 9]}
    names = {"names": ["points", "winner", "loser"]}
    with_margin = {**tables, "columns": names, "rules": {"winner": rule}, "privacy": EXACT}
    check_made_up(write_study(tmp_path, **with_margin), tmp_path)
