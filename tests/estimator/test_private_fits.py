"""What a private fit states and enforces, seen from the estimator with real ledgers."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from test_secure_fits import prepared

from benchmarks.fits import fed_pca
from budgets import ledgers_in, spent
from fedpower import CodeBook, FedPCA
from fedpower.engines.inprocess import Run, federate
from fedpower.estimator.fit_warnings import PrivacyLeakWarning
from fedpower.exceptions import BudgetError, FedpowerError, InputError, LedgerError
from fedpower.privacy import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol.outcome import USED_BEFORE
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import local_moment
from problems import Array, spiked_rows

OPTIONS = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 12.0, "standardize": False}


def epsilons(model: FedPCA) -> tuple[float, float]:
    coordinator, public = model.privacy_.protections
    return coordinator.epsilon, public.epsilon


@pytest.fixture
def parts() -> dict[str, Array]:
    rows = spiked_rows(n_rows=3000)
    return {"north": rows[:1000], "south": rows[1000:1800], "east": rows[1800:]}


@pytest.mark.parametrize(
    "changed",
    [
        {"n_participants": 3, "n_steps": 4},
        {"solver": "krylov", "lookahead": True},
        {"local_steps": 2, "drift_correction": True},
    ],
)
def test_what_shows_single_silos_gives_the_public_the_coordinator_s(parts, changed):
    model = fed_pca(2, random_state=0, **{**OPTIONS, "noise": "covariance", **changed})
    coordinator, public = epsilons(model.fit_silos(parts))
    assert public == coordinator


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("terms", "other", "n_releases"),
    [
        (OPTIONS, 3, 1),
        ({"epsilon": 1.0, "delta": 1e-6}, 3, 6),
        ({**OPTIONS, "n_components": 0.5}, "auto", 1),
        ({**OPTIONS, "scores_epsilon": 0.3}, None, 2),
        ({**OPTIONS, "noise": "clipped"}, None, 7),
    ],
    ids=["covariance", "prepared", "chosen", "scores", "clipped"],
)
def test_the_same_questions_are_free_and_answered_alike_and_say_so(terms, other, n_releases, parts, tmp_path):
    """Another number of components is the same question, but for sums that depend on the components."""
    paths = ledgers_in(tmp_path, parts, 1.0)
    fits = [fed_pca(**{"n_components": 2, **terms}).fit_silos(parts, ledgers=paths) for _ in range(2)]
    assert np.array_equal(fits[0].components_, fits[1].components_)
    assert epsilons(fits[0])[1] < 0.8 * epsilons(fits[0])[0]  # the public sees sums over all silos
    if fits[0].score_counts_ is not None:
        assert np.array_equal(fits[0].score_counts_.pooled, fits[1].score_counts_.pooled)
    more = fed_pca(**{**terms, "n_components": other or 3})
    if other:
        again = more.fit_silos(parts, ledgers=paths)
        k = min(again.n_components_, fits[0].n_components_)
        assert np.array_equal(again.components_[:k], fits[0].components_[:k])
        assert epsilons(again)[0] == epsilons(again)[1]
        assert USED_BEFORE in again.privacy_.notes
    else:
        with pytest.raises(BudgetError, match=r"left at delta|has 0 left"):
            more.fit_silos(parts, ledgers=paths)
    for path in paths.values():
        assert spent(path).n_releases == n_releases
        assert spent(path).epsilon == pytest.approx(1.0, rel=1e-3)
        assert spent(path).epsilon <= 1.0 * (1 + 1e-9)


def test_a_study_cannot_be_made_to_spend_more_than_it_agreed_on(parts, tmp_path):
    """The cap would allow it; the study's own ε does not. The same questions are free."""
    paths = ledgers_in(tmp_path, parts)
    model = fed_pca(2, noise="step", n_steps=4, random_state=0, **OPTIONS)
    first = model.fit_silos(parts, ledgers=paths).components_
    before = spent(paths["north"])
    np.testing.assert_array_equal(model.fit_silos(parts, ledgers=paths).components_, first)
    with pytest.raises(FedpowerError, match="must stay within its agreed epsilon"):
        model.set_params(random_state=1).fit_silos(parts, ledgers=paths)
    assert spent(paths["north"]) == before
    assert before.epsilon == pytest.approx(1.0, rel=1e-6)


