"""``FedPCA`` and ``FedCovariance``: estimators with scikit-learn's interface, on `estimator.fitting`."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from fedpower.analysis.base import usable
from fedpower.engines.inprocess import OnClipped, OnRows, Paths, Run, Versions
from fedpower.estimator.fitting import (
    Data,
    fit_data,
    open_silos,
    prepare_data,
    released_covariance,
    result_from,
    show_warnings,
    with_levels,
)
from fedpower.estimator.terms import options_of
from fedpower.exceptions import InputError, require
from fedpower.linalg import Array
from fedpower.options import Aggregation, Noise, NoiseKind, Person, Solver, Unit
from fedpower.protocol.coordinator import Round
from fedpower.report.page import notebook_cell
from fedpower.report.result import Result, covariance_of
from fedpower.rows.opening import open_source
from fedpower.rows.ruled import every_problem, ruled, rules_of_source
from fedpower.rows.source import Extra, RowSource, is_wide, require_exact
from fedpower.rows.units import UnitRows, with_gaps, with_ids
from fedpower.rules.codebook import CodeBook

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline


def keep_arguments(model: Any, given: dict[str, Any]) -> None:
    """Keep the arguments of a constructor by their names, as scikit-learn asks of it."""
    vars(model).update({name: value for name, value in given.items() if name != "self"})


def keep_columns(model: Any, n_features: int, names: Iterable[str] | None) -> None:
    """Keep how many columns a fit had, and their names where they have any."""
    vars(model).pop("feature_names_in_", None)
    model.n_features_in_ = n_features
    if names is not None:
        model.feature_names_in_ = np.asarray(names, dtype=object)


class FedPCA(TransformerMixin, BaseEstimator):
    """Principal component analysis of several organisations' data, with differential privacy.

    Each silo (one organisation's data) sends a noised summary of its rows. No row leaves a silo.

    Parameters
    ----------
    n_components : int, float, "auto" or None, default=None
        Number of components. A float between 0 and 1 keeps as many as explain that fraction of the
        variance. ``"auto"`` keeps those that are determined alone or with a few others. Both choices
        need no extra budget, and in a private fit they need ``noise="covariance"``. None keeps
        min(n_samples, n_features).
    epsilon : float, default=1.0
        Privacy budget of each silo for this fit. Smaller is more private and less accurate.
        ``float("inf")`` adds no noise and gives no privacy.
    delta : float, default=None
        The δ of (ε, δ)-differential privacy. None derives it from the number of rows, see
        ``fedpower.privacy.default_delta``.
    center : bool, default=True
        Whether to remove the mean of all rows.
    standardize : bool, default=True
        Whether to scale each column to variance 1, which gives the components of the correlations. Rows of
        norm 1 and networks are never standardized. A private fit with ``noise="step"``, ``"clipped"`` or
        ``"paper"`` needs ``standardize=False``.
    whiten : bool, default=False
        Whether ``transform`` divides scores by their standard deviations, as in scikit-learn.
    ranges : mapping from names, pair, or list of pairs, default=None
        Known ranges of columns, e.g. ``{"age": (0, 120)}``. Cells outside are clipped. A private fit
        spends no budget on a range that you give.
    codebook : mapping, CodeBook or path, default=None
        What the columns contain: ``{"sex": ["f", "m"], "age": (0, 120)}`` lists the levels of a category and
        gives a range. See `CodeBook` for other rules, and for public offsets, scales and row bounds.
        Without such numbers a private fit finds them with part of ``epsilon``; ``codebook_`` holds them.
    unit : str, Person, Edge or Node, default=None
        What is protected: a row by default. The name of a column protects each person it identifies, with
        all of their rows; see `Person`. Use `Edge` or `Node` if silos hold networks.
    noise : {"auto", "covariance", "clipped", "step", "paper"} or Noise, default="auto"
        Where noise is added. ``"covariance"``: once, to each silo's covariance. ``"clipped"``: to clipped
        products, for wide data. ``"step"``: to each step of the power method. ``"paper"``: the same with
        the noise printed in the paper. ``"auto"`` takes ``"covariance"`` for up to 8192 columns and
        ``"step"`` for more, or ``"clipped"`` where ``Noise(energy=...)`` predicts a gain.
    aggregation : {"plain", "secure"}, Plain or Secure, default="plain"
        Whether the coordinator sees each silo's noised covariance, or only their sum. With ``"secure"``
        the silos share one portion of noise, so the result is more accurate.
    solver : {"auto", "upload", "krylov", "fedpower"}, Upload, Krylov or PowerMethod, default="auto"
        How components are computed: from one upload of the covariance, from a Krylov space in a few rounds,
        or by the paper's power method. ``solver_`` reports the choice of ``"auto"`` and the reason.
    device : str, default=None
        PyTorch device for the silos' arithmetic, such as ``"cuda"``. None uses NumPy.
    random_state : int, RandomState instance or None, default=None
        Seed of the starting basis and of the sampling of silos. The noise is never seeded.
    n_jobs : int, default=None
        Number of silos that work in parallel. None and -1 use all cores.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Principal axes by decreasing variance. The largest loading of each is positive.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of shape (n_components_,)
        As in :class:`sklearn.decomposition.PCA`, with the noise in them. The ratio is NaN if the fit does
        not know the total variance.
    denoised_variance_, denoised_variance_ratio_ : ndarray of shape (n_components_,)
        The same without what noise adds.
    noise_variance_ : float
        Average variance outside the components, without noise. NaN if the total variance is not known.
    component_angles_ : ndarray of shape (n_components_,)
        How far each component may be from the exact one, in degrees, with 90% confidence. A component
        within 45° counts as determined.
    subspace_angles_ : ndarray of shape (n_components_,)
        The same for the space of the first component, of the first two, and so on.
    mean_ : ndarray of shape (n_features_in_,)
        The mean of the rows; zero with ``center=False``.
    spectrum_ : ndarray
        All eigenvalues that the release gives, with noise.
    n_components_, n_features_in_, feature_names_in_, n_samples_seen_
        As in scikit-learn.
    silo_sizes_ : dict
        Number of rows of each silo.
    privacy_ : PrivacyStatement
        What the fit guarantees, and to whom. Print it.
    codebook_ : CodeBook or None
        Offsets, scales, ranges and bound of the columns. A later fit can use it at no cost.
    release_ : Covariance or None
        The released covariance, if the fit keeps one. Analyses of it need no further budget.
    score_counts_ : ScoreHistogram or None
        Noised counts of rows by score, with ``Noise(scores_epsilon=...)``.
    warnings_ : list of str
        What to know before you use the numbers.
    solver_ : SolverChoice
        The solver and the reason for it.
    history_ : list of dict
        One entry per round: its kind, participants, bytes and change.
    result_ : Result
        All of the above as one object. ``save`` writes it and `fedpower.load` reads it.
    study_, basis_, n_steps_, kernels_
        The terms of the fit, the iterated basis, the number of steps, and how each silo computed products.

    See Also
    --------
    FedCovariance : Releases the covariance without components.
    fedpower.plan : Predicts cost and accuracy before a fit.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedPCA
    >>> rng = np.random.default_rng(0)
    >>> hospitals = {name: rng.normal(size=(2000, 5)) * [4, 3, 1, 1, 1] for name in ("north", "south")}
    >>> model = FedPCA(2, epsilon=1.0, standardize=False).fit_silos(hospitals)
    >>> model.components_.shape
    (2, 5)
    >>> model.transform(hospitals["north"]).shape
    (2000, 2)
    """

    def __init__(
        self,
        n_components: int | float | Literal["auto"] | None = None,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        center: bool = True,
        standardize: bool = True,
        whiten: bool = False,
        ranges: Any = None,
        codebook: CodeBook | Mapping[str, Any] | str | PathLike[str] | None = None,
        unit: str | Unit | None = None,
        noise: NoiseKind | Noise = "auto",
        aggregation: Literal["plain", "secure"] | Aggregation = "plain",
        solver: Literal["auto", "upload", "krylov", "fedpower"] | Solver = "auto",
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        keep_arguments(self, locals())

    def fit(
        self,
        X: ArrayLike,
        y: object = None,
        *,
        groups: ArrayLike | None = None,
        units: ArrayLike | None = None,
    ) -> Self:
        """Fit to rows in memory.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features)
            The rows.
        y : ignored
            Present for scikit-learn's API.
        groups : array-like of shape (n_samples,), default=None
            The silo of each row. Without it all rows are one silo.
        units : array-like of shape (n_samples,), default=None
            The person of each row, if persons are protected. By default the column ``unit`` of a data frame.
        """
        hint = "collect it, or give it to fit_silos"
        require(not hasattr(X, "collect"), "X", "rows in memory", type(X).__name__, hint)
        options = with_levels(options_of(self), [X])
        must = "a column or a Person for rows in memory"
        require(options.network is None, "unit", must, self.unit, "give networks to fit_silos")
        person, gaps = options.person, options.takes_gaps or options.finds_offsets
        kinds = list(getattr(X, "dtypes", [getattr(X, "dtype", None)]))
        if person.column is not None and units is None:
            frame: Any = X
            if not (person.column in getattr(frame, "columns", ()) and hasattr(frame, "iloc")):
                raise InputError(
                    f"X must be a data frame with the column {person.column!r} that identifies each row's "
                    "person, got none; give the ids as units=…"
                )
            X, units = frame.drop(columns=[person.column]), frame[person.column]
        rules = options.rules_of_fit
        table = None if rules is None else ruled(open_source(X), rules)
        if isinstance(table, UnitRows):  # of one rating per row, which become one row per person
            person, table = Person(table.label, person.rows), table.rows
        if table is None:
            require_numbers(X)
        else:
            table = with_gaps(table) if gaps else table
            with every_problem([table], gaps=gaps):
                X = np.vstack([np.asarray(block) for block in table.blocks(2**16)])
        rows = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=np.float64,
            ensure_all_finite="allow-nan" if gaps else True,
            ensure_min_samples=1 + options.centers,
        )
        names = getattr(self, "feature_names_in_", None) if table is None else table.columns
        columns = None if names is None else tuple(map(str, names))
        if any(map(is_wide, kinds)):
            require_exact(rows, name="X", columns=columns, rows=0)
        n_rows = rows.shape[0]
        labels = np.full(n_rows, "silo-1") if groups is None else _per_row("groups", groups, n_rows)
        if units is None and person.column is not None:
            units = np.arange(n_rows)
        ids = None if units is None else _per_row("units", units, n_rows)
        sources: dict[str, RowSource] = {}
        for silo in np.unique(labels).tolist():
            own, name = labels == silo, str(silo)
            source = open_source(rows if groups is None else rows[own], name=f"silo {name!r}")
            sources[name] = source if ids is None else with_ids(source, ids[own], person.rows)
        if ids is not None:
            options = replace(options, unit=Person(person.column or "units", person.rows))
        rules = None if table is None else rules_of_source(table)
        return self._take(fit_data(options, Data(sources=sources, columns=columns, rules=rules), Run()))

    def fit_silos(
        self,
        silos: Any,
        y: object = None,
        *,
        extra_columns: Extra = "refuse",
        ledgers: Paths | None = None,
        data_version: Versions | None = None,
        data_set: str | None = None,
        identities: Paths | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_rows: OnRows | None = None,
        on_clipped: OnClipped | None = None,
    ) -> Self:
        """Fit to one data set per silo. Files are read in blocks and never pooled.

        Parameters
        ----------
        silos : list or mapping from names
            Each a NumPy array, data frame (pandas, Polars, Arrow), sparse matrix, PyTorch tensor, Dask
            collection, AnnData, `SqlQuery`, or the path of a .csv, .parquet, .feather, .npy, .npz, .svm,
            .h5ad or .bed file.
        y : ignored
            Present for scikit-learn's API.
        extra_columns : {"refuse", "drop"}, default="refuse"
            What to do with columns that some silos do not have.
        ledgers : mapping from silo names to paths, default=None
            The ledger that each silo charges; create it with ``fedpower ledger create`` or `Ledger.create`.
        data_version : str or mapping from silo names, default="1"
            Version of the data in the ledgers. The same fit of the same version is not charged again.
            Changed data need a new version.
        data_set : str, default=None
            Name of the data set, if the ledgers were created for one.
        identities : mapping from silo names to paths, default=None
            PEM files of the keys with which silos sign in a secure sum. Made for this fit by default.
        on_round : callable, default=None
            Called with each finished round.
        on_rows : callable, default=None
            Called for each block that is read, with the silo's name, the rows of the block, and the number
            of rows of the silo if it is known.
        on_clipped : callable, default=None
            Called with the number of clipped rows and of all rows by silo. These counts are not private:
            the model does not keep them.
        """
        run = Run(ledgers, data_version, data_set, identities, on_round, on_rows, on_clipped)
        return self._take(fit_data(*open_silos(silos, options_of(self), extra_columns), run))

    def prepare_silos(self, silos: Any, *, extra_columns: Extra = "refuse", **run: Any) -> CodeBook:
        """Find offsets, scales and bounds of the columns privately, without a fit.

        This spends the part of ``epsilon`` that a fit spends on them. Later fits with ``codebook=`` do not
        pay again. Parameters are those of :meth:`fit_silos`.
        """
        return prepare_data(*open_silos(silos, options_of(self), extra_columns), Run(**run))

    def fit_covariance(self, release: Any) -> Self:
        """Fit to a released covariance, at no further privacy cost.

        Parameters
        ----------
        release : Covariance, Result, fitted estimator or path
            A fit that keeps its covariance, or the folder it was saved to. Only ``n_components``,
            ``iteration_rank``, ``standardize`` and ``whiten`` can differ from the release; leave other
            parameters out.
        """
        result = result_from(covariance_of(release), options_of(self))
        show_warnings(result)
        return self._take(result)

    def transform(self, X: ArrayLike | PathLike[str]) -> Array:
        """Project rows on the components. This is a local computation.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features), or path
            New rows. The columns of a file are matched by name.
        """
        return self.result_.transform(self._rows(X))

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Return the rows that have these scores."""
        check_is_fitted(self)
        return self.result_.inverse_transform(check_array(X, dtype=np.float64, input_name="X"))

    def get_covariance(self) -> Array:
        """Return the covariance of the model, in the units of the columns, as PCA in scikit-learn does."""
        check_is_fitted(self)
        return self.result_.get_covariance()

    def get_precision(self) -> Array:
        """Return the inverse of `get_covariance`."""
        check_is_fitted(self)
        return self.result_.get_precision()

    def score_samples(self, X: ArrayLike | PathLike[str]) -> Array:
        """Return the log-likelihood of each row under a normal law with ``mean_`` and `get_covariance`."""
        return self.result_.score_samples(self._rows(X))

    def score(self, X: ArrayLike | PathLike[str], y: object = None) -> float:
        """Return the average of `score_samples`."""
        return float(self.score_samples(X).mean())

    def report(self, path: str | PathLike[str] = "report.html") -> Path:
        """Write the report, one HTML page, to a file and return its path; an earlier file is replaced."""
        check_is_fitted(self)
        return self.result_.report(path)

    def to_sklearn(self) -> "PCA | Pipeline":
        """Return a scikit-learn PCA, or a pipeline that ends in one, with the same ``transform``."""
        check_is_fitted(self)
        return self.result_.to_sklearn()

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Save the result as a folder, as ``fedpower fit`` does, and return its path."""
        check_is_fitted(self)
        return self.result_.save(folder, force=force)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the scores: pc1, pc2, ..."""
        check_is_fitted(self)
        return np.asarray(self.result_.score_names, dtype=object)

    def _html_repr(self) -> str:
        """Return what a notebook shows: the summary of the report once it is fitted."""
        return str(notebook_cell(self.result_) if "result_" in vars(self) else super()._html_repr())

    def _rows(self, X: Any) -> Any:
        """Return numbers, yet to be searched for gaps; a path, or a table that has rules, as it is."""
        check_is_fitted(self)
        if isinstance(X, str | PathLike) or (self.result_.record.table_rules and hasattr(X, "columns")):
            return X
        require_numbers(X)
        how: dict[str, Any] = {"accept_sparse": "csr", "ensure_all_finite": False, "reset": False}
        return validate_data(self, X, dtype=np.float64, order="C", **how)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = options_of(self).takes_gaps
        return tags

    def _take(self, result: Result) -> Self:
        keep_columns(self, result.n_features, result.feature_names)
        self.result_ = result
        return self


