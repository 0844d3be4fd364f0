"""What each way of computing would cost and give, told before anything is spent."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from fedpower.data import RowTreatment
from fedpower.errors import InputError, Sentence
from fedpower.estimator.terms import build_study, identities_of
from fedpower.parameters import Parameters
from fedpower.protocol.choice import SolverChoice
from fedpower.protocol.private_study import budget_of, pooled_std
from fedpower.protocol.rehearsal import Rehearsed, rehearse
from fedpower.protocol.solvers import SecureSettings, SolverSettings, UploadSettings
from fedpower.protocol.study import Study
from fedpower.protocol.weights import costly_sentence, costly_silos

Array = NDArray[np.float64]

N_REHEARSALS = 5
"""Of columns up to 200; 3 up to 500 and 1 beyond, where one takes seconds and varies less."""

MOST_COLUMNS = 1024
"""The widest spectrum that is rehearsed in ``moment`` mode as it is, its noise being a d×d matrix."""

TRACE = 1.0
"""The most that eigenvalues of rows of norm at most 1 add up to."""

CLEARLY = 0.9
"""One way is told to be better than another where its error is predicted below this share of it."""

WAYS: dict[str, tuple[str, ...]] = {
    "none": ("moment", "krylov", "fedpower"),
    "moment": ("moment", "krylov", "fedpower"),
    "step": ("krylov", "fedpower"),
    "paper": ("fedpower",),
}
"""Which solvers go with which noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One solver with one noise mode.

    Attributes
    ----------
    solver, noise, aggregation
        What is computed how, what is noised, and whether the coordinator sees but the silos' sum.
    rounds, bytes_up, bytes_down
        Of one silo, over the whole fit; None where it depends on a spectrum that was not given.
    noise_level
        Standard deviation of the pooled noise in one entry of what is noised, for rows of norm at most 1.
    error
        Predicted sin θ_k of the components; None without a spectrum, and where none would be found.
    rank
        Predicted k, where it is to be found from noised eigenvalues; 0 where none stands above the noise;
        None without a spectrum.
    chosen
        Whether ``auto`` would take this one.
    """

    solver: str
    noise: str
    rounds: int | None
    bytes_up: int | None
    bytes_down: int | None
    noise_level: float
    error: float | None
    chosen: bool
    aggregation: str = "plain"
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every way and the one that ``auto`` takes, with its reason.

    Attributes
    ----------
    ways, choice
        See :class:`Way`; what a fit takes, and why.
    noise, epsilon, delta
        Of that fit.
    remarks
        Sentences on what would be better: a way that is predicted to be clearly more accurate, silos
        whose noise costs more than their rows bring.
    """

    ways: tuple[Way, ...]
    choice: SolverChoice
    noise: str
    epsilon: float
    delta: float
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return asdict(self)


def plan(
    model: BaseEstimator,
    *,
    sizes: Mapping[str, int] | Sequence[int],
    n_features: int,
    spectrum: ArrayLike | None = None,
    n_rehearsals: int | None = None,
) -> Plan:
    """Return what a fit of ``model`` would cost and give, in every way it could be done.

    Nothing is read but what is public: the silos' sizes, the number of columns, and a guess of the
    spectrum if there is one. Each way is rehearsed: the real solver runs on a made-up moment with these
    eigenvalues and the noise that is to come (`protocol.rehearsal`), and the median is told.

    Parameters
    ----------
    model
        Not fitted; its parameters are those of the fit, but for ``solver``, ``noise`` and
        ``aggregation``, which vary; ``colluders`` are those of a secure sum.
    sizes
        Rows of each silo.
    n_features
        d.
    spectrum
        Leading eigenvalues of the moment of the bounded rows (norm at most 1), largest first; those not
        given share what they leave of the trace (see `full_spectrum`).
    n_rehearsals
        Over how many the median is taken; None lets the number of columns decide.
    """
    parameters = Parameters.of(model)
    if n_rehearsals is None:
        n_rehearsals = N_REHEARSALS if n_features <= 200 else 3 if n_features <= 500 else 1
    named = dict(sizes) if isinstance(sizes, Mapping) else _numbered(sizes)
    values = None if spectrum is None else full_spectrum(spectrum, n_features)
    facts: dict[str, Any] = {
        "n_rows": sum(named.values()),
        "n_features": n_features,
        "treatment": RowTreatment(),
    }
    asked = _summing(parameters, parameters.aggregation)
    study, _, choice = build_study(asked, **facts, identities=_identities(asked, named))
    taken = (choice.solver, study.noise, study.aggregation)
    modes = ("none",) if not parameters.is_private else ("moment", "step", "paper")
    ways = [
        replace(way, chosen=(way.solver, way.noise, way.aggregation) == taken)
        for mode in modes
        for way in _ways(
            parameters, mode, sizes=named, facts=facts, values=values, n_rehearsals=n_rehearsals
        )
    ]
    return Plan(
        ways=tuple(ways),
        choice=choice,
        noise=study.noise,
        epsilon=float(parameters.epsilon),
        delta=study.delta,
        remarks=(*_better_way(ways), *_costly_silos(study, named)),
    )


