"""A result as its reader sees it: judgment, captions, findings, and the likely cause of finding nothing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpower.exceptions import InputError
from fedpower.linalg import Array
from fedpower.options import Secure
from fedpower.privacy.ledger import rounded_down
from fedpower.privacy.statement import EDGE, PERSON, PrivacyStatement
from fedpower.protocol.solvers.angles import CONFIDENCE, DETERMINED
from fedpower.protocol.solvers.shared import POOLED, ScoreRecord
from fedpower.protocol.study import pooled_std
from fedpower.report import text
from fedpower.report.text import and_more, degrees, equals, listed
from fedpower.rules.codebook import UNSETTLED

if TYPE_CHECKING:
    from fedpower.report.result import Result

_FALSE = 0.05  # the chance that noise alone shows any bin of a grid as one that holds rows
_LITTLE = 0.1  # a bound is far too large where rows use less than this share of its square
_FAR = 10.0  # rows are far from zero where their mean's square is so many times their variance
_ENOUGH_ROWS = 1000  # per column: from there on, at ε = 1 or more, the number of rows is not the cause
_SMALL_EPSILON = 0.5
_WEAK, _VERY_WEAK = 4.0, 10.0  # the ε from which docs/officer/how-private.md calls protection so
_MUCH_CUT = 0.1  # from which share of the variance on clipping is a reason for care
_MOST_NAMED = 6  # columns in the caption of a component


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreHistogram:
    """How many rows are in each bin of a grid over their scores on the first two components.

    Attributes
    ----------
    edges
        Where bins meet, a row for each component. The outermost bins take what is beyond.
    counts
        By silo, or under ``"all silos"`` where their sum is all that was released: B×B numbers, pc1 by
        row and pc2 by column. They are noised, so some are negative; ``fractions`` explains why some are
        not whole numbers. Persons count by their weights.
    noise_std
        Standard deviation of the noise in each of them; 0 where they are exact.
    """

    edges: Array
    counts: Mapping[str, Array]
    noise_std: float

    @classmethod
    def of(cls, record: ScoreRecord) -> "ScoreHistogram":
        counts = {name: np.array(grid, dtype=np.float64) for name, grid in record.counts.items()}
        bins = len(next(iter(counts.values())))
        edges = np.array([np.linspace(-reach, reach, bins + 1) for reach in record.reach])
        return cls(edges=edges, counts=counts, noise_std=record.noise_std)

    @property
    def pooled(self) -> Array:
        """The counts of all silos together; their noise is that of one times the root of their number."""
        return np.asarray(np.sum(list(self.counts.values()), axis=0))

    def together(self) -> "ScoreHistogram":
        """Return the counts of all silos together, as one."""
        std = self.noise_std * math.sqrt(len(self.counts))
        return replace(self, counts={POOLED: self.pooled}, noise_std=std)

    @property
    def clear(self) -> float:
        """The least count that shows rows: noise alone reaches it anywhere in 5% of such pictures."""
        if self.noise_std == 0:
            return 0.5
        return -self.noise_std * NormalDist().inv_cdf(_FALSE / (self.edges.shape[1] - 1) ** 2)

    @property
    def fractions(self) -> str | None:
        """Why counts are not whole numbers of rows, in a sentence; None where they are."""
        if all(np.array_equal(grid, np.rint(grid)) for grid in self.counts.values()):
            return None
        if POOLED in self.counts and self.noise_std > 0:
            return "Counts are fractions: each silo adds its share of the noise in steps finer than a row."
        return "Counts are fractions: all rows of a person count for one together."

    def cells(self, silo: str) -> Iterator[tuple[float, float, float, float, float]]:
        """Yield each bin of a silo's grid: its ends on pc1, its ends on pc2, and the count."""
        bins = product(*map(pairwise, self.edges.tolist()))
        for (first, second), count in zip(bins, self.counts[silo].ravel().tolist(), strict=True):
            yield *first, *second, count