_OF_RESULTS = (
    "components", "explained_variance", "explained_variance_ratio", "singular_values", "component_angles",
    "subspace_angles", "noise_variance", "spectrum", "denoised_variance", "denoised_variance_ratio", "mean",
    "n_components", "silo_sizes", "basis", "solver", "privacy", "study", "kernels", "release", "score_counts",
)  # fmt: skip
_RENAMED = {
    "codebook": "code_book",
    "n_samples_seen": "n_samples",
    "n_steps": "record.n_steps",
    "warnings": "record.remarks",
    "history": "rounds",
}
"""What an estimator shows of its result, with scikit-learn's underscore."""

for _name, _place in {**{name: name for name in _OF_RESULTS}, **_RENAMED}.items():
    setattr(FedPCA, f"{_name}_", property(attrgetter(f"result_.{_place}")))


class FedCovariance(BaseEstimator):
    """Covariance of several organisations' data, with differential privacy.

    The release costs the same as a fit of `FedPCA` with the same terms: whichever comes second is free.
    All analyses of the released covariance are free too.

    Parameters
    ----------
    epsilon, delta, center, ranges, codebook, unit, aggregation, device, n_jobs
        As in `FedPCA`.

    Attributes
    ----------
    covariance_ : ndarray of shape (n_features_in_, n_features_in_)
        The released covariance, in the units of the columns.
    location_ : ndarray of shape (n_features_in_,)
        The released mean; zero with ``center=False``.
    release_ : Covariance
        The release as an object: covariance, mean, noise, privacy statement and record.
    privacy_ : PrivacyStatement
        What the release guarantees, and to whom. Print it.
    codebook_ : CodeBook or None
        Offsets, scales, ranges and bound of the columns.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    fedpower.analysis : Factors, regression, tests and more of a released covariance.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedCovariance
    >>> from fedpower.analysis import Correlations
    >>> rows = np.random.default_rng(0).normal(size=(3, 400, 4))
    >>> model = FedCovariance(epsilon=1.0).fit_silos(list(rows))
    >>> model.covariance_.shape
    (4, 4)
    >>> Correlations().fit(model).correlation_.shape
    (4, 4)
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        center: bool = True,
        ranges: Any = None,
        codebook: CodeBook | Mapping[str, Any] | str | PathLike[str] | None = None,
        unit: str | Unit | None = None,
        aggregation: Literal["plain", "secure"] | Aggregation = "plain",
        device: str | None = None,
        n_jobs: int | None = None,
    ) -> None:
        keep_arguments(self, locals())

    def fit(self, X: ArrayLike, y: object = None, **labels: Any) -> Self:
        """Release the covariance of rows in memory; parameters are those of `FedPCA.fit`."""
        return self._take(self._model().fit(X, y, **labels))

    def fit_silos(self, silos: Any, y: object = None, **run: Any) -> Self:
        """Release the covariance of silos, which are never pooled; parameters as of `FedPCA.fit_silos`."""
        return self._take(self._model().fit_silos(silos, y, **run))

    def get_precision(self) -> Array:
        """Return the inverse of ``covariance_``; eigenvalues below the noise are raised to it first."""
        check_is_fitted(self)
        return np.asarray(scipy.linalg.pinvh(usable(self.release_)[0]))

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Save the release as a folder and return its path."""
        return self.release_.save(folder, force=force)

    def _model(self) -> FedPCA:
        return FedPCA(
            1, noise="covariance", solver="upload", standardize=False, **self.get_params(deep=False)
        )

    def _take(self, model: FedPCA) -> Self:
        self.release_, self.privacy_ = released_covariance(model.result_), model.result_.privacy
        self.codebook_ = self.release_.code_book
        keep_columns(self, model.n_features_in_, self.release_.feature_names)
        return self


