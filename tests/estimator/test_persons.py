"""Fits in which a person is the unit of privacy, in every mode."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import subspace_angles

from benchmarks.fits import fed_pca
from budgets import ledgers_in, spent
from fedpower import CodeBook, FedPCA, Person, load
from fedpower.exceptions import InputError, NoiseWarning
from fedpower.privacy import Ledger, epsilon_of
from fedpower.rules.rules import table_rules

D = 5
NAMES = list("abcde")
TOLD = {"row_norm": 4.0, "delta": 1e-6}


def visits(seed, n_persons=400):
    rng = np.random.default_rng(seed)
    counts = np.minimum(rng.geometric(0.4, n_persons), 12)
    ids = np.repeat(np.arange(n_persons), counts)
    axes = np.linalg.qr(np.column_stack([np.ones(D), np.eye(D)[:, 1:]]))[0]
    rows = rng.standard_normal((n_persons, D))[ids] + rng.standard_normal((ids.size, D))
    frame = pd.DataFrame(rows * [2.0, 0.9, 0.5, 0.4, 0.4] @ axes.T + 0.3, columns=NAMES)
    frame["patient_id"] = [f"P{seed}-{each:04d}" for each in ids]
    return frame.sample(frac=1.0, random_state=seed).reset_index(drop=True)


@pytest.fixture(scope="module")
def silos():
    return {"north": visits(1), "south": visits(2, 300)}


def weighted(silos):
    """Return number, mean, variances and components of weighted PCA, the plain way."""
    whole = pd.concat(silos.values())
    weights = 1 / whole.groupby("patient_id")["patient_id"].transform("size").to_numpy()
    n = whole["patient_id"].nunique()
    rows = whole[NAMES].to_numpy()
    mean = weights @ rows / n
    values, vectors = np.linalg.eigh(((rows - mean) * weights[:, None]).T @ (rows - mean) / (n - 1))
    return n, mean, values[::-1], vectors[:, ::-1]


@pytest.mark.parametrize("solver", ["upload", "krylov", "fedpower"])
def test_without_noise_it_is_weighted_pca(silos, solver):
    n, mean, values, vectors = weighted(silos)
    model = FedPCA(2, epsilon=math.inf, unit="patient_id", solver=solver, standardize=False).fit_silos(silos)
    assert model.n_samples_seen_ == n
    assert model.silo_sizes_ == {"north": 400, "south": 300}
    assert list(model.feature_names_in_) == NAMES
    assert model.mean_ == pytest.approx(mean, abs=1e-12)
    assert model.explained_variance_ == pytest.approx(values[:2], rel=1e-9)
    assert np.sin(subspace_angles(model.components_.T, vectors[:, :2])[0]) < 1e-6


WAYS = {
    "covariance": {"noise": "covariance"},
    "prepared": {"row_norm": None, "standardize": False},
    "step": {"noise": "step", "epsilon": 20.0, "standardize": False},
    "paper": {"noise": "paper", "epsilon": 40.0, "center": False, "standardize": False},
    "secure": {"aggregation": "secure"},
    "secure, prepared": {"aggregation": "secure", "row_norm": None, "standardize": False},
    "three rows each": {"noise": "covariance", "rows_per_unit": 3},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_every_private_way_finds_the_components(silos, way):
    """At a large ε: the sine is above .4 for noise alone, and of a chance below 10⁻⁶ here.

    Prepared columns need more persons for that: 400 fits had .18 at most with 7,000 of them.
    """
    if "prepared" in way:
        silos = {"north": visits(1, 4000), "south": visits(2, 3000)}
    _, _, _, vectors = weighted(silos)
    terms = {"epsilon": 8.0, **TOLD, **WAYS[way]}
    model = fed_pca(1, unit="patient_id", random_state=0, **terms).fit_silos(silos)
    assert np.sin(subspace_angles(model.components_.T, vectors[:, :1])[0]) < 0.4
    assert model.privacy_.is_private
    assert model.privacy_.unit == "one person of one silo"


@pytest.fixture(scope="module")
def private(silos):
    return fed_pca(1, epsilon=1.0, unit="patient_id", **TOLD).fit_silos(silos)


def test_the_statement_speaks_of_persons_and_of_several_silos(private, tmp_path):
    model, said = private, str(private.privacy_)
    assert "per person, against the coordinator and the public." in model.privacy_.brief
    assert "Private: one person of one silo.\nNeighbours: data sets that differ in the rows" in said
    assert "the number of persons of each silo" in said
    assert "The column 'patient_id' identifies the person of each row" in said
    both = epsilon_of(model.privacy_.protections[0].mu * math.sqrt(2), 1e-6)
    assert both == pytest.approx(1.455, abs=5e-4)
    assert "Two silos together give at most ε = 1.455 at δ = 1e-06" in said
    found = load(model.save(tmp_path / "result"))
    assert (found.study, str(found.privacy)) == (model.study_, said)
    page = (tmp_path / "result" / "report.html").read_text()
    assert "700 persons" in page
    assert "any one person" in page
    assert all(each not in page for each in ("P1-0001", "P2-0001"))


def test_a_person_has_the_noise_of_a_row_and_c_rows_c_times_it(silos, private):
    twice = fed_pca(1, epsilon=1.0, unit="patient_id", **TOLD, rows_per_unit=2).fit_silos(silos)
    one = {name: frame.drop_duplicates("patient_id")[NAMES] for name, frame in silos.items()}
    rows = fed_pca(1, epsilon=1.0, center=True, **TOLD).fit_silos(one)
    assert "one row of one silo" in str(rows.privacy_)
    assert "several silos" not in str(rows.privacy_)
    stds = [each.release_.noise_std * each.n_samples_seen_ for each in (rows, private, twice)]
    assert stds == pytest.approx([stds[0], stds[0], 2 * stds[0]], rel=1e-3)


def test_ids_may_be_given_as_a_vector_or_stand_in_a_data_frame(silos):
    frame = silos["north"]
    exact = {"epsilon": math.inf}
    wanted = fed_pca(2, unit="patient_id", **exact).fit_silos({"silo-1": frame})
    column = fed_pca(2, unit="patient_id", **exact).fit(frame)
    vector = fed_pca(2, **exact).fit(frame[NAMES].to_numpy(), units=frame["patient_id"])
    split = fed_pca(2, **exact).fit(frame[NAMES], units=frame["patient_id"], groups=np.arange(len(frame)) % 2)
    for model in (column, vector):
        assert model.components_ == pytest.approx(wanted.components_, abs=1e-9)
        assert model.n_samples_seen_ == 400
    assert split.n_samples_seen_ > 400  # somebody in both silos counts in each
    assert column.transform(frame[NAMES]).shape == (len(frame), 2)


def test_wrong_ids_are_refused_in_one_sentence(silos):
    frame = silos["north"]
    fits = {
        r"units must have one entry per row, got shape \(957,\) for 958 rows": lambda: FedPCA(1).fit(
            frame[NAMES], units=frame["patient_id"][:-1]
        ),
        "X must be a data frame with the column 'patient_id'": lambda: FedPCA(1, unit="patient_id").fit(
            frame[NAMES].to_numpy()
        ),
        "unit must be the name of the column": lambda: FedPCA(1, unit="").fit_silos(silos),
        "rows must be a whole number of at least 1": lambda: Person("patient_id", 0),
        "rows_per_unit must be given with unit, got 2": lambda: fed_pca(1, rows_per_unit=2).fit_silos(silos),
    }
    for sentence, fit in fits.items():
        with pytest.raises(InputError, match=sentence):
            fit()


def test_persons_whose_sums_cannot_be_noised_are_refused(silos):
    """Rounding of sums is accounted for up to 64 rows a person; moments have none. Products weigh nobody."""
    frame = visits(3, 30)
    often = pd.concat([frame.assign(patient_id="P0")] * 60 + [frame])
    model = fed_pca(1, epsilon=1.0, unit="patient_id", noise="step", standardize=False, **TOLD)
    with pytest.raises(InputError, match="must have at most 64 rows per person"):
        model.fit_silos([often])
    with pytest.warns(NoiseWarning):
        assert model.set_params(noise="covariance").fit_silos([often]).n_samples_seen_ == 31
    with pytest.raises(InputError, match="noise='clipped' must be used without unit"):
        model.set_params(noise="clipped").fit_silos(silos)
    guessed = fed_pca(2, standardize=False, unit="patient_id", energy=0.01, **TOLD)
    assert guessed.fit_silos(silos).study_.noise == "covariance"


def test_a_ledger_books_the_release_by_person(silos, tmp_path):
    paths = ledgers_in(tmp_path, silos, 2.0)
    model = fed_pca(1, epsilon=1.0, unit="patient_id", **TOLD)
    model.fit_silos(silos, ledgers=paths)
    rows = {name: frame.drop(columns="patient_id") for name, frame in silos.items()}
    for unit in ("one person of this silo with all rows, replace-one neighbours", "one row of this silo"):
        with Ledger.open(paths["north"]) as ledger:
            assert ledger.statement()["unit"].startswith(unit)
        fed_pca(1, epsilon=1.0, **TOLD).fit_silos(rows, ledgers=paths, data_version="2")
    assert spent(paths["north"]).epsilon > 1.0


def test_rules_and_persons_go_together(silos):
    book = CodeBook(rules=table_rules({"sex": "yes/no"}, "the test"))
    told = {name: frame.assign(sex=np.where(frame["a"] > 0, "yes", "no")) for name, frame in silos.items()}
    plain = {name: frame.assign(sex=(frame["a"] > 0).astype(float)) for name, frame in silos.items()}
    ruled = FedPCA(2, epsilon=math.inf, unit="patient_id", codebook=book).fit_silos(told)
    given = FedPCA(2, epsilon=math.inf, unit="patient_id").fit_silos(plain)
    assert ruled.n_samples_seen_ == given.n_samples_seen_ == 700
    assert list(ruled.feature_names_in_) == [*NAMES, "sex"]
    np.testing.assert_allclose(ruled.components_, given.components_, atol=1e-12)
    private = FedPCA(2, epsilon=4.0, unit="patient_id", codebook=book, delta=1e-6)
    assert "one person" in str(private.fit_silos(told).privacy_)


@pytest.mark.parametrize("terms", [{"epsilon": 2.0}, {"epsilon": 2.0, **TOLD, "row_norm": 0.5}], ids=str)
def test_shortened_rows_are_a_share_of_the_rows_that_were_read(terms):
    frames = {"north": visits(1, n_persons=3000)}
    seen = {}
    model = fed_pca(1, unit="patient_id", **terms)
    model.fit_silos(frames, on_clipped=seen.update)
    clipped, read = seen["north"]
    assert 0 < clipped <= read == len(frames["north"])
    assert "of persons' rows" in (model.result_.record.clipping_summary or "of persons' rows")
    assert "3000 persons" in repr(model.result_)
