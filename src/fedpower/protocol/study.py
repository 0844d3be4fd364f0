"""What a consortium agrees on before anything is computed, and its hash."""

import functools
import hashlib
import json
import math
from dataclasses import dataclass, fields
from typing import Literal

from fedpower.errors import InputError

NoiseMode = Literal["none", "paper", "step", "moment"]
NOISE_MODES: tuple[NoiseMode, ...] = ("none", "paper", "step", "moment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The terms every party holds itself to; a silo answers questions of this study and no other.

    Attributes
    ----------
    columns
        Names of the columns in order; None where columns are matched by position.
    n_features
        d, the number of columns.
    iteration_rank
        r, the most columns a broadcast basis may have.
    center
        Whether rows are centred on the pooled mean, which the silos then release.
    treatment
        Digest of the public row treatment (public centre, scales, row bound, normalisation).
    noise
        What is noised: nothing, each step's product as the paper prints it (``paper``) or tightly
        (``step``), or the moment once (``moment``).
    epsilon, delta
        The budget of this study at each silo, against the coordinator.
    n_steps
        T, the number of noised steps the budget is divided among (``paper`` and ``step``).
    agreement
        SHA-256 of the study file that a consortium signed up to, which says more than the terms above
        (who takes part, k, solver, deadlines); empty where there is none.
    """

    columns: tuple[str, ...] | None
    n_features: int
    iteration_rank: int
    center: bool = False
    treatment: str = ""
    noise: NoiseMode = "none"
    epsilon: float = math.inf
    delta: float = 0.0
    n_steps: int | None = None
    agreement: str = ""

    def __post_init__(self) -> None:
        if self.noise not in NOISE_MODES:
            raise InputError(
                f"noise must be one of {', '.join(NOISE_MODES)}, got {self.noise!r}; choose one"
            )
        if (self.noise == "none") != math.isinf(self.epsilon):
            raise InputError(
                f"noise mode {self.noise!r} and epsilon={self.epsilon} contradict each other; "
                "epsilon=inf goes with noise='none' and only with it"
            )
        if not 1 <= self.iteration_rank <= self.n_features:
            raise InputError(
                f"iteration_rank must lie between 1 and the number of columns {self.n_features}, "
                f"got {self.iteration_rank}; choose a smaller one"
            )

    @property
    def digest(self) -> str:
        """SHA-256 of the terms; travels in every message."""
        return _digest(self, tuple(field.name for field in fields(self)))

    @property
    def moment_terms(self) -> str:
        """SHA-256 of what a noised moment depends on; studies that share it share the release."""
        return _digest(self, ("columns", "n_features", "center", "treatment", "epsilon", "delta"))

    @property
    def ledger_name(self) -> str:
        """The name under which silos' ledgers book the releases of this study.

        Noised moments are shared by all studies that depend on them alike, whatever their rank or solver:
        later ones are free.
        """
        return self.moment_terms if self.noise == "moment" else self.digest


@functools.lru_cache(maxsize=256)
def _digest(study: Study, names: tuple[str, ...]) -> str:
    terms = {name: getattr(study, name) for name in names}
    canonical = json.dumps(terms, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
