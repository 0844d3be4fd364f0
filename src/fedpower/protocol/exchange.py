"""One round as a solver sees it: what it asks, whom, and what came back."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from fedpower.protocol.messages import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question a solver puts to silos.

    Attributes
    ----------
    body
        The question, the same for every silo.
    silos
        Whom to ask; None asks all.
    enough
        Close the round as soon as so many answered [FP §3.3, the first K]; None waits for all asked.
    step
        The step t that the answers bring the iteration to.
    """

    body: Question
    silos: tuple[str, ...] | None = None
    enough: int | None = None
    step: int = 0


@dataclass(slots=True, kw_only=True)
class Round:
    """The record of one closed exchange.

    Attributes
    ----------
    local_steps
        Steps that each silo took by itself for its answer.
    question
        Digest of what was asked.
    answers
        What each silo answered, in the order of the study's silos (not of arrival), so that sums do
        not depend on timing.
    refused
        Silos that refused, with their sentence.
    set_aside
        Silos that sent what is no answer and did not answer afterwards, with what was wrong with it.
    notes
        What the solver measured about this round (change of the subspace, misalignment).
    """

    number: int
    kind: str
    step: int
    asked: tuple[str, ...]
    question: str = ""
    local_steps: int = 1
    answers: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    set_aside: dict[str, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    notes: dict[str, float] = field(default_factory=dict)

    def as_row(self) -> dict[str, Any]:
        """Return the round as a flat row for ``history_``."""
        return {
            "round": self.number,
            "kind": self.kind,
            "step": self.step,
            "local_steps": self.local_steps,
            "participants": tuple(self.answers),
            "n_participants": len(self.answers),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "change": self.notes.get("change", float("nan")),
            "misalignment": self.notes.get("misalignment", float("nan")),
        }


Exchange = Generator[Ask, Round, Any]
"""A solver or a part of one: yields questions, is sent closed rounds, returns its outcome."""
