"""What each solver and noise mode would cost and give, before anything is spent.

A rehearsal is the real solver on answers that are drawn from a spectrum: noise is invariant under rotation,
so eigenvalues are all that it needs to know.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from msgspec import structs
from numpy.typing import ArrayLike

from fedpower.engines.inprocess import run_in_process
from fedpower.estimator.fitting import Data, open_silos
from fedpower.estimator.terms import build_study, options_of, public_treatment
from fedpower.exceptions import InputError, require
from fedpower.linalg import Array, sin_theta
from fedpower.options import AGGREGATIONS, SOLVERS, Noise, Options, converted
from fedpower.privacy.budget import COVARIANCE, MEAN, SCORES, SMALLEST_EPSILON, QueryTerms
from fedpower.privacy.sensitivity import noise_for, summary_size
from fedpower.privacy.statement import as_sentence, counted_as, in_symbols
from fedpower.protocol.coordinator import Ask, Coordinator, Round
from fedpower.protocol.messages import AskSteps, LocalSteps, read_only, rounded
from fedpower.protocol.pooled import Pooled
from fedpower.protocol.query import N_VECTORS, Product, Query, width_of
from fedpower.protocol.silo import ExactReleases, Silo
from fedpower.protocol.solvers import Solution, SolverSettings, start, upload
from fedpower.protocol.solvers.clipped import iterate, part_kept
from fedpower.protocol.solvers.sums import Sums, Total
from fedpower.protocol.study import SolverChoice, Study, Weights, costly_sentence, pooled_std, sums_moment
from fedpower.report.result import Result
from fedpower.report.text import count, degrees, human_bytes
from fedpower.rows.ruled import every_problem
from fedpower.rows.units import UnitRows, with_gaps
from fedpower.sums.lattice import clipped_scale
from fedpower.sums.moment import Moments

_CLEARLY = 0.9  # a fit is named as better where its predicted error is below this share of another's
_NEAR_ENOUGH = 1.02  # what is said to be enough is at most so many times what is not
_MOST_EPSILON = 20.0  # a larger ε promises next to nothing
_MOST_TIMES = 2.0**20  # of the rows at hand
_MUCH = 0.5  # of the variance: what components are taken to hold at most, where no spectrum is given
_LOST = 0.9  # components with a larger predicted error are not found
_CLIPPED_FROM = 64  # clipped products bring nothing to fewer columns
# The most columns that d×d noise is drawn for; of more, the leading eigenvalues are taken, under noise that
# reaches as far.
_MOST_COLUMNS = 1024
# Bytes of a message beside its arrays, of a key with its signature, and of each member of a session.
_MESSAGE, _KEY, _MEMBER = 215, 80, 170


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One solver with one noise mode and one aggregation; None stands for what needs a spectrum."""

    solver: str
    noise: str
    aggregation: str
    rounds: int | None = None
    bytes_up: int | None = None  # of one silo, over the whole fit
    bytes_down: int | None = None
    noise_level: float  # standard deviation of the pooled noise in one entry, for rows of norm at most 1
    error: float | None = None  # predicted sin θ_k of the components
    rank: int | None = None  # predicted k; 0 where no component would be determined
    chosen: bool  # whether ``auto`` takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What a wanted error needs; None where ε = `_MOST_EPSILON`, or 2²⁰ times the rows, is not enough."""

    error: float
    epsilon: float | None
    n_rows: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan:
    """What a fit costs and gives: print it. ``candidates`` has every solver and kind of noise."""

    silos: dict[str, int]
    counted: str
    n_features: int
    n_components: Any
    candidates: tuple[Candidate, ...]
    choice: SolverChoice
    noise: str
    epsilon: float
    delta: float
    remarks: tuple[str, ...] = ()  # what would be better
    preparation: float = 0.0  # share of the budget for offset, scale and bound, whose error is not predicted
    missing: str | None = None  # what is not known
    needed: Needed | None = None  # what the wanted error takes

    def __repr__(self) -> str:
        return "\n".join([self.terms, *self.findings])

    @property
    def terms(self) -> str:
        """Silos, rows, columns and budget, in one sentence."""
        rows = f"{count(len(self.silos), 'silo')}, {count(sum(self.silos.values()), self.counted)}"
        promise = (
            in_symbols(self.epsilon, self.delta) if math.isfinite(self.epsilon) else "NOT PRIVATE (ε = ∞)"
        )
        return f"{rows}, {count(self.n_features, 'column')}; {promise}."

    @property
    def chosen(self) -> Candidate | None:
        """What ``auto`` takes."""
        return next((way for way in self.candidates if way.chosen), None)

    @property
    def findings(self) -> list[str]:
        """The recommended fit with its cost and error, and what would be better, in sentences."""
        chosen, lines = self.chosen, []
        if chosen is not None:
            lines.append(f"Recommended: {_recommended(chosen, self.candidates)}")
        if self.preparation:
            lines.append(f"{self.preparation:.0%} of the budget goes into finding scales and a bound")
        lines += self.remarks
        if chosen is not None and chosen.rank is not None and not isinstance(self.n_components, int):
            would = f"find {count(chosen.rank, 'component')}" if chosen.rank else "determine no component"
            lines.append(f"it would {would} for n_components={self.n_components!r}")
        lines += [line for line in (self.missing, self.needed and self.needed.sentence) if line]
        return [*map(as_sentence, lines)]


