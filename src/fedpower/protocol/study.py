"""What a consortium agrees on before anything is computed, its hash, and the noise that follows from it."""

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from fedpower.errors import InputError, is_showable
from fedpower.options import check_sums_are_noised
from fedpower.privacy.accounting import delta_with_distance, epsilon_of, mu_of
from fedpower.privacy.budget import MEAN, MOMENT, PRODUCT, SCORES, Budget, QueryTerms
from fedpower.privacy.sensitivity import MEAN_WEIGHT, summary_size
from fedpower.rows.networks import check_edge_weight
from fedpower.sums.kernel import MOST_SQUARE_FEATURES
from fedpower.sums.lattice import SIDE
from fedpower.sums.survey import SCORE_CELLS, STAGES, Stage

NoiseMode = Literal["none", "paper", "step", "moment", "clipped"]
_NOISE_MODES: tuple[NoiseMode, ...] = ("none", "paper", "step", "moment", "clipped")

PREPARED = "found by private preparation"
"""The treatment of a study that finds it."""

Aggregation = Literal["plain", "secure"]
Weights = Literal["rows", "noise"]

_MOST_QUERIES = 1000
"""Of the design of a clipped fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The terms every party holds itself to; a silo answers questions of this study and no other."""

    columns: tuple[str, ...] | None
    n_features: int
    iteration_rank: int
    center: bool = False
    treatment: str = ""
    noise: NoiseMode = "none"
    epsilon: float = math.inf
    delta: float = 0.0
    n_steps: int | None = None
    agreement: str = ""
    aggregation: Aggregation = "plain"
    colluders: int = 0
    identities: tuple[tuple[str, str], ...] = ()
    min_silos: int = 0
    attempts: int = 1
    weights: Weights = "rows"
    design: tuple[QueryTerms, ...] = ()
    """The queries of a clipped fit, but for scores; those of others follow from the other terms."""
    preparation: tuple[float, ...] = ()
    ranges: tuple[tuple[float, float] | None, ...] = ()
    roster: str = ""
    mean_weight: float = MEAN_WEIGHT
    rules: str = ""
    groups: tuple[tuple[int, ...], ...] = ()
    unit: str = ""
    rows_per_unit: int = 1
    network: Literal["", "edge", "row"] = ""
    edge_weight: float = 1.0
    scores: float = 0.0

    def __post_init__(self) -> None:
        self._check_unit()
        self._check_network()
        if self.weights != "rows" and self.aggregation == "secure":
            raise InputError(
                f"weights must be 'rows' with aggregation='secure', got {self.weights!r}: "
                "silos of a secure sum share the noise of one, so small ones add none; "
                "leave it alone"
            )
        if self.noise not in _NOISE_MODES:
            raise InputError(
                f"noise must be one of {', '.join(_NOISE_MODES)}, got {self.noise!r}; choose one"
            )
        if self.is_private == math.isinf(self.epsilon):
            raise InputError(
                f"noise mode {self.noise!r} and epsilon={self.epsilon} contradict each other; "
                "epsilon=inf goes with noise='none' and only with it"
            )
        check_sums_are_noised(self.aggregation, self.epsilon)
        if not 1 <= self.iteration_rank <= self.n_features:
            raise InputError(
                "iteration_rank must lie between 1 and the number of columns "
                f"{self.n_features}, got {self.iteration_rank}; choose a smaller one"
            )
        for name in (*(self.columns or ()), self.unit, *(silo for silo, _ in self.identities)):
            if not is_showable(name):
                raise InputError(
                    f"names of columns and silos must hold no control characters, got {name!a}; rename it"
                )
        places = [place for group in self.groups for place in group]
        if len(set(places)) < len(places) or not all(0 <= each < self.n_features for each in places):
            raise InputError(
                f"groups must be of different columns among the {self.n_features}, got others; leave "
                "them to the rules"
            )
        if (self.noise == "clipped") != bool(self.design) or (self.design and self.weights != "rows"):
            raise InputError(
                "noise='clipped', and only that, must have its queries listed and weigh silos by their "
                "rows, got another study; leave them to the study"
            )
        if self.noise == "clipped" and self.unit:
            raise InputError(
                "noise='clipped' must go without unit, whose persons it cannot weigh, "
                "got both; choose noise='moment', or leave unit out"
            )
        self._check_design()
        self._check_preparation()
        self._check_scores()
        self._check_aggregation()

    def _check_scores(self) -> None:
        if not self.scores:
            return
        if self.noise == "paper":
            raise InputError(
                "scores_epsilon must go without noise='paper', whose printed noise "
                "leaves nothing of its epsilon to scores, got both; choose noise='step'"
            )
        if not 0 < self.scores < 1 if self.is_private else self.scores != 1:
            raise InputError(
                f"counts of scores must have a share of the budget between 0 and 1, or be exact in an "
                f"exact study, got {self.scores}; leave it to the study"
            )

    def _check_unit(self) -> None:
        if self.unit in (self.columns or ()):
            raise InputError(
                f"unit must be no feature, for it only says whose each row is, got '{self.unit}' "
                "among the columns too; leave it out of them"
            )
        if self.rows_per_unit != 1 and not self.unit:
            raise InputError(
                f"rows_per_unit must go with unit, got {self.rows_per_unit} without; name "
                "the column that says whose each row is"
            )

    def _check_network(self) -> None:
        if self.network not in ("", "edge", "row"):
            raise InputError(f"network must be 'edge' or 'row', got {self.network!r}; choose one")
        check_edge_weight(self.edge_weight)
        if self.edge_weight != 1 and self.network != "edge":
            raise InputError(
                "edge_weight must go with network='edge', whose noise it sets, got it without; leave it out"
            )
        if self.network and (self.unit or self.rules or self.preparation):
            raise InputError(
                "network must go without persons, rules and private preparation, which "
                "are about tables, got one of them; leave it out"
            )
        if self.network == "edge" and (self.center or self.noise not in ("moment", "none")):
            raise InputError(
                "network='edge' must go with noise='moment', for the adjacency itself is "
                "released, got another; leave noise alone"
            )

    @property
    def counted_per_unit(self) -> int:
        """C where a person is the unit of privacy; 0 where a row is."""
        return self.rows_per_unit if self.unit else 0

    def _check_preparation(self) -> None:
        if not self.preparation and not self.ranges:
            return
        if self.noise != "moment" or self.treatment != PREPARED:
            raise InputError(
                "private preparation must go with noise='moment' and with no treatment that was agreed "
                f"on, got noise={self.noise!r}; give a code book instead"
            )
        if len(self.preparation) != len(STAGES) or len(self.ranges) != self.n_features:
            raise InputError(
                f"private preparation must have {len(STAGES)} shares and a range or none for each of the "
                f"{self.n_features} columns, got {len(self.preparation)} and {len(self.ranges)}; prepare "
                "anew"
            )
        opened = self.n_open > 0
        asked = (opened, opened, opened, True, True)
        if (
            any((share > 0) != ask for share, ask in zip(self.preparation, asked, strict=True))
            or sum(self.preparation) + self.scores >= 1
        ):
            raise InputError(
                "shares of preparation must be positive for what is asked, and below 1 together, got "
                f"{self.preparation}; leave them to the study"
            )

    @property
    def n_open(self) -> int:
        """How many columns preparation finds a range for."""
        return sum(known is None for known in self.ranges)

    def _check_aggregation(self) -> None:
        if self.aggregation not in ("plain", "secure"):
            raise InputError(f"aggregation must be 'plain' or 'secure', got {self.aggregation!r}; choose one")
        if self.aggregation == "plain":
            if (self.colluders, self.identities, self.min_silos, self.attempts) != (0, (), 0, 1):
                raise InputError(
                    "colluders, identities, min_silos and attempts must go with aggregation='secure', "
                    "got one of them without; leave them out"
                )
            return
        if self.noise not in ("moment", "clipped"):
            raise InputError(
                "aggregation='secure' must go with noise='moment', whose sum is all that is needed, got "
                f"noise={self.noise!r}; choose that and a finite epsilon"
            )
        keys = [key for _, key in self.identities]
        if len(dict(self.identities)) < len(keys) or len(set(keys)) < len(keys):
            raise InputError(
                "identities must have different names and keys, got one twice; let every silo make its "
                "own with `fedpower identity new`"
            )
        if not all(_is_public_key(key) for key in keys):
            raise InputError(
                "an identity must be 64 hexadecimal digits in lower case, got one that is not; take what "
                "`fedpower identity show` prints"
            )
        if not 1 <= self.colluders < self.min_silos <= len(keys):
            raise InputError(
                "a secure sum must have 1 <= colluders < min_silos <= silos, got "
                f"colluders={self.colluders}, min_silos={self.min_silos} and {len(keys)} silos; at least "
                "1 silo counts as colluding, for each knows its own noise and sees the result"
            )
        if self.attempts < 1:
            raise InputError(f"attempts must be at least 1, got {self.attempts}; give 1 or more")

    def _check_design(self) -> None:
        labels = [terms.label for terms in self.design]
        if len(set(labels)) < len(labels) or not all(
            label in (MOMENT, MEAN) or re.fullmatch(rf"{PRODUCT} [0-9]{{1,4}}", label) for label in labels
        ):
            raise InputError(
                "queries must be the moment, the mean or numbered products, each once, got "
                f"{labels!a}; rename them"
            )
        if len(labels) > _MOST_QUERIES or not all(
            type(terms.size) is int and terms.size >= 1 and 0 < terms.share <= 1 and terms.times == 1
            for terms in self.design
        ):
            raise InputError(
                f"there must be at most {_MOST_QUERIES} queries, each of 1 number or more and with a share "
                "of the budget between 0 and 1, got others; agree on other ones"
            )
        if math.fsum(terms.share for terms in self.design) + self.scores > 1 + 2.0**-50:
            raise InputError(
                "the shares of all queries must add up to 1 at most, got more; make them smaller"
            )
        wanted = {MOMENT: summary_size(self.n_features, with_mean=self.center), MEAN: self.n_features}
        for label, size, _, _ in self.design:
            if size != wanted.get(label, size) or (
                label not in wanted and size % self.n_features != 1 % self.n_features
            ):
                raise InputError(
                    f"the query {label!r} must have as many numbers as the columns give, got {size}; leave "
                    "it to the study"
                )

    @property
    def is_private(self) -> bool:
        """Whether anything is promised about the rows: then, and only then, what leaves is noised."""
        return self.noise != "none"

    @property
    def digest(self) -> str:
        """SHA-256 of the terms; travels in every message."""
        return _whole_digest(self)

    @property
    def moment_terms(self) -> str:
        """SHA-256 of what a noised moment depends on; studies that share it share the release."""
        return _moment_terms(self)

    @property
    def queries(self) -> tuple[QueryTerms, ...]:
        """Everything that is noised, in order; in an exact study the counts of scores alone."""
        return _queries(self)

    @property
    def ledger_name(self) -> str:
        """The name under which silos' ledgers book the releases of this study."""
        shared = self.noise == "moment" and self.aggregation == "plain"
        return self.moment_terms if shared else self.digest


