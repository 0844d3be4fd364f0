"""``FedPCA``: federated PCA in scikit-learn's manners."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from fedpower.engines.embedded import (
    LedgerPaths,
    OnRows,
    Versions,
    federate,
    prepare_silos,
    read_for,
    survey_silos,
)
from fedpower.errors import InputError, Sentence
from fedpower.estimator.fit_warnings import (
    warn_of_clipping,
    warn_of_copies,
    warn_of_costly_silos,
    warn_of_delta,
    warn_of_noise,
    warn_of_rows,
    warn_of_weights,
)
from fedpower.estimator.moments import result_from
from fedpower.estimator.numbers import require_numbers
from fedpower.estimator.preflight import preflight
from fedpower.estimator.repeats import warn_of_repeats
from fedpower.estimator.silos import named_sources
from fedpower.estimator.solving import public_rng
from fedpower.estimator.terms import IdentityPaths, build_study, identities_of
from fedpower.estimator.treatment import (
    code_book_of,
    given_book,
    prepares,
    rules_of,
    takes_gaps,
    treatment_of,
)
from fedpower.linalg.subspace import Alignment
from fedpower.parameters import Parameters
from fedpower.protocol.exchange import Round
from fedpower.protocol.schedule import Schedule
from fedpower.protocol.solvers.power import Reference
from fedpower.protocol.solvers.shared import Participation
from fedpower.protocol.study import Aggregation
from fedpower.protocol.weights import Weights
from fedpower.report.moment import Moment, read_moment
from fedpower.report.outcome import result_of
from fedpower.report.result import Result
from fedpower.rows.columns import is_wide, require_exact
from fedpower.rows.gaps import with_gaps
from fedpower.rows.networks import NetworkUnit, weighed_edges
from fedpower.rows.opening import open_source
from fedpower.rows.source import RowSource
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import UnitRows, with_ids
from fedpower.rules.codebook import CodeBook
from fedpower.rules.problems import every_problem
from fedpower.rules.ruled import match_tables, ruled, rules_of_source
from fedpower.rules.rules import TableRules
from fedpower.sums.local import LocalMoment
from fedpower.sums.survey import Survey

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline

Array = NDArray[np.float64]


FITTED = (
    "components",
    "explained_variance",
    "explained_variance_ratio",
    "singular_values",
    "component_angles",
    "subspace_angles",
    "spectrum",
    "denoised_variance",
    "denoised_variance_ratio",
    "mean",
    "n_components",
    "n_samples",
    "silo_sizes",
    "basis",
    "n_steps",
    "solver",
    "privacy",
    "study",
    "kernels",
    "warnings",
    "moment",
    "score_counts",
)
"""What a fitted estimator shows of its result by the same name, with scikit-learn's underscore."""


def _warn(said: list[str], *, stacklevel: int) -> None:
    """Warn of the first few sentences, and of how many more there are."""
    for sentence in said[:_MOST_SHOWN]:
        warnings.warn(sentence, UserWarning, stacklevel=stacklevel)
    if len(said) > _MOST_SHOWN:
        more = f"{len(said) - _MOST_SHOWN} more warnings are in warnings_ and in the report"
        warnings.warn(more, UserWarning, stacklevel=stacklevel)


_MOST_SHOWN = 5


def _rows_of(source: RowSource) -> Array:
    """Return all rows of a table that is in memory anyway."""
    with every_problem([source]):
        return np.vstack([np.asarray(block) for block in source.blocks(2**16)])


def _with_units(X: Any, units: Any, column: str | None) -> tuple[Any, Any]:
    """Return rows without the column that says whose each is, and what it says; None without one."""
    if column is None or units is not None:
        return X, units
    if column in getattr(X, "columns", ()) and hasattr(X, "iloc"):
        return X.drop(columns=[column]), X[column]
    raise InputError(
        f"X must be a data frame with the column '{column}' that says whose each row is, got none; give "
        "one, or the ids as units=…, or the table to fit_silos"
    )


class FedPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Principal components of rows that silos hold and do not pool.

    Parameters
    ----------
    n_components : int, float, "auto" or None, default=None
        k; or, between 0 and 1, the fraction of variance the components must exceed; or with
        ``"auto"`` as many as are determined together (see ``subspace_angles_``), at least 1. The latter
        two cost no budget, and with a finite ``epsilon`` need ``noise="moment"``, see
        docs/how-to/choose-k.md. None keeps min(n_samples, n_features).
    epsilon : float, default=1.0
        Privacy budget of each silo for this fit, against the coordinator. ``float("inf")`` computes
        exactly, without noise, and promises nothing.
    delta : float, default=None
        The δ of (ε, δ); None takes ``fedpower.privacy.default_delta`` of the public number of rows.
    noise : {"auto", "moment", "clipped", "step", "paper"}, default="auto"
        What is noised: the moment once, clipped products after it or without it (for wide rows whose
        leading directions hold little of their variance), every step's product, or the same with the
        paper's printed noise. ``auto`` takes ``clipped`` where ``energy`` lets a clear gain be
        predicted and columns are not standardised, else ``moment`` while d×d is kept easily
        (d ≤ 8192), else ``step``.
    energy : float, optional
        A public guess of the share of all variance that the k components hold, such as an earlier
        result shows; how ``clipped`` divides its budget follows from it, 4k/d unless given.
    solver : {"auto", "moment", "krylov", "fedpower"}, default="auto"
        How the eigenspace is found: from the uploaded moment in one round, from a Krylov space in a few
        rounds, or by the paper's power method. ``auto`` decides from public facts, see ``solver_``;
        parameters that only the paper's method has (``schedule``, ``local_steps``, ``drift_correction``,
        ``n_steps``, ``alignment``, ``reference``, ``n_participants``) make it take that one.
    aggregation : {"plain", "secure"}, default="plain"
        Whether the coordinator reads every silo's noised moment, or their sum alone: silos then share
        the noise of one trusted curator, √m times less than m of them add by themselves. Needs the
        extra ``secure``, a finite ``epsilon``, noise ``moment`` or ``clipped``, and every silo that
        answers to stay to the end.
    colluders : int, default=1
        Of a secure sum: how many silos may tell the coordinator all they know; the noise is
        √(m/(m − colluders)) times that of a trusted curator.
    weights : {"rows", "noise"}, default="rows"
        How silos weigh in what is pooled: by their rows, as pooled rows would, or such that the pooled
        noise is least (by the squares of their sizes), which leans towards large silos.
    row_norm : float, default=None
        Public bound B on the norm of a row; longer rows are clipped to it. A private fit that is given
        neither this nor ``normalize``, ``scale``, ``codebook`` or a public centre finds offset, scale and
        bound of the columns privately, out of the same ``epsilon``: see ``codebook_``.
    normalize : bool, default=False
        Scale every row to norm 1, as the paper does.
    center : bool, array-like of shape (n_features,) or mapping from names, default=True
        Whether to centre on the pooled mean, which the silos release. Numbers are a public ``offset``,
        after which the pooled mean is removed as well.
    offset : array-like of shape (n_features,) or mapping from names, default=None
        Public numbers that are taken off the columns first, such as guesses of their means: rows become
        shorter, and less is clipped. What is left of the mean is removed if ``center`` says so.
    scale : array-like of shape (n_features,) or mapping from names, default=None
        Public divisors of the columns: the units that you measure them in, in which covariances
        (``standardize=False``) are given.
    codebook : CodeBook or path, default=None
        What an earlier preparation found (``codebook_``, ``fedpower prepare``): offsets, scales, ranges
        and bound. Using it costs nothing. Its rules, where it has any, turn tables with categories, dates
        and missing cells into columns of numbers (``fedpower inspect --draft``); one that holds rules
        alone leaves the numbers to be found.
    ranges : mapping from names, pair, or list of pairs, default=None
        What people know that cells of columns lie between, e.g. ``{"age": (0, 120)}``. Cells are clipped
        to it; preparation then spends nothing on finding it.
    standardize : bool, default=True
        Whether components are those of the correlations, every column having variance 1, or of the
        covariances in the columns' own units: at every ``epsilon``, from the same releases. Of rows of
        norm 1 (``normalize``) and of networks they are those of the moment itself. Private fits that
        noise products instead of the moment need ``standardize=False``.
    unit : str, default=None
        Column of the silos' tables that says whose each row is. A person is then what is protected, with
        all her rows of a silo: together they weigh as much as one, so that privacy costs no more than
        where everybody has one row. The column is no feature and never leaves a silo; persons are
        counted in place of rows (``n_samples_``). See docs/how-to/persons.md.
    rows_per_unit : int, default=1
        C: up to so many rows of a person count in full, at C times the noise; how many rows count is then
        public.
    network : {"edge", "row"}, default=None
        Silos hold networks on the same public nodes (adjacency matrices, or what
        `fedpower.rows.networks.open_network` opened): an edge of one layer is protected, or a row of the
        adjacency. See `FedCommunities`.
    edge_weight : float, default=None
        The public maximum at which weights of edges are capped; without it they must be 0 or 1.
    keep_moment : bool, default=False
        Whether the result keeps the pooled moment (``moment_``, and two files more in its folder), from
        which any number of analyses can be computed at no further cost: see `FedMoment`.
    scores_epsilon : float, default=None
        Part of ``epsilon`` for counting rows by their scores on the first two components, on a grid:
        ``score_counts_``, drawn in the report. The fit has the rest, by exact composition, so that
        ``epsilon`` stays what both cost together. ``float("inf")`` with an infinite ``epsilon`` counts
        exactly. See docs/how-to/score-plots.md.
    one_shot_start : bool, default=None
        Whether ``krylov`` opens with local steps at the silos and lets them look a step ahead: about half
        the rounds. None does so where nothing is private; in ``moment`` mode it would cost the public's
        smaller ε, which holds only for what depends on the sum of the silos' moments. Plays no part
        where every product is noised.
    iteration_rank : int, default=None
        r, columns of the iterated basis; None takes min(k + 10, n_features).
    schedule : {"every", "decaying", "halving"}, Schedule or iterable of int, default="every"
        At which steps a round happens; see ``local_steps``.
    local_steps : int, default=1
        p, local power steps between two rounds (at first, where the schedule decays).
    drift_correction : bool, default=False
        Correct local steps for the difference between a silo's moment and the pooled one, at an extra
        exchange before each: no bias however different the silos are, and never worse than without.
    n_steps : int, default=None
        T. None goes on until ``tol`` or ``max_rounds``; noise modes that divide the budget among
        steps take 10.
    tol : float, default=1e-9
        Stop once a round moves the leading subspace by sin θ ≤ tol; 0 never stops early.
    max_rounds : int, default=500
        Stop after so many rounds in any case.
    alignment : {"procrustes", "sign", "identity"}, default="procrustes"
        How local bases are rotated before averaging.
    reference : {"first", "active", "broadcast"}, default="first"
        To whose basis they are rotated; ``broadcast`` aligns at the silos and halves the upload.
    n_participants : int, default=None
        K silos a round; None asks all.
    participation : {"sampled", "first"}, default="sampled"
        Whether K are drawn with replacement or are the first to answer.
    min_silos : int, default=None
        Fewest silos a round may go on with; None needs all.
    deadline : float, default=None
        Seconds after which a round goes on with those who answered.
    extra_columns : {"refuse", "drop"}, default="refuse"
        What to do with columns that not every silo has, where columns have names.
    random_state : int, RandomState instance or None, default=None
        Public randomness: start basis and sampling of silos. Never noise. With ``ledgers`` and noised
        steps, None takes it from the terms of the fit, so that the same fit again is not charged again.
    n_jobs : int, default=None
        Silos that work at once; None and -1 take the number of cores, -2 one less, and so on.
    device : str, default=None
        PyTorch device that multiplies the silos' rows, such as ``"cuda"``; None takes NumPy on the CPU.
        Rows given in float32 are multiplied in float32 where nothing is private and in float64 where
        something is. See docs/devices.md.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features_in_)
        Principal axes, orthonormal, by decreasing variance; each one's largest loading is positive.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray
        As in :class:`sklearn.decomposition.PCA`; the variance's divisor is n − 1 when centred on the
        pooled mean, else n. The ratio is NaN where the total was not released.
    component_angles_ : ndarray of shape (n_components_,)
        Degrees that each component may be off from that of the rows, at 90% confidence: from the noise,
        and from rows that the bound shortens. Up to 45° it is determined. 0 for an exact fit, and 90
        for components that its rounding errors leave open.
    subspace_angles_ : ndarray of shape (n_components_,)
        The same for the subspaces of the first component, of the first two and so on. Components with
        nearly the same variance cannot be told apart, but together they can be determined.
    spectrum_ : ndarray
        All eigenvalues that the releases give, noised as they are, in units of ``explained_variance_``:
        all of the moment's where it was uploaded (negative ones too), else the r found.
    denoised_variance_, denoised_variance_ratio_ : ndarray of shape (n_components_,)
        The variances, and their shares of all variance, without what noise adds to them.
    mean_ : ndarray of shape (n_features_in_,)
        What is subtracted from rows; zero for ``center=False``.
    n_components_, n_features_in_, feature_names_in_, n_samples_
        As in scikit-learn; names only where the columns have them.
    silo_sizes_ : dict
        Rows by silo.
    basis_ : ndarray of shape (n_features_in_, r)
        The iterated basis: the paper's output.
    n_steps_ : int
        Steps taken.
    history_ : list of dict
        A row a round: round, kind, step, participants, bytes_down, bytes_up, change (sin θ between
        the leading subspace and the basis before the round), misalignment (ρ_t).
    solver_ : SolverChoice
        The solver taken and the reason for it.
    privacy_ : PrivacyStatement
        What is promised about the rows; print it.
    codebook_ : CodeBook or None
        Offsets, scales, ranges and bound of the columns that were found privately, or given.
    moment_ : Moment or None
        The pooled moment, where ``keep_moment`` asked for it.
    score_counts_ : ScoreHistogram or None
        Noised counts of rows by their scores on the first two components, silo by silo, or of all silos
        together where sums are secure; None unless ``scores_epsilon`` asked for them.
    study_ : Study
        The terms of the fit; ``study_.digest`` is their hash.
    kernels_ : dict
        By silo: how its products were computed, and why.
    warnings_ : list of str
        What to know before numbers are trusted: columns whose range or spread is uncertain, lost
        precision, silos that hold the same rows.
    result_ : Result
        All of the above as one object, which ``save`` writes and `fedpower.read_result` gives back; the
        methods below compute with it.
    """

    def __init__(
        self,
        n_components: int | float | Literal["auto"] | None = None,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        noise: Literal["auto", "moment", "clipped", "step", "paper"] = "auto",
        energy: float | None = None,
        solver: Literal["auto", "moment", "krylov", "fedpower"] = "auto",
        aggregation: Aggregation = "plain",
        colluders: int = 1,
        weights: Weights = "rows",
        row_norm: float | None = None,
        normalize: bool = False,
        center: bool | ArrayLike | Mapping[str, float] = True,
        offset: ArrayLike | Mapping[str, float] | None = None,
        scale: ArrayLike | Mapping[str, float] | None = None,
        codebook: CodeBook | str | PathLike[str] | None = None,
        ranges: Any = None,
        standardize: bool = True,
        unit: str | None = None,
        rows_per_unit: int = 1,
        network: NetworkUnit | None = None,
        edge_weight: float | None = None,
        keep_moment: bool = False,
        scores_epsilon: float | None = None,
        one_shot_start: bool | None = None,
        iteration_rank: int | None = None,
        schedule: Literal["every", "decaying", "halving"] | Schedule | Iterable[int] = "every",
        local_steps: int = 1,
        drift_correction: bool = False,
        n_steps: int | None = None,
        tol: float = 1e-9,
        max_rounds: int = 500,
        alignment: Alignment = "procrustes",
        reference: Reference = "first",
        n_participants: int | None = None,
        participation: Participation = "sampled",
        min_silos: int | None = None,
        deadline: float | None = None,
        extra_columns: Literal["refuse", "drop"] = "refuse",
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        device: str | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.noise = noise
        self.energy = energy
        self.solver = solver
        self.aggregation = aggregation
        self.colluders = colluders
        self.weights = weights
        self.row_norm = row_norm
        self.normalize = normalize
        self.center = center
        self.offset = offset
        self.scale = scale
        self.codebook = codebook
        self.ranges = ranges
        self.standardize = standardize
        self.unit = unit
        self.rows_per_unit = rows_per_unit
        self.network = network
        self.edge_weight = edge_weight
        self.keep_moment = keep_moment
        self.scores_epsilon = scores_epsilon
        self.one_shot_start = one_shot_start
        self.iteration_rank = iteration_rank
        self.schedule = schedule
        self.local_steps = local_steps
        self.drift_correction = drift_correction
        self.n_steps = n_steps
        self.tol = tol
        self.max_rounds = max_rounds
        self.alignment = alignment
        self.reference = reference
        self.n_participants = n_participants
        self.participation = participation
        self.min_silos = min_silos
        self.deadline = deadline
        self.extra_columns = extra_columns
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.device = device

    def fit(
        self,
        X: ArrayLike,
        y: object = None,
        *,
        groups: ArrayLike | None = None,
        units: ArrayLike | None = None,
    ) -> Self:
        """Fit to rows in memory; ``groups`` says which silo each row belongs to (one silo without).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            The rows.
        y : ignored
            Here for scikit-learn's sake.
        groups : array-like of shape (n_samples,), default=None
            Silo labels.
        units : array-like of shape (n_samples,), default=None
            Whose each row is, where a person is the unit of privacy; the column ``unit`` of a data frame
            unless given.

        Returns
        -------
        FedPCA
            Itself.
        """
        del y
        parameters = Parameters.of(self)
        if parameters.network is not None:
            raise InputError(
                "network must go with silos that are networks, got rows in memory; give fit_silos a "
                "list of adjacency matrices"
            )
        X, units = _with_units(X, units, self.unit)
        rules = rules_of(parameters)
        table = None if rules is None else ruled(open_source(X), rules)
        if isinstance(table, UnitRows):  # of one rating a row, which become one row a person
            parameters, table = replace(parameters, unit=table.label), table.rows
        if table is None:
            require_numbers(X)
        elif takes_gaps(parameters):
            table = with_gaps(table)
        rows = validate_data(
            self,
            X if table is None else _rows_of(table),
            accept_sparse="csr",
            dtype=np.float64,
            ensure_all_finite="allow-nan" if takes_gaps(parameters) else True,
            ensure_min_samples=1 + parameters.centers,
        )
        if table is not None:
            self.feature_names_in_ = np.asarray(table.columns, dtype=object)
        names = self._columns()
        if any(map(is_wide, getattr(X, "dtypes", [getattr(X, "dtype", None)]))):
            require_exact(rows, name="X", columns=names, rows=0)
        labels = np.full(rows.shape[0], "silo-1") if groups is None else np.asarray(groups)
        if groups is None:
            parts = {"silo-1": rows}
        else:
            if labels.shape != (rows.shape[0],):
                raise InputError(
                    f"groups must have one label per row, got shape {labels.shape} for "
                    f"{rows.shape[0]} rows; give the silo of each row"
                )
            parts = {str(label): rows[labels == label] for label in np.unique(labels)}
        sources = {name: open_source(part, name=f"silo {name!r}") for name, part in parts.items()}
        own = None if table is None else rules_of_source(table)
        if units is None and parameters.unit is not None:
            units = np.arange(rows.shape[0])
        if units is not None:
            if np.shape(units) != labels.shape:
                raise InputError(
                    f"units must have one id per row, got shape {np.shape(units)} for {rows.shape[0]} "
                    "rows; give the person of each row"
                )
            ids, most = np.asarray(units), parameters.rows_per_unit
            sources = {
                name: with_ids(source, ids[labels.astype(str) == name], most)
                for name, source in sources.items()
            }
            parameters = replace(parameters, unit=parameters.unit or "units")
        return self._fit(parameters, sources, names, rules=own)

    def fit_silos(
        self,
        silos: Any,
        y: object = None,
        *,
        ledgers: LedgerPaths | None = None,
        data_version: Versions | None = None,
        data_set: str | None = None,
        identities: IdentityPaths | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_rows: OnRows | None = None,
        on_clipped: Callable[[dict[str, tuple[int, int]]], None] | None = None,
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
        ledgers : mapping from silo names to ledger files, default=None
            Where each silo charges what it releases; see ``fedpower budget``. They are opened, never
            made, and only a private fit with a public row bound can be charged to them.
        data_version : str or mapping from silo names, default="1"
            What the rows are called on the ledgers: public. The same version is the same release, at no
            further charge; stored data that differ from those of a version already booked are refused,
            and a new version is a new charge.
        data_set : str, default=None
            What the data are called whose version that is, where ledgers are made for one data set.
        identities : mapping from silo names to PEM files, default=None
            The keys with which silos of a secure sum sign; see ``fedpower identity``. Made for this fit
            unless given.
        on_round : callable, default=None
            Called with each closed round.
        on_rows : callable, default=None
            Called with the silo's name, the rows of a block just read and how many the silo has (None
            where only a pass can tell), at every block of every pass, in the thread that reads.
        on_clipped : callable, default=None
            Called before anything is charged with how many rows the bound shortened (of networks: how
            many edges were capped) and how many there are, by silo; where the fit finds the bound, at its
            end. These counts come from the rows and are for the silos' operators only, so the fitted
            model does not keep them.

        Returns
        -------
        FedPCA
            Itself.
        """
        del y
        parameters = Parameters.of(self)
        sources = named_sources(
            silos,
            parameters.unit,
            parameters.rows_per_unit,
            network=parameters.network,
            edge_weight=parameters.edge_weight,
        )
        columns, sources = match_tables(sources, rules_of(parameters), extra=self.extra_columns)
        self.n_features_in_ = next(iter(sources.values())).n_features
        if columns is not None:
            self.feature_names_in_ = np.asarray(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self._fit(
            parameters,
            sources,
            columns,
            rules=rules_of_source(next(iter(sources.values()))),
            ledgers=ledgers,
            data_version=data_version,
            data_set=data_set,
            identity_files=identities,
            on_round=on_round,
            on_rows=on_rows,
            on_clipped=on_clipped,
        )

    def prepare_silos(
        self,
        silos: Any,
        *,
        ledgers: LedgerPaths | None = None,
        data_version: Versions | None = None,
        data_set: str | None = None,
        identities: IdentityPaths | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_rows: OnRows | None = None,
    ) -> CodeBook:
        """Return the code book of the silos' columns, found privately; nothing is fitted.

        It costs the share of ``epsilon`` that preparation has in a fit that is told nothing else, which
        the code book tells, and fits with ``codebook=`` do not pay for it again.

        Parameters
        ----------
        silos, ledgers, data_version, data_set, identities, on_round, on_rows
            As in :meth:`fit_silos`.

        Returns
        -------
        CodeBook
            Offsets, scales, ranges and bound.
        """
        parameters = Parameters.of(self)
        if not prepares(parameters):
            raise InputError(
                Sentence(
                    "preparation must be given nothing but a finite {epsilon} and ranges, got more; "
                    "leave out {row_norm}, {normalize}, {codebook}, public centres and scales, and "
                    "settings of other solvers"
                )
            )
        sources = named_sources(silos, parameters.unit, parameters.rows_per_unit)
        columns, sources = match_tables(sources, rules_of(parameters), extra=self.extra_columns)
        keys = identities_of(parameters, sources, identities)
        preflight(
            parameters,
            sources,
            columns=columns,
            identities=keys,
            ledgers=ledgers,
            data_version=data_version,
            data_set=data_set,
        )
        with every_problem(sources.values()):
            surveys = survey_silos(
                sources, n_jobs=self.n_jobs, device=self.device, on_rows=on_rows, fingerprinted=bool(ledgers)
            )
            sizes = {name: each.n_rows for name, each in surveys.items()}
        study, _, _ = build_study(
            parameters,
            n_rows=sum(sizes.values()),
            n_features=next(iter(sources.values())).n_features,
            treatment=None,
            columns=columns,
            identities={name: each.public for name, each in keys.items()},
            roster=sizes,
        )
        warn_of_delta(study, sizes.values())
        if not ledgers:
            warn_of_repeats(study, sources.values(), fits=0)
        found = prepare_silos(
            surveys,
            study=study,
            ledgers=ledgers,
            data_version=data_version,
            data_set=data_set,
            identities=keys,
            n_jobs=self.n_jobs,
            on_round=on_round,
        )
        warn_of_rows(study, surveys)
        draft = given_book(parameters)
        return found if draft is None else replace(found, rules=draft.rules)

    def fit_moment(self, moment: Moment | str | PathLike[str]) -> Self:
        """Fit to a released moment: the same numbers as the fit that released it, at no cost.

        Parameters
        ----------
        moment : Moment or path
            What `FedMoment` or ``keep_moment=True`` gave, or the folder that it was written to. Only
            ``n_components``, ``iteration_rank`` and ``standardize`` are left to choose; other parameters
            must be left alone, or be those of the release.

        Returns
        -------
        FedPCA
            Itself.
        """
        parameters = Parameters.of(self)
        given = moment if isinstance(moment, Moment) else read_moment(moment)
        self.n_features_in_ = given.n_features
        if given.feature_names is not None:
            self.feature_names_in_ = np.asarray(given.feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self._take(result_from(given, parameters), given.code_book)
        _warn(self.warnings_, stacklevel=3)
        warn_of_noise(self.result_, stacklevel=3)
        return self

    def transform(self, X: ArrayLike | PathLike[str]) -> Array:
        """Return the scores of rows on the components: a local computation.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), or the path of a file
            New rows in the units of the fit. A file is streamed, and its columns are matched by name
            where both have names.

        Returns
        -------
        ndarray of shape (n_samples, n_components_)
            The scores.
        """
        check_is_fitted(self)
        if isinstance(X, str | PathLike) or (self.result_.rules and hasattr(X, "columns")):
            return self.result_.transform(X)
        require_numbers(X)
        rows = validate_data(self, X, accept_sparse="csr", dtype=np.float64, order="C", reset=False)
        return self.result_.scores(rows)

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Return rows that have the given scores and nothing outside the components.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components_)
            Scores.

        Returns
        -------
        ndarray of shape (n_samples, n_features_in_)
            Rows; unit rows where the fit normalised them.
        """
        check_is_fitted(self)
        return self.result_.inverse_transform(check_array(X, dtype=np.float64, input_name="X"))

    def to_sklearn(self) -> "PCA | Pipeline":
        """Return the fit in scikit-learn's own objects, for tools that want nothing else.

        Returns
        -------
        PCA or Pipeline
            A :class:`sklearn.decomposition.PCA` that transforms as this does. Where rows are scaled or
            normalised, a pipeline that does so first and ends in one; with ``normalize=True`` it has no
            ``inverse_transform``. ``noise_variance_`` is NaN where the total variance was not released.
        """
        check_is_fitted(self)
        return self.result_.to_sklearn()

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the result folder, the same as ``fedpower fit`` writes, and return where it is.

        Parameters
        ----------
        folder : str or path
            A new or empty folder; it appears whole or not at all, with ``report.html`` in it.
        force : bool, default=False
            Whether an earlier result in the folder is replaced.

        Returns
        -------
        Path
            The folder.
        """
        check_is_fitted(self)
        return self.result_.save(folder, force=force)

    def _columns(self) -> tuple[str, ...] | None:
        """Return the names of the columns of the fit, in order; None without names."""
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(str(name) for name in names)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return what the columns of scores are called, as in files: pc1, pc2, ...

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Only checked against the columns of the fit.

        Returns
        -------
        ndarray of str objects
            The names.
        """
        super().get_feature_names_out(input_features)
        return self.result_.get_feature_names_out()

    @property
    def _n_features_out(self) -> int:
        """The number of columns that ``transform`` gives."""
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = takes_gaps(Parameters.of(self))
        return tags

    def _fit(
        self,
        parameters: Parameters,
        sources: dict[str, RowSource],
        columns: tuple[str, ...] | None,
        *,
        rules: TableRules | None = None,
        ledgers: LedgerPaths | None = None,
        data_version: Versions | None = None,
        data_set: str | None = None,
        identity_files: IdentityPaths | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_rows: OnRows | None = None,
        on_clipped: Callable[[dict[str, tuple[int, int]]], None] | None = None,
    ) -> Self:
        identities = identities_of(parameters, sources, identity_files)
        expected = preflight(
            parameters,
            sources,
            columns=columns,
            identities=identities,
            ledgers=ledgers,
            data_version=data_version,
            data_set=data_set,
        )
        with every_problem(sources.values()):
            treatment, leak = treatment_of(parameters, columns, sources.values())
            moments: dict[str, LocalMoment] | dict[str, Survey]
            if treatment is None:
                moments = survey_silos(
                    sources,
                    n_jobs=self.n_jobs,
                    device=self.device,
                    on_rows=on_rows,
                    fingerprinted=bool(ledgers),
                )
            else:
                moments = read_for(
                    expected,
                    sources,
                    treatment,
                    steps=self.n_steps,
                    n_jobs=self.n_jobs,
                    device=self.device,
                    on_rows=on_rows,
                    fingerprinted=bool(ledgers),
                )
                self._tell_cut(treatment, sources, moments, on_clipped)
        study, settings, choice = build_study(
            parameters,
            n_rows=sum(moment.n_rows for moment in moments.values()),
            n_features=self.n_features_in_,
            treatment=treatment,
            columns=columns,
            identities={name: each.public for name, each in identities.items()},
            roster={name: moment.n_rows for name, moment in moments.items()},
        )
        warn_of_delta(study, (moment.n_rows for moment in moments.values()))
        warn_of_copies(study, moments)
        warn_of_costly_silos(study, {name: each.n_rows for name, each in moments.items()})
        if not ledgers and leak is None:
            warn_of_repeats(study, sources.values())
        outcome = federate(
            moments,
            study=study,
            settings=settings,
            rng=public_rng(parameters, study if ledgers else None),
            ledgers=ledgers,
            data_version=data_version,
            data_set=data_set,
            identities=identities,
            min_silos=self.min_silos,
            deadline=self.deadline,
            n_jobs=self.n_jobs,
            on_round=on_round,
        )
        if len(outcome.rounds) >= self.max_rounds and not outcome.solution.converged:
            warnings.warn(
                Sentence(
                    "the subspace still moved by sin θ = {change:.2g} in the last of {rounds} rounds; "
                    "raise {max_rounds}, {tol} or {iteration_rank}",
                    change=outcome.solution.change,
                    rounds=self.max_rounds,
                ),
                ConvergenceWarning,
                stacklevel=3,
            )
        warn_of_rows(study, moments)
        book = outcome.solution.code_book or code_book_of(parameters)
        if book is not None and book.rules is None and rules is not None:
            book = replace(book, rules=rules)
        if treatment is None:
            assert book is not None, "a run without a treatment finds one"
            treatment = book.treatment
            counts = {name: each.clipped for name, each in moments.items() if isinstance(each, Survey)}
            if on_clipped is not None and all(counts.values()):
                on_clipped({name: each for name, each in counts.items() if each is not None})
        result = result_of(
            replace(outcome, privacy=replace(outcome.privacy, leak=leak)),
            parameters=parameters,
            treatment=treatment,
            feature_names=columns,
            solver=choice,
            rules=rules,
            code_book=book,
        )
        self._take(result, book)
        _warn(self.warnings_, stacklevel=4)
        if parameters.network is None:  # else communities have a verdict of their own
            warn_of_noise(self.result_)
        return self

    def _tell_cut(
        self,
        treatment: RowTreatment,
        sources: Mapping[str, RowSource],
        moments: Mapping[str, LocalMoment],
        on_clipped: Callable[[dict[str, tuple[int, int]]], None] | None,
    ) -> None:
        """Tell whoever holds them what a public bound did to rows, or a public maximum to edges."""
        if weighed := weighed_edges(sources):
            if on_clipped is None:
                warn_of_weights(weighed.values())
            else:
                on_clipped({name: (each.n_capped, each.n_edges) for name, each in weighed.items()})
        # A code book's bound is where clipping and noise balance: no cause for a warning.
        elif treatment.row_norm is not None and (self.codebook is None or on_clipped is not None):
            tell = warn_of_clipping if on_clipped is None else on_clipped
            tell({name: (moment.n_clipped, moment.n_read) for name, moment in moments.items()})

    def _take(self, result: Result, book: CodeBook | None) -> None:
        """Show what was found as attributes."""
        self.codebook_ = book
        self.result_: Result = result
        for name in FITTED:
            setattr(self, f"{name}_", getattr(self.result_, name))
        self.history_ = self.result_.rounds
