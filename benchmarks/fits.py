"""Estimators from options by the names that the command line gives them: cases vary one at a time."""

from collections.abc import Sequence
from inspect import signature
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedpower import CodeBook, FedCovariance, FedPCA
from fedpower.options import Options, from_flat

_VALUES = ("codebook", "unit", "noise", "aggregation", "solver")


def values_of(given: dict[str, Any]) -> dict[str, Any]:
    known = signature(FedPCA).parameters
    flat = {name: value for name, value in given.items() if name not in known}
    made = {name: value for name, value in given.items() if name in known}
    if np.ndim(made.get("center", True)):
        flat["offset"] = made.pop("center")
    if not flat:
        return made
    words = {name: made.pop(name) for name in _VALUES if name == "codebook" or isinstance(made.get(name), str)
             if name in made}  # fmt: skip
    if isinstance(words.get("codebook"), str | PathLike):
        words["codebook"] = CodeBook.load(words["codebook"])
    options = from_flat({**words, **flat})
    for name in made.keys() & set(_VALUES):
        assert getattr(options, name) == getattr(Options(), name), f"{name} is given twice"
    touched = {name: getattr(options, name) for name in _VALUES if name not in made}
    return {**made, **{name: value for name, value in touched.items() if value is not None}}


def fed_pca(n_components: Any = None, **given: Any) -> FedPCA:
    return FedPCA(n_components, **values_of(given))


def comparisons(items: Sequence[str], winner: str = "winner", loser: str = "loser", **more: Any) -> CodeBook:
    """Return the code book of tables whose every row compares two items."""
    return CodeBook(rules={winner: {"items": list(items), "against": loser, **more}})


def fed_covariance(**given: Any) -> FedCovariance:
    known = signature(FedCovariance).parameters
    return FedCovariance(**{name: value for name, value in values_of(given).items() if name in known})


def congruence(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Tucker's congruence of each factor with its match in another solution."""
    lengths = np.linalg.norm(one, axis=0)[:, None] * np.linalg.norm(other, axis=0)[None, :]
    cosines = np.abs(one.T @ other) / lengths
    rows, columns = linear_sum_assignment(cosines, maximize=True)
    return np.asarray(cosines[rows, columns][np.argsort(columns)])
