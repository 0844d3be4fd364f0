"""``AdjustedPCA``: principal components of columns after adjustment for covariates."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analysis import base
from fedpower.analysis.base import Analysis, Contents
from fedpower.exceptions import require
from fedpower.linalg import Array, fix_signs
from fedpower.options import setting
from fedpower.protocol.solvers.angles import DETERMINED, derived_angles
from fedpower.report.covariance import Covariance
from fedpower.report.page import Table
from fedpower.report.text import count, listed


class AdjustedPCA(TransformerMixin, Analysis):
    """Principal components after the effect of covariates is removed.

    The columns are regressed on the covariates, such as age or batch. The components are those of
    the residuals, in units of the columns' standard deviations unless ``standardize=False``.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_columns)
        Principal axes of the adjusted columns, which are ``feature_names_in_`` without the covariates.
    explained_variance_, standard_error_, low_, high_ : ndarray of shape (k,)
        Variances with standard errors and intervals.
    explained_variance_ratio_ : ndarray of shape (k,)
        Shares of the variance that remains after the adjustment.
    component_angles_, subspace_angles_ : ndarray of shape (k,)
        As in `FedPCA`.
    scale_ : ndarray of shape (n_columns,)
        What adjusted columns are divided by: their standard deviations, or 1.
    coef_ : ndarray of shape (n_covariates, n_columns)
        Coefficients of the regression on the covariates.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedCovariance
    >>> from fedpower.analysis import AdjustedPCA
    >>> rows = np.random.default_rng(0).normal(size=(500, 4))
    >>> release = FedCovariance(epsilon=float("inf")).fit(rows)
    >>> AdjustedPCA(2, covariates=[0]).fit(release).transform(rows).shape
    (500, 2)
    """

    kind = "adjusted"

    n_components: int = base.components()
    _: KW_ONLY
    covariates: Sequence[str | int] = setting(
        MISSING, "Columns to adjust for, such as age or the site.", kind=list, metavar="A,B,..."
    )
    standardize: bool = setting(True, "Divide columns by their standard deviations.", "flag")
    level: float = base.level()
    sampling: bool = base.sampling()

    def _fit(self, release: Covariance) -> None:
        covariance, self.n_floored_ = base.usable(release)
        k = self.n_components
        given = [self.covariates] if isinstance(self.covariates, str | int) else list(self.covariates)
        self._out = [release.column(name) for name in given]
        self._in = [place for place in range(release.n_features) if place not in self._out]
        must = "some of the columns, but not all"
        require(bool(self._out and self._in), "covariates", must, given)
        self.columns_ = [release.names[place] for place in self._in]
        self.covariates_ = [release.names[place] for place in self._out]
        most = len(self._in)
        require(k <= most, "n_components", f"at most {most}, the number of other columns", k)
        spread = np.sqrt(np.diagonal(covariance))
        self.scale_ = np.where((spread > 0) & self.standardize, spread, 1.0)[self._in]
        values, vectors = base.eigenpairs(self._adjusted(covariance))
        self.components_ = np.asarray(fix_signs(vectors[:, :k]).T)
        self.explained_variance_, self.spectrum_ = values[:k].copy(), values

        def variances(drawn: Array, means: Array) -> Array:
            return np.asarray(np.linalg.eigvalsh(self._adjusted(drawn))[..., ::-1][..., :k])

        self._set_intervals(self.explained_variance_, self._standard_errors(variances, covariance))
        self.explained_variance_ratio_ = self.explained_variance_ / np.sum(values)
        noised = partial(derived_angles, release.pooled, vectors[:, :k], self._adjusted_draw)
        self._set_angles(noised, values, k)
        inner = covariance[np.ix_(self._out, self._out)]
        self.coef_ = np.linalg.solve(inner, covariance[np.ix_(self._out, self._in)])

    def transform(self, X: ArrayLike) -> Array:
        """Return the adjusted scores of rows with all columns of the release. This is a local computation."""
        check_is_fitted(self)
        given = base.new_rows(X, self.feature_names_in_, "columns of the covariance, covariates too")
        centred = given - self.release_.mean
        left = centred[:, self._in] - centred[:, self._out] @ self.coef_
        return np.asarray(left / self.scale_ @ self.components_.T)

    def _adjusted(self, covariance: Array) -> Array:
        """Return C_xx − C_xz C_zz⁻¹ C_zx, scaled."""
        inner = covariance[..., self._out, :][..., :, self._out]
        cross = covariance[..., self._out, :][..., :, self._in]
        kept = covariance[..., self._in, :][..., :, self._in]
        left = kept - np.swapaxes(cross, -1, -2) @ np.linalg.solve(inner, cross)
        return np.asarray(left / np.outer(self.scale_, self.scale_))

    def _adjusted_draw(self, drawn: Array) -> Array:
        """Return the adjustment of a drawn covariance, its covariates floored as `usable` does."""
        release, made, at = self.release_, drawn.copy(), np.ix_(self._out, self._out)
        made[at] = base.floored(drawn[at], release.noise_std)
        return self._adjusted(made * np.outer(release.units, release.units))

    def _page(self) -> Contents:
        labels = [f"pc{place}" for place in range(1, len(self.components_) + 1)]
        columns = f"{len(self._in)} columns without {listed(self.covariates_)}"
        yield f"{count(len(labels), 'component')} of {columns}"
        yield from self._angle_sentences(len(self._in))
        yield self._interval_sentence()
        variances = {
            "Component": labels,
            "Variance": self.explained_variance_,
            **self._interval_columns(),
            "Share of rest": self.explained_variance_ratio_,
            "Angle": self.component_angles_,
        }
        yield Table("Variances", "variances.csv", variances)
        loadings = dict(zip(labels, self.components_, strict=True))
        yield Table("Loadings", "loadings.csv", {"Column": self.columns_, **loadings})
        caption = "Variances after adjustment; a ring marks a component that is not determined."
        yield base.variance_chart(self.spectrum_, self.component_angles_ <= DETERMINED, caption)
        yield from base.loadings_chart(self.components_, self.columns_, "Columns", "components")
