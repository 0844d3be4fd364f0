"""How much each silo weighs in what is pooled: by its rows, or against its noise."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from fedpower.errors import Sentence
from fedpower.privacy.budget import Budget

Weights = Literal["rows", "noise"]

_WORTH = 0.9
"""Silos are named as costly where without them the pooled noise is below this share of what it is."""


def masses(sizes: Mapping[str, int], weights: Weights = "rows") -> dict[str, int]:
    """Return by silo the whole number that its weight is proportional to: s_i, or s_i²."""
    return {name: size if weights == "rows" else size**2 for name, size in sizes.items()}


def pooled(budget: Budget, sizes: Mapping[str, int], weights: Weights = "rows") -> float:
    """Return √(Σ w_i²τ_i²) where each silo noises what it sends by itself."""
    mass = masses(sizes, weights)
    total = sum(mass.values())
    return math.hypot(*(mass[name] / total * budget.std(sizes[name]) for name in sizes))


def costly_silos(
    budget: Budget, sizes: Mapping[str, int], weights: Weights = "rows"
) -> tuple[list[str], float]:
    """Return the silos whose noise costs more than their rows bring, and the noise's share without them."""
    by_size = sorted(sizes, key=lambda name: sizes[name])
    whole = pooled(budget, sizes, weights)
    left = dict(sizes)
    for name in by_size[:-1]:
        without = {other: size for other, size in left.items() if other != name}
        if pooled(budget, without, weights) >= pooled(budget, left, weights):
            break
        left = without
    share = pooled(budget, left, weights) / whole
    costly = [name for name in sizes if name not in left]
    return (costly, share) if costly and share < _WORTH else ([], 1.0)


def costly_sentence(costly: Sequence[str], share: float, sizes: Mapping[str, int], thing: str = "row") -> str:
    """Return what to do about silos that cost more than they bring, in one sentence."""
    shown = ", ".join(f"{name} ({sizes[name]} {thing}s)" for name in costly[:5])
    more = f" and {len(costly) - 5} more" if len(costly) > 5 else ""
    return Sentence(
        "with plain sums each silo adds as much noise as any other, and without {silos} the pooled "
        "noise would be {share:.2g} of what it is; leave them out, take {weights:noise}, or share the "
        "noise with {aggregation:secure}",
        silos=f"{shown}{more}",
        share=share,
    )
