"""How every run opens: enrolment of the silos, and the pooled mean where rows are centred."""

import numpy as np
from numpy.typing import NDArray

from fedpower.protocol.exchange import Ask, Exchange
from fedpower.protocol.messages import AskMean, Enrol, read_only

Array = NDArray[np.float64]


def enrol() -> Exchange:
    """Return the public number of rows s_i of each silo that answered, by name.

    Not a round of the method: it carries no quantity that depends on a row.
    """
    opened = yield Ask(body=Enrol())
    return {name: answer.n_rows for name, answer in opened.answers.items()}


def pooled_mean(sizes: dict[str, int]) -> Exchange:
    """Return (the mean row Σ s_i μ_i / Σ s_i, the sizes of the silos whose rows are in it).

    A silo whose mean did not come in time is left out of the run: rows about a centre that leaves them
    out would add a direction of their own to the covariance.
    """
    opened = yield Ask(body=AskMean(), silos=tuple(sizes))
    weights = np.array([sizes[name] for name in opened.answers], dtype=np.float64)
    means = np.array([answer.mean for answer in opened.answers.values()])
    center = read_only(weights @ means / weights.sum())
    return center, {name: sizes[name] for name in opened.answers}
