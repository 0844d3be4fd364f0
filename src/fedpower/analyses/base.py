"""What analyses of a released moment share: errors carried through, intervals, tables and their command."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import scipy.stats
from markupsafe import Markup
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedpower.errors import InputError
from fedpower.linalg.noised import shrunk_spectrum
from fedpower.report.moment import Moment
from fedpower.report.page import Account, Table
from fedpower.report.record import plain
from fedpower.report.text import percent

Array = NDArray[np.float64]

Statistic = Callable[[Array, Array], Array]
"""From covariances (…, d, d) and means (…, d) to numbers (…, p)."""

_SEED = 19
_MOST_DRAWS, _LEAST_DRAWS, _NUMBERS = 1000, 200, 2e7
_STEP = 1e-3  # of the draws, at which a derivative is taken: an error of its square

CLEAR = 2.0  # times the noise's edge: intervals are given only for what is divided by more than that


@dataclass(frozen=True, slots=True)
class Option:
    """An option of ``fedpower derive`` for a parameter of an analysis; flags are separated by blanks."""

    parameter: str
    flags: str
    help: str
    type: Any = int
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    multiple: bool = False


LEVEL = Option("level", "--level", "Of intervals.", type=float, default=0.95)
SAMPLING = Option(
    "sampling",
    "--sampling/--no-sampling",
    "Whether rows are a sample, whose error counts too (default).",
    type=bool,
    default=True,
)
N_COMPONENTS = Option("n_components", "-k --components", "Number of components.", required=True)


class Analysis(BaseEstimator):
    """An estimator in scikit-learn's manners whose data is a released moment.

    A subclass has `_fit`, which sets attributes, and what `account` is made of. To have a command it has
    ``options``, and a line in the registry of `fedpower.analyses`.
    """

    kind: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    needs_covariance: ClassVar[bool] = True
    facts: ClassVar[tuple[str, ...]] = ()  # attributes, without their underscore, that programs get

    level: float
    sampling: bool
    moment_: Moment
    _remark: tuple[str, ...] = ()

    def fit(self, moment: Moment, y: object = None) -> Self:
        """Compute the analysis of a released moment and return itself."""
        del y
        if self.needs_covariance and not moment.centered:
            raise InputError(
                "a moment must be about the pooled mean for this analysis, got one about the origin; "
                "release it with centring, which is the default"
            )
        if hasattr(self, "level"):
            quantile(self.level)
        self._fit(moment)
        self.moment_ = moment
        return self

    @classmethod
    def from_options(cls, **given: Any) -> "Analysis":
        """Return the analysis that a command's options ask for."""
        return cls(**given)

    def _fit(self, moment: Moment) -> None:
        raise NotImplementedError

    def _title(self) -> str:
        raise NotImplementedError

    def _sentences(self) -> Iterable[str]:
        raise NotImplementedError

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def _pictures(self) -> Iterable[tuple[Markup, str]]:
        return ()

    def _more_facts(self) -> dict[str, Any]:
        return {}

    def account(self) -> Account:
        """Return what was found, for a terminal, a program and a page."""
        check_is_fitted(self)
        return Account(
            kind=self.kind,
            title=self._title(),
            sentences=tuple(self._sentences()),
            tables=tuple(self._tables()),
            pictures=tuple(self._pictures()),
            facts={
                **{name: plain(getattr(self, f"{name}_")) for name in self.facts},
                **({"level": self.level} if hasattr(self, "level") else {}),
                **self._more_facts(),
            },
        )

    def _usable(self, moment: Moment) -> Array:
        """Return the covariance floored at the noise, and keep what that did for the account."""
        usable_moment = usable(moment)
        self.n_floored_, self._remark = usable_moment.n_floored, usable_moment.remark
        self.clipping_share_ = clipping_share(moment)
        return usable_moment.covariance

    def _set_intervals(self, values: Array, errors: Array) -> None:
        """Set standard errors, and the ends of intervals around values."""
        width = quantile(self.level)
        self.standard_error_ = errors
        self.low_, self.high_ = values - width * errors, values + width * errors

    @property
    def _what_intervals_hold(self) -> str:
        return "hold the privacy noise" + (
            " and that of sampling normal rows." if self.sampling else " alone."
        )

    @property
    def _remarks(self) -> tuple[str, ...]:
        """What was done about the noise, and what clipping leaves out of intervals."""
        return (*self._remark, *clipping_remark(self.moment_))

    def _interval_sentence(self) -> str:
        return f"Intervals are of {percent(self.level)} each and {self._what_intervals_hold}"


