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
    draws,
    n_above,
    quantile,
    require_centred,
    standard_errors,
    usable,
)
from fedpower.errors import InputError
from fedpower.linalg import fix_signs
from fedpower.report.account import Account, Table
from fedpower.report.moment import Moment
from fedpower.report.page.charts import biplot, scree
from fedpower.report.page.markup import count, listed, number, percent
from fedpower.report.record import plain

Array = NDArray[np.float64]

_LEVEL = 0.01
"""The chance that the edge is exceeded by what noise alone adds to an eigenvalue."""


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
    noise_edge_ : float
        What noise alone adds to a variance at most, but for a chance of 1%; 0 without noise.
    n_above_noise_ : int or None
        How many components, less that edge, exceed the average of those after them; None without noise.
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

        self.standard_error_ = standard_errors(
            variances, moment, found.covariance, sampling=self.sampling
        )
        self.components_ = np.asarray(fix_signs(vectors[:, :k]).T)
        self.explained_variance_ = values[:k].copy()
        self.low_ = self.explained_variance_ - width * self.standard_error_
        self.high_ = self.explained_variance_ + width * self.standard_error_
        self.explained_variance_ratio_ = self.explained_variance_ / np.sum(values)
        self.noise_edge_, self.n_above_noise_ = 0.0, None
        if moment.noise_std > 0:
            self.noise_edge_ = self._edge(moment, found.covariance)
            self.n_above_noise_ = n_above(values, self.noise_edge_)
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
            X,
            self.feature_names_in_,
            what="columns of the moment, covariates too",
            advice="bring them",
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

    def _edge(self, moment: Moment, covariance: Array) -> float:
        """Return the 99% quantile of the largest eigenvalue that noise alone adds."""
        base, largest = self._adjusted(covariance), []
        for matrices, _ in draws(moment, covariance, sampling=False):
            moved = self._adjusted(covariance + 1e-3 * matrices) - base
            largest.append(np.linalg.eigvalsh(moved)[..., -1] / 1e-3)
        return float(np.quantile(np.concatenate(largest), 1.0 - _LEVEL))

    def account(self) -> Account:
        """Return what was found, for a terminal, a program and a page."""
        names = [self.moment_.names[place] for place in self._in]
        outside = [self.moment_.names[place] for place in self._out]
        labels = [f"pc{place}" for place in range(1, len(self.components_) + 1)]
        edge, above = self.noise_edge_, self.n_above_noise_
        if above is None:
            said = "No noise was added, so none is drowned in it."
        else:
            said = (
                f"{above} of {count(len(labels), 'component')} asked for stand above the noise, which "
                f"adds at most {number(edge, 3)} to a variance but for a chance of 1%."
                if above <= len(labels)
                else f"All components asked for, and {above - len(labels)} more, stand above the noise."
            )
        variances = zip(
            labels,
            self.explained_variance_.tolist(),
            self.standard_error_.tolist(),
            self.low_.tolist(),
            self.high_.tolist(),
            self.explained_variance_ratio_.tolist(),
            strict=True,
        )
        standing = [
            "signal" if above is None or place < above else "noise" if value <= edge else "near"
            for place, value in enumerate(self.explained_variance_)
        ]
        chart = scree(
            self.explained_variance_.tolist(),
            standing=standing,
            beyond=self.spectrum_[len(labels) : len(labels) + 20].tolist(),
            edge=edge,
        )
        pictures = [(chart, "Variances after adjustment, and the level that noise alone may add.")]
        if len(labels) > 1:
            plane = biplot(
                self.components_[0].tolist(), self.components_[1].tolist(), names, ("pc1", "pc2")
            )
            pictures.append((plane, "Columns by their loadings on the first two components."))
        heads = ("Component", "Variance", "Standard error", "From", "To", "Share of what is left")
        return Account(
            kind="adjusted",
            title=f"{count(len(labels), 'component')} of {len(names)} columns without {listed(outside)}",
            sentences=(
                said,
                f"Intervals are of {percent(self.level)} each and hold the privacy noise"
                + (" and that of sampling normal rows." if self.sampling else " alone."),
                *self._remark,
                *clipping_remark(self.moment_),
            ),
            tables=(
                Table(
                    title="Variances", headings=heads, rows=tuple(variances), file="variances.csv"
                ),
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
                "noise_edge": edge,
                "n_above_noise": above,
                "n_floored": self.n_floored_,
                "clipping_share": clipping_share(self.moment_),
            },
        )
