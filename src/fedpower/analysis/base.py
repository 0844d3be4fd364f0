"""What analyses of a released covariance share: parameters, the law of its noise, intervals and pages."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Self, dataclass_transform

import numpy as np
import scipy.stats
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedpower.exceptions import InputError
from fedpower.linalg import Array
from fedpower.options import documented, setting
from fedpower.protocol.solvers.angles import CONFIDENCE, Directions, exact_angles
from fedpower.report import text
from fedpower.report.covariance import Covariance
from fedpower.report.page import Account, Picture, Table, drawn
from fedpower.report.record import plain
from fedpower.report.result import covariance_of
from fedpower.report.view import angle_sentences

Contents = Iterator[str | Table | Picture]
"""What a page holds: sentences, tables and pictures."""

Statistic = Callable[[Array, Array], Array]
"""From covariances (…, d, d) and means (…, d) to numbers (…, p)."""

_SEED = 19
_MOST_DRAWS, _LEAST_DRAWS, _NUMBERS = 1000, 200, 2e7
_STEP = 1e-3  # of the draws, at which a derivative is taken: an error of its square

_OF_ESTIMATORS = ("release_", "feature_names_in_", "n_features_in_")

CLEAR = 2.0  # times the edge of the noise: what intervals are divided by must exceed it


def components(help: str = "Number of components, k.") -> Any:
    return setting(MISSING, help, "count", option="-k --components")


def level(default: float = 0.95, help: str = "Level of the intervals.") -> Any:
    return setting(default, help, "share")


def sampling() -> Any:
    help = "Include sampling error in intervals; otherwise only privacy noise."
    return setting(True, help, "flag")


@dataclass_transform(eq_default=False)
class Analysis(BaseEstimator):
    """A scikit-learn estimator that is fitted to a released covariance.

    A subclass declares parameters with `fedpower.options.setting` and has `_fit` and `_page`. A line in the
    registry of `fedpower.analysis` makes it a command of ``fedpower analyze``. Every analysis has
    ``release_``.
    """

    kind: ClassVar[str]
    needs_covariance: ClassVar[bool] = True

    release_: Covariance
    clipping_share_: float | None
    n_floored_: int = 0

    def __init_subclass__(cls) -> None:
        documented(dataclass(eq=False, repr=False)(cls), before="Attributes")
        super().__init_subclass__()

    def fit(self, X: Any, y: object = None) -> Self:
        """Compute the analysis of a released covariance.

        Parameters
        ----------
        X : Covariance, Result, fitted estimator or path
            A fit that keeps its covariance, or the folder it was saved to.
        y : ignored
            Present for scikit-learn's API.
        """
        release = covariance_of(X)
        if self.needs_covariance and not release.centered:
            raise InputError(
                "the release must be centred on the mean for this analysis, got center=False; fit it again"
            )
        for item in fields(self):
            item.metadata["setting"].check(item.name, getattr(self, item.name))
        self.release_, self.columns_ = release, list(release.names)
        self.feature_names_in_ = np.asarray(release.names, dtype=object)
        self.n_features_in_ = release.n_features
        clipping = release.record.clipping
        self.clipping_share_ = None if clipping is None else clipping.energy
        try:
            with np.errstate(invalid="ignore"):  # of constant columns, which are refused in a sentence
                self._fit(release)
        except np.linalg.LinAlgError:
            raise _dependent(release) from None
        return self

    def _fit(self, release: Covariance) -> None:
        raise NotImplementedError

    def _page(self) -> Contents:
        """Yield the title, then sentences, tables and pictures."""
        raise NotImplementedError

    def account(self) -> Account:
        """Return the findings, for a terminal, a program and a page."""
        check_is_fitted(self)
        own = {name: value for name, value in vars(self).items() if name not in _OF_ESTIMATORS}
        fitted = {name[:-1]: value for name, value in own.items() if name[-1] == "_" != name[0]}
        title, *contents = self._page()
        return Account(
            kind=self.kind,
            title=str(title),
            sentences=(*(entry for entry in contents if isinstance(entry, str)), *self._remarks()),
            tables=tuple(entry for entry in contents if isinstance(entry, Table)),
            pictures=tuple(entry for entry in contents if isinstance(entry, Picture)),
            facts=plain({**self.get_params(deep=False), **fitted}),
        )

    # --- what several analyses find and report --------------------------------------------------------

    def _standard_errors(
        self, statistic: Statistic, covariance: Array, *, at: Array | None = None, count: int = 0
    ) -> Array:
        """Return the standard deviation of each number of a statistic, from noise and sampling together."""
        mean, squares, seen, at = self.release_.mean, 0.0, 0, covariance if at is None else at
        for matrices, means in draws(self.release_, covariance, sampling=self.sampling, count=count):
            up = statistic(at + _STEP * matrices, mean + _STEP * means)
            down = statistic(at - _STEP * matrices, mean - _STEP * means)
            squares = squares + np.sum(((up - down) / (2.0 * _STEP)) ** 2, axis=0)
            seen += len(matrices)
        return np.asarray(np.sqrt(np.asarray(squares) / seen))

    def _set_intervals(self, values: Array, errors: Array) -> None:
        width = quantile(self.level)
        self.standard_error_ = errors
        self.low_, self.high_ = values - width * errors, values + width * errors

    def _set_angles(self, noised: Callable[..., Directions], values: Array, k: int) -> Directions:
        """Return the angles of k components: those of draws of the noise, or of exact eigenvalues."""
        record, book, d = self.release_.record, self.release_.code_book, self.release_.n_features
        outside = None if book is None else book.outside
        cut = None if record.clipping is None else record.clipping.moves(d, outside)
        is_exact = self.release_.noise_std == 0
        found = exact_angles(values, k, n_features=len(values)) if is_exact else noised(cut=cut)
        self.component_angles_, self.subspace_angles_ = found.angles[:2]
        self.confidence_ = CONFIDENCE
        return found

    def _interval_columns(self, at: Any = slice(None)) -> dict[str, Array]:
        """Return errors and intervals as columns of a table."""
        return {"Standard error": self.standard_error_[at], "From": self.low_[at], "To": self.high_[at]}

    def _interval_sentence(self) -> str:
        more = "privacy noise and sampling error (of normal rows)" if self.sampling else "privacy noise only"
        return f"The intervals have a level of {text.percent(self.level)} for {more}."

    def _angle_sentences(self, n_columns: int) -> list[str]:
        angles, exact = (self.component_angles_, self.subspace_angles_), self.release_.noise_std == 0
        return angle_sentences(*angles, n_columns, exact=exact)

    def _remarks(self) -> Iterator[str]:
        """Yield what the floor and the bound on rows mean for the numbers."""
        if self.n_floored_:
            yield (
                f"{text.count(self.n_floored_, 'eigenvalue')} of the noised covariance raised to the noise's "
                "standard deviation: noise hides directions of less variance."
            )
        share = self.clipping_share_
        if share and self.needs_covariance and np.isfinite(getattr(self, "low_", np.nan)).any():
            size = "less than 0.1%" if share < 0.001 else f"about {share:.1%}"
            yield (
                f"Intervals and tests do not cover clipping, which removed {size} of the rows' squared "
                f"length: true coverage may be below {100 * self.level:g}%."
            )


# --- tables and pages ------------------------------------------------------------------------------


def interval_chart(
    title: str,
    names: Iterable[Any],
    *numbers: Array,
    caption: str = "Lines are intervals; a cross marks an interval that contains 0.",
) -> Picture:
    """Return a picture of values, and the low and high ends of their intervals."""
    values, low, high = (ends.tolist() for ends in numbers)
    return Picture(drawn("intervals", title, [str(name) for name in names], values, low, high), caption)


def variance_chart(spectrum: Array, determined: Iterable[bool], caption: str) -> Picture:
    """Return a picture of the variances of components, and of some that follow."""
    marks = [bool(verdict) for verdict in determined]
    k = len(marks)
    chart = drawn("scree", spectrum[:k].tolist(), marks, spectrum[k : k + 20].tolist())
    return Picture(chart, caption)


def loadings_chart(loadings: Array, names: Sequence[str], things: str, of: str) -> Iterator[Picture]:
    """Yield a picture of the first two rows of loadings; nothing for fewer."""
    if len(loadings) > 1:
        labels = ("factor 1", "factor 2") if of == "factors" else ("pc1", "pc2")
        plane = drawn("biplot", loadings[0].tolist(), loadings[1].tolist(), names, labels)
        yield Picture(plane, f"{things} by their loadings on the first two {of}.")


# --- input -----------------------------------------------------------------------------------------


def new_rows(
    X: Any, names: Sequence[str] | NDArray[np.object_], what: str = "columns of the covariance"
) -> Array:
    """Return new rows as numbers; a table's columns are matched by name."""
    wanted = f"X must have the {len(names)} {what}"
    if hasattr(X, "loc"):
        absent = [name for name in names if name not in X.columns]
        if absent:
            raise InputError(f"{wanted}, got a table without '{absent[0]}'")
        X = X[list(names)]
    try:
        rows = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{wanted} as numbers, got something else") from None
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise InputError(f"{wanted}, got shape {rows.shape}")
    return rows