def judgment(fit: "Result") -> tuple[str, str]:
    """Return whether a result can be used (good), with care (care) or not (bad), and why, the worst first."""
    record, promise, known = fit.record, fit.privacy, np.array(fit.determined)
    names, rest = (component_names(np.flatnonzero(places).tolist()) for places in (known, ~known))
    together = component_names(range(fit.n_determined))
    spent = float(f"{promise.spent:.4g}") if promise.is_private else math.inf  # 3.99999… of ε = 4 is 4
    strength, cut = equals("ε", spent), 0.0 if record.clipping is None else record.clipping.energy
    reasons = (
        ("bad", not (known.any() or together), "No component is determined; do not interpret them."),
        ("bad", not promise.is_private, f"Not private: {promise.leak or 'exact numbers left every silo'}."),
        ("bad", _VERY_WEAK < spent < math.inf, f"{strength} is almost no protection."),
        ("care", known.any() and not known.all(), f"Determined: {names}. Do not interpret {rest}."),
        ("care", together and not known.any(), f"Only together are {together} determined."),
        ("care", _WEAK <= spent <= _VERY_WEAK, f"{strength} is weak protection."),
        ("care", cut >= _MUCH_CUT, f"Clipping removed about {cut:.0%} of the variance."),
        ("care", record.absent, f"The rows of {listed(and_more(record.absent))} are missing."),
        ("care", record.remarks, f"{text.count(len(record.remarks), 'warning')} below."),
        ("good", known.all(), f"{names} {'is' if len(known) == 1 else 'are'} determined."),
        ("good", spent < _WEAK, f"Every {protected_as(promise)} is protected at {strength}."),
    )
    held = [(level, reason) for level, holds, reason in reasons if holds]
    return held[0][0], " ".join(reason for _, reason in held)


def protected_as(promise: PrivacyStatement) -> str:
    return {PERSON: "person", EDGE: "edge"}.get(promise.unit, "row")


def caption(fit: "Result", place: int) -> tuple[list[str], list[str], int] | None:
    """Return the columns with the largest loadings, up and down, and how many more have half the largest.

    None where the component is not determined. Loadings that noise alone could make are left out: its
    angle spreads over all columns.
    """
    if not fit.determined[place]:
        return None
    loadings, angle = fit.components[place], math.radians(fit.component_angles[place])
    sizes = np.abs(loadings)
    least = max(float(sizes.max()) / 2.0, 2.0 * math.sin(angle) / math.sqrt(max(fit.n_features - 1, 1)))
    order = [column for column in np.argsort(-sizes, kind="stable").tolist() if sizes[column] >= least]
    shown, names = order[:_MOST_NAMED], fit.names
    up, down = ([names[column] for column in shown if sign * loadings[column] > 0] for sign in (1, -1))
    return up, down, len(order) - len(shown)


def findings(fit: "Result", *, judged: bool = False) -> list[str]:
    """Return which components are determined, which only together, and what limits them.

    Where ``judged``, without what the judgment says: which are determined, and which are not.
    """
    exact, angles, clipping = fit.record.privacy.mode == "none", fit.angles, fit.record.clipping
    angles_of = fit.component_angles, fit.subspace_angles, fit.n_features
    sentences = angle_sentences(*angles_of, exact=exact, judged=judged and not exact)
    if not exact and clipping is not None and any(fit.determined):
        place = fit.determined.index(True)
        whole, noise = degrees(angles.components[place]), degrees(angles.noise_components[place])
        share = f"about {clipping.energy:.0%}" if clipping.energy >= 0.01 else "less than 1%"
        part, rest = (
            ("", "adds less than 1°") if noise == whole else (f"{noise} of ", "accounts for the rest")
        )
        cut = f"clipping, which removed {share} of the variance, {rest}"
        sentences.append(f"Noise accounts for {part}the {whole} of pc{place + 1}; {cut}.")
    cause = cause_of_noise(fit)
    return sentences if cause is None else [*sentences, f"{cause[0].upper()}{cause[1:]}."]


