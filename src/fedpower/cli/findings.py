"""What a fit found, on a terminal: components, and how they stand to the privacy noise."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpower.cli.console import console, table
from fedpower.report.page.words import NOT_ASSESSED, above_the_noise, beyond_bound
from fedpower.report.result import standings

MARKS = {"signal": "", "near": " (near the noise)", "noise": " (noise)", "unknown": ""}
"""What stands beside a component's name, by its standing."""


def print_findings(
    variances: NDArray[np.float64],
    ratios: NDArray[np.float64],
    *,
    n_features: int,
    edge: float,
    n_above: int | None,
    explained: float = 0.0,
    most: float = math.inf,
) -> None:
    """Print a line a component, and where there is noise which of them stand above it.

    Parameters
    ----------
    variances, ratios
        Of each component: its variance, and that over the total.
    n_features
        How many components there could be.
    edge, n_above
        See `standings`.
    explained
        The share of variance that the components explain without the noise; 0 where it is not known.
    most
        The most variance that rows within their bound can have.
    """
    out = console()
    headings = ("component", "variance", "ratio", "together")
    shown = table(None, *headings, numbers=headings)
    held = standings(variances, edge=edge, n_above=n_above)
    together = np.cumsum(ratios)
    for place, standing in enumerate(held):
        shown.add_row(
            f"pc{place + 1}{MARKS[standing]}",
            f"{variances[place]:.6g}",
            *_shares([ratios[place], together[place]] if standing != "noise" else [math.nan] * 2),
        )
    out.print(shown)
    if edge > 0:
        out.print(
            f"Privacy noise alone would show a variance of about {edge:.3g}: components that are not "
            "well above it are noise.",
            soft_wrap=True,
        )
    if edge > 0 and n_above is None:
        out.print(f"{NOT_ASSESSED}.", soft_wrap=True)
    for sentence in beyond_bound(variances.tolist(), most) if edge > 0 else []:
        out.print(sentence, soft_wrap=True)
    if n_above is not None:
        without = f"; without the noise these explain about {explained:.0%}" if explained else ""
        out.print(f"{above_the_noise(n_above, n_features)}{without}.", soft_wrap=True)


def _shares(ratios: Sequence[float]) -> list[str]:
    return [f"{ratio:.2%}" if math.isfinite(ratio) else "–" for ratio in ratios]
