"""Who takes part in a round, and with what weight [FP §3.2]."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedpower.errors import InputError

Participation = Literal["sampled", "first"]


@dataclass(slots=True, kw_only=True)
class Turnout:
    """Draws the silos of each round and weighs their answers.

    Three protocols. Everyone: ``n_participants`` None, weights s_i/n [FP Alg. 2]. ``sampled``: K draws
    with replacement, each silo with probability s_i/n, every draw weighing 1/K, so that the partial
    average equals the full one in expectation [FP Alg. 3]. ``first``: everyone is asked, the round
    closes with the first K answers, weights s_i over those who answered [FP §2.3].

    Deviation: the paper samples uniformly because its silos have equal sizes; with unequal ones the
    probabilities s_i/n keep the expectation right, and equal sizes give the paper's scheme back.
    """

    sizes: dict[str, int]
    rng: np.random.Generator
    n_participants: int | None = None
    participation: Participation = "sampled"
    drawn: tuple[str, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.n_participants is not None and not 1 <= self.n_participants <= len(self.sizes):
            raise InputError(
                f"n_participants must lie between 1 and the {len(self.sizes)} silos, "
                f"got {self.n_participants}; choose a number in between"
            )

    @property
    def enough(self) -> int | None:
        """How many answers close a round early; None waits for everyone who was asked."""
        return self.n_participants if self.participation == "first" else None

    def draw(self, always: str | None) -> tuple[str, ...] | None:
        """Return whom to ask in a new round; ``always`` is asked whether drawn or not."""
        if self.n_participants is None or self.participation == "first":
            return self.asked(always)
        names = list(self.sizes)
        probabilities = np.array([self.sizes[name] for name in names], dtype=np.float64)
        picks = self.rng.choice(
            len(names), size=self.n_participants, p=probabilities / probabilities.sum()
        )
        self.drawn = tuple(names[pick] for pick in picks)
        return self.asked(always)

    def asked(self, always: str | None) -> tuple[str, ...]:
        """Return the silos of the last draw and ``always``, in the order of the study."""
        if self.drawn is None:
            return tuple(self.sizes)
        wanted = {*self.drawn, *((always,) if always else ())}
        return tuple(name for name in self.sizes if name in wanted)

    def weights(self, answered: Iterable[str]) -> dict[str, float]:
        """Return the weight of each silo that answered; they add up to one."""
        names = list(answered)
        if self.drawn is None:
            raw = {name: float(self.sizes[name]) for name in names}
        else:
            raw = {name: float(self.drawn.count(name)) for name in names}
        if not any(raw.values()):  # only the reference answered, and it was not drawn
            raw = dict.fromkeys(names, 1.0)
        total = sum(raw.values())
        return {name: value / total for name, value in raw.items()}
