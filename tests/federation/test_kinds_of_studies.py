"""Kinds of studies as parties run them: resumed, repeated, without a silo, plain and with secure sums."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec import structs
from studies import (
    COLUMNS,
    EXACT,
    RUN,
    SIZES,
    Counted,
    files_of,
    open_silos,
    run_study,
    secure_tables,
    silo_rows,
    write_rows,
    write_silo,
    write_study,
)

from fedpower import Edge, FedCovariance, FedPCA, load
from fedpower.analysis import Communities, Completion
from fedpower.exceptions import CellError, InputError, RefusedError
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.local import rehearsal_data
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.federation.study_file import StudyFile
from fedpower.protocol.coordinator import Round
from fedpower.protocol.messages import decode_as, encode
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import table_rules
from fedpower.sums.survey import STAGES
from layers import names_of, planted, write_layer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CLIPPED = {"privacy": {"noise": "clipped", "energy": 0.5}}
SCORES = {"privacy": {"scores_epsilon": 0.25}}
PREPARED = {"rows": {"row_norm": None}}
STEPS = {"privacy": {"noise": "step"}, "solver": {"solver": "fedpower", "n_steps": 4, "local_steps": 2}}
KRYLOV = {"privacy": EXACT, "solver": {"solver": "krylov"}, **PREPARED}
DRIFT = {**KRYLOV, "solver": {"solver": "fedpower", "n_steps": 3, "drift_correction": True}}
TALLIES = [*STAGES, "covariance"]
PRODUCTS = ["covariance", *(f"product {step}" for step in range(1, 7))]
KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "covariance": ({}, ["covariance"]),
    "clipped": (CLIPPED, PRODUCTS),
    "clipped, uncentred": ({**CLIPPED, "rows": {"center": False}}, PRODUCTS),
    "prepared": (PREPARED, TALLIES),
    "scores": (SCORES, ["covariance", "scores"]),
    "prepared scores": ({**SCORES, **PREPARED}, [*TALLIES, "scores"]),
    "steps": (STEPS, ["mean", "steps", "steps"]),
    "krylov": (KRYLOV, []),
}
"""By name: tables of a study, and the kinds of its releases."""
FAST = {(kind, "plain") for kind in ("covariance", "prepared", "steps", "krylov")} | {
    ("covariance", "secure")
}
CASES = [(kind, "plain") for kind in KINDS if kind != "clipped, uncentred"]
CASES += [(kind, "secure") for kind in KINDS if kind not in ("steps", "krylov")]


def reported(run: StudyRun) -> bytes:
    result = run.result
    arrays = (result.components, result.explained_variance, result.mean)
    content = b"".join(np.asarray(array).tobytes() for array in arrays)
    counts = None if result.score_counts is None else result.score_counts.counts
    rows = [closed.as_row() for closed in run.coordinator.history]
    return content + repr((rows, run.outcome.privacy, counts)).encode()


@pytest.mark.parametrize(
    ("kind", "aggregation"),
    [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in CASES],
)
def test_a_study_is_resumed_after_any_round_and_run_again_and_charged_once(kind, aggregation, tmp_path):
    tables, kinds = KINDS[kind]
    is_plain, rounds = aggregation == "plain", tmp_path / "rounds"
    if not is_plain:
        tables = tables | secure_tables(tmp_path, **tables.get("privacy", {}))
    study = write_study(tmp_path, **tables)

    def opened(run: str = RUN) -> StudyRun:
        return StudyRun(study, run=run, checkpoint=rounds if run == RUN else tmp_path / run)

    with open_silos(study, tmp_path) as silos:
        whole = opened()
        silos.finish(whole)
        expected, asked, files = reported(whole), silos.n, files_of(rounds)
        # A key dies with its session: a secure sum that was closed is not asked for once more.
        for place in range(len(files)) if is_plain else ():
            (rounds / f"{place}.round").unlink()  # what follows it is not read
            silos.n, resumed = 0, opened()
            assert resumed.coordinator.n_replayed == place
            silos.finish(resumed)
            earlier = whole.coordinator.history[:place]
            assert silos.n == asked - sum(len(closed.asked) for closed in earlier)
            assert (reported(resumed), files_of(rounds)) == (expected, files)
            assert resumed.result.run["federation"].get("rounds_resumed", 0) == place
        again = opened("another" if is_plain else RUN)
        silos.finish(again)
        np.testing.assert_array_equal(again.result.components, whole.result.components)
        assert silos.charges() == [len(kinds)] * 3
    result, written = whole.result, tmp_path / "result"
    result.save(written, force=True)
    assert not kinds or [row["kind"] for row in result.rounds] == ["open-session"] * (not is_plain) + kinds
    counts = None if result.score_counts is None else list(result.score_counts.counts)
    assert counts == ((list(study.silos) if is_plain else ["all silos"]) if "scores" in kind else None)
    assert (written / "codebook.toml").exists() == ("prepared" in kind)
    assert (written / "score_counts.csv").exists() == ("scores" in kind)
    record = result.run
    assert record["federation"] == {
        "name": study.name,
        "agreement": study.digest,
        "run": RUN,
        "silent": dict.fromkeys(SIZES, 0),
    }
    assert not any("budget" in each for each in record["silos"])  # a silo's ledger is its own
    page = (written / "report.html").read_text(encoding="utf-8")
    assert study.name in page
    assert not kinds or "known to that silo only" in page
    assert str(tmp_path) not in page


def test_cut_short_altered_or_of_other_questions_a_round_is_asked_again(tmp_path):
    """Another version or machine may ask otherwise; what it wrote must not hide what follows."""
    study, folder = write_study(tmp_path, **STEPS), tmp_path / "rounds"
    with open_silos(study, tmp_path) as silos:
        whole = StudyRun(study, run=RUN, checkpoint=folder)
        silos.finish(whole)
        expected, files, charges = reported(whole), files_of(folder), silos.charges()
        path = folder / "1.round"
        content = path.read_bytes()
        other = encode(structs.replace(decode_as(content, Round), run="f" * 16))
        turned = bytes([*content[:-200], content[-200] ^ 1, *content[-199:]])
        for spoilt in (b"", content[: len(content) // 2], turned, other):
            path.write_bytes(spoilt)
            resumed = StudyRun(study, run=RUN, checkpoint=folder)
            assert resumed.coordinator.n_replayed == 1
            silos.finish(resumed)
            assert (reported(resumed), files_of(folder)) == (expected, files)
        assert silos.charges() == charges


LOST: dict[str, tuple[dict[str, Any], str]] = {
    "covariance": ({}, "covariance"),
    "prepared": (PREPARED, "covariance"),
    "krylov": (KRYLOV, "steps"),
    "drift": (DRIFT, "steps"),
    "steps": (STEPS, "steps"),
    "clipped": (CLIPPED, "product 1"),
    "secure": ({}, "covariance"),
}
"""By name: a study's tables, and the kind of the rounds from which its result comes."""


