"""What a consortium agrees on before anything is computed, its hash, and the noise that follows from it."""

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError, is_showable
from fedpower.options import check_sums_are_noised
from fedpower.privacy.accounting import delta_with_distance, epsilon_of, mu_of, noise_multiplier
from fedpower.privacy.budget import COVARIANCE, MEAN, PRODUCT, SCORES, SMALLEST_EPSILON, QueryTerms
from fedpower.privacy.noise import TV_PER_INTEGER
from fedpower.privacy.sensitivity import (
    MEAN_WEIGHT,
    Noise,
    Sensitivity,
    moved_by_row,
    noise_for,
    of_moment,
    of_reals,
    rounding_slack,
    summary_size,
)
from fedpower.rows.networks import MOST_LAYERS, check_edge_weight
from fedpower.sums.lattice import SIDE
from fedpower.sums.local import FREE_ORDER_ROWS
from fedpower.sums.survey import SCORE_CELLS, STAGES, Stage

NoiseMode = Literal["none", "paper", "step", "covariance", "clipped"]
Aggregation = Literal["plain", "secure"]
Network = Literal["", "edge", "row"]
Weights = Literal["rows", "noise"]

PREPARED = "found by private preparation"
"""The treatment of a study that finds it."""

_MOST_QUERIES = 1000
"""Of the design of a clipped fit."""


