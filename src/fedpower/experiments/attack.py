"""The paper's Example 1: a curious coordinator rebuilds a silo's moment from the messages it got.

It follows Algorithm 1 and reads along: it knows every basis Z_t it sent and every product A_i Z_t that
came back [FP Example 1, eq. 2.4]. Then it reads off one row. Exactly one row of the silo has an entry
in the last column (the one patient with a rare code), so the last column of s·A_i is that entry times
the row: nothing else about the silo needs to be known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from fedpower.errors import InputError
from fedpower.experiments.attack_messages import (
    AttackSetting,
    moment_of,
    overhear,
    silo_rows,
    study_of,
)
from fedpower.privacy.noise import NoiseSource, SystemNoise
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.study import NoiseMode

Array = NDArray[np.float64]

MODES: tuple[Literal["paper", "step", "moment"], ...] = ("paper", "step", "moment")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """How well the attack did in one mode, over seeds.

    Attributes
    ----------
    mode, epsilon
        What the silos added; ``none`` and ∞ without noise.
    error
        ‖Â − A‖_F/‖A‖_F, the median: 0 is everything, 1 what guessing zero gives.
    error_range
        Smallest and largest over the seeds.
    row_cosine
        |cos| between the planted row's other entries and those read off, the median: 1 is the row
        itself, `chance_cosine` what noise alone gives.
    row_cosine_range
        Smallest and largest over the seeds.
    """

    mode: NoiseMode
    epsilon: float
    error: float
    error_range: tuple[float, float]
    row_cosine: float
    row_cosine_range: tuple[float, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON; an infinite ε is None."""
        return asdict(self) | {"epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


def attack(
    epsilons: Sequence[float] = (0.5, 1.0, 4.0, 10.0),
    *,
    setting: AttackSetting | None = None,
    seeds: Sequence[int] = range(15),
    source: NoiseSource | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[AttackResult]:
    """Return how well the attack does without noise, and in every mode at every ε.

    Parameters
    ----------
    epsilons
        Finite; the case without noise is always played.
    setting
        The federation.
    seeds
        Each gives rows and a start basis; medians are taken over them.
    source
        Where noise comes from; the operating system unless an experiment injects its own.
    on_progress
        Called with the runs done and the runs to do.
    """
    setting = setting or AttackSetting()
    if not seeds or not all(0 < epsilon < math.inf for epsilon in epsilons):
        raise InputError(
            "an attack needs one seed at least and finite epsilons above 0, got others; "
            "the case without noise is played anyway"
        )
    cases: list[tuple[NoiseMode, float]] = [("none", math.inf)]
    cases += [(mode, epsilon) for mode in MODES for epsilon in epsilons]
    results, done = [], 0
    for mode, epsilon in cases:
        outcomes = []
        for seed in seeds:
            outcomes.append(_play(mode, epsilon, setting, seed, source or SystemNoise()))
            done += 1
            if on_progress:
                on_progress(done, len(cases) * len(seeds))
        errors, cosines = zip(*outcomes, strict=True)
        results.append(
            AttackResult(
                mode=mode,
                epsilon=epsilon,
                error=float(np.median(errors)),
                error_range=(min(errors), max(errors)),
                row_cosine=float(np.median(cosines)),
                row_cosine_range=(min(cosines), max(cosines)),
            )
        )
    return results


def error_by_round(setting: AttackSetting | None = None, *, seed: int = 0) -> list[float]:
    """Return ‖Â − A‖_F/‖A‖_F after every round of a run without noise."""
    setting = setting or AttackSetting()
    moment = moment_of(silo_rows(setting, seed)[0])
    bases, products = overhear("none", math.inf, setting, seed, SystemNoise())
    exact = moment.moment()
    return [
        _relative_error(rebuild(bases[:count], products[:count]), exact)
        for count in range(1, len(bases) + 1)
    ]


def chance_cosine(setting: AttackSetting | None = None) -> float:
    """Return the median |cos| between a row's d − 1 other entries and a random direction."""
    n_unknown = (setting or AttackSetting()).n_features - 1
    return math.sqrt(float(beta.ppf(0.5, 0.5, (n_unknown - 1) / 2)))


def rebuild(bases: Sequence[Array], products: Sequence[Array], ridge: float = 0.0) -> Array:
    """Return the symmetric Â that fits Â Z_t = Y_t best, in least squares plus ridge/2·‖Â‖_F².

    With [Z_1 … Z_T] = USVᵀ and B = UᵀÂU the fit asks B_ij s_j = M_ij, M = Uᵀ[Y_1 … Y_T]V, and by
    symmetry B_ij s_i = M_ji: so B_ij = (M_ij s_j + M_ji s_i)/(s_i² + s_j² + ridge). Where no basis
    ever looked (s_i = s_j = 0) it is 0.

    Parameters
    ----------
    bases, products
        Z_t and Y_t, d×r each.
    ridge
        Noise variance over the variance that entries are expected to have: the best linear guess.
    """
    left, sizes, right = np.linalg.svd(np.hstack(bases), full_matrices=True)
    d = left.shape[0]
    seen = np.zeros(d)
    seen[: sizes.size] = np.where(sizes > sizes[0] * d * np.finfo(np.float64).eps, sizes, 0.0)
    mixed = (left.T @ np.hstack(products) @ right.T)[:, : sizes.size]
    fitted = np.zeros((d, d))
    fitted[:, : sizes.size] = mixed * seen[: sizes.size]
    weight = seen[:, None] ** 2 + seen[None, :] ** 2
    inside = np.divide(fitted + fitted.T, weight + ridge, out=np.zeros((d, d)), where=weight > 0)
    return np.asarray(left @ inside @ left.T)


def _play(
    mode: NoiseMode, epsilon: float, setting: AttackSetting, seed: int, source: NoiseSource
) -> tuple[float, float]:
    """Return the error of the rebuilt moment, and the cosine of the row read off it."""
    rows = silo_rows(setting, seed)[0]
    exact = moment_of(rows).moment()
    bases, products = overhear(mode, epsilon, setting, seed, source)
    expected = setting.n_features**-3.0  # d² entries share ‖A‖_F² ≥ 1/d, as tr A = 1
    budget = budget_of(study_of(mode, epsilon, setting))
    noise = 0.0 if budget is None else budget.std(setting.n_rows) ** 2
    if mode == "moment":  # the same noised moment every time: solve for it, then shrink
        guess = rebuild(bases, products) / (1 + noise / 2 / expected)
    else:
        guess = rebuild(bases, products, ridge=noise / expected)
    return _relative_error(guess, exact), _cosine(guess[:-1, -1], rows[0, :-1])


def _cosine(read: Array, truth: Array) -> float:
    sizes = float(np.linalg.norm(read) * np.linalg.norm(truth))
    return abs(float(read @ truth)) / sizes if sizes > 0 else 0.0


def _relative_error(guess: Array, exact: Array) -> float:
    return float(np.linalg.norm(guess - exact) / np.linalg.norm(exact))
