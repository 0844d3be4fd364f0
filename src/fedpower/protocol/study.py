"""What a consortium agrees on before anything is computed, its hash, and the noise that follows from it."""

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from fedpower.errors import InputError, is_showable
from fedpower.options import check_sums_are_noised
from fedpower.privacy.accounting import delta_with_distance, epsilon_of, mu_of
from fedpower.privacy.budget import MEAN, MOMENT, PRODUCT, SCORES, Budget, QueryTerms
from fedpower.privacy.sensitivity import MEAN_WEIGHT, summary_size
from fedpower.rows.networks import check_edge_weight
from fedpower.sums.lattice import SIDE
from fedpower.sums.moment import MOST_SQUARE_FEATURES
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
        for rules in (self._unit_rules, self._noise_rules, self._design_rules, self._preparation_rules,
                      self._scores_rules, self._aggregation_rules):  # fmt: skip
            # What must hold, by the sentence that refuses it; each group relies on those before.
            for sentence, holds in rules().items():
                if not holds:
                    raise InputError(sentence)

    def _unit_rules(self) -> dict[str, object]:
        check_edge_weight(self.edge_weight)
        table = self.unit or self.rules or self.preparation
        return {
            f"unit must be no feature, got '{self.unit}' among the columns too": (
                self.unit not in (self.columns or ())
            ),
            f"rows_per_unit must go with unit, got {self.rows_per_unit} without": (
                self.rows_per_unit == 1 or self.unit
            ),
            f"network must be 'edge' or 'row', got {self.network!r}": self.network in ("", "edge", "row"),
            "edge_weight must go with network='edge', whose noise it sets, got it without": (
                self.edge_weight == 1 or self.network == "edge"
            ),
            "network must go without persons, rules and private preparation, which are about tables": (
                not (self.network and table)
            ),
            "network='edge' must go with noise='moment', for the adjacency itself is released, got another": (
                self.network != "edge" or (not self.center and self.noise in ("moment", "none"))
            ),
        }

    def _noise_rules(self) -> dict[str, object]:
        check_sums_are_noised(self.aggregation, self.epsilon)
        d, rank, noise = self.n_features, self.iteration_rank, self.noise
        places = [place for group in self.groups for place in group]
        names = (*(self.columns or ()), self.unit, *(silo for silo, _ in self.identities))
        odd = next((name for name in names if not is_showable(name)), None)
        return {
            f"weights must be 'rows' with aggregation='secure', got {self.weights!r}: its noise is shared": (
                self.weights == "rows" or self.aggregation == "plain"
            ),
            f"noise must be one of {', '.join(_NOISE_MODES)}, got {noise!r}": noise in _NOISE_MODES,
            f"epsilon=inf must go with noise='none' only, got epsilon={self.epsilon} with {noise!r}": (
                self.is_private != math.isinf(self.epsilon)
            ),
            f"iteration_rank must lie between 1 and the number of columns {d}, got {rank}": 1 <= rank <= d,
            f"names of columns and silos must hold no control characters, got {odd!a}": odd is None,
            f"groups must be of different columns among the {d}, got others": (
                len(set(places)) == len(places) and all(0 <= place < d for place in places)
            ),
        }

    def _design_rules(self) -> dict[str, object]:
        design, labels = self.design, [terms.label for terms in self.design]
        sizes = {MOMENT: summary_size(self.n_features, with_mean=self.center), MEAN: self.n_features}
        return {
            "noise='clipped', and only that, must list its queries and weigh silos by their rows": (
                (self.noise == "clipped") == bool(design) and not (design and self.weights != "rows")
            ),
            "noise='clipped' must go without unit, whose persons it cannot weigh, got both": (
                self.noise != "clipped" or not self.unit
            ),
            f"queries must have names, each once and {_MOST_QUERIES} at most, got {labels[:5]!a}": (
                len(set(labels)) == len(labels) <= _MOST_QUERIES
                and not {SCORES, *STAGES} & set(labels)
                and all(re.fullmatch("[a-z-]+( [0-9]{1,4})?", label) for label in labels)
            ),
            "every query must have 1 number or more and a share of the budget between 0 and 1, got another": (
                all(type(each.size) is int and each.size >= 1 for each in design)
                and all(0 < each.share <= 1 and each.times == 1 for each in design)
            ),
            "the moment and the mean must have as many numbers as the columns give, got another number": (
                all(each.size == sizes.get(each.label, each.size) for each in design)
            ),
            "the shares of all queries must add up to 1 at most, got more": (
                math.fsum(each.share for each in design) + self.scores <= 1 + 2.0**-50
            ),
        }

    def _preparation_rules(self) -> dict[str, object]:
        if not (self.preparation or self.ranges):
            return {}
        n_shares, n_ranges = len(self.preparation), len(self.ranges)
        asked = zip(self.preparation, (*[self.n_open > 0] * 3, True, True), strict=False)
        return {
            "private preparation must go with noise='moment' and with no treatment that was agreed on": (
                self.noise == "moment" and self.treatment == PREPARED
            ),
            f"private preparation must have {len(STAGES)} shares and {self.n_features} ranges, got "
            f"{n_shares} and {n_ranges}": (n_shares, n_ranges) == (len(STAGES), self.n_features),
            f"shares of preparation must be positive, and below 1 together, got {self.preparation}": (
                all((share > 0) == ask for share, ask in asked) and sum(self.preparation) + self.scores < 1
            ),
        }

    def _scores_rules(self) -> dict[str, object]:
        if not self.scores:
            return {}
        return {
            "scores_epsilon must go without noise='paper', whose printed noise leaves nothing to scores, "
            "got both; choose noise='step'": self.noise != "paper",
            f"counts of scores must have a share of the budget between 0 and 1, got {self.scores}": (
                0 < self.scores < 1 if self.is_private else self.scores == 1
            ),
        }

    def _aggregation_rules(self) -> dict[str, object]:
        keys = [key for _, key in self.identities]
        secret = (self.colluders, self.identities, self.min_silos, self.attempts)
        plain = self.aggregation == "plain"
        return {
            f"aggregation must be 'plain' or 'secure', got {self.aggregation!r}": (
                plain or self.aggregation == "secure"
            ),
            "colluders, identities, min_silos and attempts must go with aggregation='secure'": (
                not plain or secret == (0, (), 0, 1)
            ),
            f"aggregation='secure' must go with noise='moment', got noise={self.noise!r}": (
                plain or self.noise in ("moment", "clipped")
            ),
            "identities must have different names and keys, got one twice": (
                len(dict(self.identities)) == len(keys) == len(set(keys))
            ),
            "an identity must be 64 hexadecimal digits in lower case, as `fedpower node key` prints it": all(
                re.fullmatch("[0-9a-f]{64}", key) for key in keys
            ),
            f"a secure sum must have more silos than the {self.colluders} that may collude, got "
            f"{self.min_silos} as the fewest of {len(keys)}; bring more silos, declare fewer colluders or "
            "change min_silos": (plain or 1 <= self.colluders < self.min_silos <= len(keys)),
            f"attempts must be at least 1, got {self.attempts}": self.attempts >= 1,
        }

    @property
    def counted_per_unit(self) -> int:
        """C where a person is the unit of privacy; 0 where a row is."""
        return self.rows_per_unit if self.unit else 0

    @property
    def n_open(self) -> int:
        """How many columns preparation finds a range for."""
        return sum(known is None for known in self.ranges)

    @property
    def is_private(self) -> bool:
        return self.noise != "none"

    @property
    def digest(self) -> str:
        """SHA-256 of the terms; travels in every message."""
        return _digest(self, tuple(field.name for field in fields(self)))

    @property
    def moment_terms(self) -> str:
        """SHA-256 of what a noised moment depends on; studies that share it share the release."""
        agreed = ("agreement",) if self.preparation or self.scores else ()
        return _digest(self, _MOMENT_TERMS + agreed)

    @property
    def queries(self) -> tuple[QueryTerms, ...]:
        """Everything that is noised, in order; in an exact study the counts of scores alone."""
        return _queries(self)

    @property
    def ledger_name(self) -> str:
        """The name under which silos' ledgers record the releases of this study."""
        shared = self.noise == "moment" and self.aggregation == "plain"
        return self.moment_terms if shared else self.digest