def _recommended(chosen: Candidate, ways: Iterable[Candidate]) -> str:
    """Return what a fit takes, costs and gives, and whether a secure sum would give more."""
    cost = [] if chosen.rounds is None else [count(chosen.rounds, "round")]
    cost += [] if chosen.bytes_up is None else [f"{human_bytes(chosen.bytes_up)} sent per silo"]
    same = [way for way in ways if (way.solver, way.noise) == (chosen.solver, chosen.noise)]
    errors = {way.aggregation: way.error for way in same}
    if (error := errors[chosen.aggregation]) is not None and chosen.rank != 0:
        clips = "" if chosen.noise == "none" else " without clipping"
        cost.append(f"expected error {_angle(error)}{clips}")
        secure = errors.get("secure")
        if secure is not None and secure < error and _angle(secure) != _angle(error):
            cost.append(f"or {_angle(secure)} with aggregation='secure'")
    solver = f"solver {chosen.solver}"
    solver = f"one upload per silo ({solver})" if chosen.solver == "upload" else solver
    return ", ".join([solver, *cost])


def _angle(sine: float) -> str:
    return degrees(math.degrees(math.asin(min(sine, 1.0))))


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What is public of the rows, and what is guessed."""

    sizes: dict[str, int]
    n_features: int
    columns: tuple[str, ...] | None
    spectrum: Array | None
    n_rehearsals: int

    @property
    def n_rows(self) -> int:
        return sum(self.sizes.values())

    def terms(self, options: Options) -> tuple[Study, SolverSettings, SolverChoice]:
        """Return the terms of a fit with these options; it prepares where it is given nothing."""
        return build_study(
            options,
            n_rows=self.n_rows,
            n_features=self.n_features,
            treatment=public_treatment(options, self.columns),
            columns=self.columns,
            # Keys that nobody has: a plan counts them, and signs nothing.
            identities={name: f"{place:064x}" for place, name in enumerate(self.sizes)},
            roster=self.sizes,
        )

    def candidate(self, options: Options, chosen: tuple[str, ...] = ()) -> Candidate:
        """Return what a fit with these options costs and gives."""
        study, settings, choice = self.terms(options)
        level, spectrum = pooled_std(study, self.sizes), self.spectrum
        runs: list[_Run] = []
        if spectrum is not None:
            seeds = range(self.n_rehearsals if level > 0 else 1)
            runs = [_rehearsed(settings, spectrum, level, self.n_rows, seed) for seed in seeds]
        elif settings.is_summed:
            runs = [_cost(study, summed=True)]
        elif study.n_steps is not None:
            flat = np.full(self.n_features, 1.0 / self.n_features)
            runs = [_rehearsed(settings, flat, level, self.n_rows, 0)._replace(rank=None, error=None)]
        found: dict[str, Any] = {}
        for name, values in zip(_Run._fields, zip(*runs, strict=True), strict=bool(runs)):
            if values[0] is not None:
                median = float(np.median(values))
                found[name] = median if name == "error" else int(median)
        return Candidate(
            solver=choice.solver,
            noise=study.noise,
            aggregation=study.aggregation,
            noise_level=level,
            chosen=(choice.solver, study.noise, study.aggregation) == chosen,
            **found,
        )


def plan(
    silos: Any,
    n_components: Any = None,
    *,
    n_features: int | None = None,
    gap: float | None = None,
    spectrum: Any = None,
    error: float | None = None,
    **options: Any,
) -> Plan:
    """Predict cost and accuracy of a fit, before anything is spent.

    Only the columns and the numbers of rows of the silos are used. The error of the components also depends
    on their eigenvalues: give ``gap`` or ``spectrum``.

    Parameters
    ----------
    silos : list or mapping from names
        The number of rows of each silo, or the data as in `FedPCA.fit_silos`.
    n_components : int, float, "auto" or None, default=None
        As in `FedPCA`.
    n_features : int, default=None
        Number of columns, if ``silos`` are numbers of rows.
    gap : float, default=None
        A guess of the difference between the last eigenvalue that matters and the next, for rows of norm at
        most ``row_norm``, or 1.
    spectrum : array-like or Result, default=None
        A guess of the first k + 1 eigenvalues, or an earlier result.
    error : float, default=None
        A wanted error (sin θ): the plan finds the epsilon, or the number of rows, that it needs.
    **options
        Other parameters of `FedPCA`.

    Returns
    -------
    Plan
        Print it. ``candidates`` lists every solver and kind of noise with its cost and error.

    Examples
    --------
    >>> import fedpower
    >>> plan = fedpower.plan([5000] * 20, 4, n_features=50, epsilon=1.0, gap=0.02)
    >>> plan.chosen.solver, plan.chosen.rounds
    ('upload', 6)
    >>> plan.silos["silo-1"]
    5000
    """
    known = [each.name for each in fields(Options)]
    for name in options:
        if name not in known:
            raise TypeError(f"plan() got an unexpected keyword argument {name!r}")
    wanted = options_of({"n_components": n_components, **options})
    columns = None
    held = [*(silos.values() if isinstance(silos, Mapping) else silos)] if hasattr(silos, "__len__") else []
    if held and all(isinstance(rows, int) for rows in held):
        require(n_features is not None, "n_features", "given with numbers of rows", n_features)
        sizes, width = silos, int(n_features or 0)
    else:
        require(n_features is None, "n_features", "left out with data", n_features)
        wanted, data = open_silos(silos, wanted)
        sizes, width, columns = sizes_of(data, wanted), data.n_features, data.columns
    values = eigenvalues_for(wanted, width, gap=gap, spectrum=spectrum)
    return planned(wanted, sizes=sizes, n_features=width, columns=columns, spectrum=values, error=error)


def sizes_of(data: Data, options: Options, watched: Callable[[Any], Iterable[Any]] = iter) -> dict[str, int]:
    """Return the number of rows, or of persons, of each silo; files that do not state it are read."""
    gaps = options.takes_gaps
    with every_problem(data.sources.values(), gaps=gaps):
        sources = {name: with_gaps(source) if gaps else source for name, source in data.sources.items()}
        return {
            name: source.n_units
            if isinstance(source, UnitRows)
            else source.n_rows or sum(int(block.shape[0]) for block in watched(source.blocks(2**16)))
            for name, source in sources.items()
        }


def planned(
    options: Options,
    *,
    sizes: Mapping[str, int] | Sequence[int],
    n_features: int,
    columns: tuple[str, ...] | None = None,
    spectrum: ArrayLike | None = None,
    n_rehearsals: int | None = None,
    error: float | None = None,
) -> Plan:
    """Predict cost and error of a fit, by every solver; ``spectrum`` is that of rows of norm at most 1."""
    if error is not None:
        require(0 < error < 1, "error", "a sine between 0 and 1", error, "0.1 is usual")
        is_count = isinstance(options.n_components, int | np.integer)
        require(is_count, "error", "left out unless n_components is a number", options.n_components)
        require(options.is_private, "error", "left out unless epsilon is finite", options.epsilon)
    rules, public = options.rules, options.public
    for named in (rules and dict.fromkeys(rules.features), public.offset, public.scale):
        if columns is None and isinstance(named, Mapping) and len(named) == n_features:
            columns = tuple(map(str, named))
    if columns is None and isinstance(options.ranges, Mapping):  # how many there are is enough
        known = list(options.ranges.values())
        options = replace(options, ranges=[*known, *[None] * (n_features - len(known))])
    if options.book is not None:
        options.book.check_columns(columns, n_features)
    if not isinstance(sizes, Mapping):
        sizes = {f"silo-{place}": int(count) for place, count in enumerate(sizes, start=1)}
    facts = _Facts(
        sizes=dict(sizes),
        n_features=n_features,
        columns=columns,
        spectrum=None if spectrum is None else full_spectrum(spectrum, n_features),
        # One of many columns takes seconds, and varies less.
        n_rehearsals=n_rehearsals or (5 if n_features <= 200 else 3 if n_features <= 500 else 1),
    )
    study, _, choice = facts.terms(options)
    chosen = (choice.solver, study.noise, study.aggregation)
    modes = ["covariance", "step", "paper"] if options.is_private else ["none"]
    clips = n_features >= _CLIPPED_FROM and options.unit is None
    if options.is_private and (clips or study.noise == "clipped"):
        modes.insert(1, "clipped")
    candidates = []
    for mode, solver, aggregation in product(modes, reversed(SOLVERS), AGGREGATIONS):
        # A clipped fit has a solver of its own, and takes no other.
        if mode in (("clipped",) if solver == "auto" else SOLVERS[solver].noises):
            with suppress(InputError):  # not every sum goes with it, nor all options of the model
                varied = _varied(options, mode, solver, aggregation, facts)
                candidates.append(facts.candidate(varied, chosen))
    needed = missing = None
    if facts.spectrum is None:
        also = "" if error is None else f", and what an error of {error:g} takes,"
        missing = f"the error of the components{also} depends on the eigenvalues; give a spectrum, or a gap"
    elif error is not None:
        needed = _needed(error, replace(options, delta=study.delta), facts)
    remarks = [_out_of_reach(options, candidates, facts), _better(candidates)]
    remarks.append(costly_sentence(study, facts.sizes))
    return Plan(
        silos=facts.sizes,
        counted=counted_as(options.flat()),
        n_features=n_features,
        n_components=options.n_components,
        candidates=tuple(candidates),
        choice=choice,
        noise=study.noise,
        epsilon=float(options.epsilon),
        delta=study.delta,
        remarks=tuple(filter(None, remarks)),
        preparation=math.fsum(study.preparation),
        missing=missing,
        needed=needed,
    )


# --- candidates -------------------------------------------------------------------------------------


def _varied(options: Options, mode: str, solver: str, aggregation: str, facts: _Facts) -> Options:
    """Return the options with another solver, noise and aggregation."""
    energy, rank, values = options.noise.energy, options.n_components, facts.spectrum
    if mode == "clipped" and energy is None and values is not None and isinstance(rank, int | np.integer):
        energy = float(min(values[:rank].sum() / values.sum(), 0.999))
    kind: Any = "auto" if mode == "none" else mode
    return replace(
        options,
        noise=Noise(kind, energy, options.noise.scores_epsilon),
        solver=converted(options.solver, SOLVERS[solver]),
        aggregation=converted(options.aggregation, AGGREGATIONS[aggregation]),
    )


# --- rehearsals -------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """What a fit comes to: rounds, bytes of one silo, k (0 for no component), and sin θ_k."""

    rounds: int
    bytes_up: int
    bytes_down: int
    rank: int | None = None
    error: float | None = None


def _cost(study: Study, *, summed: bool) -> _Run:
    """Return the cost of all queries of a study, or of scores after a solver's own rounds."""
    asked = [terms for terms in study.queries if summed or terms.label == SCORES]
    if summed and not study.is_private:
        size = summary_size(study.n_features, with_mean=study.center)
        asked.append(QueryTerms(COVARIANCE, size, 1.0))
    session = int(study.is_secure)  # a further round opens it
    rounds = len(asked) + session
    public = sum(_public_bytes(study, terms.label) + _MEMBER * len(study.identities) for terms in asked)
    return _Run(
        rounds=rounds,
        bytes_up=_MESSAGE * rounds + _KEY * session + 8 * sum(terms.size for terms in asked),
        bytes_down=_MESSAGE * rounds + public,
    )


