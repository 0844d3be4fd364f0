"""``AdjustedPCA``: principal components of what covariates leave unexplained."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analyses.base import (
    LEVEL,
    N_COMPONENTS,
    SAMPLING,
    Analysis,
    Option,
    correlation_shift,
    new_rows,
    require_count,
    standard_errors,
    table_of,
)  # fmt: skip
from fedpower.errors import InputError
from fedpower.linalg import fix_signs
from fedpower.protocol.solvers.angles import CONFIDENCE, DETERMINED, derived_angles, exact_angles
from fedpower.report.charts import biplot, scree
from fedpower.report.moment import Moment
from fedpower.report.page import Table
from fedpower.report.text import count, listed
from fedpower.report.view import angle_sentences

Array = NDArray[np.float64]


class AdjustedPCA(TransformerMixin, Analysis):
    """Components of columns after covariates are partialled out: of the residuals of their regression.

    Parameters
    ----------
    n_components : int
        k.
    covariates : list of str or int
        The columns to adjust for, such as age or the site.
    level : float, default=0.95
        Of the variances' intervals.
    sampling : bool, default=True
        Whether the rows are a sample: else intervals hold the privacy noise alone.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_columns)
        Axes of the adjusted columns, in ``feature_names_in_``'s order without the covariates.
    explained_variance_, standard_error_, low_, high_ : ndarray of shape (k,)
        Variances with their errors and intervals.
    explained_variance_ratio_ : ndarray of shape (k,)
        Shares of the variance that is left.
    component_angles_, subspace_angles_ : ndarray of shape (k,)
        Degrees by which each component, and the subspace of the first, the first two, …, may be off at
        90% confidence, as of `FedPCA`. Up to 45° they are determined.
    coef_ : ndarray of shape (n_covariates, n_columns)
        What was partialled out: the columns regressed on the covariates.
    moment_ : Moment
        What it was computed from.
    """

    kind = "adjusted"
    options = (
        N_COMPONENTS,
        Option(
            "covariates",
            "--covariates",
            "The columns to adjust for.",
            type=list,
            required=True,
            metavar="A,B,...",
        ),
        LEVEL,
        SAMPLING,
    )
    facts = ("components", "explained_variance", "standard_error", "low", "high", "component_angles",
             "subspace_angles", "n_floored", "clipping_share")  # fmt: skip

    def __init__(
        self,
        n_components: int,
        *,
        covariates: Sequence[str | int],
        level: float = 0.95,
        sampling: bool = True,
    ) -> None:
        self.n_components = n_components
        self.covariates = covariates
        self.level = level
        self.sampling = sampling

    def _fit(self, moment: Moment) -> None:
        covariance = self._usable(moment)
        given = [self.covariates] if isinstance(self.covariates, str | int) else self.covariates
        self._out = [moment.column(name) for name in given]
        self._in = [place for place in range(moment.n_features) if place not in self._out]
        if not self._out or not self._in:
            raise InputError(
                f"covariates must be some of the columns and not all, got {list(given)!r}; name those to "
                "adjust for"
            )
        most = len(self._in)
        k = require_count("n_components", self.n_components, most, upto=f"the {most} columns that are left")
        left = self._adjusted(covariance)
        values, vectors = np.linalg.eigh(left)
        values, vectors = values[::-1], vectors[:, ::-1]

        def variances(drawn: Array, means: Array) -> Array:
            del means
            return np.asarray(np.linalg.eigvalsh(self._adjusted(drawn))[..., ::-1][..., :k])

        errors = standard_errors(variances, moment, covariance, sampling=self.sampling)
        self.components_ = np.asarray(fix_signs(vectors[:, :k]).T)
        self.explained_variance_ = values[:k].copy()
        self._set_intervals(self.explained_variance_, errors)
        self.explained_variance_ratio_ = self.explained_variance_ / np.sum(values)
        angles = (
            derived_angles(
                moment.pooled,
                vectors[:, :k],
                lambda drawn: self._adjusted(self._floored(drawn, moment)),
                cut=correlation_shift(moment),
            )
            if moment.noise_std > 0
            else exact_angles(values, k, n_features=most)
        )
        self.component_angles_, self.subspace_angles_ = angles.components, angles.subspaces
        inner = covariance[np.ix_(self._out, self._out)]
        self.coef_ = np.linalg.solve(inner, covariance[np.ix_(self._out, self._in)])
        self.feature_names_in_ = np.asarray(moment.names, dtype=object)
        self.n_features_in_ = moment.n_features
        self.spectrum_ = values

    def transform(self, X: ArrayLike) -> Array:
        """Return the adjusted scores of rows with all columns of the moment: a local computation."""
        check_is_fitted(self)
        given = new_rows(
            X, self.feature_names_in_, what="columns of the moment, covariates too", advice="bring them"
        )
        centred = given - self.moment_.mean
        left = centred[:, self._in] - centred[:, self._out] @ self.coef_
        return np.asarray(left @ self.components_.T)

    def _adjusted(self, covariance: Array) -> Array:
        """Return C_xx − C_xz C_zz⁻¹ C_zx."""
        inner = covariance[..., self._out, :][..., :, self._out]
        cross = covariance[..., self._out, :][..., :, self._in]
        kept = covariance[..., self._in, :][..., :, self._in]
        return np.asarray(kept - np.swapaxes(cross, -1, -2) @ np.linalg.solve(inner, cross))

    def _floored(self, drawn: Array, moment: Moment) -> Array:
        """Return a drawn moment in the rows' own units, its covariates floored as `usable` does."""
        values, vectors = np.linalg.eigh(drawn[np.ix_(self._out, self._out)])
        made = drawn.copy()
        made[np.ix_(self._out, self._out)] = (vectors * np.maximum(values, moment.noise_std)) @ vectors.T
        return np.asarray(made * np.outer(moment.units, moment.units))

    @property
    def _labels(self) -> list[str]:
        return [f"pc{place}" for place in range(1, len(self.components_) + 1)]

    def _named(self, places: list[int]) -> list[str]:
        return [self.moment_.names[place] for place in places]

    def _title(self) -> str:
        without = listed(self._named(self._out))
        return f"{count(len(self.components_), 'component')} of {len(self._in)} columns without {without}"

    def _sentences(self) -> Iterator[str]:
        angles, exact = (self.component_angles_, self.subspace_angles_), self.moment_.noise_std == 0
        yield from angle_sentences(*angles, len(self._in), exact=exact)
        yield self._interval_sentence()
        yield from self._remarks

    def _tables(self) -> Iterator[Table]:
        yield table_of(
            "Variances",
            "variances.csv",
            {
                "Component": self._labels,
                "Variance": self.explained_variance_,
                "Standard error": self.standard_error_,
                "From": self.low_,
                "To": self.high_,
                "Share of what is left": self.explained_variance_ratio_,
                "Angle": self.component_angles_,
            },
        )
        loadings = dict(zip(self._labels, self.components_, strict=True))
        yield table_of("Loadings", "loadings.csv", {"Column": self._named(self._in), **loadings})

    def _pictures(self) -> Iterator[tuple[Markup, str]]:
        k = len(self.components_)
        chart = scree(
            self.explained_variance_.tolist(),
            determined=(self.component_angles_ <= DETERMINED).tolist(),
            beyond=self.spectrum_[k : k + 20].tolist(),
        )
        yield chart, "Variances after adjustment; a ring is a component not determined."
        if k > 1:
            first, second = self.components_[:2].tolist()
            plane = biplot(first, second, self._named(self._in), ("pc1", "pc2"))
            yield plane, "Columns by their loadings on the first two components."

    def _more_facts(self) -> dict[str, Any]:
        named = {"columns": self._named(self._in), "covariates": self._named(self._out)}
        return {**named, "confidence": CONFIDENCE}