def full_spectrum(leading: ArrayLike, n_features: int) -> Array:
    """Return d eigenvalues, largest first, that add up to at most 1.

    Rows of norm at most 1 have trace at most 1. What the given values leave of it the others share: each
    has the same part of the one before, none more than the last one given. Equal shares would put all of
    them far below it, where those of real rows are not; the last one repeated may have a trace that rows
    cannot have.
    """
    values = np.asarray(leading, dtype=np.float64).ravel()
    if not 1 <= values.size <= n_features or not np.isfinite(values).all() or values.min() < 0:
        raise InputError(
            f"spectrum must be 1 to {n_features} finite eigenvalues of at least 0, got "
            f"{values.size} numbers; give the leading ones, largest first"
        )
    if values.sum() > TRACE * (1 + 1e-6):
        raise InputError(
            "spectrum must add up to at most 1, as eigenvalues of rows of norm at most 1 do, got "
            f"{values.sum():.4g}; divide them by the square of the row bound"
        )
    values = np.sort(values)[::-1]
    rest = n_features - values.size
    left = max(TRACE - float(values.sum()), 0.0)
    last = float(values[-1])
    if rest == 0 or last * rest <= left * (1 + 1e-9):
        return np.append(values, np.full(rest, last))
    return np.append(values, _shrinking(last, left, rest))


def _shrinking(last: float, left: float, count: int) -> Array:
    """Return ``count`` numbers last·q, last·q², … that add up to ``left``, which is below count·last."""
    powers = np.arange(1, count + 1)
    low, high = 0.0, 1.0
    for _ in range(60):
        ratio = (low + high) / 2
        low, high = (ratio, high) if last * float((ratio**powers).sum()) < left else (low, ratio)
    return np.asarray(last * low**powers, dtype=np.float64)


def spectrum_of_gap(gap: float, rank: int, n_features: int, trace: float = 1.0) -> Array:
    """Return k equal eigenvalues over d − k equal ones, ``gap`` apart, that add up to ``trace``.

    The simplest spectrum with a given gap σ_k − σ_{k+1}; rows of norm 1 have trace 1.
    """
    low = (trace - rank * gap) / n_features
    if gap <= 0 or low < 0:
        raise InputError(
            f"an eigengap must lie above 0 and at most at {trace / rank:g} for {rank} components of rows "
            f"of norm at most 1, got {gap:g}; give one in between"
        )
    return full_spectrum([low + gap] * rank + ([low] if rank < n_features else []), n_features)


def _ways(
    parameters: Parameters,
    mode: str,
    *,
    sizes: Mapping[str, int],
    facts: dict[str, Any],
    values: Array | None,
    n_rehearsals: int,
) -> Iterator[Way]:
    kinds = [(solver, "plain") for solver in WAYS[mode]]
    if mode == "moment":
        kinds.insert(1, ("moment", "secure"))
    for solver, aggregation in kinds:
        way: dict[str, Any] = {"solver": solver, "noise": "auto" if mode == "none" else mode}
        varied = replace(_summing(parameters, aggregation), **way)
        try:
            keys = _identities(varied, sizes)
            study, settings, _ = build_study(varied, **facts, identities=keys)
        except InputError:  # the model's own parameters rule this way out
            continue
        budget = budget_of(study)
        level = 0.0 if budget is None else pooled_std(budget, sizes, study.weights)
        alone = 0.0 if budget is None else budget.std(max(sizes.values()))
        tried: list[Rehearsed | None] = []
        known = values is not None
        spectrum = np.full(study.n_features, TRACE / study.n_features) if values is None else values
        # One upload takes what it takes, whatever the eigenvalues are.
        if known or (solver == "moment" and isinstance(settings.rank, int)):
            tried = [
                _rehearsed(
                    settings,
                    study,
                    spectrum=spectrum,
                    noise_std=level,
                    silo_std=alone,
                    n_rows=facts["n_rows"],
                    rng=np.random.default_rng(seed),
                )
                for seed in range(n_rehearsals if level > 0 and known else 1)
            ]
        runs = [run for run in tried if run is not None]
        yield Way(
            solver=solver,
            noise=study.noise,
            rounds=_median([run.n_rounds for run in runs]),
            bytes_up=_median([run.bytes_up for run in runs]),
            bytes_down=_median([run.bytes_down for run in runs]),
            noise_level=level,
            error=float(np.median([run.error for run in runs])) if runs and known else None,
            chosen=False,
            aggregation=aggregation,
            rank=_median([0 if run is None else run.rank for run in tried]) if known else None,
        )


