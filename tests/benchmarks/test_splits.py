"""Splits: every row in exactly one silo, equal sizes, labels apart where they should be."""

import numpy as np
import pytest

from benchmarks.data_sets import KINDS, split

LABELS = np.repeat(np.arange(5), 20)[np.random.default_rng(0).permutation(100)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_silos", [1, 3, 5])
def test_every_row_is_in_one_silo_and_silos_are_equal(kind: str, n_silos: int) -> None:
    silos = split(kind, LABELS, n_silos, np.random.default_rng(1))
    assert sorted(np.concatenate(silos).tolist()) == list(range(100))
    assert max(map(len, silos)) - min(map(len, silos)) <= 1


def test_by_label_each_silo_has_labels_of_its_own() -> None:
    silos = split("by label", LABELS, 5, np.random.default_rng(1))
    assert [set(LABELS[rows].tolist()) for rows in silos] == [{0}, {1}, {2}, {3}, {4}]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_split_and_another_another(kind: str) -> None:
    first, again, other = (split(kind, LABELS, 3, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="by colour"):
        split("by colour", LABELS, 3, np.random.default_rng(1))