@dataclass(frozen=True, kw_only=True)
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
    network: Network = ""
    edge_weight: float = 1.0
    scores: float = 0.0

    def __post_init__(self) -> None:
        for holds, sentence in self._rules():
            if not holds:
                raise InputError(sentence)
        if self.is_private:
            _ = self.budget  # which refuses an epsilon or a delta for which there is no noise

    def _rules(self) -> Iterator[tuple[object, str]]:
        """Yield what must hold, with the sentence that refuses it; each relies on those before."""
        for name, allowed in (("noise", NoiseMode), ("aggregation", Aggregation), ("network", Network)):
            given, known = getattr(self, name), get_args(allowed)
            yield given in known, f"{name} must be {' or '.join(map(repr, known))}, got {given!r}"
        check_edge_weight(self.edge_weight)
        check_sums_are_noised(self.aggregation, self.epsilon)
        d, noise, keys = self.n_features, self.noise, [key for _, key in self.identities]
        names = (*(self.columns or ()), self.unit, *(silo for silo, _ in self.identities))
        odd = next((name for name in names if not is_showable(name)), None)
        yield odd is None, f"names of columns and silos must hold no control characters, got {odd!a}"
        must = f"iteration_rank must be between 1 and the number of columns {d}, got {self.iteration_rank}"
        yield 1 <= self.iteration_rank <= d, must
        must = f"epsilon=inf must be used with noise='none' only, got epsilon={self.epsilon} with {noise!r}"
        yield self.is_private != math.isinf(self.epsilon), must
        must = f"n_steps must be given with noise={noise!r}, to divide the budget"
        yield not self.noises_steps or self.n_steps is not None, must
        must = f"unit must not be a feature, got '{self.unit}', which is also a column of the study"
        yield self.unit not in (self.columns or ()), must
        must = f"rows_per_unit must be given with unit, got {self.rows_per_unit} without unit"
        yield self.unit or self.rows_per_unit == 1, must
        must = "network must be used without persons, rules and private preparation, which are for tables"
        yield not self.network or not (self.unit or self.rules or self.preparation), must
        must = f"network='edge' must be used with noise='covariance', got {noise!r}"
        yield self.network != "edge" or (not self.center and noise in ("covariance", "none")), must
        must = "noise='clipped' must be used without unit, got both; use noise='covariance' for persons"
        yield not (noise == "clipped" and self.unit), must
        must = (
            "private preparation must be used with noise='covariance' and without public offsets and bounds"
        )
        yield not self.preparation or (noise == "covariance" and self.treatment == PREPARED), must
        must = (
            "scores_epsilon must be used without noise='paper', which spends all of epsilon; use noise='step'"
        )
        yield not (self.scores and noise == "paper"), must
        labels = [terms.label for terms in self.queries]
        fit = all(re.fullmatch("[a-z-]+( [0-9]{1,4})?", label) for label in labels)
        must = f"queries must have names, each once and {_MOST_QUERIES} at most, got {labels[:5]!a}"
        yield fit and len(set(labels)) == len(labels) <= _MOST_QUERIES, must
        shares = [terms.share * terms.times for terms in self.queries]
        must = f"the shares of all queries must be positive and add up to 1 at most, got {shares[:5]}"
        yield all(share > 0 for share in shares) and math.fsum(shares) <= 1 + 2.0**-50, must
        must = f"aggregation='secure' must be used with noise='covariance', got noise={noise!r}"
        yield not self.is_secure or noise in ("covariance", "clipped"), must
        must = "identities must have different names and keys, got one twice"
        yield len(dict(self.identities)) == len(keys) == len(set(keys)), must
        must = (
            "a secure sum must have the public key of every silo, which `fedpower node key` prints, got none"
        )
        yield not self.is_secure or bool(keys), must
        must = "an identity must be 64 lower-case hexadecimal digits, as `fedpower node key` prints them"
        yield all(re.fullmatch("[0-9a-f]{64}", key) for key in keys), must
        must = (
            f"a secure sum must have more silos than the {self.colluders} that may collude, got "
            f"{self.min_silos} of {len(keys)}; add silos, declare fewer colluders or change min_silos"
        )
        yield not self.is_secure or 1 <= self.colluders < self.min_silos <= len(keys), must
        yield self.attempts >= 1, f"attempts must be at least 1, got {self.attempts}"

    @property
    def is_private(self) -> bool:
        return self.noise != "none"

    @property
    def is_secure(self) -> bool:
        return self.aggregation == "secure"

    @property
    def noises_steps(self) -> bool:
        """Whether products of float64 are noised, one by one."""
        return self.noise in ("step", "paper")

    @property
    def counted_per_unit(self) -> int:
        """C where a person is the unit of privacy; 0 where a row is."""
        return self.rows_per_unit if self.unit else 0

    @property
    def layers(self) -> int:
        """The most layers of a silo's network where edges are protected: their number is not public."""
        return MOST_LAYERS if self.network == "edge" else 1

    @property
    def open_columns(self) -> NDArray[np.intp]:
        """The places of the columns that preparation finds a range for."""
        return np.flatnonzero([known is None for known in self.ranges])

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the terms; travels in every message."""
        return self._digest_of(field.name for field in fields(self))

    @functools.cached_property
    def moment_terms(self) -> str:
        """SHA-256 of what a noised moment depends on; studies that share it share the release."""
        agreed = ("agreement",) if self.preparation or self.scores else ()
        return self._digest_of(_MOMENT_TERMS + agreed)

    def _digest_of(self, names: Iterable[str]) -> str:
        terms = {name: getattr(self, name) for name in names}
        canonical = json.dumps(terms, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def ledger_name(self) -> str:
        """The name under which silos' ledgers record the releases of this study."""
        shared = self.noise == "covariance" and not self.is_secure
        return self.moment_terms if shared else self.digest

    @functools.cached_property
    def queries(self) -> tuple[QueryTerms, ...]:
        """Everything that is noised, in order; in an exact study only the counts of scores."""
        scores = (QueryTerms(SCORES, SCORE_CELLS, self.scores),) if self.scores else ()
        d, rest = self.n_features, 1.0 - math.fsum(self.preparation) - self.scores
        if self.noise == "covariance":
            stages = (
                QueryTerms(
                    kind, Stage(kind=kind, n_features=d, open_columns=self.open_columns).size, float(share)
                )
                for kind, share in zip(STAGES, self.preparation or (0.0,) * len(STAGES), strict=True)
                if share
            )
            return (*stages, QueryTerms(COVARIANCE, summary_size(d, with_mean=self.center), rest), *scores)
        if not self.noises_steps:
            return (*self.design, *scores)
        steps, size = self.n_steps or 1, d * self.iteration_rank + int(self.iteration_rank > 1)
        share = rest / (steps + int(self.center))
        mean = (QueryTerms(MEAN, d, share),) if self.center else ()
        return (*mean, QueryTerms(PRODUCT, size, share, steps), *scores)

    @functools.cached_property
    def budget(self) -> "Budget":
        """The price list of a private study."""
        assert self.is_private, "where nothing is noised nothing is paid for"
        return Budget(self)


_MOMENT_TERMS = (
    "columns", "n_features", "center", "treatment", "epsilon", "delta", "preparation", "ranges", "roster",
    "mean_weight", "rules", "groups", "unit", "rows_per_unit", "network", "edge_weight", "scores",
)  # fmt: skip


# --- what its queries cost -------------------------------------------------------------------------

_LARGEST_EPSILON = 60.0
"""A larger ε promises nothing, and e^ε times the sampler's 2⁻¹²⁰ would no longer be small."""

PANEL_ROWS = 128
_CENTRING = 10

MOST_ROWS = 64
"""So many rows a person may have on average where products are summed in float64 (`rows.units`)."""


class Price(NamedTuple):
    """What one release costs: its Gaussian-DP parameter, and its part of δ."""

    mu: float
    slack_delta: float

    @property
    def multiplier(self) -> float:
        return math.nextafter(1.0 / self.mu, math.inf)


