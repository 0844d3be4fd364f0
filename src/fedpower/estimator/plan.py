"""What each way of computing would cost and give, told before anything is spent."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpower.engines.embedded import federate, survey_silos
from fedpower.errors import InputError
from fedpower.estimator.terms import build_study, identities_of, noise_of, options_of
from fedpower.options import FLAT, SOLVERS, Noise, Options, Plain, Secure, Solver
from fedpower.privacy.budget import MOMENT, SMALLEST_EPSILON
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol.rehearsal import Rehearsed, narrowed_design, query_bytes, rehearse, unrehearsed
from fedpower.protocol.solvers import (
    ClippedSettings,
    KrylovSettings,
    PowerSettings,
    SecureSettings,
    SolverSettings,
    UploadSettings,
)
from fedpower.protocol.study import SolverChoice, Study, budget_of, costly_sentence, costly_silos, pooled_std
from fedpower.report.result import Result
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.survey import STAGES

Array = NDArray[np.float64]

_N_REHEARSALS = 5
"""Of columns up to 200; 3 up to 500 and 1 beyond, where one takes seconds and varies less."""

_MOST_COLUMNS = 1024
"""The widest spectrum that is rehearsed in ``moment`` mode as it is, its noise being a d×d matrix."""

TRACE = 1.0
"""The most that eigenvalues of rows of norm at most 1 add up to."""

_CLEARLY = 0.9
"""One way is told to be better than another where its error is predicted below this share of it."""

_NEAR_ENOUGH = 1.02
"""Bisection ends where what is enough is at most so many times what is not."""

_MOST_EPSILON = 20.0
"""A larger ε, which promises next to nothing, is not looked for."""

_MOST_TIMES = 2.0**20
"""More rows than so many times those at hand are not looked for."""

_MUCH = 0.5
"""Of the variance: what the components of a plan without a spectrum are taken to hold at most."""

_LOST = 0.9
"""Components that are predicted to be off by more are not found."""

MADE_UP_ROWS = 64
"""Of the fit that shows how many rounds and bytes preparation takes, which depend on no row."""

_CLIPPED_FROM = 64
"""Clipped products are told of from so many columns on: they bring nothing to fewer."""

WAYS: dict[str, tuple[str, ...]] = {
    "none": ("moment", "krylov", "fedpower"),
    "moment": ("moment", "krylov", "fedpower"),
    "step": ("krylov", "fedpower"),
    "paper": ("fedpower",),
    "clipped": ("auto",),
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
        Predicted sin θ_k of the components; None without a spectrum.
    rank
        Predicted k, where it is to be found; 0 where none would be determined; None without a spectrum.
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
class Needed:
    """What a wanted error takes, by the prediction for what a fit would take.

    Attributes
    ----------
    error
        The sin θ_k that is wanted.
    epsilon
        The least ε with these rows; None where `_MOST_EPSILON` is not enough.
    n_rows
        The fewest rows with this ε, in silos of the same shares; None where a million times those at
        hand are not enough.
    sentence
        The same in words.
    """

    error: float
    epsilon: float | None
    n_rows: int | None
    sentence: str


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
    preparation
        The share of the budget (of μ²) with which the fit would first find offset, scale and bound of
        the columns; 0 where it is told them. What errs in these is no part of the predictions.
    missing
        What is not known, and what would tell it, in one sentence; None where nothing is missing.
    needed
        What the wanted error takes; None where none was named, or nothing can be predicted.
    """

    ways: tuple[Way, ...]
    choice: SolverChoice
    noise: str
    epsilon: float
    delta: float
    remarks: tuple[str, ...] = ()
    preparation: float = 0.0
    missing: str | None = None
    needed: Needed | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return asdict(self)


