"""What is reproduced: the paper's sizes and numbers [FP §5], and a quick version of them."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedpower.exceptions import InputError
from paper.models import Model, spiked_covariance, stochastic_block

ModelName = Literal["I", "II"]

N_STEPS = 10
LOCAL_STEPS = 2
EPSILON = 0.5
DELTA = 1e-4
"""T, p, ε and δ wherever a panel does not vary them."""

LOCAL_STEPS_SHOWN = (1, 2, 4)
EPSILONS_SHOWN = (10.0, 1.0, 0.5)
PARTICIPATIONS_SHOWN = (1.0, 0.6, 0.4)
"""What panels (a), (b) and (c) vary."""

# Okabe and Ito's palette, which the colour-blind can distinguish.
ORANGE, BLUE, GREEN, PURPLE, SKY = "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9"

FIGURES: dict[str, str] = {
    "3": "the paper's Figure 3, Model I",
    "4": "the paper's Figure 4, Model II",
    "schedules": "constant and decaying p without noise, both models",
    "alignment": "ρ_t against p with and without Procrustes, both models",
    "silos": "error against the number of silos, Model I",
    "rows": "error against the number of rows, Model II",
}
"""By name: what a figure shows."""

FEWEST_REPETITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of one data model.

    Attributes
    ----------
    n_rows, n_features, n_silos
        n, d and m. In Model II n = m·d: each silo holds one network.
    rank, iteration_rank
        k and r.
    """

    n_rows: int
    n_features: int
    n_silos: int
    rank: int
    iteration_rank: int


PAPER: dict[ModelName, Size] = {
    "I": Size(n_rows=2_000_000, n_features=100, n_silos=20, rank=4, iteration_rank=5),
    "II": Size(n_rows=20_000, n_features=1000, n_silos=20, rank=2, iteration_rank=2),
}
QUICK: dict[ModelName, Size] = {
    "I": Size(n_rows=80_000, n_features=30, n_silos=8, rank=4, iteration_rank=5),
    "II": Size(n_rows=480, n_features=60, n_silos=8, rank=2, iteration_rank=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to reproduce.

    Attributes
    ----------
    seed
        Gives every row, start and noise.
    repetitions
        How often; each draws its own rows, start and noise.
    quick
        Whether models are small: everything is drawn and tested, and nothing is the paper's size.
    figures
        Which figures, in the order of `FIGURES`.
    """

    seed: int = 0
    repetitions: int = 20
    quick: bool = False
    figures: tuple[str, ...] = tuple(FIGURES)

    def __post_init__(self) -> None:
        if self.repetitions < FEWEST_REPETITIONS:
            raise InputError(
                f"repetitions must be at least {FEWEST_REPETITIONS}, got {self.repetitions}; a spread "
                "needs more than one"
            )
        unknown = [name for name in self.figures if name not in FIGURES]
        if unknown or not self.figures:
            raise InputError(
                f"figures must be some of {', '.join(FIGURES)}, got {unknown or 'none'}; choose one"
            )

    @property
    def sizes(self) -> dict[ModelName, Size]:
        """The size of each model."""
        return QUICK if self.quick else PAPER

    def as_dict(self) -> dict[str, Any]:
        """Return everything that the outcome depends on, for JSON."""
        return {
            "seed": self.seed,
            "repetitions": self.repetitions,
            "quick": self.quick,
            "figures": list(self.figures),
            "models": {name: asdict(size) for name, size in self.sizes.items()},
            "n_steps": N_STEPS,
            "local_steps": LOCAL_STEPS,
            "epsilon": EPSILON,
            "delta": DELTA,
        }

    def model(self, name: ModelName, repetition: int) -> Model:
        """Return the rows of one repetition."""
        size = self.sizes[name]
        seed = derived_seed(self.seed, repetition, "rows", name) % 2**63
        if name == "II":
            return stochastic_block(n_nodes=size.n_features, n_silos=size.n_silos, seed=seed)
        return spiked_covariance(
            n_rows=size.n_rows, n_features=size.n_features, n_silos=size.n_silos, rank=size.rank, seed=seed
        )


def derived_seed(*parts: object) -> int:
    """Return 128 bits that depend on every part, for a stream of its own."""
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:16], "big")
