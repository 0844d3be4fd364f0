"""How pooled rows are shared out among silos: at random, or label by label."""

import numpy as np
from numpy.typing import NDArray

Places = list[NDArray[np.int64]]

KINDS = ("at random", "by label")


def split(kind: str, labels: NDArray[np.int64], n_silos: int, rng: np.random.Generator) -> Places:
    """Return the rows of each silo, silos as equal as can be; `kind` is one of `KINDS`.

    By label, rows are sorted by label (in random order within one) and cut into equal parts: as
    different as silos of equal size can be in that respect.
    """
    order = rng.permutation(len(labels))
    if kind == "by label":
        order = order[np.argsort(labels[order], kind="stable")]
    elif kind != "at random":
        raise ValueError(f"a split must be one of {', '.join(KINDS)}, got {kind!r}")
    return np.array_split(order, n_silos)