def plan(
    model: Any,
    *,
    sizes: Mapping[str, int] | Sequence[int],
    n_features: int,
    spectrum: ArrayLike | None = None,
    n_rehearsals: int | None = None,
    error: float | None = None,
) -> Plan:
    """Return what a fit of ``model`` would cost and give, in every way it could be done.

    Nothing is read but what is public: the silos' sizes, the number of columns, and a guess of the
    spectrum if there is one. Each way is rehearsed: the real solver runs on a made-up moment with these
    eigenvalues and the noise that is to come (`protocol.rehearsal`), and the median is told. A model
    that is told neither bound nor code book prepares first, as its fit would.

    Parameters
    ----------
    model
        Not fitted; its options are those of the fit, but for ``solver``, ``noise`` and
        ``aggregation``, which vary; ``colluders`` are those of a secure sum.
    sizes
        Rows of each silo.
    n_features
        d.
    spectrum
        Leading eigenvalues of the moment of the bounded rows (norm at most 1), largest first; those not
        given share what they leave of the trace (see `full_spectrum`). `spectrum_of_result` gives that
        of an earlier fit. Without it, what does not depend on it is told.
    n_rehearsals
        Over how many the median is taken; None lets the number of columns decide.
    error
        A wanted sin θ_k: which ε, or how many rows, it takes is found by bisection.
    """
    options = model if isinstance(model, Options) else options_of(model)
    if error is not None:
        _check_wanted(error, options)
    if n_rehearsals is None:
        n_rehearsals = _N_REHEARSALS if n_features <= 200 else 3 if n_features <= 500 else 1
    named = dict(sizes) if isinstance(sizes, Mapping) else _numbered(sizes)
    values = None if spectrum is None else full_spectrum(spectrum, n_features)
    if isinstance(options.ranges, Mapping):  # a plan knows no names: how many there are is enough
        known = list(options.ranges.values())
        options = options.replace(ranges=[*known, *[None] * (n_features - len(known))])
    book = options.book
    if book is not None:
        book.check_columns(None, n_features)
    facts: dict[str, Any] = {
        "n_rows": sum(named.values()),
        "n_features": n_features,
        "treatment": RowTreatment() if book is None else book.treatment,
    }
    asked = _summing(options, options.aggregation.name)
    study, _, choice = _terms(asked, named, facts)
    taken = (choice.solver, study.noise, study.aggregation)
    modes = ["none"] if not options.is_private else ["moment", "step", "paper"]
    clips = n_features >= _CLIPPED_FROM and options.unit is None
    if options.is_private and (clips or study.noise == "clipped"):
        modes.insert(1, "clipped")
    ways = [
        replace(way, chosen=(way.solver, way.noise, way.aggregation) == taken)
        for mode in modes
        for way in _ways(options, mode, sizes=named, facts=facts, values=values, n_rehearsals=n_rehearsals)
    ]
    return Plan(
        ways=tuple(ways),
        choice=choice,
        noise=study.noise,
        epsilon=float(options.epsilon),
        delta=study.delta,
        remarks=(
            *_out_of_reach(options, ways, sizes=named, n_features=n_features, values=values),
            *_better_way(ways),
            *_costly_silos(study, named),
        ),
        preparation=math.fsum(study.preparation),
        missing=_missing(error) if values is None else None,
        needed=None
        if error is None or values is None
        else _needed(
            error,
            asked.replace(delta=study.delta),
            sizes=named,
            facts=facts,
            values=values,
            n_rehearsals=n_rehearsals,
        ),
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
    options: Options,
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
    if mode == "clipped":
        kinds.append(("auto", "secure"))
    for solver, aggregation in kinds:
        energy = options.noise.energy
        if mode == "clipped" and energy is None and values is not None:
            energy = _energy(values, options.n_components)
        noise = Noise("auto" if mode == "none" else mode, energy, options.noise.scores_epsilon)  # type: ignore[arg-type]
        try:
            varied = _summing(options, aggregation).replace(
                solver=_as_solver(options.solver, solver), noise=noise
            )
            study, settings, taken = _terms(varied, sizes, facts)
        except InputError:  # the model's own options rule this way out
            continue
        known = values is not None
        runs: list[Rehearsed] = []
        # One upload takes what it takes, and so do steps of a given number, whatever the eigenvalues are.
        if isinstance(settings, ClippedSettings) and not known:
            runs = [unrehearsed(settings, n_rows=facts["n_rows"])]
        elif known or solver == "moment" or study.n_steps is not None:
            runs = _tries(settings, study, sizes=sizes, facts=facts, values=values, n_rehearsals=n_rehearsals)
        # A secure sum's own messages count those of preparation (`query_bytes`).
        prepared = study.preparation and study.aggregation == "plain" and runs
        rounds, up, down = _preparing(varied, facts) if prepared else (0, 0, 0)
        yield Way(
            solver=taken.solver,
            noise=study.noise,
            rounds=_median([rounds + run.n_rounds for run in runs]),
            bytes_up=_median([up + run.bytes_up for run in runs]),
            bytes_down=_median([down or run.bytes_down for run in runs]),
            noise_level=_noise_levels(study, sizes)[0],
            error=float(np.median([run.error for run in runs])) if runs and known else None,
            chosen=False,
            aggregation=aggregation,
            rank=_median([run.rank for run in runs]) if known else None,
        )


def _energy(values: Array, rank: Any) -> float | None:
    """Return the share of all variance that k components of a spectrum hold; None without a k."""
    if not isinstance(rank, int | np.integer):
        return None
    return float(min(values[:rank].sum() / values.sum(), 0.999))


def _terms(
    options: Options, sizes: Mapping[str, int], facts: dict[str, Any]
) -> tuple[Study, SolverSettings, SolverChoice]:
    """Return the terms of a fit with these options; it prepares where it is told nothing."""
    if options.prepares and noise_of(options, facts["n_features"]) == "moment":
        facts = {**facts, "treatment": None}
    return build_study(options, **facts, identities=_identities(options, sizes), roster=sizes)


def _noise_levels(study: Study, sizes: Mapping[str, int]) -> tuple[float, float]:
    """Return the standard deviations of the pooled noise and of the largest silo's."""
    budget = budget_of(study)
    if budget is None:
        return 0.0, 0.0
    return pooled_std(budget, sizes, study.weights), budget.std(max(sizes.values()))


def _tries(
    settings: SolverSettings,
    study: Study,
    *,
    sizes: Mapping[str, int],
    facts: dict[str, Any],
    values: Array | None,
    n_rehearsals: int,
) -> list[Rehearsed]:
    """Return rehearsals of a fit after its preparation; one on any spectrum where none is given."""
    level, alone = _noise_levels(study, sizes)
    if study.preparation:
        treatment = RowTreatment().digest()
        study = replace(study, treatment=treatment, preparation=(), ranges=(), roster="")
    # Made-up moments are diagonal: standardised, they would all be the same.
    if isinstance(settings, UploadSettings):
        settings = replace(settings, preparation=None, standardize=False, code_book=None)
    elif isinstance(settings, KrylovSettings | PowerSettings):
        settings = replace(settings, gains=None)
    if values is None and not isinstance(settings.rank, int):
        settings = replace(settings, rank=1)
    spectrum = np.full(study.n_features, TRACE / study.n_features) if values is None else values
    return [
        (_narrowed if _too_wide(study) else rehearse)(
            settings,
            study,
            spectrum=spectrum,
            noise_std=level,
            silo_std=alone,
            n_rows=facts["n_rows"],
            rng=np.random.default_rng(seed),
        )
        for seed in range(n_rehearsals if level > 0 and values is not None else 1)
    ]


def _preparing(options: Options, facts: dict[str, Any]) -> tuple[int, int, int]:
    """Return rounds and bytes up of preparation, and all bytes down: one silo's, of made-up rows."""
    width = min(facts["n_features"], _MOST_COLUMNS)
    times = facts["n_features"] / width
    if options.ranges is not None:
        options = options.replace(ranges=list(options.ranges)[:width])
    rows = np.random.default_rng(0).standard_normal((MADE_UP_ROWS, width))
    surveys = survey_silos({"all": open_source(rows)}, n_jobs=None)
    study, settings, _ = build_study(
        # Scores are counted on two.
        options.replace(
            n_components=1 if options.noise.scores_epsilon is None else 2, delta=options.delta or 1e-6
        ),
        **{**facts, "n_rows": MADE_UP_ROWS, "n_features": width, "treatment": None},
        roster={"all": MADE_UP_ROWS},
    )
    made_up = SeededNoiseForExperiments(0)  # of rows that are nobody's: every plan tells the same
    rounds = federate(
        surveys, study=study, settings=settings, rng=np.random.default_rng(0), noise=made_up
    ).rounds
    stages = [each for each in rounds if each.kind in STAGES]
    return (
        len(stages),
        round(times * sum(each.bytes_up for each in stages)),
        round(times * sum(each.bytes_down for each in rounds if each.kind != "enrol")),
    )


def _check_wanted(error: float, options: Options) -> None:
    """Refuse an error that no fit has, or that cannot be looked for."""
    if not 0 < error < 1:
        raise InputError(f"error must be a sine between 0 and 1, got {error:g}; 0.1 is a usual wish")
    if not options.is_private:
        raise InputError(
            "error must go with a finite epsilon, got inf, which errs by nothing; give one to begin with"
        )
    if not isinstance(options.n_components, int | np.integer):
        raise InputError(
            f"error must go with a number of components, got {options.n_components!r}, of which fewer are "
            "found where there is more noise; give n_components=3"
        )


def _missing(error: float | None) -> str:
    also = "" if error is None else f", and so what an error of {error:g} takes,"
    return (
        f"how far off the components would be{also} depends on the eigenvalues, which are not known; give a "
        "spectrum, guessed or of an earlier result, or a gap"
    )


def _needed(
    wanted: float,
    options: Options,
    *,
    sizes: Mapping[str, int],
    facts: dict[str, Any],
    values: Array,
    n_rehearsals: int,
) -> Needed:
    """Return which ε, and how many rows, the wanted error takes in the way that a fit would take."""

    def enough(epsilon: float, times: float) -> bool:
        scaled = {name: max(1, math.ceil(rows * times)) for name, rows in sizes.items()}
        known = {**facts, "n_rows": sum(scaled.values())}
        try:
            study, settings, _ = _terms(options.replace(epsilon=epsilon), scaled, known)
        except InputError:  # fewer rows than components
            return False
        tried = _tries(settings, study, sizes=scaled, facts=known, values=values, n_rehearsals=n_rehearsals)
        return float(np.median([run.error for run in tried])) <= wanted

    given, n_rows = float(options.epsilon), int(facts["n_rows"])
    epsilon = _least(lambda each: enough(each, 1.0), SMALLEST_EPSILON, _MOST_EPSILON)
    times = _least(lambda each: enough(given, each), 2.0 / n_rows, _MOST_TIMES)
    least = None if epsilon is None else _rounded_up(epsilon)
    rows = None if times is None else int(_rounded_up(n_rows * times))
    return Needed(
        error=float(wanted),
        epsilon=least,
        n_rows=rows,
        sentence=_in_words(float(wanted), given, n_rows, least, rows),
    )


def _in_words(wanted: float, given: float, n_rows: int, epsilon: float | None, rows: int | None) -> str:
    aim = f"for a predicted sin θ of {wanted:g}"
    here, at = f"with these {n_rows:,} rows", f"at epsilon={given:g}"
    if epsilon is None and rows is None:
        return f"{aim}, neither epsilon={_MOST_EPSILON:g} {here} nor a million times as many would do"
    if epsilon is None:
        return (
            f"{aim}, not even epsilon={_MOST_EPSILON:g} would do {here}; about {rows:,} rows would be "
            f"needed {at}"
        )
    more = "" if rows is None else f", or about {rows:,} rows {at}"
    return f"{aim}, epsilon={epsilon:g} would be needed {here}{more}"


def _least(enough: Callable[[float], bool], low: float, high: float) -> float | None:
    """Return the least number from ``low`` to ``high`` that is enough, by bisection of its logarithm."""
    if not enough(high):
        return None
    if enough(low):
        return low
    while high > low * _NEAR_ENOUGH:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _rounded_up(value: float) -> float:
    """Return the least number of two digits that is no smaller."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.2g}")


def _narrowed(
    settings: SolverSettings,
    study: Study,
    *,
    spectrum: Array,
    noise_std: float,
    silo_std: float,
    **terms: Any,
) -> Rehearsed:
    """Return a rehearsal with the leading eigenvalues alone, under noise that reaches as far."""
    d, fewer = study.n_features, _MOST_COLUMNS
    wider = math.sqrt(d / fewer)
    width = min(study.iteration_rank, fewer)
    clipped = isinstance(settings, ClippedSettings)
    narrow = replace(
        study,
        columns=None,
        n_features=fewer,
        iteration_rank=width,
        design=narrowed_design(study, fewer) if clipped else (),
    )
    small: SolverSettings
    if isinstance(settings, SecureSettings | ClippedSettings):
        small = replace(settings, study=narrow)
    else:
        small = replace(settings, n_features=fewer, iteration_rank=width)
    run = rehearse(
        small,
        narrow,
        spectrum=spectrum[:fewer],
        noise_std=noise_std * wider,
        silo_std=silo_std * wider,
        **terms,
    )
    if isinstance(settings, ClippedSettings):
        return replace(unrehearsed(settings, n_rows=terms["n_rows"]), error=run.error)
    if isinstance(settings, SecureSettings):
        down, up = query_bytes(settings.study, n_rows=terms["n_rows"])
        rounds = 1 + len(settings.study.queries)
        return replace(run, n_rounds=rounds, bytes_up=up, bytes_down=down)
    uploaded = isinstance(settings, UploadSettings)
    more = d * (d + 1) / (fewer * (fewer + 1)) if uploaded else d / fewer
    down_more = 1.0 if uploaded else d / fewer
    return replace(run, bytes_up=round(run.bytes_up * more), bytes_down=round(run.bytes_down * down_more))


def _better_way(ways: Sequence[Way]) -> list[str]:
    """Return a sentence where another way of the same sum is predicted to be clearly more accurate."""
    taken = next((way for way in ways if way.chosen and way.error is not None), None)
    if taken is None or taken.error is None:
        return []
    rivals = [
        (way.error, way) for way in ways if way.error is not None and way.aggregation == taken.aggregation
    ]
    error, best = min(rivals, key=lambda each: each[0])
    if error >= _CLEARLY * taken.error:
        return []
    if best.noise == "clipped":
        return [
            (
                "noise='clipped' is predicted to be more accurate than what is taken by itself: sin θ = "
                f"{error:.2g} instead of {taken.error:.2g}; ask for it, or give energy, and auto takes it"
            )
        ]
    return [
        (
            f"solver={best.solver!r} with noise={best.noise!r} is predicted to be more accurate than what is "
            f"taken by itself: sin θ = {error:.2g} instead of {taken.error:.2g}; ask for it where what it "
            "holds and sends is affordable"
        )
    ]


def _out_of_reach(
    options: Options, ways: Sequence[Way], *, sizes: Mapping[str, int], n_features: int, values: Array | None
) -> list[str]:
    """Return a sentence where no private way can find the components, and what it would take."""
    rank = options.n_components
    levels = [way.noise_level for way in ways if way.noise == "moment"]
    if not levels or not isinstance(rank, int | np.integer) or rank > n_features:
        return []
    least = min(levels) * math.sqrt(n_features / 2.0)
    known = _MUCH / int(rank) if values is None else float(values[int(rank) - 1])
    found = [way.error for way in ways if way.error is not None]
    if known >= least or min(found, default=1.0) < _LOST:
        return []
    n_rows = sum(sizes.values())
    needed = "no number of them would do"
    if known > 0:
        needed = f"about {_rounded_up(2.0 * n_rows * least / known):,.0f} would be needed"
    best = "even if they held half of the variance, " if values is None else ""
    return [
        (
            f"{int(rank)} components of {n_features:,} columns are out of reach at "
            f"epsilon={float(options.epsilon):g} with {n_rows:,} rows: {best}{needed}"
        )
    ]


def _costly_silos(study: Study, sizes: Mapping[str, int]) -> list[str]:
    """Return a sentence that names the silos without which the pooled noise would be less."""
    budget = budget_of(study)
    if budget is None or study.aggregation == "secure":
        return []
    costly, share = costly_silos(budget, sizes, study.weights)
    return [costly_sentence(costly, share, sizes)] if costly else []


def _summing(options: Options, name: str) -> Options:
    """Return the options with sums of this kind."""
    given = options.aggregation
    if given.name != name:
        kind = Secure if name == "secure" else Plain
        given = kind(min_silos=given.min_silos, deadline=given.deadline)
    return options.replace(aggregation=given)


def _as_solver(solver: Solver, name: str) -> Solver:
    """Return a solver of this kind with the settings that it shares with another; refuse the paper's own."""
    if solver.name == name:
        return solver
    known = {each.name for each in fields(SOLVERS[name])}
    odd = [each for each in solver.given() if each not in known and FLAT[each].group == "paper"]
    if odd:
        raise InputError(f"{odd[0]} must be left out with solver={name!r}")
    return SOLVERS[name](**{key: value for key, value in solver.given().items() if key in known})


def _identities(options: Options, names: Iterable[str]) -> dict[str, str]:
    """Return public keys that a secure sum's terms can have; they are used for nothing else."""
    return {name: each.public for name, each in identities_of(options, names, None).items()}


def _too_wide(study: Study) -> bool:
    """Return whether a rehearsal would draw d×d noise for too large a d."""
    moment = study.noise == "moment" or (
        study.noise == "clipped" and any(terms.label == MOMENT for terms in study.design)
    )
    return moment and study.n_features > _MOST_COLUMNS


def _median(counts: list[int]) -> int | None:
    return int(np.median(counts)) if counts else None


def _numbered(sizes: Sequence[int]) -> dict[str, int]:
    return {f"silo-{place}": int(count) for place, count in enumerate(sizes, start=1)}


# --- the spectrum of an earlier result ---------------------------------------------------------------


def spectrum_of_result(result: Result, *, row_norm: float | None = None) -> Array:
    """Return the d eigenvalues that a result shows, without its noise, for rows of norm at most 1.

    What the denoised variances of its components leave of the total the others share equally, for
    nothing more is known of them.

    Parameters
    ----------
    result
        Of a fit that was exact, or in which a component is determined.
    row_norm
        B of the fit that is planned; None takes that of the result.
    """
    bound = _bound_of(result) if row_norm is None else row_norm
    if bound is None:
        raise InputError(
            "a result that is to be a spectrum must have a bound on the norm of a row, got one without; give "
            "row_norm=B or codebook, in the units of that result"
        )
    values = result.explained_variance if result.spectrum is None else result.spectrum
    if result.run["privacy"]["private"]:
        if not any(result.determined):
            raise InputError(
                "a result that is to be a spectrum must have a component that is determined, got none; "
                "take another result, or guess the eigenvalues"
            )
        assert result.denoised_variance is not None, "it has angles"
        values = result.denoised_variance
    values = np.maximum(values, 0.0)
    left = max(_total(result) - float(values.sum()), 0.0)
    rest = result.n_features - values.size
    if rest:
        values = np.append(values, np.full(rest, min(left / rest, float(values[-1]))))
    values = values * (_unit_of(result) if row_norm is None else 1.0) / bound**2
    return np.asarray(values / max(float(values.sum()), 1.0), dtype=np.float64)


def _unit_of(result: Result) -> float:
    """Return what a variance of the result is in units of the rows that its bound is of."""
    book = result.code_book
    if book is not None:
        if not result.standardized:
            raise InputError(
                "a result that is to be a spectrum must be of correlations where its columns were prepared, "
                "got covariances; fit it with standardize=True"
            )
        return 1.0
    if not result.standardized or result.scale is None:
        return 1.0
    given = result.run["parameters"].get("scale")
    return float(np.mean((result.scale / (1.0 if given is None else np.asarray(given))) ** 2))


def _total(result: Result) -> float:
    share = float(result.explained_variance_ratio[0])
    return float(result.explained_variance[0]) / share if share > 0 else 0.0


def _bound_of(result: Result) -> float | None:
    if result.normalize:
        return 1.0
    if result.code_book is not None:
        return result.code_book.bound
    given = result.run["parameters"].get("row_norm")
    return None if given is None else float(given)
