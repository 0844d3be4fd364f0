"""``FedPCA`` and ``FedCovariance``: federated PCA in scikit-learn's manners, on `estimator.fitting`."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from fedpower.engines.inprocess import OnClipped, OnRows, Paths, Run, Versions
from fedpower.estimator.fitting import (
    Data,
    fit_data,
    open_data,
    prepare_data,
    released_covariance,
    result_from,
    show_warnings,
)
from fedpower.estimator.terms import options_of
from fedpower.exceptions import InputError, require
from fedpower.linalg import Array
from fedpower.options import Aggregation, Noise, NoiseKind, Person, Solver, Unit
from fedpower.protocol.coordinator import Round
from fedpower.report.covariance import Covariance, read_covariance
from fedpower.report.result import Result
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


class FedPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Principal components of rows that silos hold and do not pool.

    Parameters
    ----------
    n_components : int, float, "auto" or None, default=None
        k; or, between 0 and 1, the fraction of variance the components must exceed; or with
        ``"auto"`` as many as are determined together (see ``subspace_angles_``), at least 1. The latter
        two cost no budget, and with a finite ``epsilon`` need ``noise="covariance"``, see
        docs/user/choose-epsilon.md. None keeps min(n_samples, n_features).
    epsilon : float, default=1.0
        Privacy budget of each silo for this fit, against the coordinator. ``float("inf")`` computes
        exactly, without noise, and promises nothing.
    delta : float, default=None
        The δ of (ε, δ); None takes ``fedpower.privacy.default_delta`` of the public number of rows.
    center : bool, default=True
        Whether to centre on the pooled mean, which the silos release.
    standardize : bool, default=True
        Whether components are those of the correlations, every column having variance 1, or of the
        covariances in the columns' own units: at every ``epsilon``, from the same releases. Rows of norm 1
        (``CodeBook(normalize=True)``) and networks are never standardised. Private fits that noise products
        instead of the covariance need ``standardize=False``.
    ranges : mapping from names, pair, or list of pairs, default=None
        Between which numbers cells of columns are known to be, e.g. ``{"age": (0, 120)}``. Cells are clipped
        to it; preparation then spends nothing on finding it.
    codebook : CodeBook or path, default=None
        Public numbers about columns: ``CodeBook(row_norm=3.0)`` bounds the norm of a row,
        ``CodeBook(normalize=True)`` scales rows to norm 1, ``offset`` and ``scale`` shift and divide columns;
        rules turn tables with categories, dates and missing cells into numbers (``fedpower inspect
        --draft``). Without any number a private fit finds offset, scale and bound of the columns privately,
        out of the same ``epsilon``: see ``codebook_``, which later fits may use at no cost.
    unit : str, Person, Edge or Node, default=None
        What is protected: a row by default. The name of a column protects the persons that it identifies,
        each with all rows that a silo has of her; see `Person` for more rows per person and
        docs/user/persons.md. `Edge` and `Node` are for silos that hold networks.
    noise : {"auto", "covariance", "clipped", "step", "paper"} or Noise, default="auto"
        What is noised: the covariance once, clipped products after it or without it, every step's product,
        or the same with the paper's printed noise. ``auto`` takes ``clipped`` where ``Noise(energy=...)``
        predicts a clear gain and columns are not standardised, else ``covariance`` up to 8192 columns, else
        ``step``. ``Noise(scores_epsilon=...)`` spends a part of ``epsilon`` on a histogram of scores.
    aggregation : {"plain", "secure"}, Plain or Secure, default="plain"
        Whether the coordinator reads every silo's noised covariance, or their sum only: silos then share the
        noise of one trusted curator, √m times less than m of them add separately.
    solver : {"auto", "upload", "krylov", "fedpower"}, Upload, Krylov or PowerMethod, default="auto"
        How the eigenspace is found: from the uploaded covariance in one round, from a Krylov space in a few
        rounds, or by the paper's power method. ``auto`` decides from public facts, see ``solver_``.
    device : str, default=None
        PyTorch device that multiplies the silos' rows, such as ``"cuda"``; None takes NumPy on the CPU.
        See docs/user/devices.md.
    random_state : int, RandomState instance or None, default=None
        Public randomness: start basis and sampling of silos. Never noise. With ``ledgers`` and noised
        steps, None takes it from the terms of the fit, so that the same fit again is not charged again.
    n_jobs : int, default=None
        Silos that work at once; None and -1 take the number of cores, -2 one less, and so on.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Principal axes, orthonormal, by decreasing variance; each one's largest loading is positive.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray
        As in :class:`sklearn.decomposition.PCA`; the variance's divisor is n − 1 when centred on the
        pooled mean, else n. The ratio is NaN where the total was not released.
    component_angles_, subspace_angles_ : ndarray of shape (n_components_,)
        Degrees by which each component, and the subspace of the first, the first two and so on, may be off
        at 90% confidence, from the noise and from rows that the bound shortens. Up to 45° they are
        determined. 0 for an exact fit, and 90 for components that its rounding errors leave open.
    spectrum_ : ndarray
        All eigenvalues that the releases give, noised, in units of ``explained_variance_``.
    denoised_variance_, denoised_variance_ratio_ : ndarray of shape (n_components_,)
        The variances, and their shares of all variance, without what noise adds to them.
    mean_ : ndarray of shape (n_features_in_,)
        What is subtracted from rows; zero for ``center=False``.
    n_components_, n_features_in_, feature_names_in_, n_samples_seen_
        As in scikit-learn; names only where the columns have them.
    silo_sizes_ : dict
        Rows by silo.
    basis_ : ndarray of shape (n_features_in_, r)
        The iterated basis: the paper's output.
    n_steps_ : int
        Steps taken.
    history_ : list of dict
        A row per round: round, kind, step, participants, bytes_down, bytes_up, change (sin θ between
        the leading subspace and the basis before the round), misalignment (ρ_t).
    solver_ : SolverChoice
        The solver taken and the reason for it.
    privacy_ : PrivacyStatement
        What is promised about the rows; print it.
    codebook_ : CodeBook or None
        Offsets, scales, ranges and bound of the columns that were found privately, or given.
    release_ : Covariance or None
        The pooled covariance with the law of its noise, where it was noised or ``Upload()`` was asked for:
        further analyses of it cost nothing (see `FedCovariance`).
    score_counts_ : ScoreHistogram or None
        Noised counts of rows by their scores on the first two components, where ``scores_epsilon`` asked
        for them.
    study_ : Study
        The terms of the fit; ``study_.digest`` is their hash.
    kernels_ : dict
        By silo: how its products were computed, and why.
    warnings_ : list of str
        What to know before numbers are trusted: uncertain columns, lost precision, silos with the same rows.
    result_ : Result
        All of the above as one object, which ``save`` writes and `fedpower.load` reads.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedPCA
    >>> rows = np.random.default_rng(0).normal(size=(3, 400, 4)) * [2.0, 1.0, 0.5, 0.5]
    >>> FedPCA(1, epsilon=float("inf"), standardize=False).fit_silos(list(rows)).components_.shape
    (1, 4)
    """

    def __init__(
        self,
        n_components: int | float | Literal["auto"] | None = None,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        center: bool = True,
        standardize: bool = True,
        ranges: Any = None,
        codebook: CodeBook | str | PathLike[str] | None = None,
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
        """Fit to rows in memory; ``groups`` labels each row's silo (one silo without).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            The rows.
        y : ignored
            Here for scikit-learn's sake.
        groups : array-like of shape (n_samples,), default=None
            Silo labels.
        units : array-like of shape (n_samples,), default=None
            Each row's person, where persons are protected; the column ``unit`` of a data frame by default.
        """
        options = options_of(self)
        must = "a column or a Person for rows in memory"
        require(options.network is None, "unit", must, self.unit, "give networks to fit_silos")
        person, gaps = options.person, options.takes_gaps
        kinds = list(getattr(X, "dtypes", [getattr(X, "dtype", None)]))
        if person.column is not None and units is None:
            frame: Any = X
            if not (person.column in getattr(frame, "columns", ()) and hasattr(frame, "iloc")):
                raise InputError(
                    f"X must be a data frame with the column {person.column!r} that identifies each row's "
                    "person, got none; give the ids as units=…"
                )
            X, units = frame.drop(columns=[person.column]), frame[person.column]
        table = None if options.rules is None else ruled(open_source(X), options.rules)
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
        """Fit to silos: arrays, tables or paths of files, which are streamed and never pooled.

        Parameters
        ----------
        silos : list or mapping from names
            Each a NumPy array, pandas or Arrow table, scipy.sparse matrix, PyTorch tensor, Dask array
            or data frame, AnnData, or the path of a .npy, .npz, .csv, .parquet, .feather, .svm, .h5ad or
            .bed file.
        y : ignored
            Here for scikit-learn's sake.
        extra_columns : {"refuse", "drop"}, default="refuse"
            What to do with columns that not every silo has, where columns have names.
        ledgers : mapping from silo names to ledger files, default=None
            Where each silo charges what it releases; see ``fedpower ledger``. They are opened, never
            made, and only a private fit with a public row bound can be charged to them.
        data_version : str or mapping from silo names, default="1"
            The public name of the rows' version on the ledgers. The same version is the same release, at no
            further charge; changed data under a recorded version are refused, and a new version is a new
            charge.
        data_set : str, default=None
            The name of the data whose version that is, where ledgers are made for one data set.
        identities : mapping from silo names to PEM files, default=None
            The keys with which silos of a secure sum sign; see ``fedpower node key``. Made for this fit
            unless given.
        on_round : callable, default=None
            Called with each closed round.
        on_rows : callable, default=None
            Called at every block of every pass, in the thread that reads, with the silo's name, the rows of
            the block and how many the silo has (None where only a pass can tell).
        on_clipped : callable, default=None
            Called before anything is charged with how many rows the bound shortened (of networks: edges
            capped) and how many there are, by silo; where the fit finds the bound, at its end. These counts
            are for the silos' operators only, so the fitted model does not keep them.
        """
        run = Run(ledgers, data_version, data_set, identities, on_round, on_rows, on_clipped)
        options = options_of(self)
        return self._take(fit_data(options, open_data(silos, options, extra_columns), run))

    def prepare_silos(self, silos: Any, *, extra_columns: Extra = "refuse", **run: Any) -> CodeBook:
        """Return the code book of the silos' columns, found privately; nothing is fitted.

        It costs the share of ``epsilon`` that preparation has in a fit that is given nothing else, which
        the code book records, and fits with ``codebook=`` do not pay for it again. Parameters are those of
        :meth:`fit_silos`.
        """
        options = options_of(self)
        return prepare_data(options, open_data(silos, options, extra_columns), Run(**run))

    def fit_covariance(self, release: Covariance | str | PathLike[str]) -> Self:
        """Fit to a released covariance: the same numbers as the fit that released it, at no cost.

        Parameters
        ----------
        release : Covariance or path
            ``release_`` of `FedCovariance` or of a fit, or the folder that it was written to. Only
            ``n_components``, ``iteration_rank`` and ``standardize`` are left to choose; other parameters
            must be left out, or be those of the release.
        """
        given = release if isinstance(release, Covariance) else read_covariance(release)
        result = result_from(given, options_of(self))
        show_warnings(result)
        return self._take(result)

    def transform(self, X: ArrayLike | PathLike[str]) -> Array:
        """Return the scores of rows on the components: a local computation.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), or the path of a file
            New rows in the units of the fit. A file is streamed, and its columns are matched by name
            where both have names.
        """
        check_is_fitted(self)
        if isinstance(X, str | PathLike) or (self.result_.record.table_rules and hasattr(X, "columns")):
            return self.result_.transform(X)
        require_numbers(X)
        rows = validate_data(self, X, accept_sparse="csr", dtype=np.float64, order="C", reset=False)
        return self.result_.scores(rows)

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Return rows with these scores and nothing outside the components; unit rows if normalised."""
        check_is_fitted(self)
        return self.result_.inverse_transform(check_array(X, dtype=np.float64, input_name="X"))

    def to_sklearn(self) -> "PCA | Pipeline":
        """Return a PCA of scikit-learn, or a pipeline, that transforms as this does: `Result.to_sklearn`."""
        check_is_fitted(self)
        return self.result_.to_sklearn()

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the folder that ``fedpower fit`` writes, and return where it is: see `Result.save`."""
        check_is_fitted(self)
        return self.result_.save(folder, force=force)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return what the columns of scores are called, as in files: pc1, pc2, ..."""
        super().get_feature_names_out(input_features)
        return np.asarray(self.result_.score_names, dtype=object)

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

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
    "subspace_angles", "spectrum", "denoised_variance", "denoised_variance_ratio", "mean", "n_components",
    "silo_sizes", "basis", "solver", "privacy", "study", "kernels", "release", "score_counts",
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
    """The pooled covariance of rows that silos hold and do not pool: paid for once, analysed at no cost.

    Each silo releases its noised covariance, as it does for `FedPCA`, charged to the same ledgers under the
    same name: a fit that had it already costs nothing more, and the other way round. `Covariance.save` writes
    it; `FedPCA.fit_covariance` and the estimators of `fedpower.analysis` compute with it.

    Parameters
    ----------
    epsilon, delta, center, ranges, codebook, unit, aggregation, device, n_jobs
        As of `FedPCA`.

    Attributes
    ----------
    covariance_ : ndarray of shape (n_features_in_, n_features_in_)
        The released covariance, in the units of the columns.
    location_ : ndarray of shape (n_features_in_,)
        The released mean; zero for ``center=False``.
    release_ : Covariance
        The release as an object: covariance, mean, noise, privacy statement and record.
    privacy_ : PrivacyStatement
        What is promised about the rows; print it.
    codebook_ : CodeBook or None
        Offsets, scales, ranges and bound of the columns that were found privately, or given.
    n_features_in_, feature_names_in_
        As in scikit-learn; names only where the columns have them.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedCovariance, FedPCA
    >>> rows = np.random.default_rng(0).normal(size=(3, 400, 4))
    >>> release = FedCovariance(epsilon=float("inf")).fit_silos(list(rows)).release_
    >>> FedPCA(2, epsilon=float("inf")).fit_covariance(release).components_.shape
    (2, 4)
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        center: bool = True,
        ranges: Any = None,
        codebook: CodeBook | str | PathLike[str] | None = None,
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

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the covariance as a folder and return where it is: see `Covariance.save`."""
        return self.release_.save(folder, force=force)

    @property
    def covariance_(self) -> Array:
        """The released covariance, in the units of the columns."""
        return self.release_.covariance

    @property
    def location_(self) -> Array:
        """The released mean; zero for ``center=False``."""
        return self.release_.mean

    def _model(self) -> FedPCA:
        return FedPCA(
            1, noise="covariance", solver="upload", standardize=False, **self.get_params(deep=False)
        )

    def _take(self, model: FedPCA) -> Self:
        self.release_, self.privacy_ = released_covariance(model.result_), model.result_.privacy
        self.codebook_ = self.release_.code_book
        keep_columns(self, model.n_features_in_, self.release_.feature_names)
        return self


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
