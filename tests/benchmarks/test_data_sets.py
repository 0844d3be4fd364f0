"""Data sets and trusted curators: bounds that hold, splits, and curators as exact as they should be."""

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.baselines import analyze_gauss, curator_noise, exponential_eigenvectors, leading
from benchmarks.data_sets import KINDS, available, load, loaders, split
from fedpower.linalg import sin_theta
from fedpower.privacy import delta_of
from problems import Array


@pytest.mark.parametrize("name", ["digits", "breast cancer"])
def test_bounded_rows_have_norm_at_most_one_and_a_label_each(name: str) -> None:
    data = load(name)
    norms = np.linalg.norm(data.bounded(), axis=1)
    assert norms.max() <= 1.0
    assert data.labels.shape == (len(data.rows),)
    assert data.facts()["rows"] == len(norms)


def test_a9a_has_its_rows_and_labels_in_both_treatments(tmp_path: Path) -> None:
    (tmp_path / "a9a.svm").write_text("-1 3:1 11:1 14:1\n+1 5:1 7:1 123:1\n-1 5:1 11:1\n")
    scaled, unit = (load(f"a9a, {kind}", tmp_path / "a9a.svm") for kind in ("min-max", "unit rows"))
    assert scaled.labels.tolist() == unit.labels.tolist() == [-1, 1, -1]
    assert scaled.rows.shape == (3, 123)
    assert np.linalg.norm(unit.bounded(), axis=1) == pytest.approx(1.0)
    # The bound of the 14 attributes is far from these short rows: they are divided by it, not clipped.
    norms = np.linalg.norm(scaled.rows, axis=1)
    assert np.linalg.norm(scaled.bounded(), axis=1) == pytest.approx(norms / np.sqrt(14))


def test_a_data_set_that_is_not_there_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    said: list[str] = []
    known = loaders(tmp_path / "none")
    found = available({name: known[name] for name in ("a9a, unit rows", "digits")}, said.append)
    assert [data.name for data in found] == ["digits"]
    assert [each.partition(":")[0] for each in said] == ["a9a, unit rows is left out"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_silos", [1, 5])
def test_every_row_is_in_one_silo_and_silos_are_equal(kind: str, n_silos: int) -> None:
    labels = np.repeat(np.arange(5), 20)[np.random.default_rng(0).permutation(100)]
    silos = split(kind, labels, n_silos, np.random.default_rng(1))
    assert sorted(np.concatenate(silos).tolist()) == list(range(100))
    assert max(map(len, silos)) - min(map(len, silos)) <= 1
    if kind == "by label" and n_silos == 5:
        assert [set(labels[rows].tolist()) for rows in silos] == [{0}, {1}, {2}, {3}, {4}]


def test_the_curators_noise_is_what_the_promise_needs_and_none_without_privacy(rows: Array) -> None:
    std = curator_noise(n_rows=1000, epsilon=0.7, delta=1e-5)
    mu = math.sqrt(2.0) / 1000 / std
    assert delta_of(mu, 0.7) == pytest.approx(1e-5, rel=1e-6)
    assert delta_of(mu * 1.001, 0.7) > 1e-5
    moment, rng = rows.T @ rows / len(rows), np.random.default_rng(0)
    found = analyze_gauss(moment, 3, n_rows=len(rows), epsilon=math.inf, delta=1e-6, rng=rng)
    assert np.array_equal(found, leading(moment, 3)[1])


def test_the_exponential_mechanism_gives_an_orthonormal_basis_that_nears_the_exact_one(rows: Array) -> None:
    moment, errors = rows.T @ rows / len(rows), []
    for epsilon in (1e6, 1e12):
        rng = np.random.default_rng(0)
        found = exponential_eigenvectors(moment, 3, n_rows=len(rows), epsilon=epsilon, rng=rng)
        assert found.T @ found == pytest.approx(np.eye(3), abs=1e-10)
        errors.append(sin_theta(found, leading(moment, 3)[1]))
    assert errors[1] < 1e-3
    assert errors[1] < errors[0]