def _rehearsed(settings: SolverSettings, study: Study, **terms: Any) -> Rehearsed | None:
    """Return what a rehearsal came to; None where no component stood above the noise, or too few."""
    try:
        if _too_wide(study):
            return _narrowed(settings, study, **terms)
        return rehearse(settings, study, **terms)
    except InputError:
        if isinstance(settings.rank, int):
            raise
        return None


def _narrowed(
    settings: SolverSettings,
    study: Study,
    *,
    spectrum: Array,
    noise_std: float,
    silo_std: float,
    **terms: Any,
) -> Rehearsed:
    """Return a rehearsal with the leading eigenvalues alone, under noise that reaches as far.

    Symmetric noise turns an eigenvector by its column, of norm σ√(d/2), and reaches to σ√(2d): fewer
    columns with σ larger by √(d/d') are turned as much. Bytes are counted up to all columns.
    """
    d, fewer = study.n_features, MOST_COLUMNS
    wider = math.sqrt(d / fewer)
    width = min(study.iteration_rank, fewer)
    narrow = replace(study, columns=None, n_features=fewer, iteration_rank=width)
    if isinstance(settings, SecureSettings):
        run = rehearse(
            replace(settings, study=narrow),
            narrow,
            spectrum=spectrum[:fewer],
            noise_std=noise_std * wider,
            silo_std=silo_std * wider,
            **terms,
        )
    else:
        run = rehearse(
            replace(settings, n_features=fewer, iteration_rank=width),
            narrow,
            spectrum=spectrum[:fewer],
            noise_std=noise_std * wider,
            silo_std=silo_std * wider,
            **terms,
        )
    uploaded = isinstance(settings, SecureSettings | UploadSettings)
    up = d * (d + 1) / (fewer * (fewer + 1)) if uploaded else d / fewer
    down = 1.0 if uploaded else d / fewer
    return replace(run, bytes_up=round(run.bytes_up * up), bytes_down=round(run.bytes_down * down))


def _better_way(ways: Sequence[Way]) -> list[str]:
    """Return a sentence where another way of the same sum is predicted to be clearly more accurate."""
    taken = next((way for way in ways if way.chosen and way.error is not None), None)
    if taken is None or taken.error is None:
        return []
    rivals = [
        (way.error, way)
        for way in ways
        if way.error is not None and way.aggregation == taken.aggregation
    ]
    error, best = min(rivals, key=lambda each: each[0])
    if error >= CLEARLY * taken.error:
        return []
    return [
        Sentence(
            "{solver:{best.solver}} with {noise:{best.noise}} is predicted to be more accurate than what "
            "is taken by itself: sin θ = {error:.2g} instead of {taken.error:.2g}; ask for it where what "
            "it holds and sends is affordable",
            best=best,
            error=error,
            taken=taken,
        )
    ]


def _costly_silos(study: Study, sizes: Mapping[str, int]) -> list[str]:
    """Return a sentence that names the silos without which the pooled noise would be less."""
    budget = budget_of(study)
    if budget is None or study.aggregation == "secure":
        return []
    costly, share = costly_silos(budget, sizes, study.weights)
    return [costly_sentence(costly, share, sizes)] if costly else []


def _summing(parameters: Parameters, aggregation: str) -> Parameters:
    """Return the parameters with sums of this kind; only secure ones know colluders."""
    secure = aggregation == "secure"
    changed: dict[str, Any] = {
        "aggregation": aggregation,
        "colluders": parameters.colluders if secure else 1,
        "weights": "rows" if secure else parameters.weights,
    }
    return replace(parameters, **changed)


def _identities(parameters: Parameters, names: Iterable[str]) -> dict[str, str]:
    """Return public keys that a secure sum's terms can have; they are used for nothing else."""
    return {name: each.public for name, each in identities_of(parameters, names, None).items()}


def _too_wide(study: Study) -> bool:
    return study.noise == "moment" and study.n_features > MOST_COLUMNS


def _median(counts: list[int]) -> int | None:
    return int(np.median(counts)) if counts else None


def _numbered(sizes: Sequence[int]) -> dict[str, int]:
    return {f"silo-{place}": int(count) for place, count in enumerate(sizes, start=1)}