def table_of(title: str, file: str, columns: Mapping[str, Iterable[Any]], *, printed: bool = True) -> Table:
    """Return a table by column; numbers that are not finite are empty."""
    cells = [
        [_cell(value) for value in (values.tolist() if isinstance(values, np.ndarray) else values)]
        for values in columns.values()
    ]
    rows = tuple(zip(*cells, strict=True))
    return Table(title=title, headings=tuple(columns), rows=rows, file=file, printed=printed)


def _cell(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def yes_or_no(verdicts: Iterable[bool]) -> list[str]:
    """Return verdicts as words of a table."""
    return ["yes" if verdict else "no" for verdict in verdicts]


def require_count(name: str, value: Any, most: int, *, upto: str, least: int = 1) -> int:
    """Return a whole number from ``least`` to ``most``; others are refused."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{name} must be a whole number from {least} to {upto}, got {value!r}; choose one")
    return int(value)


def new_rows(X: Any, names: Sequence[str] | NDArray[np.object_], *, what: str, advice: str) -> Array:
    """Return new rows as numbers; a table's columns are matched by name."""
    wanted = f"X must have the {len(names)} {what}"
    if hasattr(X, "loc"):
        absent = [name for name in names if name not in X.columns]
        if absent:
            raise InputError(f"{wanted}, got a table without '{absent[0]}'; {advice}")
        X = X[list(names)]
    try:
        rows = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{wanted} as numbers, got something else; {advice}") from None
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise InputError(f"{wanted}, got shape {rows.shape}; {advice}")
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """A covariance that can be divided by, from a noised one that cannot."""

    covariance: Array
    n_floored: int

    @property
    def remark(self) -> tuple[str, ...]:
        """What was done about the noise, as a sentence; none where nothing was."""
        if not self.n_floored:
            return ()
        many = "1 eigenvalue" if self.n_floored == 1 else f"{self.n_floored} eigenvalues"
        return (
            f"{many} of the noised moment lay below the noise's own standard deviation and were raised "
            "to it: directions of so little variance are not known.",
        )


def usable(moment: Moment) -> Usable:
    """Return the covariance of a moment with its spectrum floored at the noise; exact ones as they are."""
    sigma = moment.noise_std
    if sigma == 0:
        return Usable(covariance=moment.covariance, n_floored=0)
    values, vectors = np.linalg.eigh(moment.pooled.moment)
    low = int(np.count_nonzero(values < sigma))
    if not low:
        return Usable(covariance=moment.covariance, n_floored=0)
    raised = (vectors * np.maximum(values, sigma)) @ vectors.T
    units = moment.units
    made = (raised + raised.T) / 2 * np.outer(units, units) * moment.divisor
    return Usable(covariance=np.asarray(made), n_floored=low)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedCorrelations:
    """Correlations of a released moment."""

    deviations: Array
    released: Array
    shrunk: Array
    noise_variance: Array


def noised_correlations(moment: Moment) -> NoisedCorrelations:
    """Return the correlations of a moment, as released and shrunk; exact ones are the same twice."""
    sigma, scales = moment.noise_std, moment.units * np.sqrt(moment.divisor)
    variances = np.diagonal(moment.pooled.moment)
    if sigma > 0:
        variances = np.maximum(variances, sigma)
    roots = np.sqrt(variances)
    released = _unit_diagonal(moment.pooled.moment / np.outer(roots, roots))
    noise = _noise_variance(moment, released, variances)
    shrunk = released
    if sigma > 0 and len(released) > 1:
        typical = float(np.sqrt(noise.sum() / (noise.size - len(noise))))
        shrunk = _shrunk(released, typical)
        noise = _noise_variance(moment, shrunk, variances)
    return NoisedCorrelations(
        deviations=roots * scales, released=released, shrunk=shrunk, noise_variance=noise
    )


def _noise_variance(moment: Moment, correlation: Array, variances: Array) -> Array:
    """Return the variance that noise gives a_jl/√(a_jj a_ll): of the entry, and of the diagonal."""
    center = np.zeros(len(variances)) if moment.pooled.center is None else moment.pooled.center
    gaps = _gaps(moment) ** 2
    shift = np.outer((moment.mean_noise_std * center) ** 2, gaps)
    entries = moment.noise_std**2 / 2.0 * np.outer(gaps, gaps) + shift + shift.T
    own = (moment.noise_std**2 * gaps + 4.0 * np.diagonal(shift)) / variances**2
    made = entries / np.outer(variances, variances)
    made += correlation**2 / 4.0 * (own[:, None] + own[None, :])
    np.fill_diagonal(made, 0.0)
    return np.asarray(made)


def _gaps(moment: Moment) -> Array:
    """Return by what missing cells multiply the noise of each column."""
    present = moment.pooled.present
    return np.ones(moment.n_features) if present is None else np.asarray(1.0 / present)


def _shrunk(correlation: Array, noise: float) -> Array:
    values, vectors = np.linalg.eigh(correlation)
    found = shrunk_spectrum(values[::-1], noise)[::-1]
    return _unit_diagonal((vectors * np.maximum(found, 0.0)) @ vectors.T)


def _unit_diagonal(matrix: Array) -> Array:
    made = np.clip((matrix + matrix.T) / 2.0, -1.0, 1.0)
    np.fill_diagonal(made, 1.0)
    return np.asarray(made)


def clipping_share(moment: Moment) -> float | None:
    """Return the share of the rows' squared length that the bound removed; None where it is unknown."""
    clipping = moment.record.clipping
    return None if clipping is None else clipping.energy


def correlation_shift(moment: Moment) -> Array | None:
    """Return by column what shortening rows does to correlations; None where none is known to be."""
    clipping, book = moment.record.clipping, moment.code_book
    if clipping is None:
        return None
    return clipping.moves(moment.n_features, None if book is None else book.outside)


def clipping_remark(moment: Moment) -> tuple[str, ...]:
    """Return a sentence on what clipping leaves out of intervals; none where nothing is known of it."""
    share = clipping_share(moment)
    if share is None:
        return ()
    size = "less than 0.1%" if share < 0.001 else f"about {share:.1%}"
    return (f"Intervals exclude clipping bias: the bound removed {size} of the rows' squared length.",)


def draws(
    moment: Moment, covariance: Array, *, sampling: bool = True, noise: bool = True, count: int = 0
) -> Iterator[tuple[Array, Array]]:
    """Yield blocks of draws of the error of covariance and mean, in the rows' own units."""
    d, units = moment.n_features, moment.units
    rng = np.random.default_rng(_SEED)
    total = count or int(np.clip(_NUMBERS / d**2, _LEAST_DRAWS, _MOST_DRAWS))
    at_once = max(1, min(total, int(4e6 / d**2)))
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    center = np.zeros(d) if moment.pooled.center is None else moment.pooled.center
    gaps = _gaps(moment)
    noise_std = moment.noise_std / np.sqrt(2.0) * np.where(np.eye(d), gaps, np.outer(gaps, gaps))
    left = total
    while left:
        size = min(left, at_once)
        left -= size
        matrices, means = np.zeros((size, d, d)), np.zeros((size, d))
        normal = _symmetric(rng, size, d)
        rows = rng.standard_normal((size, d))
        if sampling:
            matrices += root @ normal @ root.T / np.sqrt(moment.n_samples)
            means += rows @ root.T / np.sqrt(moment.n_samples)
        normal = _symmetric(rng, size, d)
        shift = rng.standard_normal((size, d)) * (moment.mean_noise_std * gaps)
        if noise and moment.noise_std > 0:
            made = normal * noise_std
            crossed = shift[:, :, None] * center
            made -= crossed + crossed.transpose(0, 2, 1)
            matrices += made * np.outer(units, units) * moment.divisor
            means += shift * units
        yield matrices, means


def _symmetric(rng: np.random.Generator, size: int, d: int) -> Array:
    """Return symmetric matrices of normal numbers: variance 2 on the diagonal and 1 off it."""
    drawn = rng.standard_normal((size, d, d))
    return np.asarray((drawn + drawn.transpose(0, 2, 1)) / np.sqrt(2.0))


def standard_errors(
    statistic: Statistic, moment: Moment, covariance: Array, *, sampling: bool = True, count: int = 0
) -> Array:
    """Return the standard deviation of each number of a statistic, from noise and sampling together."""
    mean, squares, seen = moment.mean, 0.0, 0
    for matrices, means in draws(moment, covariance, sampling=sampling, count=count):
        up = statistic(covariance + _STEP * matrices, mean + _STEP * means)
        down = statistic(covariance - _STEP * matrices, mean - _STEP * means)
        squares = squares + np.sum(((up - down) / (2.0 * _STEP)) ** 2, axis=0)
        seen += len(matrices)
    return np.asarray(np.sqrt(np.asarray(squares) / seen))


def quantile(level: float) -> float:
    """Return how many standard errors an interval of a level goes to either side."""
    if not (isinstance(level, int | float) and 0 < level < 1):
        raise InputError(f"level must be between 0 and 1, got {level!r}; 0.95 is usual")
    return float(scipy.stats.norm.ppf(0.5 + level / 2.0))