class Budget:
    """The price list of a private study, the same for every silo and known to all."""

    def __init__(self, study: Study) -> None:
        epsilon, delta = study.epsilon, study.delta
        if not SMALLEST_EPSILON <= epsilon <= _LARGEST_EPSILON:
            raise InputError(
                f"epsilon must be from {SMALLEST_EPSILON:g} to {_LARGEST_EPSILON:g}, or inf for no privacy, "
                f"got {epsilon:g}"
            )
        self.study, self.queries = study, study.queries
        self._known = study.colluders if study.is_secure else None
        self.size = sum(terms.size * terms.times for terms in self.queries)
        self.distance = self.size * (1 + len(study.identities)) * TV_PER_INTEGER
        self.slack_delta = delta_with_distance(0.0, epsilon, self.distance)
        """The part of δ that pays for how far all releases together are from the ideal ones."""
        self.left_delta = delta - self.slack_delta
        if delta > 0 >= self.left_delta:
            raise InputError(
                f"delta must exceed {self.slack_delta:.1g} for this many numbers at "
                f"epsilon={epsilon:g}, got {delta:g}"
            )
        self.total_mu = mu_of(epsilon, self.left_delta)
        if study.noise == "paper":  # the noise of [FP Thm 2], as the share that its products really cost
            rank, steps = study.iteration_rank, study.n_steps or 1
            printed = noise_multiplier("paper", epsilon=epsilon, delta=delta, n_steps=steps)
            printed *= moved_by_row("paper", rank) / moved_by_row("product", rank)
            share = (printed * self.total_mu) ** -2
            self.queries = tuple(
                terms._replace(share=share) if terms.label == PRODUCT else terms for terms in self.queries
            )
        self.study_mu = self.mu(*(terms.label for terms in self.queries))

    def share(self, *labels: str) -> float:
        """Return the share of μ² that queries of these labels have together."""
        return math.fsum(terms.share * terms.times for terms in self.queries if terms.label in labels)

    def mu(self, *labels: str) -> float:
        """Return what all queries of these labels cost together."""
        return self.total_mu * math.sqrt(self.share(*labels))

    def price(self, label: str) -> Price:
        """Return what one release costs: its share of μ², and of the slack by its length."""
        terms = next(terms for terms in self.queries if terms.label == label)
        # Shares add up to 1 but for rounding, which is taken off.
        mu = self.total_mu * math.sqrt(terms.share) * (1 - 2.0**-48)
        return Price(mu, self.slack_delta * (terms.size / self.size))

    def noise(self, label: str, sensitivity: Sensitivity, sizes: tuple[int, ...]) -> Noise:
        """Return what a silo adds to the answer to a query, in a sum over silos of these sizes."""
        return noise_for(sensitivity, self.price(label).multiplier, sizes, self._known)

    def moment_noise(self, sizes: tuple[int, ...], *, by_itself: bool = False) -> Noise:
        """Return what a silo adds to its moment, or would add if it were all that the study asks for."""
        study = self.study
        price = self.price(COVARIANCE) if self.share(COVARIANCE) else Price(self.total_mu, 0.0)
        weight = study.mean_weight if study.center else 0.0
        how = {"per_unit": study.counted_per_unit, "layers": study.layers}
        change = of_moment(study.n_features, mean_weight=weight, **how)
        return noise_for(change, price.multiplier, sizes, None if by_itself else self._known)

    @property
    def with_trace(self) -> bool:
        return not self.study.noises_steps or self.study.iteration_rank > 1

    def step_sensitivity(
        self, n_rows: int, center_norm: float = 0.0, width: int | None = None
    ) -> Sensitivity:
        """Return that of a noised step with its trace and its rounding; of the mean row at width 0."""
        study, rank = self.study, self.study.iteration_rank
        d, per_unit = study.n_features, study.counted_per_unit
        size, columns, change = d, 1, moved_by_row("mean")
        if width != 0:
            size, columns = d * (width or rank) + int(self.with_trace), rank + 1
            change = moved_by_row("product", rank)
        added = n_rows * (MOST_ROWS if per_unit else 1)
        slack = rounding_slack(
            added, d, iteration_rank=columns, longest_sum=_CENTRING * longest_sum(added, d)
        )
        longest = (1.0 + center_norm) ** 2
        bound = (change / n_rows * max(1, per_unit) + slack) * longest
        return of_reals(bound, size, largest=2.0 * longest, n_rows=n_rows)

    def std(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the noise of what a silo of so many rows noises by itself, in units of the bound."""
        if self.study.noises_steps:
            return self.noise(PRODUCT, self.step_sensitivity(n_rows, center_norm), (n_rows,)).stds[0]
        return self.moment_noise((n_rows,), by_itself=True).stds[0] / (n_rows * float(SIDE) ** 2)


def longest_sum(n_rows: int, n_features: int) -> int:
    """Return L, through how many additions a term of a product or of a mean of s rows passes."""
    if n_rows <= FREE_ORDER_ROWS:
        return n_rows
    panel = max(1, min(PANEL_ROWS, 2**23 // n_features))
    return FREE_ORDER_ROWS + -(-(n_rows - FREE_ORDER_ROWS) // panel)


# --- the noise of a pooled release -----------------------------------------------------------------


class NoiseLaw(NamedTuple):
    """What is known of the noise of a pooled release."""

    once: bool
    std: float
    mean_std: float = 0.0


NOISE_SHARE = 0.01
"""Iterating stops at this share of the least error that the noise can leave."""


def masses(sizes: Mapping[str, int], weights: Weights = "rows") -> dict[str, int]:
    """Return by silo the whole number that its weight is proportional to: s_i, or s_i²."""
    return {name: size if weights == "rows" else size**2 for name, size in sizes.items()}


def _pooled(study: Study, sizes: Mapping[str, int], std_of: Callable[[int], float]) -> float:
    """Return √(Σ w_i²τ_i²) where each silo noises what it sends by itself."""
    mass = masses(sizes, study.weights)
    total = sum(mass.values())
    return math.hypot(*(mass[name] / total * std_of(sizes[name]) for name in sizes))


def pooled_std(study: Study, sizes: Mapping[str, int]) -> float:
    """Return the noise of the weighted sum of the silos' releases; 0 without noise."""
    if not study.is_private:
        return 0.0
    if not study.is_secure:
        return _pooled(study, sizes, study.budget.std)
    rows = tuple(sizes.values())
    return study.budget.moment_noise(rows).stds[0] / (sum(rows) * float(SIDE) ** 2)


def noise_law(study: Study, sizes: Mapping[str, int], center_norm: float = 0.0) -> NoiseLaw | None:
    """Return the law of the pooled noise of silos of ``sizes`` rows, about a centre of that norm."""
    if not study.is_private:
        return None
    budget, std = study.budget, pooled_std(study, sizes)
    if not study.noises_steps:
        return NoiseLaw(once=True, std=std)

    def mean_std(n: int) -> float:
        return budget.noise(MEAN, budget.step_sensitivity(n, width=0), (n,)).stds[0] if study.center else 0.0

    std *= (1.0 + center_norm) ** 2
    return NoiseLaw(once=False, std=std, mean_std=_pooled(study, sizes, mean_std))


_WORTH = 0.9
"""Silos are named as costly where without them the pooled noise is below this share of what it is."""


def costly_sentence(study: Study, sizes: Mapping[str, int], thing: str = "row") -> str | None:
    """Return what to do about silos whose noise costs more than their rows bring; None without any."""
    if not study.is_private or study.is_secure:
        return None
    left = dict(sizes)
    for name in sorted(sizes, key=lambda name: sizes[name])[:-1]:
        without = {other: size for other, size in left.items() if other != name}
        if pooled_std(study, without) >= pooled_std(study, left):
            break
        left = without
    share = pooled_std(study, left) / pooled_std(study, sizes)
    costly = [name for name in sizes if name not in left]
    if not costly or share >= _WORTH:
        return None
    shown = ", ".join(f"{name} ({sizes[name]:,} {thing}s)" for name in costly[:5])
    more = f" and {len(costly) - 5} more" if len(costly) > 5 else ""
    return (
        f"each silo adds equal noise. Without {shown}{more} the noise would be {1 - share:.0%} lower: use "
        f"aggregation='secure' or weights='noise', or leave {costly[0] if len(costly) == 1 else 'them'} out"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverChoice:
    """A solver and the reason for it, in one sentence."""

    solver: str
    reason: str


def sums_moment(study: Study) -> bool:
    """Return whether a silo sums its moment in whole numbers: what is noised, or a part of it."""
    return study.is_private and any(terms.label == COVARIANCE for terms in study.queries)


def worst_epsilon(study: Study, delta: float | None = None) -> float:
    """Return the most that a study can spend of one silo's rows: all attempts at a secure sum counted.

    It holds at the study's δ or another one, against the agreed colluders.
    """
    delta = study.delta if delta is None else delta
    if not study.is_private or (study.attempts == 1 and delta == study.delta):
        return study.epsilon
    mu = study.budget.total_mu * math.sqrt(study.attempts)
    return epsilon_within(mu, delta, study.attempts * study.budget.distance)


def epsilon_within(mu: float, delta: float, distance: float) -> float:
    """Return ε at δ of what is within total variation ``distance`` of a μ-GDP release."""
    slack = delta_with_distance(0.0, epsilon_of(mu, delta / 2), distance)
    return epsilon_of(mu, delta - slack) if slack < delta / 2 else math.inf
