"""Completion: without noise what NumPy and scikit-learn give centrally; with it, intervals that hold."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA
from test_exact import near

from benchmarks.fits import fed_covariance
from fedpower import FedCovariance
from fedpower.analysis import Completion
from fedpower.exceptions import InputError
from fedpower.report.covariance import Covariance
from fedpower.rows.opening import split_by_group
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import KNOWN, table_rules

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ITEMS = tuple(f"film {place}" for place in range(1, 11))
SPAN = (1.0, 5.0)
LONG = {
    "user": "person",
    "film": "item",
    "stars": {"kind": "rating", "range": list(SPAN), "items": list(ITEMS)},
}
WIDE = {item: {"kind": "rating", "range": list(SPAN)} for item in ITEMS}


def law() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    loadings = rng.standard_normal((len(ITEMS), 2)) * [0.7, 0.5]
    return 3.0 + rng.uniform(-0.5, 0.5, len(ITEMS)), loadings, np.full(len(ITEMS), 0.4)


def ratings(count: int, seed: int = 5, *, all_known: bool = False) -> Any:
    """Return normal ratings within their range, NaN where persons, of different zeal, gave none."""
    rng = np.random.default_rng(seed)
    mean, loadings, unique = law()
    scores, own = rng.standard_normal((count, 2)), rng.standard_normal((count, len(ITEMS)))
    rated = np.clip(mean + scores @ loadings.T + own * unique, *SPAN)
    zeal = rng.uniform(0.3, 0.9, (count, 1)) * rng.uniform(0.6, 1.0, len(ITEMS))
    return rated if all_known else np.where(rng.random(rated.shape) < zeal, rated, np.nan)


def book(rules: dict[str, Any]) -> CodeBook:
    return CodeBook(rules=table_rules(rules, "the test"))


def released(rows: Any, epsilon: float = float("inf"), **more: Any) -> Covariance:
    frame = pd.DataFrame(rows, columns=ITEMS)
    silos = {name: frame[place::2] for place, name in enumerate(("north", "south"))}
    terms = {} if epsilon == float("inf") else {"delta": 1e-6}
    return fed_covariance(
        epsilon=epsilon, **{"center": False, "codebook": book(WIDE), **terms, **more}
    ).fit_silos(silos).release_  # fmt: skip


def central(rows: Any, weights: Any, k: int) -> tuple[Any, Any, Any, Any]:
    """Return means, covariances of observed pairs, and the fitted Λ and ψ, by plain NumPy."""
    known = np.where(np.isnan(rows), 0.0, 1.0)
    both = (known * weights[:, None]).T @ known
    mean = weights @ np.nan_to_num(rows) / np.diagonal(both)
    left = np.nan_to_num(rows - mean)
    covariance = (left * weights[:, None]).T @ left / both
    root = np.sqrt(np.diagonal(both) / np.diagonal(both).mean())
    values, vectors = np.linalg.eigh(covariance * np.outer(root, root))
    kept = values[::-1][:k] - values[::-1][k:].mean()
    loadings = vectors[:, ::-1][:, :k] * np.sqrt(kept) / root[:, None]
    return mean, covariance, loadings, np.diagonal(covariance) - np.sum(loadings**2, axis=1)


def conditional(row: Any, mean: Any, loadings: Any, unique: Any) -> tuple[Any, Any]:
    empty, full = np.isnan(row), loadings @ loadings.T + np.diag(unique)
    inner, cross = full[np.ix_(~empty, ~empty)], full[np.ix_(empty, ~empty)]
    middle = mean[empty] + cross @ np.linalg.solve(inner, (row - mean)[~empty])
    spread = full[np.ix_(empty, empty)] - cross @ np.linalg.solve(inner, cross.T)
    return middle, np.diagonal(spread)


@pytest.mark.parametrize("bound", [{}, {"normalize": True}, {"row_norm": 1.2}, {"center": True}])
def test_without_noise_it_is_the_central_fit_to_observed_pairs(bound):
    rows = ratings(600)
    weights = np.ones(len(rows))
    if {"normalize", "row_norm"} & set(bound):
        scaled = np.nan_to_num((rows - 3.0) / 2.0)
        squares = np.sum(scaled**2, axis=1) + KNOWN**2 * np.sum(~np.isnan(rows), axis=1)
        weights = 1.0 / np.where(squares > 0, squares, 1.0)
    if "row_norm" in bound:
        weights = np.minimum(1.0, bound["row_norm"] ** 2 * weights)
    mean, covariance, loadings, unique = central(rows, weights, 2)
    found = Completion(2).fit(released(rows, **bound))
    near(found.mean_, mean)
    near(found.covariance_, covariance)
    near(found.loadings_ @ found.loadings_.T, loadings @ loadings.T)
    near(found.noise_variance_, unique)
    new = ratings(30, seed=6)
    told = found.intervals(new)
    for row, values, low, high in zip(new, *told, strict=True):
        empty = np.isnan(row)
        middle, spread = conditional(row, mean, loadings, unique)
        near(values[empty], np.clip(middle, *SPAN))
        near(values[~empty], row[~empty])
        for end, width in ((low, -1.959963984540054), (high, 1.959963984540054)):
            near(end[empty], np.clip(middle + width * np.sqrt(spread), *SPAN))
    near(found.transform(pd.DataFrame(new, columns=ITEMS)[list(ITEMS[::-1])]), told.values)


def test_without_empty_cells_it_is_scikit_learns_pca():
    rows = ratings(500, all_known=True)
    found, expected = Completion(3).fit(released(rows)), PCA(3, svd_solver="full").fit(rows)
    signs = np.sign(np.sum(found.components_ * expected.components_, axis=1))
    near(found.components_, expected.components_ * signs[:, None])
    share = (len(rows) - 1) / len(rows)
    near(4.0 * found.explained_variance_, expected.explained_variance_ * share)
    off = ~np.eye(len(ITEMS), dtype=bool)
    fitted = found.loadings_ @ found.loadings_.T
    near(fitted[off], expected.get_covariance()[off] * share)


def long_form(rows: Any, seed: int = 1) -> pd.DataFrame:
    """Return one rating a row, shuffled; every person rated something else, too."""
    wide = pd.DataFrame(rows, columns=[*ITEMS])
    wide["never agreed on"] = 2.0
    return (
        wide.rename_axis("user").reset_index()
        .melt("user", var_name="film", value_name="stars").dropna()
        .sample(frac=1, random_state=seed)
    )  # fmt: skip


def test_one_rating_a_row_gives_what_one_row_a_person_gives(tmp_path):
    rows = ratings(200)
    wide, table = released(rows), long_form(rows)
    table["site"] = np.where(table["user"] % 2 == 0, "even", "odd")
    table.to_parquet(tmp_path / "sites.parquet")
    table = table.drop(columns="site")
    table["user"] = "person " + table["user"].astype(str)
    table.to_csv(tmp_path / "all.csv", index=False)
    model = FedCovariance(epsilon=float("inf"), center=False, codebook=book(LONG))
    for silos in (
        {"all": table},
        {"all": tmp_path / "all.csv"},
        split_by_group(tmp_path / "sites.parquet", "site"),
    ):
        found = model.fit_silos(silos).release_
        assert found.n_samples == len(rows)
        assert sorted(found.silo_sizes.values()) == [len(rows) // len(silos)] * len(silos)
        assert found.study.unit == "user"
        near(found.pooled.covariance, wide.pooled.covariance)
    near(Completion(2).fit(found).mean_, Completion(2).fit(wide).mean_)
    near(model.fit(table).release_.pooled.covariance, wide.pooled.covariance)


def test_components_that_noise_could_show_are_not_used_and_means_remain():
    rows = ratings(300)
    found = Completion(2).fit(released(rows, 0.1, normalize=True))
    assert found.n_used_ == 0
    new = np.full((1, len(ITEMS)), np.nan)
    near(found.transform(new), np.clip(found.mean_, *SPAN)[None])
    assert "No component is used" in " ".join(found.account().sentences)


@pytest.mark.slow
def test_a_private_completion_is_better_than_means_and_its_intervals_hold():
    """Fails with probability below 1e-6.

    4,000 held-out cells of 20 releases: their errors depend on each other through persons and
    releases; if 10 of them went together, a share of 95% would have a deviation below 1.2%.
    """
    new = ratings(1000, seed=9, all_known=True)
    held = np.random.default_rng(2).random(new.shape) < 0.4
    shares, gains = [], []
    for seed in range(20):
        rows = ratings(8000, seed=100 + seed)
        found = Completion(2).fit(released(rows, 1.0, normalize=True))
        told = found.intervals(np.where(held, np.nan, new))
        within = (new >= told.low) & (new <= told.high)
        shares.append(within[held].mean())
        apart = [np.sqrt(np.mean((each - new)[held] ** 2)) for each in (told.values, found.mean_)]
        gains.append(apart[0] / apart[1])
    assert np.mean(shares) == pytest.approx(0.95, abs=0.02)
    assert max(gains) < 0.9


def refused(match: str, work: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=match):
        work()


def test_what_a_table_of_one_rating_a_row_may_not_hold_is_refused():
    table = long_form(ratings(50))
    model = FedCovariance(epsilon=float("inf"), center=False, codebook=book(LONG))
    twice = pd.concat([table, table[table["film"] == "film 1"][:1]])
    nobody = table.assign(user=table["user"].astype(object).where(table["user"] != 7))
    refused(f"a second one at row {len(twice)}", lambda: model.fit_silos({"all": twice}))
    refused("must name the person in every row", lambda: model.fit_silos({"all": nobody}))
    refused("got 'when'", lambda: model.fit_silos({"all": table.assign(when=1.0)}))
    by_unit = FedCovariance(epsilon=float("inf"), codebook=book(LONG), unit="user")
    refused("must have one row per person to be used with unit", lambda: by_unit.fit_silos({"all": table}))


def test_ratings_are_never_prepared_and_completion_takes_nothing_else():
    rows, model = ratings(300), Completion(2)
    mixed = {**WIDE, "film 10": {"kind": "number", "missing": 0.0}}
    plain = FedCovariance(epsilon=float("inf")).fit(np.nan_to_num(rows)).release_
    refused("must have a bound on row norms", lambda: released(rows, 1.0))
    refused("without offsets and scales", lambda: model.fit(released(rows, scale=[2.0] * 20)))
    refused("must have only columns with rules of kind 'rating'", lambda: model.fit(plain))
    refused("got other columns too", lambda: model.fit(released(rows, codebook=book(mixed))))
    refused("below the 10 items", lambda: Completion(10).fit(released(rows)))


def test_adding_ratings_of_a_person_changes_one_row(tmp_path):
    """Whatever one person rated, her part of a normalised moment is that of one row of norm 1."""
    table = long_form(ratings(60))
    other = table[table["user"] != 3]
    mine = pd.DataFrame({"user": 3, "film": list(ITEMS), "stars": 5.0})
    model = FedCovariance(epsilon=float("inf"), center=False, codebook=replace(book(LONG), normalize=True))
    one = model.fit_silos({"all": table}).release_.pooled.covariance
    two = model.fit_silos({"all": pd.concat([other, mine])}).release_.pooled.covariance
    moved = np.linalg.norm(one - two) * 60
    assert 0.1 < moved <= np.sqrt(2.0) + 1e-12
