"""Rounds and bytes to a given error: the paper's variants, drift correction and krylov; then private fits."""

import bisect
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.data_sets import Array, Truth, model_one
from benchmarks.fits import fed_pca
from benchmarks.runner import Record, Table, case, say
from fedpower.linalg import sin_theta

TARGETS = (1e-2, 1e-6, 1e-10)

EXACT = {"epsilon": math.inf, "center": False, "standardize": False}
POWER = {"solver": "fedpower"}
PAPER: dict[str, tuple[Record, int]] = {
    "Algorithm 1": (POWER, 300),
    "LocalPower p=4": ({**POWER, "local_steps": 4}, 40),
    "LocalPower p=4 decaying": ({**POWER, "local_steps": 4, "schedule": "decaying"}, 300),
    "LocalPower p=8 decaying": ({**POWER, "local_steps": 8, "schedule": "decaying"}, 300),
}
OURS: dict[str, tuple[Record, int]] = {
    "drift-corrected p=8": ({**POWER, "local_steps": 8, "drift_correction": True}, 80),
    "krylov, no lookahead": ({"solver": "krylov", "lookahead": False}, 24),
    "krylov, lookahead": ({"solver": "krylov", "lookahead": True}, 24),
}
"""By method: its parameters, and the most rounds it gets."""


def family(
    *, ratio: float, eta: float, seed: int, d: int = 120, k: int = 5, m: int = 10
) -> tuple[list[Array], Array]:
    """Return m silos with η ≈ ``eta`` and pooled spectrum 1 … .6, then .6·ratio·.95^j, and the truth.

    A_i = A^½[(1 − t)I + tG_i]A^½ with G_i the second moments of parts of a matrix with orthonormal columns:
    they average to I exactly, and t sets η. A silo's rows are a root of its A_i.
    """
    rng = np.random.default_rng(seed)
    spectrum = np.concatenate([np.linspace(1.0, 0.6, k), 0.6 * ratio * 0.95 ** np.arange(d - k)])
    vectors = np.linalg.qr(rng.standard_normal((d, d)))[0]
    half, rows = vectors * np.sqrt(spectrum), d // 2
    stacked = np.linalg.qr(rng.standard_normal((rows * m, d)))[0] * np.sqrt(rows * m)
    pooled = half @ half.T
    full = [half @ (part.T @ part / rows) @ half.T for part in np.split(stacked, m)]
    norm = np.linalg.norm(pooled, 2)
    farthest = max(np.linalg.norm(moment - pooled, 2) for moment in full)  # η of [FP Def. 4], times the norm
    share = min(1.0, eta * norm / farthest)
    silos = []
    for each in full:
        values, axes = np.linalg.eigh((1 - share) * pooled + share * each)
        silos.append((axes * np.sqrt(np.maximum(values, 0.0) * d)).T)
    return silos, vectors[:, :k]


def _to_targets(silos: list[Array], truth: Array, method: tuple[Record, int], seed: int) -> Record:
    settings, most = method

    @functools.cache
    def after(rounds: int) -> tuple[float, int]:
        model = fed_pca(
            5, iteration_rank=6, max_rounds=rounds, tol=0.0, random_state=seed, **EXACT, **settings
        )
        history = model.fit_silos(silos).history_
        sent = sum(each["bytes_up"] + each["bytes_down"] for each in history)
        return sin_theta(model.components_.T, truth), sent

    first: dict[float, int | None] = {}
    for target in TARGETS:
        place = bisect.bisect_left(
            range(1, most + 1), True, key=lambda n, target=target: after(n)[0] <= target
        )
        first[target] = place + 1 if place < most else None
    return {
        "rounds": {f"{target:.0e}": n for target, n in first.items()},
        "bytes": {f"{target:.0e}": None if n is None else after(n)[1] for target, n in first.items()},
        "floor": after(most)[0],
    }


