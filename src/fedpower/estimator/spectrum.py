"""The spectrum that an earlier result shows, as a plan wants it."""

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, Sentence
from fedpower.report.result import Result

Array = NDArray[np.float64]


def spectrum_of_result(result: Result, *, row_norm: float | None = None) -> Array:
    """Return the d eigenvalues that a result shows, without its noise, for rows of norm at most 1.

    What the denoised variances of its components leave of the total the others share equally, for
    nothing more is known of them.

    Parameters
    ----------
    result
        Of a fit that was exact, or in which a component is determined.
    row_norm
        B of the fit that is planned; None takes that of the result.
    """
    bound = _bound_of(result) if row_norm is None else row_norm
    if bound is None:
        raise InputError(
            Sentence(
                "a result that is to be a spectrum must have a bound on the norm of a row, got one "
                "without; give {row_norm:B} or {codebook}, in the units of that result"
            )
        )
    values = result.explained_variance if result.spectrum is None else result.spectrum
    if result.run["privacy"]["private"]:
        if not any(result.determined):
            raise InputError(
                "a result that is to be a spectrum must have a component that is determined, got none; "
                "take another result, or guess the eigenvalues"
            )
        assert result.denoised_variance is not None, "it has angles"
        values = result.denoised_variance
    values = np.maximum(values, 0.0)
    left = max(_total(result) - float(values.sum()), 0.0)
    rest = result.n_features - values.size
    if rest:
        values = np.append(values, np.full(rest, min(left / rest, float(values[-1]))))
    values = values * (_unit_of(result) if row_norm is None else 1.0) / bound**2
    return np.asarray(values / max(float(values.sum()), 1.0), dtype=np.float64)


def _unit_of(result: Result) -> float:
    """Return what a variance of the result is in units of the rows that its bound is of."""
    book = result.code_book
    if book is not None:
        if not result.standardized:
            raise InputError(
                Sentence(
                    "a result that is to be a spectrum must be of correlations where its columns were "
                    "prepared, got covariances; fit it with {standardize:True}"
                )
            )
        return 1.0
    if not result.standardized or result.scale is None:
        return 1.0
    given = result.run["parameters"].get("scale")
    return float(np.mean((result.scale / (1.0 if given is None else np.asarray(given))) ** 2))


def _total(result: Result) -> float:
    share = float(result.explained_variance_ratio[0])
    return float(result.explained_variance[0]) / share if share > 0 else 0.0


def _bound_of(result: Result) -> float | None:
    if result.normalize:
        return 1.0
    if result.code_book is not None:
        return result.code_book.bound
    given = result.run["parameters"].get("row_norm")
    return None if given is None else float(given)
