"""Which solver a fit takes when it is left to choose, from public facts alone."""

from dataclasses import dataclass
from typing import Literal

from fedpower.errors import Sentence
from fedpower.protocol.study import NoiseMode
from fedpower.sums.kernel import MOST_SQUARE_FEATURES

Solver = Literal["fedpower", "krylov", "moment", "clipped"]

_SECONDS_PER_ROUND = 2.0
_BYTES_PER_SECOND = 2e6
"""What a round and a byte are counted at: about what a federation over a wide-area network takes."""

_KRYLOV_ROUNDS = 8
"""Rounds that krylov is counted at; it takes fewer where the gap is wide or noise sets the floor."""

_NARROW = 2048
"""Up to so many columns nobody asks what a d×d matrix takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverChoice:
    """A solver and the reason for it, in one sentence."""

    solver: Solver
    reason: str


def choose_solver(
    *, n_features: int, iteration_rank: int, noise: NoiseMode, paper_settings: tuple[str, ...] = ()
) -> SolverChoice:
    """Return the solver that reaches the answer first."""
    if paper_settings:
        return SolverChoice(
            solver="fedpower",
            reason=Sentence(
                ", ".join(f"{{{name}}}" for name in paper_settings)
                + " was given, which only the paper's method has"
            ),
        )
    if noise == "paper":
        return SolverChoice(
            solver="fedpower", reason=Sentence("{noise:paper} asks for the paper's method as it is printed")
        )
    if noise == "step":
        wide = ""
        if n_features > MOST_SQUARE_FEATURES:
            wide = Sentence(
                " (a moment of {d} columns takes {size}; where all can hold that, {noise:moment} is more "
                "accurate)",
                d=n_features,
                size=_size(8 * n_features**2),
            )
        return SolverChoice(
            solver="krylov",
            reason=Sentence(
                "every product is noised and paid for, and krylov uses all of them together{wide}", wide=wide
            ),
        )
    triangle = 8 * n_features * (n_features + 1) // 2
    blocks = _KRYLOV_ROUNDS * 2 * 8 * n_features * iteration_rank
    upload = _SECONDS_PER_ROUND + triangle / _BYTES_PER_SECOND
    krylov = _KRYLOV_ROUNDS * _SECONDS_PER_ROUND + blocks / _BYTES_PER_SECOND
    figures = (
        f"one round of {_size(triangle)} a silo against about {_KRYLOV_ROUNDS} rounds of "
        f"{_size(blocks // _KRYLOV_ROUNDS)}"
    )
    if noise == "moment" and n_features > _NARROW:
        figures += (
            f"; every silo holds its noised moment of {_size(8 * n_features**2)}, which no solver that "
            "noises its steps is as accurate as"
        )
    if n_features <= MOST_SQUARE_FEATURES and upload <= krylov:
        return SolverChoice(solver="moment", reason=f"one upload of the moment is cheapest: {figures}")
    return SolverChoice(solver="krylov", reason=f"the moment is too large to upload lightly: {figures}")


def _size(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"
