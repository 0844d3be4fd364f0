"""A network in a test's hand: runs a coordinator over silos and keeps every message."""

from collections.abc import Sequence

import numpy as np

from fedpower.protocol import coordinator as driving
from fedpower.protocol.coordinator import Asking, Coordinator, in_turn
from fedpower.protocol.messages import AskSteps, Message
from fedpower.protocol.silo import ExactReleases, Silo
from fedpower.protocol.solvers import PowerSettings, Solution
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


def make_coordinator(
    silos: dict[str, Silo],
    settings: PowerSettings,
    *,
    rng: np.random.Generator | None = None,
    min_silos: int | None = None,
) -> Coordinator:
    study = next(iter(silos.values())).study
    solver = settings.solve(rng or np.random.default_rng(0))
    return Coordinator(solver, list(silos), study=study, run="test", min_silos=min_silos)


def drive(coordinator: Coordinator, silos: dict[str, Silo]) -> list[Message]:
    asked: list[Message] = []

    def ask(questions: tuple[Message, ...]) -> Asking:
        asked.extend(questions)
        return in_turn(silos)(questions)

    driving.drive(coordinator, ask)
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
    settings = PowerSettings(study=study, rank=rank, **options)  # type: ignore[arg-type]
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