for _name, _place in {"covariance_": "covariance", "location_": "mean"}.items():
    setattr(FedCovariance, _name, property(attrgetter(f"release_.{_place}")))


def _per_row(name: str, given: Any, n_rows: int) -> NDArray[Any]:
    labels = np.asarray(given)
    if labels.shape != (n_rows,):
        raise InputError(f"{name} must have one entry per row, got shape {labels.shape} for {n_rows} rows")
    return labels


def require_numbers(X: Any) -> None:
    """Refuse text, dates and durations by column and row: scikit-learn's own error would quote the cell."""
    if hasattr(X, "__arrow_c_stream__") or hasattr(X, "iloc"):
        kinds = {getattr(dtype, "kind", "O") for dtype in getattr(X, "dtypes", ["of Arrow"])}
        if not kinds <= set("biuf"):
            deque(with_gaps(open_source(X, name="X")).blocks(2**16), maxlen=0)
        return
    cells = np.array(X, dtype=object) if isinstance(X, list | tuple) else X
    if getattr(cells, "ndim", 0) == 2 and cells.dtype.kind in "OUSTMm":
        for (row, place), cell in np.ndenumerate(cells):
            if isinstance(cell, str | bytes | np.datetime64 | np.timedelta64) or hasattr(cell, "isoformat"):
                kind = "text" if isinstance(cell, str | bytes) else "dates or times"
                raise InputError(f"column {place + 1} of X must hold numbers, got {kind} at row {row + 1}")