def _public_bytes(study: Study, label: str) -> int:
    """Return how long what a query is asked with is."""
    if label == SCORES:
        return 16 * study.n_features
    if study.noise == "clipped" and label not in (COVARIANCE, MEAN):
        return 4 * study.n_features * (width_of(study, label) + int(study.center))
    return 8 * study.n_features * N_VECTORS[label] if study.preparation else 0


def _rehearsed(settings: SolverSettings, spectrum: Array, std: float, n_rows: int, seed: int) -> _Run:
    """Return what ``settings`` would come to on a covariance with these eigenvalues and pooled noise."""
    d, rng = settings.study.n_features, np.random.default_rng(seed)
    width = min(d, _MOST_COLUMNS) if sums_moment(settings.study) else d
    cost = _cost(settings.study, summed=settings.is_summed)
    study, std, spectrum = _bare(settings.study, width), std * math.sqrt(d / width), spectrum[:width]
    rounds: list[Round] = []
    # A drawn covariance is diagonal: standardised, it would be the identity.
    # One silo stands for all: shift and floor are those of the pooled noise, not of a silo so large.
    settings = replace(settings, study=study, standardize=False, code_book=None, pooled_std=std)
    if settings.is_summed:
        sums = _DrawnSums(study=study, sizes={"all": n_rows}, spectrum=spectrum, std=std, rng=rng)
        if settings.method == "clipped":
            begin = rng.standard_normal((width, study.iteration_rank))
            script = iterate(sums, begin, rank=int(settings.rank))
        else:
            # Of a given number of components no angles are asked for, which take longer than all the rest.
            sums.has_angles = not isinstance(settings.rank, int)
            script = upload.script(settings, sums)
        try:
            next(script)
        except StopIteration as stop:  # these sums ask nobody
            solution: Solution = stop.value
    else:
        releases = _DrawnReleases(spectrum, study, std=std, n_rows=n_rows, rng=rng)
        coordinator = Coordinator(start(settings, rng), ["all"], study=study, run="rehearsal")
        run_in_process(coordinator, {"all": Silo("all", study, releases)})
        solution = coordinator.outcome
        rounds = [closed for closed in coordinator.history if closed.kind != "enrol"]
    rank = solution.rank
    found = solution.directions if settings.rank == "auto" else None
    nothing = found is not None and found.angles.n_determined == 0
    return _Run(
        rounds=cost.rounds + len(rounds),
        bytes_up=cost.bytes_up + round(sum(closed.bytes_up for closed in rounds) * d / width),
        bytes_down=cost.bytes_down + round(sum(closed.bytes_down for closed in rounds) * d / width),
        rank=0 if nothing else rank,
        error=sin_theta(solution.vectors[:, :rank], np.eye(width, rank)),
    )


