"""``AdjustedPCA``: principal components of what covariates leave unexplained."""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analyses.rows import brought
from fedpower.analyses.spread import (
    clipping_remark,
    clipping_share,
    correlation_shift,
    quantile,
    require_centred,
    standard_errors,
    usable,
)
from fedpower.errors import InputError
from fedpower.linalg import fix_signs
from fedpower.protocol.solvers.angles import CONFIDENCE, DETERMINED, derived_angles, exact_angles
from fedpower.report.charts import biplot, scree
from fedpower.report.moment import Moment
from fedpower.report.page import Account, Table
from fedpower.report.record import plain
from fedpower.report.text import count, listed, percent
from fedpower.report.view import angle_sentences

Array = NDArray[np.float64]


class AdjustedPCA(TransformerMixin, BaseEstimator):
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

    def fit(self, moment: Moment, y: object = None) -> Self:
        """Adjust a released moment, find its components and return itself."""
        del y
        require_centred(moment)
        width, found = quantile(self.level), usable(moment)
        given = [self.covariates] if isinstance(self.covariates, str | int) else self.covariates
        self._out = [moment.column(each) for each in given]
        self._in = [place for place in range(moment.n_features) if place not in self._out]
        if not self._out or not self._in:
            raise InputError(
                f"covariates must be some of the columns and not all, got {list(given)!r}; name those to "
                "adjust for"
            )
        k, most = self.n_components, len(self._in)
        if not (isinstance(k, int) and 1 <= k <= most):
            raise InputError(
                f"n_components must be a whole number from 1 to the {most} columns that are left, got "
                f"{k!r}; choose one"
            )
        left = self._adjusted(found.covariance)
        values, vectors = np.linalg.eigh(left)
        values, vectors = values[::-1], vectors[:, ::-1]

        def variances(covariance: Array, means: Array) -> Array:
            del means
            return np.asarray(np.linalg.eigvalsh(self._adjusted(covariance))[..., ::-1][..., :k])

        self.standard_error_ = standard_errors(variances, moment, found.covariance, sampling=self.sampling)
        self.components_ = np.asarray(fix_signs(vectors[:, :k]).T)
        self.explained_variance_ = values[:k].copy()
        self.low_ = self.explained_variance_ - width * self.standard_error_
        self.high_ = self.explained_variance_ + width * self.standard_error_
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
        inner = found.covariance[np.ix_(self._out, self._out)]
        self.coef_ = np.linalg.solve(inner, found.covariance[np.ix_(self._out, self._in)])
        self.feature_names_in_ = np.asarray(moment.names, dtype=object)
        self.n_features_in_ = moment.n_features
        self.spectrum_ = values
        self.n_floored_, self._remark, self.moment_ = found.n_floored, found.remark, moment
        return self

    def transform(self, X: ArrayLike) -> Array:
        """Return the adjusted scores of rows with all columns of the moment: a local computation."""
        check_is_fitted(self)
        given = brought(
            X, self.feature_names_in_, what="columns of the moment, covariates too", advice="bring them"
        )
        apart = given - self.moment_.mean
        left = apart[:, self._in] - apart[:, self._out] @ self.coef_
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

    def account(self) -> Account:
        """Return what was found, for a terminal, a program and a page."""
        names = [self.moment_.names[place] for place in self._in]
        outside = [self.moment_.names[place] for place in self._out]
        labels = [f"pc{place}" for place in range(1, len(self.components_) + 1)]
        exact = self.moment_.noise_std == 0
        variances = zip(
            labels,
            self.explained_variance_.tolist(),
            self.standard_error_.tolist(),
            self.low_.tolist(),
            self.high_.tolist(),
            self.explained_variance_ratio_.tolist(),
            self.component_angles_.tolist(),
            strict=True,
        )
        fixed = self.component_angles_ <= DETERMINED
        chart = scree(
            self.explained_variance_.tolist(),
            determined=fixed.tolist(),
            beyond=self.spectrum_[len(labels) : len(labels) + 20].tolist(),
        )
        pictures = [(chart, "Variances after adjustment; a ring is a component not determined.")]
        if len(labels) > 1:
            plane = biplot(self.components_[0].tolist(), self.components_[1].tolist(), names, ("pc1", "pc2"))
            pictures.append((plane, "Columns by their loadings on the first two components."))
        heads = ("Component", "Variance", "Standard error", "From", "To", "Share of what is left", "Angle")
        return Account(
            kind="adjusted",
            title=f"{count(len(labels), 'component')} of {len(names)} columns without {listed(outside)}",
            sentences=(
                *angle_sentences(
                    self.component_angles_, self.subspace_angles_, self.components_.shape[1], exact=exact
                ),
                f"Intervals are of {percent(self.level)} each and hold the privacy noise"
                + (" and that of sampling normal rows." if self.sampling else " alone."),
                *self._remark,
                *clipping_remark(self.moment_),
            ),
            tables=(
                Table(title="Variances", headings=heads, rows=tuple(variances), file="variances.csv"),
                Table(
                    title="Loadings",
                    headings=("Column", *labels),
                    rows=tuple(zip(names, *self.components_.tolist(), strict=True)),
                    file="loadings.csv",
                ),
            ),
            pictures=tuple(pictures),
            facts={
                "columns": names,
                "covariates": outside,
                "components": plain(self.components_),
                "explained_variance": plain(self.explained_variance_),
                "standard_error": plain(self.standard_error_),
                "low": plain(self.low_),
                "high": plain(self.high_),
                "component_angles": plain(self.component_angles_),
                "subspace_angles": plain(self.subspace_angles_),
                "confidence": CONFIDENCE,
                "n_floored": self.n_floored_,
                "clipping_share": clipping_share(self.moment_),
            },
        )
