"""Model I at the paper's size, in every noise mode from the same start bases [FP §5].

Each seed draws its own two million rows (streamed) and its own start; the modes share both. Noise is
seeded, for an experiment only.
"""

import argparse
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import parser, report
from benchmarks.measuring import spread
from fedpower.engines.embedded import federate
from fedpower.experiments.driven import TREATMENT, keep, pooled_moment
from fedpower.experiments.models import SpikedCovariance, spiked_covariance
from fedpower.linalg import sin_theta
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol import Study, decaying
from fedpower.protocol.solvers import PowerSettings
from fedpower.protocol.study import NoiseMode

Array = NDArray[np.float64]

MODES: tuple[NoiseMode, ...] = ("none", "paper", "step", "moment")
EXPECTED = {"none": "", "paper": "about .19", "step": "≤ .025", "moment": "≤ .0075"}


def main() -> None:
    """Run every mode on every seed."""
    options = _options()
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for seed in range(options.seeds):
        model = spiked_covariance(n_rows=options.rows, n_silos=options.silos, seed=seed)
        silos = keep(model)
        truth = np.linalg.eigh(pooled_moment(silos))[1][:, -model.rank :]
        for mode in MODES:
            basis = run(mode, silos, model, seed=seed, options=options)
            found[mode].append(
                {"pooled": sin_theta(basis, truth), "population": sin_theta(basis, np.asarray(model.basis))}
            )
        latest = ", ".join(f"{mode} {found[mode][-1]['pooled']:.4f}" for mode in MODES)
        print(f"seed {seed}: {latest}", flush=True)
    report(
        options,
        name="model1_modes",
        settings={
            **{name: getattr(options, name) for name in ("rows", "silos", "epsilon", "delta")},
            "columns": 100,
            "rank": 4,
            "iteration_rank": 5,
            "steps": options.steps,
            "schedule": f"decaying({options.local_steps})",
            "seeds": list(range(options.seeds)),
        },
        columns=["noise", "sin θ_k to the pooled rows'", "largest", "to the population's", "asked"],
        rows=[
            [
                mode,
                spread([each["pooled"] for each in found[mode]]),
                f"{max(each['pooled'] for each in found[mode]):.4f}",
                spread([each["population"] for each in found[mode]]),
                EXPECTED[mode],
            ]
            for mode in MODES
        ],
        raw=found,
        notes=[
            f"Mean ± standard deviation over {options.seeds} seeds; each draws its own rows, start "
            "basis and noise, and the modes share rows and start."
        ],
    )


def run(
    mode: NoiseMode, silos: dict[str, Any], model: SpikedCovariance, *, seed: int, options: argparse.Namespace
) -> Array:
    """Return Z_T of one run through the protocol."""
    private = mode != "none"
    study = Study(
        columns=None,
        n_features=model.n_features,
        iteration_rank=5,
        treatment=TREATMENT.digest(),
        noise=mode,
        epsilon=options.epsilon if private else math.inf,
        delta=options.delta if private else 0.0,
        n_steps=options.steps if mode in ("step", "paper") else None,
    )
    settings = PowerSettings(
        n_features=model.n_features,
        rank=model.rank,
        iteration_rank=5,
        schedule=decaying(options.local_steps),
        n_steps=options.steps,
    )
    outcome = federate(
        silos,
        study=study,
        settings=settings,
        rng=np.random.default_rng(seed),
        noise=SeededNoiseForExperiments(10_000 * (seed + 1) + MODES.index(mode)),
        n_jobs=1,  # one seeded noise source, drawn from in a fixed order
    )
    return outcome.solution.basis


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=2_000_000)
    made.add_argument("--silos", type=int, default=20)
    made.add_argument("--epsilon", type=float, default=0.5)
    made.add_argument("--delta", type=float, default=1e-4)
    made.add_argument("--steps", type=int, default=10)
    made.add_argument("--local-steps", type=int, default=2)
    made.add_argument("--seeds", type=int, default=10)
    return made.parse_args()


if __name__ == "__main__":
    main()