def _bare(study: Study, n_features: int) -> Study:
    """Return a study of so many columns, without preparation and scores."""
    design = (
        terms._replace(size=n_features * width_of(study, terms.label) + 1)  # only widths count here
        for terms in study.design
    )
    return replace(
        study,
        columns=None,
        n_features=n_features,
        iteration_rank=min(study.iteration_rank, n_features),
        design=tuple(design),
        preparation=(),
        ranges=(),
        roster="",
        groups=(),
        scores=0.0,
    )


def _noised(spectrum: Array, std: float, rng: np.random.Generator) -> Array:
    """Return diag(λ) with noise of this standard deviation on the diagonal, and √2 times less off it."""
    square = rng.standard_normal((spectrum.size, spectrum.size)) * std
    return np.diag(spectrum) + (square + square.T) / 2.0


@dataclass(slots=True, kw_only=True)
class _DrawnSums(Sums):
    """Sums over rows that are nobody's, of normal coordinates with the covariance diag(λ)."""

    spectrum: Array
    std: float
    rng: np.random.Generator
    has_angles: bool = True

    def total(self, query: Query, *, weights: Weights = "rows") -> Generator[Ask, Round, Total]:
        yield from ()
        budget, rows = self.study.budget, self.n_rows
        noise = noise_for(query.sensitivity, budget.price(query.label).multiplier, (rows,))
        exact = np.zeros(self.spectrum.size)
        if isinstance(query, Product):
            question = query.question
            basis = question.real_basis
            product = self.spectrum[:, np.newaxis] * basis
            kept = part_kept(float(np.sum(basis * product)), question.clip, basis.shape[1])
            exact = np.append(
                kept * product.reshape(-1) * clipped_scale(question.clip),
                float(self.spectrum.sum()) * query.kappa,
            )
        stds = tuple(self.std / budget.std(rows) * std for std in noise.stds)
        drawn = stds[0] * self.rng.standard_normal(exact.size)
        return Total(values=exact * rows + drawn, stds=stds, n_rows=rows)

    def moment(self, public: bytes = b"") -> Generator[Ask, Round, Pooled]:
        yield from ()
        return Pooled(
            covariance=_noised(self.spectrum, self.std, self.rng),
            center=np.zeros(self.spectrum.size) if self.study.center else None,
            total_variance=float(self.spectrum.sum()),
            noise_std=self.std if self.has_angles else 0.0,
            mean_weight=self.study.mean_weight,
        )