@case(
    "rounds", about="rounds and bytes to a given error, every solver; private fits by rounds",
    quick={"seeds": 1, "scales": (0.5,), "etas": (0.2,), "methods": ("krylov, lookahead",), "rows": 2_000,
           "counts": (1,)},
)  # fmt: skip
def rounds(
    *,
    seeds: int = 10,
    scales: tuple[float, ...] = (0.5, 0.86, 0.95),
    etas: tuple[float, ...] = (0.05, 0.2, 0.5),
    methods: tuple[str, ...] = (*PAPER, *OURS),
    rows: int = 2_000_000,
    counts: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 9),
) -> Table:
    """Run every method on every family and seed; ``scales`` are ratios of the eigenvalues k + 1 and k."""
    measured: dict[str, Any] = {}
    for ratio in scales:
        for eta in etas:
            found: dict[str, list[Record]] = {name: [] for name in methods}
            for seed in range(seeds):
                silos, truth = family(ratio=ratio, eta=eta, seed=seed)
                for name in methods:
                    found[name].append(_to_targets(silos, truth, (PAPER | OURS)[name], seed))
            measured[f"{ratio}/{eta}"] = {"methods": found}
            say(f"ratio {ratio}, η ≈ {eta}")
    private, steps = _private(seeds, rows, counts)
    return Table(
        columns=[
            "σ_{k+1}/σ_k", "η", "method", *(f"rounds to {target:.0e}" for target in TARGETS),
            *(f"MB to {target:.0e}" for target in TARGETS), "floor",
        ],
        rows=[line for key, found in measured.items() for line in _lines(key, found["methods"])],
        measured={"families": measured, "private": private, "steps": steps},
        notes=[
            f"Medians over {seeds} seeds; MB up and down, all silos; – where the median run does not get "
            "there; floor: the median error after all rounds allowed."
        ],
        more=[
            (
                "Model I, ε = .5, the covariance noised once: error over that of the noised covariance, "
                f"median of {seeds}",
                ["method", "silos a round", *(f"{n} rounds" for n in counts)],
                [
                    [*key.split(", ", 1), *(f"{np.median(each):.3g}" for each in found)]
                    for key, found in private.items()
                ],
            ),
            (
                f"Model I, ε = .5, every step noised, T = 10: sin θ_k, median of {seeds}",
                ["method", "sin θ_k"],
                [[name, f"{np.median(errors):.4f}"] for name, errors in steps.items()],
            ),
        ],
    )  # fmt: skip


def _lines(key: str, found: dict[str, list[Record]]) -> list[list[str]]:
    ratio, eta = key.split("/")
    return [
        [
            ratio,
            eta,
            name,
            *(_shown(_median(runs, "rounds", target), "{:g}") for target in TARGETS),
            *(_shown(_median(runs, "bytes", target) / 1e6, "{:.2f}") for target in TARGETS),
            f"{np.median([run['floor'] for run in runs]):.0e}",
        ]
        for name, runs in found.items()
    ]


def _median(runs: Sequence[Record], quantity: str, target: float) -> float:
    found = [run[quantity][f"{target:.0e}"] for run in runs]
    return float(np.median([math.inf if each is None else each for each in found]))


def _shown(value: float, form: str) -> str:
    return form.format(value) if math.isfinite(value) else "–"


NOISED = {**EXACT, "epsilon": 0.5, "delta": 1e-4, "row_norm": 1.0, "iteration_rank": 5}
STEPS: dict[str, Record] = {
    "Algorithm 1": {"solver": "fedpower", "n_steps": 10},
    "FedPower p=2 decaying": {"solver": "fedpower", "n_steps": 10, "schedule": "decaying", "local_steps": 2},
    "krylov (averaged products)": {"solver": "krylov", "n_steps": 10},
}


def _private(seeds: int, rows: int, counts: tuple[int, ...]) -> tuple[dict[str, list[list[float]]], Record]:
    found: dict[str, list[list[float]]] = {}
    steps: Record = {name: [] for name in STEPS}
    for seed in range(seeds):
        array = model_one(rows, 100, seed=seed)
        silos, truth = np.array_split(array, 20), Truth.of(array, 4).basis

        def error(seed: int = seed, silos: Any = silos, truth: Array = truth, **given: Any) -> float:
            model = fed_pca(4, random_state=seed, **NOISED, **given).fit_silos(silos)
            return sin_theta(model.components_.T, truth)

        floor = error(solver="upload")
        for who, some in (("all", {}), ("8 of 20 drawn", {"n_participants": 8})):
            for name in ("krylov, lookahead", "krylov, no lookahead"):
                by_count = found.setdefault(f"{name}, {who}", [[] for _ in counts])
                for place, count in enumerate(counts):
                    given = {"noise": "covariance", "max_rounds": count, "tol": 0.0, **OURS[name][0], **some}
                    by_count[place].append(error(**given) / floor)
        for name, given in STEPS.items():
            steps[name].append(error(noise="step", **given))
        say(f"private fits, seed {seed}")
    return found, steps
