"""The private half of the benchmark of rounds: Model I's noise floor, and silos that are late."""

from typing import Any

import numpy as np

from benchmarks.rounds_problems import drive, family, model_one, private_problem
from fedpower.linalg import sin_theta
from fedpower.protocol import decaying
from fedpower.protocol.private_study import budget_of, noise_shift
from fedpower.protocol.solvers import KrylovSettings, PowerSettings

ROUNDS = (1, 2, 3, 4, 5, 6, 9)
VARIANTS: dict[str, dict[str, bool]] = {
    "krylov warm": {},
    "krylov cold": {"warm": False},
    "krylov warm, no lookahead": {"lookahead": False},
    "krylov cold, no lookahead": {"warm": False, "lookahead": False},
}
STEPS = 10
LATE: dict[str, dict[str, Any]] = {
    "all silos": {},
    "K/m = .4": {"n_participants": 4, "participation": "first"},
    "K/m = .4, never asked again": {"n_participants": 4, "participation": "first", "max_reasks": 0},
}
Table = tuple[str, list[str], list[list[str]]]


def private_tables(seeds: int) -> dict[str, Any]:
    """Return the tables and every measurement behind them."""
    floors, ratios, steps = [], {}, {}
    for seed in range(seeds):
        moments = model_one(seed)
        floor = _one_seed(moments, seed, ratios)
        floors.append(floor)
        for name, error in _step_mode(moments, seed).items():
            steps.setdefault(name, []).append(error)
    late = _late_without_noise(seeds)
    tables: list[Table] = [
        (
            f"Model I-like, ε = .5, `moment` mode: error over the noise floor {np.median(floors):.4f} "
            f"by rounds, median (largest) over {seeds} seeds; asked: ≤ 1.02 after 2 warm, 4 cold; "
            "K/m = .4: ≤ 1.5 (every repeated question is a round)",
            ["method", "silos a round", *(f"{n} rounds" for n in ROUNDS)],
            [
                [name, who, *(_shown(ratios[name, who, n]) for n in ROUNDS)]
                for name, who in dict.fromkeys((name, who) for name, who, _ in ratios)
            ],
        ),
        (
            f"Model I-like, ε = .5, `step` mode, T = {STEPS}: sin θ_k, median over {seeds} seeds",
            ["method", "sin θ_k"],
            [[name, f"{np.median(errors):.4f}"] for name, errors in steps.items()],
        ),
        (
            "Noise-free, σ_{k+1}/σ_k = .86, η ≈ .5, cold krylov: median sin θ_k by blocks, and where "
            "tol = 1e-6 stops it, with all silos and with the first 4 of 10 in each exchange; asked: "
            "≤ 1.5 times",
            ["blocks", *(f"{who}, {what}" for who in LATE for what in ("sin θ_k", "exchanges"))],
            [
                [
                    blocks,
                    *(
                        text
                        for who in LATE
                        for text in (
                            f"{np.median(each[who]['errors']):.1e}",
                            f"{np.median(each[who]['exchanges']):g}",
                        )
                    ),
                ]
                for blocks, each in late.items()
            ],
        ),
    ]
    return {
        "tables": tables,
        "floors": floors,
        "ratios": {f"{name}, {who}, {n} rounds": v for (name, who, n), v in ratios.items()},
        "step_mode": steps,
        "late": late,
    }


def _one_seed(moments: list[Any], seed: int, ratios: dict[tuple[str, str, int], list[float]]) -> float:
    problem, floor = private_problem(moments, "moment", seed=seed)
    budget = budget_of(problem.study)
    assert budget is not None
    for name, variant in VARIANTS.items():
        for who, participation in {
            "all": {},
            "first 8 of 20": {"n_participants": 8, "participation": "first"},
            "8 of 20 drawn": {"n_participants": 8, "participation": "sampled"},
        }.items():
            for rounds in ROUNDS:
                settings = KrylovSettings(
                    n_features=100,
                    rank=4,
                    iteration_rank=5,
                    tol=0.0,
                    max_rounds=rounds,
                    shift=noise_shift(budget),
                    **variant,
                    **participation,  # type: ignore[arg-type]
                )
                outcome = drive(problem, settings, seed=seed, late=bool(participation))[0].outcome
                error = sin_theta(outcome.vectors[:, :4], problem.truth)
                ratios.setdefault((name, who, rounds), []).append(error / floor)
    paper = PowerSettings(
        n_features=100,
        rank=4,
        iteration_rank=5,
        schedule=decaying(2),
        n_steps=STEPS,
        shift=noise_shift(budget),
    )
    outcome = drive(problem, paper, seed=seed)[0].outcome
    error = sin_theta(outcome.vectors[:, :4], problem.truth)
    for rounds in ROUNDS:
        key = ("the paper's, T=10 p=2 decaying", "all", rounds)
        ratios.setdefault(key, []).append(error / floor if rounds == 9 else float("nan"))
    return floor


def _step_mode(moments: list[Any], seed: int) -> dict[str, float]:
    """Return the error of the power method and of averaged products at the same budget."""
    shape = {"n_features": 100, "rank": 4, "iteration_rank": 5}
    methods = {
        "Algorithm 1": PowerSettings(**shape, n_steps=STEPS),
        "FedPower p=2 decaying": PowerSettings(**shape, n_steps=STEPS, schedule=decaying(2)),
        "krylov (averaged products)": KrylovSettings(**shape, n_steps=STEPS),
        "krylov, first 8 of 20": KrylovSettings(
            **shape, n_steps=STEPS, n_participants=8, participation="first"
        ),
    }
    errors = {}
    for name, settings in methods.items():
        problem, _ = private_problem(moments, "step", seed=seed, n_steps=STEPS)
        outcome = drive(problem, settings, seed=seed, late="first" in name)[0].outcome
        errors[name] = sin_theta(outcome.vectors[:, :4], problem.truth)
    return errors


def _late_without_noise(seeds: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return errors and exchanges, by blocks and participation: a block takes three at K/m = .4."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for blocks in (1, 2, 3, 4, 5, None):
        row: dict[str, dict[str, list[float]]] = {}
        for who, participation in LATE.items():
            row[who] = {"errors": [], "exchanges": []}
            most = 100 if blocks is None else blocks * (3 if participation else 1)
            for seed in range(seeds):
                problem = family(ratio=0.86, eta=0.5, seed=seed)
                settings = KrylovSettings(
                    n_features=120,
                    rank=5,
                    iteration_rank=6,
                    tol=1e-6 if blocks is None else 0.0,
                    max_rounds=most,
                    warm=False,
                    **participation,
                )
                coordinator, bases = drive(problem, settings, seed=seed, late=bool(participation))
                row[who]["errors"].append(sin_theta(coordinator.outcome.basis, problem.truth))
                row[who]["exchanges"].append(float(len(bases)))
        found["until tol" if blocks is None else str(blocks)] = row
    return found


def _shown(values: list[float]) -> str:
    return f"{np.median(values):.3g} ({max(values):.3g})" if np.isfinite(values).all() else ""