class _DrawnReleases(ExactReleases):
    """Answers for all silos: of the covariance diag(λ), with the pooled noise, rounded as a silo's are."""

    def __init__(
        self, spectrum: Array, study: Study, *, std: float, n_rows: int, rng: np.random.Generator
    ) -> None:
        noised = _noised(spectrum, std, rng) if study.noise == "covariance" else None

        def product(basis: Array, center: Array | None = None) -> Array:
            if noised is not None:
                return np.asarray(noised @ basis)
            return spectrum[:, np.newaxis] * basis + std * rng.standard_normal(basis.shape)

        summary = Moments(n_rows=n_rows, mean=np.zeros(spectrum.size), covariance=spectrum.copy())
        rows: Any = SimpleNamespace(n_rows=n_rows, summary=summary, product=product)
        super().__init__(rows, study)
        self._std = std

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        steps = super().steps(ask, run=run)
        return structs.replace(steps, product=read_only(rounded(steps.product, self._std)))


# --- what a wanted error takes -----------------------------------------------------------------------


def _needed(wanted: float, options: Options, facts: _Facts) -> Needed:
    """Return which ε, and how many rows, the wanted error takes in the fit that ``auto`` takes."""

    def enough(epsilon: float, times: float) -> bool:
        scaled = {name: max(1, math.ceil(rows * times)) for name, rows in facts.sizes.items()}
        try:
            error = replace(facts, sizes=scaled).candidate(replace(options, epsilon=epsilon)).error
        except InputError:  # fewer rows than components
            return False
        return error is not None and error <= wanted

    given, n_rows = float(options.epsilon), facts.n_rows
    epsilon = _least(lambda value: enough(value, 1.0), SMALLEST_EPSILON, _MOST_EPSILON)
    times = _least(lambda value: enough(given, value), 2.0 / n_rows, _MOST_TIMES)
    least = None if epsilon is None else _rounded_up(epsilon)
    rows = None if times is None else int(_rounded_up(n_rows * times))
    one = f"ε = {least:g}" if least else f"more than ε = {_MOST_EPSILON:g}"
    other = "more than a million times as many rows" if rows is None else f"about {rows:,} rows"
    sentence = (
        f"a predicted sin θ of {wanted:g} needs {one} with these {n_rows:,} rows, or {other} at ε = {given:g}"
    )
    return Needed(error=float(wanted), epsilon=least, n_rows=rows, sentence=sentence)


