"""Why a private fit found nothing: the likely cause, from public facts and from what was released."""

from typing import Any

import numpy as np

from fedpower.errors import Sentence
from fedpower.privacy.statement import counted_as
from fedpower.report.result import Result

LITTLE = 0.1
"""A bound is far too large where rows use less than this share of its square."""

FAR = 10.0
"""Rows lie far from zero where their mean's square is so many times their variance."""

_ENOUGH_ROWS = 1000
"""Rows a column from which on, at ε = 1 or more, the number of rows is not to blame."""

_SMALL_EPSILON = 0.5


def cause_of_noise(result: Result) -> str | None:
    """Return why nothing is determined and what would help; None where something is."""
    determined = any(result.determined) or result.n_determined > 0
    if determined or result.component_angles is None or not result.run["privacy"]["private"]:
        return None
    edge = float(result.explained_variance[0])  # of noise, or nearly
    bound = result.run["parameters"].get("row_norm")
    if bound is not None:
        spread, middle = _total(result), _mean_square(result)
        edge *= _unit(result)
        used = spread + middle + edge
        if used < LITTLE * bound**2:
            return Sentence(
                "the likely cause is the bound: rows have a mean square of about {used:.2g} at most, and "
                "noise was made for {square:.2g}; give {row_norm:{better:.2g}} or so",
                used=used,
                square=bound**2,
                better=2.0 * np.sqrt(used),
            )
        if middle > FAR * max(spread, edge):
            return Sentence(
                "the likely cause is the offset: rows lie far from zero beside their spread, and the "
                "bound is spent on that; give public centres, or leave {row_norm} out to have them found"
            )
    n_rows, n_columns = result.n_samples, result.n_features
    things = f"{counted_as(result.run['parameters'])}s"
    epsilon = float(result.run["parameters"]["epsilon"])
    smaller = "" if bound is None else ", or a smaller bound"
    if epsilon < _SMALL_EPSILON and n_rows >= _ENOUGH_ROWS * n_columns * epsilon:
        return f"the likely cause is epsilon={epsilon:g}, which is small; give a larger one{smaller}"
    if n_rows * min(epsilon, 1.0) < _ENOUGH_ROWS * n_columns:
        return (
            f"the likely cause is the number of {things}, {n_rows:,}, which is small for {n_columns} "
            f"columns at epsilon={epsilon:g}; bring more {things}, leave columns out, or take a larger "
            f"epsilon{smaller}"
        )
    return (
        "the likely cause is the columns, of which no direction stands out, or a few whose units are "
        "larger than the others'; give ranges or public scales, or leave columns out"
    )


def _total(result: Result) -> float:
    share = float(result.explained_variance_ratio[0])
    return _unit(result) * float(result.explained_variance[0]) / share if share > 0 else 0.0


def _unit(result: Result) -> float:
    """Return what a variance is in units of the bounded rows: of standardised columns, on average."""
    if not result.standardized or result.scale is None:
        return 1.0
    return float(np.mean((result.scale / _given_scale(result)) ** 2))


def _given_scale(result: Result) -> Any:
    """Return the public divisors of the columns; 1 without any."""
    given = result.run["parameters"].get("scale")
    return 1.0 if given is None else np.asarray(given, dtype=np.float64)


def _mean_square(result: Result) -> float:
    away = result.mean - (0.0 if result.center is None else result.center)
    return float(np.sum((away / _given_scale(result)) ** 2))
