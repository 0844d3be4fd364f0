"""A network in a test's hand: keeps every message, is late, or loses silos that differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import carriers
from fedpower.linalg import orth
from fedpower.options import Krylov, PowerMethod
from fedpower.protocol.coordinator import Arrived, Coordinator
from fedpower.protocol.messages import AskSteps, Message
from fedpower.protocol.silo import ExactReleases, Silo
from fedpower.protocol.solvers import Solution, SolverSettings, start
from fedpower.protocol.solvers.products import combination
from fedpower.protocol.study import Study
from problems import Array, ArrayMoment


def exact_study(n_features: int = 12, rank: int = 3, *, center: bool = False) -> Study:
    return Study(columns=None, n_features=n_features, iteration_rank=rank, center=center)


def make_silos(parts: Sequence[Array], rank: int, *, center: bool = False) -> dict[str, Silo]:
    study = exact_study(parts[0].shape[1], rank, center=center)
    return {
        f"silo-{index}": Silo(f"silo-{index}", study, ExactReleases(ArrayMoment(part), study))
        for index, part in enumerate(parts)
    }


def power_settings(study: Study, rank: int | float, **options: Any) -> SolverSettings:
    """Return those of the paper's method, which makes all of its steps unless a ``tol`` is given."""
    return SolverSettings(study=study, rank=rank, solver=PowerMethod(**{"tol": 0.0} | options))


def krylov_settings(study: Study, rank: int | float, **options: Any) -> SolverSettings:
    return SolverSettings(study=study, rank=rank, solver=Krylov(**options))


def make_coordinator(
    silos: Mapping[str, Any],
    settings: SolverSettings,
    *,
    rng: np.random.Generator | None = None,
    min_silos: int | None = None,
) -> Coordinator:
    study = next(iter(silos.values())).study
    solver = start(settings, rng or np.random.default_rng(0))
    return Coordinator(solver, list(silos), study=study, run="test", min_silos=min_silos)


def drive(coordinator: Coordinator, silos: Mapping[str, Any]) -> list[Message]:
    asked: list[Message] = []

    def ask(questions: tuple[Message, ...]) -> Iterator[Arrived]:
        asked.extend(questions)
        return carriers.in_turn(silos)(questions)

    carriers.drive(coordinator, ask)
    return asked


def solve(
    parts: Sequence[Array], *, rank: int = 3, seed: int = 0, **options: object
) -> tuple[Solution, Coordinator, list[Array]]:
    """Return the solution, the coordinator and the broadcast bases in order."""
    d = parts[0].shape[1]
    iteration_rank = int(options.pop("iteration_rank", rank))  # type: ignore[call-overload]
    center = bool(options.pop("center", False))
    silos = make_silos(parts, max(iteration_rank, 1), center=center)
    study = exact_study(d, iteration_rank, center=center)
    settings = power_settings(study, rank, **options)
    coordinator = make_coordinator(silos, settings, rng=np.random.default_rng(seed))
    questions = drive(coordinator, silos)
    bases = {q.round: q.body.basis for q in questions if isinstance(q.body, AskSteps)}
    return coordinator.outcome, coordinator, list(bases.values())


def averaged_product(blocks: Array, products: Array, rank: int, width: int) -> Array:
    """Return an estimate of A·X from all noisy products, X spanning the last one's columns."""
    latest = products[:, -width:]
    weights = combination(
        blocks.T @ blocks, blocks.T @ products, latest.T @ latest, rank=rank, n_features=len(blocks)
    )
    return np.asarray(products @ weights)


D = 30


def rotated(seed: int, n_silos: int = 5, n_rows: int = 80, d: int = D) -> list[Array]:
    """Return silos whose rows have different leading directions: local steps are biased here."""
    rng = np.random.default_rng(seed)
    scales = 1.0 / np.arange(1, d + 1) ** 0.7
    turns = [orth(np.eye(d) + 0.15 * rng.standard_normal((d, d))) for _ in range(n_silos)]
    return [rng.standard_normal((n_rows, d)) * scales @ turn for turn in turns]


def pooled(parts: Sequence[Array]) -> Array:
    rows = np.vstack(parts)
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
    settings = krylov_settings(silos["silo-0"].study, rank, **options)
    return drive_late(settings, silos, seed=seed, late=late, dead_from=dead_from, min_silos=min_silos)


def drive_late(
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

    def ask(questions: tuple[Message, ...]) -> Iterator[Arrived]:
        places = order.permutation(len(questions)) if late else range(len(questions))
        for question in (questions[place] for place in places):
            if question.round < dead.get(question.silo, 10_000):
                yield silos[question.silo].answer(question)

    carriers.drive(coordinator, ask)
    return coordinator.outcome, coordinator


def n_rounds(coordinator: Coordinator) -> int:
    return sum(each.kind == "steps" for each in coordinator.history)