def _dependent(release: Covariance) -> InputError:
    variances = np.diagonal(release.covariance)
    flat = np.flatnonzero(~(variances > 1e-12 * (variances + release.mean**2)))
    got = f"'{release.names[flat[0]]}', which is constant" if flat.size else "a column that others determine"
    return InputError(f"the columns must vary independently for this analysis, got {got}; fit without it")


# --- the covariance and its noise ------------------------------------------------------------------


def eigenpairs(matrix: Array) -> tuple[Array, Array]:
    """Return eigenvalues and eigenvectors of a symmetric matrix, largest first."""
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1], vectors[:, ::-1]


def floored(matrix: Array, least: float) -> Array:
    """Return a symmetric matrix whose eigenvalues are raised to ``least``."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def root_of(covariance: Array) -> Array:
    """Return R with RRᵀ the covariance, its negative eigenvalues taken for 0."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def usable(release: Covariance) -> tuple[Array, int]:
    """Return the covariance with its spectrum floored at the noise, and how many eigenvalues were raised."""
    sigma = release.noise_std
    low = int(np.count_nonzero(np.linalg.eigvalsh(release.pooled.covariance) < sigma)) if sigma > 0 else 0
    if not low:
        return release.covariance, 0
    raised = floored(release.pooled.covariance, sigma)
    return np.asarray((raised + raised.T) / 2 * np.outer(release.units, release.units) * release.divisor), low


