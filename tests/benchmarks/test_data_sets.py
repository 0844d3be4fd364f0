"""The data sets: public bounds that hold, labels, and one sentence for what is not there."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import data_sets
from benchmarks.data_sets import available, load, loaders

A9A_LINES = "-1 3:1 11:1 14:1\n+1 5:1 7:1 123:1\n-1 5:1 11:1\n"


@pytest.fixture
def a9a(tmp_path: Path) -> Path:
    file = tmp_path / "a9a.svm"
    file.write_text(A9A_LINES)
    return file


@pytest.mark.parametrize("name", ["digits", "breast cancer"])
def test_bounded_rows_have_norm_at_most_one_and_a_label_each(name: str) -> None:
    data = load(name)
    norms = np.linalg.norm(data.bounded(), axis=1)
    assert norms.max() <= 1.0
    assert data.labels.shape == (len(data.rows),)
    assert data.facts()["rows"] == len(norms)


def test_a9a_has_its_rows_and_labels_in_both_treatments(a9a: Path) -> None:
    scaled, unit = load("a9a, min-max", a9a), load("a9a, unit rows", a9a)
    assert scaled.labels.tolist() == unit.labels.tolist() == [-1, 1, -1]
    assert scaled.rows.shape == (3, 123)
    assert np.linalg.norm(unit.bounded(), axis=1) == pytest.approx(1.0)
    # The bound of the 14 attributes is far from these short rows: they are divided by it, not clipped.
    assert np.linalg.norm(scaled.bounded(), axis=1) == pytest.approx(
        np.linalg.norm(scaled.rows, axis=1) / np.sqrt(14)
    )


def test_a_data_set_that_is_not_there_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    said: list[str] = []
    known = loaders(tmp_path / "none")
    found = available({name: known[name] for name in ("a9a, unit rows", "digits")}, said.append)
    assert [data.name for data in found] == ["digits"]
    assert len(said) == 1
    assert said[0].startswith("a9a, unit rows is left out: ")


LABELS = np.repeat(np.arange(5), 20)[np.random.default_rng(0).permutation(100)]


@pytest.mark.parametrize("kind", data_sets.KINDS)
@pytest.mark.parametrize("n_silos", [1, 5])
def test_every_row_is_in_one_silo_and_silos_are_equal(kind: str, n_silos: int) -> None:
    silos = data_sets.split(kind, LABELS, n_silos, np.random.default_rng(1))
    assert sorted(np.concatenate(silos).tolist()) == list(range(100))
    assert max(map(len, silos)) - min(map(len, silos)) <= 1
    if kind == "by label" and n_silos == 5:
        assert [set(LABELS[rows].tolist()) for rows in silos] == [{0}, {1}, {2}, {3}, {4}]