def _least(enough: Callable[[float], bool], low: float, high: float) -> float | None:
    """Return the least number from ``low`` to ``high`` that is enough, by bisection of a grid."""
    grid = np.geomspace(low, high, 1 + math.ceil(math.log(high / low) / math.log(_NEAR_ENOUGH)))
    place = bisect_left(grid, True, key=enough)
    return float(grid[place]) if place < grid.size else None


def _rounded_up(value: float) -> float:
    """Return the least number of two digits that is no smaller."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.2g}")


# --- remarks ----------------------------------------------------------------------------------------


def _better(candidates: Sequence[Candidate]) -> str | None:
    """Return a remark where another candidate of the same sum is predicted to be clearly more accurate."""
    errors = {each: each.error for each in candidates if each.error is not None}
    taken = next((each for each in errors if each.chosen), None)
    if taken is None:
        return None
    rivals = [each for each in errors if each.aggregation == taken.aggregation]
    best = min(rivals, key=errors.__getitem__)
    if errors[best] >= _CLEARLY * errors[taken]:
        return None
    better = f"should be more accurate: sin θ = {errors[best]:.2g} instead of {errors[taken]:.2g}"
    if best.noise == "clipped":
        return f"noise='clipped' {better}; choose it, or give energy"
    return f"solver={best.solver!r} with noise={best.noise!r} {better}; it takes more memory and messages"


def _out_of_reach(options: Options, candidates: Sequence[Candidate], facts: _Facts) -> str | None:
    """Return a remark where no private fit can find the components, with what it would take."""
    rank, d, values = options.n_components, facts.n_features, facts.spectrum
    levels = [each.noise_level for each in candidates if each.noise == "covariance"]
    if not levels or not isinstance(rank, int | np.integer) or rank > d:
        return None
    least = min(levels) * math.sqrt(d / 2.0)
    known = _MUCH / int(rank) if values is None else float(values[int(rank) - 1])
    errors = [each.error for each in candidates if each.error is not None]
    if known >= least or min(errors, default=1.0) < _LOST:
        return None
    needed = "no number of rows is enough"
    if known > 0:
        needed = f"they need about {_rounded_up(2.0 * facts.n_rows * least / known):,.0f} rows"
    best = "even with half of the variance, " if values is None else ""
    return (
        f"{int(rank)} components of {d:,} columns are out of reach at ε = {float(options.epsilon):g} "
        f"with {facts.n_rows:,} rows: {best}{needed}"
    )


# --- spectra ----------------------------------------------------------------------------------------


def full_spectrum(leading: ArrayLike, n_features: int) -> Array:
    """Return d eigenvalues, largest first, that add up to at most 1: the given ones and smaller others."""
    values = np.asarray(leading, dtype=np.float64).ravel()
    if not 1 <= values.size <= n_features or not np.isfinite(values).all() or values.min() < 0:
        raise InputError(
            f"spectrum must be 1 to {n_features} finite eigenvalues of at least 0, got {values.size} numbers"
        )
    if values.sum() > 1 + 1e-6:  # the most that eigenvalues of rows of norm at most 1 add up to
        raise InputError(
            f"spectrum must add up to at most 1, got {values.sum():.4g}; divide it by the bound squared"
        )
    values = np.sort(values)[::-1]
    rest, last = n_features - values.size, float(values[-1])
    left = max(1.0 - float(values.sum()), 0.0)
    if rest == 0 or last * rest <= left * (1 + 1e-9):
        return np.append(values, np.full(rest, last))
    # Each is the same part of the one before. Equal shares would all be far below the last one given, unlike
    # those of real rows; the last one repeated may have a trace that rows cannot have.
    powers = np.arange(1, rest + 1)
    ratio = scipy.optimize.brentq(lambda ratio: last * float((ratio**powers).sum()) - left, 0.0, 1.0)
    return np.append(values, last * ratio**powers)


def eigenvalues_for(
    options: Options, n_features: int, *, gap: float | None = None, spectrum: Any = None
) -> Array | None:
    """Return eigenvalues, guessed in units of the fit's rows or of a result, for rows of norm at most 1."""
    if gap is not None and spectrum is not None:
        raise InputError("gap must go without spectrum, got both")
    bound, trace = options.public.row_norm, 1.0
    if options.book is not None:
        bound = options.book.bound
        trace = min(1.0, n_features / bound**2)  # columns of variance 1
    if isinstance(spectrum, Result):
        got = spectrum.n_features
        require(got == n_features, "spectrum", f"of {n_features} columns", got)
        return spectrum_of_result(spectrum, row_norm=bound)
    unit, k = 1.0 if bound is None else bound**2, options.n_components
    if gap is None:
        if spectrum is not None and isinstance(k, int) and np.size(spectrum) < min(k + 1, n_features):
            raise InputError(
                f"spectrum must have at least k + 1 = {k + 1} values, because the error depends on the gap "
                f"after the k-th, got {np.size(spectrum)}"
            )
        return None if spectrum is None else np.asarray(spectrum, dtype=np.float64) / unit
    if not isinstance(k, int):
        raise InputError(f"gap must go with a number of components, got n_components={k!r}; give a spectrum")
    return spectrum_of_gap(gap / unit, k, n_features, trace)