def _is_public_key(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


@functools.lru_cache(maxsize=256)
def _queries(study: Study) -> tuple[QueryTerms, ...]:
    scores = (QueryTerms(SCORES, SCORE_CELLS, study.scores),) if study.scores else ()
    d, rest = study.n_features, 1.0 - math.fsum(study.preparation) - study.scores
    if study.noise == "none":
        return scores
    if study.noise == "clipped":
        return (*study.design, *scores)
    if study.noise == "moment":
        places = np.arange(study.n_open, dtype=np.intp)
        stages = (
            QueryTerms(kind, Stage(kind=kind, n_features=d, open_columns=places).size, float(share))
            for kind, share in zip(STAGES, study.preparation or (0.0,) * len(STAGES), strict=True)
            if share > 0
        )
        return (*stages, QueryTerms(MOMENT, summary_size(d, with_mean=study.center), rest), *scores)
    steps = study.n_steps or 1
    share, size = rest / (steps + int(study.center)), d * study.iteration_rank + int(study.iteration_rank > 1)
    mean = (QueryTerms(MEAN, d, share),) if study.center else ()
    return (*mean, QueryTerms(PRODUCT, size, share, steps), *scores)


@functools.lru_cache(maxsize=256)
def _whole_digest(study: Study) -> str:
    return _digest(study, tuple(field.name for field in fields(study)))


_MOMENT_TERMS = (
    "columns", "n_features", "center", "treatment", "epsilon", "delta", "preparation", "ranges", "roster",
    "mean_weight", "rules", "groups", "unit", "rows_per_unit", "network", "edge_weight", "scores",
)  # fmt: skip


@functools.lru_cache(maxsize=256)
def _moment_terms(study: Study) -> str:
    agreed = ("agreement",) if study.preparation or study.scores else ()
    return _digest(study, _MOMENT_TERMS + agreed)


def _digest(study: Study, names: tuple[str, ...]) -> str:
    terms = {name: getattr(study, name) for name in names}
    canonical = json.dumps(terms, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLaw:
    """What is known of the noise of a pooled release."""

    once: bool
    std: float
    mean_std: float = 0.0


_WORTH = 0.9
"""Silos are named as costly where without them the pooled noise is below this share of what it is."""


def masses(sizes: Mapping[str, int], weights: Weights = "rows") -> dict[str, int]:
    """Return by silo the whole number that its weight is proportional to: s_i, or s_i²."""
    return {name: size if weights == "rows" else size**2 for name, size in sizes.items()}


def pooled(budget: Budget, sizes: Mapping[str, int], weights: Weights = "rows") -> float:
    """Return √(Σ w_i²τ_i²) where each silo noises what it sends by itself."""
    mass = masses(sizes, weights)
    total = sum(mass.values())
    return math.hypot(*(mass[name] / total * budget.std(sizes[name]) for name in sizes))


def costly_silos(
    budget: Budget, sizes: Mapping[str, int], weights: Weights = "rows"
) -> tuple[list[str], float]:
    """Return the silos whose noise costs more than their rows bring, and the noise's share without them."""
    by_size = sorted(sizes, key=lambda name: sizes[name])
    whole = pooled(budget, sizes, weights)
    left = dict(sizes)
    for name in by_size[:-1]:
        without = {other: size for other, size in left.items() if other != name}
        if pooled(budget, without, weights) >= pooled(budget, left, weights):
            break
        left = without
    share = pooled(budget, left, weights) / whole
    costly = [name for name in sizes if name not in left]
    return (costly, share) if costly and share < _WORTH else ([], 1.0)


def costly_sentence(costly: Sequence[str], share: float, sizes: Mapping[str, int], thing: str = "row") -> str:
    """Return what to do about silos that cost more than they bring, in one sentence."""
    shown = ", ".join(f"{name} ({sizes[name]} {thing}s)" for name in costly[:5])
    more = f" and {len(costly) - 5} more" if len(costly) > 5 else ""
    return (
        f"with plain sums each silo adds as much noise as any other, and without {shown}{more} "
        f"the pooled noise would be {share:.2g} of what it is; leave them out, take "
        "weights='noise', or share the noise with aggregation='secure'"
    )


Solver = Literal["fedpower", "krylov", "moment", "clipped"]

_SECONDS_PER_ROUND = 2.0
_BYTES_PER_SECOND = 2e6
"""What a round and a byte are counted at: about what a federation over a wide-area network takes."""

_KRYLOV_ROUNDS = 8
"""Rounds that krylov is counted at; it takes fewer where the gap is wide or noise sets the floor."""

_NARROW = 2048
"""Up to so many columns nobody asks what a d×d matrix takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverChoice:
    """A solver and the reason for it, in one sentence."""

    solver: Solver
    reason: str


def choose_solver(
    *, n_features: int, iteration_rank: int, noise: NoiseMode, paper_settings: tuple[str, ...] = ()
) -> SolverChoice:
    """Return the solver that reaches the answer first."""
    if paper_settings:
        return SolverChoice(
            solver="fedpower",
            reason=f"{', '.join(paper_settings)} was given, which only the paper's method has",
        )
    if noise == "paper":
        return SolverChoice(
            solver="fedpower", reason="noise='paper' asks for the paper's method as it is printed"
        )
    if noise == "step":
        wide = ""
        if n_features > MOST_SQUARE_FEATURES:
            wide = (
                f" (a moment of {n_features} columns takes {_size(8 * n_features**2)}; "
                "where all can hold that, noise='moment' is more accurate)"
            )
        return SolverChoice(
            solver="krylov",
            reason=f"every product is noised and paid for, and krylov uses all of them together{wide}",
        )
    triangle = 8 * n_features * (n_features + 1) // 2
    blocks = _KRYLOV_ROUNDS * 2 * 8 * n_features * iteration_rank
    upload = _SECONDS_PER_ROUND + triangle / _BYTES_PER_SECOND
    krylov = _KRYLOV_ROUNDS * _SECONDS_PER_ROUND + blocks / _BYTES_PER_SECOND
    figures = (
        f"one round of {_size(triangle)} a silo against about {_KRYLOV_ROUNDS} rounds of "
        f"{_size(blocks // _KRYLOV_ROUNDS)}"
    )
    if noise == "moment" and n_features > _NARROW:
        figures += (
            f"; every silo holds its noised moment of {_size(8 * n_features**2)}, which no solver that "
            "noises its steps is as accurate as"
        )
    if n_features <= MOST_SQUARE_FEATURES and upload <= krylov:
        return SolverChoice(solver="moment", reason=f"one upload of the moment is cheapest: {figures}")
    return SolverChoice(solver="krylov", reason=f"the moment is too large to upload lightly: {figures}")


def _size(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


@functools.lru_cache(maxsize=64)  # root finders take milliseconds
def budget_of(study: Study) -> Budget | None:
    """Return the price list of a private study; None where nothing is private."""
    if study.noise == "none":  # not `is_private`, so that types know the mode below
        return None
    if study.noise not in ("moment", "clipped") and study.n_steps is None:
        raise InputError(
            f"noise mode {study.noise!r} must know its number of steps to divide the "
            "budget, got none; give n_steps"
        )
    return Budget(
        mode=study.noise,
        epsilon=study.epsilon,
        delta=study.delta,
        n_features=study.n_features,
        iteration_rank=study.iteration_rank,
        n_steps=study.n_steps or 1,
        center=study.center,
        n_sharing=len(study.identities) if study.aggregation == "secure" else None,
        colluders=study.colluders,
        queries=study.queries,
        mean_weight=study.mean_weight,
        per_unit=study.counted_per_unit,
    )


def sums_moment(study: Study) -> bool:
    """Return whether a silo sums its moment in whole numbers: what is noised, or a part of it."""
    return study.is_private and any(terms.label == MOMENT for terms in study.queries)


def noise_shift(
    budget: Budget, weights: Weights = "rows"
) -> Callable[[Mapping[str, int], int], float] | None:
    """Return how far to shift noised moments so that power steps do not chase negative eigenvalues."""
    if budget.mode != "moment":
        return None

    def shift(sizes: Mapping[str, int], n_local_steps: int) -> float:
        if n_local_steps > 1:
            return max(budget.spectral_edge(count) for count in sizes.values())
        return pooled_std(budget, sizes, weights) * math.sqrt(2.0 * budget.n_features)

    return shift


NOISE_SHARE = 0.01
"""Iterating stops at this share of the least error that the noise can leave."""


def noise_floor(study: Study) -> Callable[[Mapping[str, int]], float] | None:
    """Return how small an error is worth iterating for, from the silos' sizes; None without noise."""
    budget = budget_of(study)
    if budget is None:
        return None
    return lambda sizes: NOISE_SHARE * pooled_std(budget, sizes, study.weights) * math.sqrt(study.n_features)


def pooled_std(budget: Budget, sizes: Mapping[str, int], weights: Weights = "rows") -> float:
    """Return √(Σ w_i²τ_i²), the noise of the weighted sum of the silos' releases."""
    if budget.n_sharing is not None:
        rows = tuple(sizes.values())
        return budget.moment_noise(rows).stds[0] / (sum(rows) * float(SIDE) ** 2)
    return pooled(budget, sizes, weights)


def noise_law(
    budget: Budget, sizes: Mapping[str, int], center_norm: float = 0.0, weights: Weights = "rows"
) -> NoiseLaw:
    """Return the law of the pooled noise of silos of ``sizes`` rows, about a centre of that norm."""
    std = pooled_std(budget, sizes, weights)
    if budget.mode in ("moment", "clipped"):
        return NoiseLaw(once=True, std=std)
    mean_std = 0.0
    if budget.center:
        mass = masses(sizes, weights)
        total = sum(mass.values())
        mean_std = math.hypot(
            *(
                mass[name] / total * budget.noise(MEAN, budget.mean_sensitivity(size), (size,)).stds[0]
                for name, size in sizes.items()
            )
        )
    return NoiseLaw(once=False, std=std * (1.0 + center_norm) ** 2, mean_std=mean_std)


def worst_epsilon(study: Study) -> float:
    """Return the most that a study can spend of one silo's rows: all attempts at a secure sum counted."""
    budget = budget_of(study)
    if budget is None or study.attempts == 1:
        return study.epsilon
    return epsilon_of_attempts(budget, study.attempts)


def attempt_epsilon(study: Study, most: float) -> float:
    """Return the ε of each attempt with which all attempts of a study together spend ``most``."""
    return epsilon_of(mu_of(most, study.delta) / math.sqrt(study.attempts), study.delta)


def epsilon_of_attempts(budget: Budget, attempts: int) -> float:
    """Return the ε at the study's δ of so many attempts at a secure sum, whoever colludes as agreed."""
    if attempts == 1:
        return budget.epsilon
    mu = budget.total_mu * math.sqrt(attempts)
    return epsilon_within(mu, budget.delta, attempts * budget.distance)


def epsilon_within(mu: float, delta: float, distance: float) -> float:
    """Return ε at δ of what is within total variation ``distance`` of a μ-GDP release."""
    slack = delta_with_distance(0.0, epsilon_of(mu, delta / 2), distance)
    return epsilon_of(mu, delta - slack) if slack < delta / 2 else math.inf
