"""One round as a solver sees it: what it asks, whom, and what came back."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from fedpower.protocol.messages import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question a solver puts to silos."""

    body: Question
    silos: tuple[str, ...] | None = None
    enough: int | None = None
    step: int = 0


@dataclass(slots=True, kw_only=True)
class Round:
    """The record of one closed exchange."""

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