def spectrum_of_gap(gap: float, rank: int, n_features: int, trace: float = 1.0) -> Array:
    """Return k equal eigenvalues over d − k equal ones, ``gap`` apart, that add up to ``trace``."""
    low = (trace - rank * gap) / n_features
    if gap <= 0 or low < 0:
        raise InputError(
            f"gap must be above 0 and at most {trace / rank:g} for {rank} components, got {gap:g}"
        )
    return full_spectrum([low + gap] * rank + ([low] if rank < n_features else []), n_features)


def spectrum_of_result(result: Result, *, row_norm: float | None = None) -> Array:
    """Return the d eigenvalues that a result shows, without its noise, for rows of norm at most 1."""
    book, given, standardized = result.code_book, result.record.parameters, result.record.standardized
    bound, unit = row_norm, 1.0  # the latter of the result's variances, in those of the bound's rows
    if bound is None and book is not None:
        if not standardized:
            raise InputError(
                "the result must be of correlations, got covariances; fit it with standardize=True"
            )
        bound = book.bound
    elif bound is None:
        bound = 1.0 if result.normalize else given.get("row_norm")
        if standardized and result.scale is not None:
            unit = float(np.mean((result.scale / np.asarray(given.get("scale") or 1.0)) ** 2))
    if bound is None:
        raise InputError(
            "the result must have a bound on row norms, got none; give row_norm in the result's units"
        )
    values = result.explained_variance if result.spectrum is None else result.spectrum
    if result.privacy.is_private:
        if not any(result.determined):
            raise InputError("the result must have at least one determined component, got none")
        values = result.denoised_variance
    values = np.maximum(values, 0.0)
    share = float(result.explained_variance_ratio[0])
    total = float(result.explained_variance[0]) / share if share > 0 else 0.0
    rest = result.n_features - values.size
    if rest:  # they share equally what the components leave of the total
        left = max(total - float(values.sum()), 0.0)
        values = np.append(values, np.full(rest, min(left / rest, float(values[-1]))))
    values = values * unit / bound**2
    return np.asarray(values / max(float(values.sum()), 1.0), dtype=np.float64)