def test_a_bound_read_from_the_rows_voids_the_promise(parts):
    with pytest.warns(PrivacyLeakWarning, match="bound on row norms was read from the rows"):
        model = FedPCA(2, epsilon=1.0, solver="krylov", standardize=False).fit_silos(parts)
    assert not model.privacy_.is_private
    assert str(model.privacy_).startswith("NOT PRIVATE although ε = 1")
    assert "read from the rows" in model.privacy_.as_dict()["leak"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        for book in (CodeBook(row_norm=10.0), CodeBook(normalize=True)):
            assert FedPCA(2, epsilon=1.0, codebook=book).fit_silos(parts).privacy_.is_private
    exact = FedPCA(2, epsilon=float("inf")).fit_silos(parts)
    assert str(exact.privacy_).startswith("NOT PRIVATE")


def test_how_sparse_the_rows_are_is_told_in_no_private_result():
    rows = np.zeros((120, 100))
    rows[:, :3] = 1.0
    other = rows.copy()
    other[7] = 1.0
    model = FedPCA(2, epsilon=1.0, codebook=CodeBook(normalize=True))
    reported = [model.fit_silos([sparse.csr_array(each)]).kernels_ for each in (rows, other)]
    assert reported[0] == reported[1]


def test_rows_that_are_not_bounded_as_the_study_says_are_refused(parts):
    settings = prepared(fed_pca(2, **OPTIONS), parts)[1]["settings"]
    unbounded = {
        name: local_moment(open_source(part), RowTreatment(), rank=2, steps=2) for name, part in parts.items()
    }
    for terms in (settings.study, replace(settings.study, treatment=RowTreatment().digest())):
        with pytest.raises(InputError, match="must have the treatment of the private study"):
            federate(unbounded, settings=replace(settings, study=terms), rng=np.random.default_rng(0))


def test_a_study_that_one_silo_cannot_afford_costs_the_others_nothing(parts, tmp_path):
    paths = ledgers_in(tmp_path, ("north", "south")) | ledgers_in(tmp_path, ["east"], 0.1)
    with pytest.raises(FedpowerError, match=r"'east' has 0\.\d+ left"):
        fed_pca(2, **OPTIONS).fit_silos(parts, ledgers=paths)
    assert spent(paths["north"]).n_releases == 0


@pytest.mark.parametrize("noise", ["covariance", "step"])
@pytest.mark.parametrize("world", [0.0, 1e-12])
def test_two_worlds_that_are_asked_twice_differ_in_nothing_but_their_operator_s_stop(
    parts, tmp_path, noise, world
):
    """One cell moved in between, by 1e-12 or not at all."""
    paths = ledgers_in(tmp_path, parts)
    model = fed_pca(2, noise=noise, n_steps=None if noise == "covariance" else 3, **OPTIONS)
    first = model.fit_silos(parts, ledgers=paths).components_
    before = {name: path.read_bytes() for name, path in paths.items()}
    held = {**parts, "south": parts["south"].copy()}
    held["south"][5, 1] += world
    rounds: list[object] = []
    if world:
        with pytest.raises(LedgerError, match="of silo 'south' must match version '1' in its led"):
            model.fit_silos(held, ledgers=paths, on_round=rounds.append)
        assert not rounds, "somebody was asked"
    else:
        again = model.fit_silos(held, ledgers=paths).components_
        np.testing.assert_array_equal(again, first)
    assert {name: path.read_bytes() for name, path in paths.items()} == before


def test_a_declared_version_is_charged_and_stated_alike_in_both_worlds(parts, tmp_path):
    stated = []
    for world in (0.0, 1e-12):
        folder = tmp_path / str(world)
        folder.mkdir()
        paths = ledgers_in(folder, parts)
        fed_pca(2, **OPTIONS).fit_silos(parts, ledgers=paths)
        held = {**parts, "south": parts["south"].copy()}
        held["south"][5, 1] += world
        model = fed_pca(2, **OPTIONS)
        model.fit_silos(held, ledgers=paths, data_version={"south": "2026-03"})
        charged = []
        for path in paths.values():
            with Ledger.open(path) as ledger:
                charged.append([(each.key, each.study) for each in ledger.entries()])
        stated.append((str(model.privacy_), model.privacy_.as_dict(), charged))
    assert stated[0] == stated[1]
    assert [len(each) for each in stated[0][2]] == [1, 2, 1]
    fact = "the version of its data that each silo declared (north 1, south 2026-03, east 1)"
    assert fact in model.privacy_.public
    assert fact in str(model.privacy_)
    assert "version" not in str(fed_pca(2, **OPTIONS).fit_silos(parts).privacy_)
    with pytest.raises(InputError, match="data_version and data_set must be used with ledgers"):
        fed_pca(2, **OPTIONS).fit_silos(parts, data_version="2")


def test_other_columns_of_the_same_version_may_be_asked_for(tmp_path):
    table = pd.DataFrame(spiked_rows(n_rows=300, n_features=4), columns=list("abcd"))
    paths = ledgers_in(tmp_path, ["north"])
    for columns in (["a", "b"], ["b", "c", "d"], ["a", "b"]):
        fed_pca(1, **OPTIONS).fit_silos({"north": table[columns]}, ledgers=paths)
    assert spent(paths["north"]).n_releases == 2


def test_seeded_noise_is_booked_on_a_ledger_for_experiments_alone(tmp_path):
    rows = {"north": spiked_rows(n_rows=200, n_features=4)}
    moments, given = prepared(fed_pca(2, **OPTIONS), rows)
    for experiment in (False, True):
        path = tmp_path / f"{experiment}.ledger"
        cap = {"epsilon": 2.0, "delta": 1e-6, "silo": "north"}
        Ledger.create(path, **cap, for_experiments=experiment).close()
        how, noise = Run(ledgers={"north": path}), SeededNoiseForExperiments(1)
        run = partial(federate, moments, **given, how=how, noise=noise)
        if experiment:
            assert run().privacy.is_private
        else:
            with pytest.raises(InputError, match="must record private releases, got seeded noise"):
                run()
        with Ledger.open(path) as ledger:
            assert ledger.spent().n_releases == experiment
            assert ledger.statement()["for_experiments"] is experiment