def angle_sentences(
    components: Array, subspaces: Array, n_features: int, *, exact: bool, judged: bool = False
) -> list[str]:
    """Return which components are determined, and which only together; if exact, only the latter."""
    # All columns together span everything, whatever the rows are.
    joint = np.where(np.arange(1, len(subspaces) + 1) < n_features, subspaces, 90.0) <= DETERMINED
    determined = components <= DETERMINED
    sentences = []
    if not exact:
        places, confidence = np.flatnonzero(determined).tolist(), f"at {CONFIDENCE:.0%} confidence"
        verb, subject = ("is", "it") if len(places) == 1 else ("are", "each")
        within = f"{subject} is within 45° of the exact component, {confidence}."
        some = f"{component_names(places)} {verb} determined: {within}"
        none = f"No component is determined: each may be more than 45° from the exact one, {confidence}."
        sentences += [] if judged else [some if places else none]
        if not joint.any():
            return sentences
    for fixed, run in groupby(range(len(components)), lambda place: bool(determined[place])):
        places = list(run)
        last = max((place for place in places if joint[place]), default=-1)
        group = [place for place in places if place <= last]
        rest = [place for place in places if place > last]
        if group and not fixed:
            one = len(group) == 1
            verb = "is not determined on its own" if one else "cannot be distinguished"
            before = f" with {component_names(range(group[0]))}" if group[0] else ""
            sentences.append(
                f"{component_names(group)} {verb}; together{before} {'it is' if one else 'they are'} within "
                f"{degrees(subspaces[last])}."
            )
        if rest and not fixed and not judged:
            why = ": no variance, or the same variance as another" if exact else ""
            verb = "is" if len(rest) == 1 else "are"
            sentences.append(f"{component_names(rest)} {verb} not determined{why}.")
    return sentences


def component_names(places: Sequence[int]) -> str:
    """Return the names of components at places from 0: pc1, pc2 and pc4 to pc9; of many the first."""
    words: list[str] = []
    for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
        names = [f"pc{place + 1}" for _, place in run]
        words += names if len(names) < 4 else [f"{names[0]} to {names[-1]}"]
    return listed(and_more(words))


def unused_columns(fit: "Result") -> str:
    """Return which columns were not used, and why."""
    return listed(and_more([f"{name} ({why})" for name, why in fit.record.unused.items()]))


def rough_columns(fit: "Result") -> list[str]:
    """Return the columns whose spread is hidden by noise, so that their scale is a rough estimate."""
    found = () if fit.record.book is None else fit.record.book.found
    return [name for name, how in zip(fit.names, found, strict=False) if how.endswith(UNSETTLED)]


def cause_of_noise(fit: "Result") -> str | None:
    """Return why nothing is determined and what would help; None where something is."""
    record = fit.record
    if not record.privacy.is_private or fit.has_directions:
        return None
    flat = rough_columns(fit)
    if 2 * len(flat) > fit.n_features:
        few = f"the spread of {len(flat):,} of {text.count(fit.n_features, 'column')} is below the noise"
        advice = f"add {record.counted}s, drop constant columns, or set narrower ranges"
        return f"the likely cause is the columns: {few}; {advice}"
    bound, epsilon = record.parameters.get("row_norm"), float(record.parameters["epsilon"])
    if bound is not None and (cause := _cause_in_the_bound(fit, bound)) is not None:
        return cause
    rows, columns, things = fit.n_samples, fit.n_features, f"{record.counted}s"
    smaller = "" if bound is None else ", or a smaller bound"
    if epsilon < _SMALL_EPSILON and rows >= _ENOUGH_ROWS * columns * epsilon:
        return f"the likely cause is ε = {epsilon:g}, which is small; use a larger epsilon{smaller}"
    if rows * min(epsilon, 1.0) < _ENOUGH_ROWS * columns:
        few = f"the number of {things}, {rows:,}, which is small for {columns} columns at ε = {epsilon:g}"
        advice = f"add {things}, drop columns, or use a larger epsilon{smaller}"
        return f"the likely cause is {few}; {advice}"
    advice = "set ranges or public scales, or drop columns"
    return f"the likely cause is the columns: no direction stands out, or a few have large units; {advice}"


