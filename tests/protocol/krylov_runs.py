"""Silos that differ, and a network in a test's hand that is late or loses some of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpower.linalg import orth
from fedpower.protocol import coordinator as driving
from fedpower.protocol.coordinator import Asking, Coordinator
from fedpower.protocol.messages import Message
from fedpower.protocol.silo import Silo
from fedpower.protocol.solvers import KrylovSettings, Solution
from problems import Array
from runs import make_coordinator, make_silos

D = 30


def rotated(seed: int, n_silos: int = 5, n_rows: int = 80, d: int = D) -> list[Array]:
    """Return silos whose rows have different leading directions: local steps are biased here."""
    rng = np.random.default_rng(seed)
    scales = 1.0 / np.arange(1, d + 1) ** 0.7
    turns = [orth(np.eye(d) + 0.15 * rng.standard_normal((d, d))) for _ in range(n_silos)]
    return [rng.standard_normal((n_rows, d)) * scales @ turn for turn in turns]


def pooled(parts: Sequence[Array], center: bool = False) -> Array:
    rows = np.vstack(parts)
    rows = rows - rows.mean(axis=0) if center else rows
    return rows.T @ rows / len(rows)


def leading(matrix: Array, rank: int) -> Array:
    return np.linalg.eigh(matrix)[1][:, ::-1][:, :rank]


def run(
    parts: Sequence[Array],
    *,
    rank: int | float = 3,
    width: int = 4,
    seed: int = 0,
    center: bool = False,
    late: bool = False,
    dead_from: dict[str, int] | None = None,
    min_silos: int | None = None,
    **options: Any,
) -> tuple[Solution, Coordinator]:
    """Return the solution; ``late`` shuffles arrivals, ``dead_from`` silences silos from a round on."""
    silos = make_silos(parts, parts[0].shape[1] if isinstance(rank, float) else width, center=center)
    settings = KrylovSettings(study=silos["silo-0"].study, rank=rank, **options)
    return drive(settings, silos, seed=seed, late=late, dead_from=dead_from, min_silos=min_silos)


def drive(
    settings: Any,
    silos: dict[str, Silo],
    *,
    seed: int = 0,
    late: bool = False,
    dead_from: dict[str, int] | None = None,
    min_silos: int | None = None,
) -> tuple[Solution, Coordinator]:
    coordinator = make_coordinator(silos, settings, rng=np.random.default_rng(seed), min_silos=min_silos)
    order, dead = np.random.default_rng(seed + 1), dead_from or {}

    def ask(questions: tuple[Message, ...]) -> Asking:
        places = order.permutation(len(questions)) if late else range(len(questions))
        for question in (questions[place] for place in places):
            if question.round < dead.get(question.silo, 10_000):
                yield silos[question.silo].answer(question)

    driving.drive(coordinator, ask)
    return coordinator.outcome, coordinator


def n_rounds(coordinator: Coordinator) -> int:
    return sum(each.kind == "steps" for each in coordinator.history)
