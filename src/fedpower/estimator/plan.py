"""What each way of computing would cost and give, told before anything is spent."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from fedpower.data import RowTreatment
from fedpower.errors import InputError
from fedpower.estimator.fedpca import FedPCA
from fedpower.estimator.parameters import check_parameters
from fedpower.estimator.secure import identities_of
from fedpower.estimator.terms import agree
from fedpower.protocol.choice import SolverChoice
from fedpower.protocol.private_study import budget_of, pooled_std
from fedpower.protocol.rehearsal import Rehearsed, rehearse
from fedpower.protocol.solvers import SolverSettings
from fedpower.protocol.study import Study

Array = NDArray[np.float64]

N_REHEARSALS = 5
"""Of columns up to 200; 3 up to 500 and 1 beyond, where one takes seconds and varies less."""

MOST_COLUMNS = 2048
"""The widest spectrum that is rehearsed in ``moment`` mode, whose noise is a d×d matrix."""

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
    """Every way and the one that ``auto`` takes, with its reason."""

    ways: tuple[Way, ...]
    choice: SolverChoice
    noise: str
    epsilon: float
    delta: float

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return asdict(self)


def plan(
    model: FedPCA,
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
        Leading eigenvalues of the moment of the bounded rows (norm at most 1), largest first; the last is
        repeated for those not given.
    n_rehearsals
        Over how many the median is taken; None lets the number of columns decide.
    """
    check_parameters(model)
    if n_rehearsals is None:
        n_rehearsals = N_REHEARSALS if n_features <= 200 else 3 if n_features <= 500 else 1
    named = dict(sizes) if isinstance(sizes, Mapping) else _numbered(sizes)
    values = None if spectrum is None else full_spectrum(spectrum, n_features)
    facts: dict[str, Any] = {
        "n_rows": sum(named.values()),
        "n_features": n_features,
        "treatment": RowTreatment(),
    }
    study, _, choice = agree(
        _summing(model, model.aggregation), **facts, identities=_identities(model, named)
    )
    taken = (choice.solver, study.noise, study.aggregation)
    modes = ("none",) if math.isinf(model.epsilon) else ("moment", "step", "paper")
    ways = [
        replace(way, chosen=(way.solver, way.noise, way.aggregation) == taken)
        for mode in modes
        for way in _ways(
            model, mode, sizes=named, facts=facts, values=values, n_rehearsals=n_rehearsals
        )
    ]
    return Plan(
        ways=tuple(ways),
        choice=choice,
        noise=study.noise,
        epsilon=float(model.epsilon),
        delta=study.delta,
    )


def full_spectrum(leading: ArrayLike, n_features: int) -> Array:
    """Return d eigenvalues, largest first, the last given one repeated."""
    values = np.asarray(leading, dtype=np.float64).ravel()
    if not 1 <= values.size <= n_features or not np.isfinite(values).all() or values.min() < 0:
        raise InputError(
            f"spectrum must be 1 to {n_features} finite eigenvalues of at least 0, got "
            f"{values.size} numbers; give the leading ones, largest first"
        )
    padded = np.full(n_features, values.min())
    padded[: values.size] = np.sort(values)[::-1]
    return padded


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
    model: FedPCA,
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
        varied = _summing(model, aggregation)
        varied.set_params(solver=solver, noise="auto" if mode == "none" else mode)
        try:
            keys = _identities(varied, sizes)
            study, settings, _ = agree(varied, **facts, identities=keys)
        except InputError:  # the model's own parameters rule this way out
            continue
        budget = budget_of(study)
        level = 0.0 if budget is None else pooled_std(budget, sizes)
        alone = 0.0 if budget is None else budget.std(max(sizes.values()))
        tried: list[Rehearsed | None] = []
        if values is not None and not _too_wide(study):
            tried = [
                _rehearsed(
                    settings,
                    study,
                    spectrum=values,
                    noise_std=level,
                    silo_std=alone,
                    n_rows=facts["n_rows"],
                    rng=np.random.default_rng(seed),
                )
                for seed in range(n_rehearsals if level > 0 else 1)
            ]
        runs = [run for run in tried if run is not None]
        yield Way(
            solver=solver,
            noise=study.noise,
            rounds=_median([run.n_rounds for run in runs]),
            bytes_up=_median([run.bytes_up for run in runs]),
            bytes_down=_median([run.bytes_down for run in runs]),
            noise_level=level,
            error=float(np.median([run.error for run in runs])) if runs else None,
            chosen=False,
            aggregation=aggregation,
            rank=_median([0 if run is None else run.rank for run in tried]),
        )


def _rehearsed(settings: SolverSettings, study: Study, **terms: Any) -> Rehearsed | None:
    """Return what a rehearsal came to; None where no component stood above the noise, or too few."""
    try:
        return rehearse(settings, study, **terms)
    except InputError:
        if isinstance(settings.rank, int):
            raise
        return None


def _summing(model: FedPCA, aggregation: str) -> FedPCA:
    """Return a copy of the model that sums in this way; only secure sums know colluders."""
    colluders = model.colluders if aggregation == "secure" else 1
    copied: FedPCA = clone(model).set_params(aggregation=aggregation, colluders=colluders)
    return copied


def _identities(model: FedPCA, names: Iterable[str]) -> dict[str, str]:
    """Return public keys that a secure sum's terms can have; they are used for nothing else."""
    return {name: each.public for name, each in identities_of(model, names, None).items()}


def _too_wide(study: Study) -> bool:
    return study.noise == "moment" and study.n_features > MOST_COLUMNS


def _median(counts: list[int]) -> int | None:
    return int(np.median(counts)) if counts else None


def _numbered(sizes: Sequence[int]) -> dict[str, int]:
    return {f"silo-{place}": int(count) for place, count in enumerate(sizes, start=1)}