def _cause_in_the_bound(fit: "Result", bound: float) -> str | None:
    given = fit.record.parameters.get("scale")
    scale: Any = 1.0 if given is None else np.asarray(given, dtype=np.float64)
    unit = 1.0  # of a variance, in those of the bounded rows: of standardised columns, on average
    if fit.record.standardized and fit.scale is not None:
        unit = float(np.mean((fit.scale / scale) ** 2))
    first, share = float(fit.explained_variance[0]), float(fit.explained_variance_ratio[0])
    spread = unit * first / share if share > 0 else 0.0
    middle = float(np.sum(((fit.mean - (0.0 if fit.center is None else fit.center)) / scale) ** 2))
    edge = unit * first  # of noise, or nearly
    used = spread + middle + edge
    if used < _LITTLE * bound**2:
        squares = (
            f"noise is scaled to a squared norm of {bound**2:.2g}, but rows have about {used:.2g} at most"
        )
        return f"the likely cause is the bound: {squares}; try row_norm={2.0 * math.sqrt(used):.2g}"
    if middle > _FAR * max(spread, edge):
        advice = "give public centres, or omit row_norm so that they are found"
        return f"the likely cause is the offset: the mean is far from zero for the spread; {advice}"
    return None


# --- in a few lines ---------------------------------------------------------------------------------

_SECURE_FROM, _NOISY = 3, 10.0  # silos, and degrees by which noise turns a component
WORTH = 1.2  # a hint is worth so many times less noise


def less_noise(fit: "Result") -> float:
    """Return how many times less noise a secure sum of the same silos has, where noise is what limits."""
    study, sizes = fit.study, fit.silo_sizes
    least = len(sizes) if study.is_private and not study.is_secure else 0
    if least < _SECURE_FROM or study.noises_steps or max(fit.angles.noise_components) < _NOISY:
        return 1.0
    keys = tuple((name, f"{place:064x}") for place, name in enumerate(sizes))
    secure: dict[str, Any] = {
        "aggregation": Secure.name,
        "colluders": 1,
        "min_silos": least,
        "identities": keys,
    }
    with suppress(InputError, ValueError):
        return pooled_std(study, sizes) / pooled_std(replace(study, **secure), sizes)
    return 1.0


def known_to_within(fit: "Result") -> Iterator[str]:
    """Yield how far each component may be off; or a subspace where only that is determined."""
    joint = [place for place in range(fit.n_features - 1) if place < fit.n_components]
    joint = [place for place in joint if fit.subspace_angles[place] <= DETERMINED]
    for place, angle in enumerate(fit.component_angles):
        last = next((end for end in joint if end >= place), None)
        if angle <= DETERMINED:
            yield degrees(angle)
        elif last:
            yield f"pc1 to pc{last + 1} together {degrees(fit.subspace_angles[last])}"
        else:
            yield "not determined"


def ledgers_left(fit: "Result") -> str:
    """Return what the ledgers have left, of a fit by command, whose record knows them."""
    budgets = {silo.name: silo.budget for silo in fit.record.silos}
    left = {name: budget.left for name, budget in budgets.items() if budget is not None}
    if left:
        least = min(left, key=left.__getitem__)
        whose = f" in {least}, the least" if max(left.values()) > left[least] else ""
        return f" Ledgers: ε = {rounded_down(left[least], 3)} left{whose}."
    by_command = fit.record.command is not None and fit.record.federation is None
    return " No ledger recorded it (see --ledger)." if by_command else ""