def drive(run: StudyRun, silos: Counted, lost: str, before: Collection[str]) -> None:
    """Deliver every message; one silo answers nothing from the first round of these kinds on."""
    gone = False
    while not run.coordinator.done:
        current = run.coordinator.history[-1]
        gone = gone or current.kind in before
        for question in run.coordinator.next():
            if not (gone and question.silo == lost):
                run.coordinator.receive(silos.silos[question.silo].answer(question))
        if gone and not run.coordinator.done and run.coordinator.history[-1] is current:
            run.coordinator.deadline()


@pytest.mark.parametrize("mode", LOST)
def test_rows_of_a_silo_lost_before_its_moment_are_not_counted_and_it_is_named(mode, tmp_path):
    tables, kind = LOST[mode]
    tables = secure_tables(tmp_path) if mode == "secure" else tables
    study = write_study(tmp_path, **tables, rounds={"min_silos": 2})
    with open_silos(study, tmp_path) as silos:
        run = StudyRun(study, run=RUN, checkpoint=tmp_path / "rounds")
        drive(run, silos, lost="south", before=[kind])
    result = run.result
    if mode == "prepared":
        result.save(tmp_path / "result")
        result = load(tmp_path / "result")
        assert f"<h1>{result.headline}</h1>" in (tmp_path / "result" / "report.html").read_text()
    assert result.silo_sizes == {"north": SIZES["north"], "east": SIZES["east"]}
    assert result.n_samples == SIZES["north"] + SIZES["east"]
    assert result.record.absent == ["south"]
    assert result.run["absent"] == ["south"]
    assert result.headline == f"2 components of {result.n_samples} rows held by 2 silos, without south"
    assert "rows, without south" in repr(result)


