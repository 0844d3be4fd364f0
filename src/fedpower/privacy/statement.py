"""The privacy statement that goes with every result, in words a data officer reads."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

ROW, PERSON, EDGE = "one row of one silo", "one person of one silo", "one edge of one layer of one silo"
"""Units of privacy."""

_KEPT = "each silo runs unmodified fedpower and keeps its rows, its ledger and its noise secret"
_BOUNDED = "a public rule bounds every row before anything is computed from it"


def whom(*, network: str = "", person: str = "", rows_per_unit: int = 1) -> dict[str, Any]:
    """Return the unit of privacy, what neighbouring data sets are, and what the promise assumes.

    ``network`` is ``edge`` or ``row`` where a network is summed; ``person`` the column of persons.
    """
    unit, kept, bounded = ROW, _KEPT, _BOUNDED
    neighbours = "data sets that differ in the content of one row (replace-one); row counts are public"
    counted = "each row is protected on its own; a person with several rows is not protected as a whole"
    if network:
        kept = kept.replace("its rows", "its network")
        counted = "each row of an adjacency matrix is protected on its own; a node with several rows is not"
    if network == "edge":
        unit = EDGE
        neighbours = (
            "networks on the same public nodes that differ in one edge of one layer: in its weight, or in "
            "whether it exists"
        )
        counted = (
            "all that joins two nodes in a layer is one edge, and each edge is protected on its own; a node "
            "with many edges is not protected as a whole"
        )
        bounded = "edge weights are capped at a public maximum before anything is computed from them"
    elif person:
        unit = PERSON
        neighbours = "data sets that differ in the rows of one person: "
        neighbours += (
            "in their content and their number; the number of persons is public"
            if rows_per_unit == 1
            else f"in their content, of {rows_per_unit} rows at most; the number of rows used is public"
        )
        counted = (
            f"the column {person!r} identifies the person of each row; a person with two ids counts as two"
        )
    return {"unit": unit, "neighbours": neighbours, "assumptions": (kept, counted, bounded)}


ALL_NOT_PRIVATE = (
    "NOT PRIVATE (ε = ∞): exact numbers left every silo. Anyone who reads the messages or the "
    "result can learn about single rows"
)
"""How the statement of an exact fit begins."""


EXACT_SCORES = (
    "the counts of rows by score are exact and NOT differentially private: a count of 1 shows one row"
)
"""A note of the statement of an exact fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What one observer can learn at most: (ε, δ) and the Gaussian-DP μ it comes from."""

    observer: str
    sees: str
    epsilon: float
    delta: float
    mu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyStatement:
    """What a result promises about the rows behind it.

    Attributes
    ----------
    mode
        What was noised; ``none`` promises nothing.
    asked_epsilon, delta
        What the study asked for.
    protections
        One per observer.
    public
        What anyone may know.
    leak
        What was read from the rows without noise, which voids the promise; None where nothing was.
    notes
        What else the reader must know.
    assumptions
        What the promise depends on.
    unit, neighbours
        What is protected, and which data sets are hard to distinguish.
    """

    mode: str
    asked_epsilon: float
    delta: float
    protections: tuple[Protection, ...]
    public: tuple[str, ...]
    assumptions: tuple[str, ...]
    unit: str
    neighbours: str
    leak: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_private(self) -> bool:
        return self.mode != "none" and self.leak is None

    @property
    def spent(self) -> float:
        """The largest ε, that of the observer who sees most; infinite where nothing is promised."""
        return max((row.epsilon for row in self.protections), default=math.inf)

    def as_dict(self) -> dict[str, Any]:
        """Return the statement by name, and whether it promises anything."""
        return {"private": self.is_private, **asdict(self)}

    @property
    def brief(self) -> str:
        """The promise in one sentence: ε and δ, of whom, against whom."""
        if self.leak is not None:
            return str(self)
        if not self.is_private:
            return "NOT PRIVATE (ε = ∞): exact numbers left every silo."
        worst = max(self.protections, key=lambda row: (float(f"{row.epsilon:.3g}"), _is_joint(row)))
        promise, thing = in_symbols(worst.epsilon, self.delta), self.unit.split()[1]
        observer, joined, others = worst.observer.partition(",")[0].partition(_JOINT)
        if joined:
            return f"Privacy: {promise} per {thing}, even if {observer} and {others} work together."
        return f"Privacy: {promise} per {thing}, against {observer} and the public."

    def __str__(self) -> str:
        if self.leak is not None:
            return (
                f"NOT PRIVATE although ε = {self.asked_epsilon:g} was requested: {self.leak}. "
                "Noise was added, but nothing is protected."
            )
        if not self.is_private:
            return "\n".join([f"{ALL_NOT_PRIVATE}.", *_listed("Notes", map(as_sentence, self.notes))])
        lines = [
            f"Private: {self.unit}.",
            f"Neighbours: {self.neighbours}.",
            f"Requested: ε = {self.asked_epsilon:g}, δ = {self.delta:g}, noise={self.mode!r}.",
        ]
        lines += [
            f"{as_sentence(row.observer)[:-1]} (sees {row.sees}): ε = {row.epsilon:.4g}, δ = {row.delta:g}."
            for row in self.protections
        ]
        lines += _listed("Public", self.public)
        lines += _listed("Notes", map(as_sentence, self.notes))
        lines += _listed("Assumptions", map(as_sentence, self.assumptions))
        return "\n".join(lines)


_JOINT = " together with "


def _is_joint(row: Protection) -> bool:
    return _JOINT in row.observer


def in_symbols(epsilon: float, delta: float) -> str:
    """Return ε = 1, δ = 1e-6."""
    return f"ε = {epsilon:.3g}, δ = {delta:.3g}".replace("e-0", "e-")


def as_sentence(clause: str) -> str:
    """Return a note or an assumption of a statement as a sentence."""
    return f"{clause[:1].upper()}{clause[1:]}."


def _listed(heading: str, entries: Iterable[str]) -> list[str]:
    lines = [f"- {entry}" for entry in entries]
    return [f"{heading}:", *lines] if lines else []


def counted_as(parameters: Mapping[str, Any]) -> str:
    """Return what the public numbers of a fit are numbers of: person, row or network."""
    if parameters.get("network") == "edge":
        return "network"
    by_person = parameters.get("unit") and (parameters.get("rows_per_unit") or 1) == 1
    return "person" if by_person else "row"


def featured_as(parameters: Mapping[str, Any]) -> str:
    """Return what a component has a weight for each of: column, or node of a network."""
    return "node" if parameters.get("network") else "column"
