"""Schedules: the steps at which a round happens [FP eqs. 3.1, 3.11]."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Literal

from fedpower.exceptions import InputError

Decay = Literal["every", "decaying", "halving"]
"""How the number of steps between rounds changes: not at all [FP eq. 3.1], by one less each time
[FP eq. 3.11], or by half [LocalPower §3]."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The increasing steps t ≥ 1 of communication; one explicit step is one-shot divide and conquer."""

    local_steps: int = 1
    decay: Decay = "every"
    explicit: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.explicit is not None:
            steps = self.explicit
            if not steps or min(steps) < 1 or list(steps) != sorted(set(steps)):
                raise InputError(f"an explicit schedule must be increasing steps from 1, got {list(steps)}")
        elif self.local_steps < 1:
            raise InputError(f"local_steps must be at least 1, got {self.local_steps}")

    def steps(self) -> Iterable[int]:
        """Return the steps of all rounds in order; endless unless explicit."""
        p = self.local_steps
        intervals = {
            "every": lambda i: p,
            "decaying": lambda i: max(p - i, 1),
            "halving": lambda i: max(p >> i, 1),
        }
        return self.explicit or accumulate(map(intervals[self.decay], count()))