@pytest.mark.parametrize("tables", [PREPARED, {}], ids=["prepared", "covariance"])
def test_a_study_asked_again_while_a_silo_is_away_charges_nothing(tables, tmp_path):
    """Other questions are refused; the same ones are answered from the ledgers."""
    study = write_study(tmp_path, **tables, rounds={"min_silos": 2})
    with open_silos(study, tmp_path) as silos:
        first, again = (StudyRun(study, run=run, checkpoint=tmp_path / run) for run in ("first", "again"))
        silos.finish(first)
        spent = silos.charges()
        if tables == PREPARED:
            with pytest.raises(RefusedError, match="agree on a new study, for example"):
                drive(again, silos, lost="south", before=["enrol"])
        else:
            drive(again, silos, lost="south", before=["enrol"])
            assert again.result.record.absent == ["south"]
        assert silos.charges() == spent
    assert not first.result.record.absent


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_a_moment_that_is_kept_gives_the_same_numbers_also_where_their_count_is_found(tmp_path, aggregation):
    terms = {"privacy": {"epsilon": 50.0}, "components": {"n_components": "auto"}}
    terms |= secure_tables(tmp_path, epsilon=50.0) if aggregation == "secure" else {}
    study = write_study(tmp_path, **terms)
    run = run_study(study, tmp_path, cap=200.0)
    release = load(tmp_path / "result").release
    model = FedPCA(study.options.n_components, standardize=False).fit_covariance(release)
    assert np.array_equal(model.components_, run.result.components)
    assert run.result.determined[0]
    assert release.record.federation.agreement == study.digest