def noise_growth(release: Covariance) -> Array:
    """Return the factor by which missing cells multiply the noise of each column."""
    present = release.pooled.present
    return np.ones(release.n_features) if present is None else np.asarray(1.0 / present)


def draws(
    release: Covariance, covariance: Array, *, sampling: bool = True, count: int = 0
) -> Iterator[tuple[Array, Array]]:
    """Yield blocks of draws of the error of covariance and mean, in the rows' own units."""
    d, units = release.n_features, release.units
    rng = np.random.default_rng(_SEED)
    left = count or int(np.clip(_NUMBERS / d**2, _LEAST_DRAWS, _MOST_DRAWS))
    at_once = max(1, min(left, int(4e6 / d**2)))
    root = root_of(covariance)
    center = np.zeros(d) if release.pooled.center is None else release.pooled.center
    growth = noise_growth(release)
    noise_std = release.noise_std / np.sqrt(2.0) * np.where(np.eye(d), growth, np.outer(growth, growth))
    while left:
        size = min(left, at_once)
        left -= size
        matrices, means = np.zeros((size, d, d)), np.zeros((size, d))
        normal, rows = symmetric(rng, size, d), rng.standard_normal((size, d))
        if sampling:
            matrices += root @ normal @ root.T / np.sqrt(release.n_samples)
            means += rows @ root.T / np.sqrt(release.n_samples)
        normal = symmetric(rng, size, d)
        shift = rng.standard_normal((size, d)) * (release.mean_noise_std * growth)
        if release.noise_std > 0:
            crossed = shift[:, :, None] * center
            noise = normal * noise_std - crossed - crossed.transpose(0, 2, 1)
            matrices += noise * np.outer(units, units) * release.divisor
            means += shift * units
        yield matrices, means


def symmetric(rng: np.random.Generator, size: int, d: int) -> Array:
    """Return symmetric matrices of normal numbers: variance 2 on the diagonal and 1 off it."""
    drawn = rng.standard_normal((size, d, d))
    return np.asarray((drawn + drawn.transpose(0, 2, 1)) / np.sqrt(2.0))


def quantile(level: float) -> float:
    """Return how many standard errors an interval of a level goes to either side."""
    return float(scipy.stats.norm.ppf(0.5 + level / 2.0))