_MOMENT_TERMS = (
    "columns", "n_features", "center", "treatment", "epsilon", "delta", "preparation", "ranges", "roster",
    "mean_weight", "rules", "groups", "unit", "rows_per_unit", "network", "edge_weight", "scores",
)  # fmt: skip


@functools.lru_cache(maxsize=512)
def _digest(study: Study, names: tuple[str, ...]) -> str:
    terms = {name: getattr(study, name) for name in names}
    canonical = json.dumps(terms, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


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


def costly_sentence(study: Study, sizes: Mapping[str, int], thing: str = "row") -> str | None:
    """Return what to do about silos whose noise costs more than their rows bring; None without any."""
    budget = budget_of(study)
    if budget is None or study.aggregation == "secure":
        return None
    left = dict(sizes)
    for name in sorted(sizes, key=lambda name: sizes[name])[:-1]:
        without = {other: size for other, size in left.items() if other != name}
        if pooled(budget, without, study.weights) >= pooled(budget, left, study.weights):
            break
        left = without
    share = pooled(budget, left, study.weights) / pooled(budget, sizes, study.weights)
    costly = [name for name in sizes if name not in left]
    if not costly or share >= _WORTH:
        return None
    shown = ", ".join(f"{name} ({sizes[name]} {thing}s)" for name in costly[:5])
    more = f" and {len(costly) - 5} more" if len(costly) > 5 else ""
    return (
        f"with plain sums each silo adds as much noise as any other, and without {shown}{more} "
        f"the pooled noise would be {share:.2g} of what it is; leave them out, take "
        "weights='noise', or share the noise with aggregation='secure'"
    )


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

    solver: str
    reason: str


def choose_solver(
    *, n_features: int, iteration_rank: int, noise: NoiseMode, paper_settings: tuple[str, ...] = ()
) -> SolverChoice:
    """Return the solver that reaches the answer first."""

    def chosen(solver: str, reason: str) -> SolverChoice:
        return SolverChoice(solver=solver, reason=reason)

    if paper_settings:
        given = ", ".join(paper_settings)
        return chosen("fedpower", f"{given} was given, which only the paper's method has")
    if noise == "paper":
        return chosen("fedpower", "noise='paper' asks for the paper's method as it is printed")
    fits, square = n_features <= MOST_SQUARE_FEATURES, _size(8 * n_features**2)
    if noise == "step":
        reason = "every product is noised and paid for, and krylov uses all of them together"
        more = f" (a moment of {n_features} columns takes {square}; where it fits, noise='moment' is better)"
        return chosen("krylov", reason + more * (not fits))
    triangle = 8 * n_features * (n_features + 1) // 2
    block = 2 * 8 * n_features * iteration_rank
    upload = _SECONDS_PER_ROUND + triangle / _BYTES_PER_SECOND
    krylov = _KRYLOV_ROUNDS * (_SECONDS_PER_ROUND + block / _BYTES_PER_SECOND)
    figures = f"one round of {_size(triangle)} a silo against about {_KRYLOV_ROUNDS} rounds of {_size(block)}"
    if noise == "moment" and n_features > _NARROW:
        figures += (
            f"; every silo holds its noised moment of {square}, which is more accurate than noised steps"
        )
    if fits and upload <= krylov:
        return chosen("moment", f"one upload of the moment is cheapest: {figures}")
    return chosen("krylov", f"the moment is too large to upload lightly: {figures}")


def _size(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


@functools.lru_cache(maxsize=64)  # root finders take milliseconds
def budget_of(study: Study) -> Budget | None:
    """Return the price list of a private study; None where nothing is private."""
    if study.noise == "none":  # not `is_private`, so that types know the mode below
        return None
    if study.noise not in ("moment", "clipped") and study.n_steps is None:
        raise InputError(
            f"noise mode {study.noise!r} must know its number of steps to divide the budget; give n_steps"
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


NOISE_SHARE = 0.01
"""Iterating stops at this share of the least error that the noise can leave."""


def noise_shift(study: Study, sizes: Mapping[str, int], n_local_steps: int = 1) -> float:
    """Return how far to shift noised moments so that power steps do not chase negative eigenvalues."""
    budget = budget_of(study)
    if budget is None or study.noise != "moment":
        return 0.0
    if n_local_steps > 1:
        return max(budget.spectral_edge(count) for count in sizes.values())
    return pooled_std(study, sizes) * math.sqrt(2.0 * study.n_features)


def pooled_std(study: Study, sizes: Mapping[str, int]) -> float:
    """Return √(Σ w_i²τ_i²), the noise of the weighted sum of the silos' releases; 0 without noise."""
    budget = budget_of(study)
    if budget is None:
        return 0.0
    if budget.n_sharing is not None:
        rows = tuple(sizes.values())
        return budget.moment_noise(rows).stds[0] / (sum(rows) * float(SIDE) ** 2)
    return pooled(budget, sizes, study.weights)


def noise_law(study: Study, sizes: Mapping[str, int], center_norm: float = 0.0) -> NoiseLaw | None:
    """Return the law of the pooled noise of silos of ``sizes`` rows, about a centre of that norm."""
    budget, std = budget_of(study), pooled_std(study, sizes)
    if budget is None:
        return None
    if budget.mode in ("moment", "clipped"):
        return NoiseLaw(once=True, std=std)
    mean_std = 0.0
    if budget.center:
        mass = masses(sizes, study.weights)
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