def write_visits(path: Path, name: str) -> None:
    """Write rows of persons with two visits each, all first visits before all second ones."""
    rows = silo_rows(name)
    ids = np.arange(len(rows)) % (len(rows) // 2)
    write_rows(path, np.column_stack([rows, ids]), (*COLUMNS, "patient_id"))


@pytest.mark.parametrize("rows", [{}, {"row_norm": None}], ids=["bounded", "prepared"])
def test_silos_count_persons(tmp_path, rows):
    study = write_study(tmp_path, rows={"unit": "patient_id", **rows})
    with pytest.raises(InputError, match=r"unit must be a column of .* got 'patient_id'"):
        run_study(study, tmp_path)
    result = run_study(study, tmp_path, write=write_visits).result
    assert result.silo_sizes == {name: size // 2 for name, size in SIZES.items()}
    assert result.privacy.unit == "one person of one silo"
    assert "one person of one silo" in (tmp_path / "result" / "privacy.txt").read_text()
    assert "75 persons" in (tmp_path / "result" / "report.html").read_text()


def check_made_up(study: StudyFile, folder: Path) -> None:
    """Assert that rows that are made up for a rehearsal keep to the study's rules."""
    made = rehearsal_data(study, len(study.silos), folder / "rows", None, lambda _: None)
    for name, path in made.items():
        (folder / f"{name}.toml").write_text(f'silo = "{name}"\n[data]\npath = "{path}"\n')
        with open_silo(study, read_silo(folder / f"{name}.toml")) as node:
            assert node.releases.rows.source.columns == study.columns


MIXED = {
    "columns": {"names": ["age", "sex", "cd 4", "seen"]},
    "rules": {
        "pid": "drop",
        "sex": {"levels": ["F", "M"]},
        "cd 4": {"kind": "number", "range": [0, 1500], "missing": "offset", "indicator": True},
        "seen": {"kind": "date", "origin": "2000-01-01", "unit": "years", "range": [0, 30]},
    },
    "privacy": EXACT,
    **PREPARED,
}
FEATURES = ("age", "sex=F", "sex=M", "sex=other", "cd 4", "cd 4 missing", "seen")


def test_a_silo_applies_the_rules_of_the_study_to_its_own_table(tmp_path):
    study, rng = write_study(tmp_path, **MIXED), np.random.default_rng(1)
    assert study.columns == FEATURES
    assert study.terms()[0].groups == ((1, 2, 3),)
    own = write_silo(tmp_path, cap=None)
    seen, pid, sex = rng.choice(["2001-01-01", "2004-12-31"], 60), np.arange(60), rng.choice(["F", "M"], 60)
    patients = pd.DataFrame({"seen": seen, "pid": pid, "sex": sex, "age": rng.normal(50, 9, 60)})
    patients["cd 4"] = rng.normal(400, 90, 60).round()
    patients.loc[::5, "cd 4"] = np.nan
    patients.to_csv(tmp_path / "north.csv", index=False)
    with open_silo(study, own) as node:
        assert node.releases.rows.n_rows == 60
        assert node.releases.rows.source.columns == FEATURES
    patients.loc[3, "seen"], patients.loc[4, "age"] = "Zaphod", np.nan
    patients.to_csv(tmp_path / "north.csv", index=False)
    refused = pytest.raises(CellError, match=r"(?s)cells of 2 columns in 1 table.*'seen'")
    with refused as caught, open_silo(study, own):
        pass
    assert "Zaphod" not in str(caught.value)
    check_made_up(study, tmp_path)


FILMS = ["alien", "brazil", "casablanca"]
RATING = {"user": "person", "film": "item", "stars": {"kind": "rating", "range": [1, 5], "items": FILMS}}
D = 40
LAYERS = {name: planted(D, seed=seed)[0] for seed, name in enumerate(SIZES)}
RATINGS: dict[str, Any] = {
    "columns": {"names": ["user", "film", "stars"]},
    "rules": RATING,
    "rows": {"row_norm": None, "normalize": True, "center": False},
    "components": {"n_components": 1},
}
GAMES: dict[str, Any] = {
    "columns": {"names": ["winner", "loser"]},
    "rows": {"row_norm": None},
    "components": {"n_components": 1},
    "rules": {"winner": {"items": ["ash", "birch", "oak"], "against": "loser"}},
}
NETWORK: dict[str, Any] = {
    "columns": {"names": list(names_of(D))},
    "rows": {"network": "edge", "row_norm": None, "center": None},
}


def write_ratings(path: Path, name: str) -> None:
    """Write one rating per row, of three items, each of which two persons in three rated."""
    rng = np.random.default_rng(sum(name.encode()))
    cells = [(f"{name}-{person}", item, rng.integers(1, 6)) for person in range(60) for item in FILMS]
    kept = [cell for cell in cells if rng.random() < 2 / 3 or cell[1] == "alien"]
    table = pd.DataFrame(kept, columns=["user", "film", "stars"]).sample(frac=1, random_state=0)
    table.to_csv(path, index=False)


BOOK = CodeBook(rules=table_rules(RATING, "the test"), normalize=True)
ANALYSED = {
    "ratings": (
        RATINGS,
        write_ratings,
        FedCovariance(epsilon=math.inf, center=False, codebook=BOOK),
        Completion(1),
    ),
    "network": (
        NETWORK,
        lambda path, name: write_layer(path, LAYERS[name]),
        FedCovariance(unit=Edge(nodes=names_of(D)), epsilon=math.inf),
        Communities(2),
    ),
}


@pytest.mark.parametrize("subject", ANALYSED)
def test_what_a_study_leaves_is_analysed_as_what_a_fit_leaves(subject, tmp_path):
    tables, write, model, analysis = ANALYSED[subject]
    study = write_study(tmp_path, **tables, privacy=EXACT, solver={"solver": "upload"})
    run_study(study, tmp_path, write=write)
    release = load(tmp_path / "result").release
    central = model.fit_silos({name: tmp_path / f"{name}.csv" for name in SIZES}).release_
    assert release.silo_sizes == central.silo_sizes
    assert np.abs(release.pooled.covariance - central.pooled.covariance).max() < 1e-8
    analysis.fit(release)
    check_made_up(study, tmp_path)


def test_other_items_than_were_agreed_on_are_refused_before_a_silo_connects(tmp_path):
    own, path = write_silo(tmp_path), tmp_path / "north.csv"
    for tables, text, sentence in (
        (GAMES, "winner,loser\nash,oak\nash,yew\n", "must name only items of the public list"),
        (NETWORK, "source,target\nv000,nobody\n", "another name in row 1"),
    ):
        study = write_study(tmp_path, **tables)
        path.write_text(text)
        with pytest.raises(InputError, match=sentence), open_silo(study, own):
            pass
