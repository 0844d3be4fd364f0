"""What a fit found, on a terminal: components, and how they stand to the privacy noise."""

import math
from collections.abc import Sequence

import numpy as np

from fedpower.cli.console import console, table
from fedpower.cli.words import in_options
from fedpower.report.causes import cause_of_noise
from fedpower.report.page.markup import (
    NOT_ASSESSED,
    above_the_noise,
    bent_by_the_bound,
    beyond_bound,
    most_variance,
)
from fedpower.report.result import Result

_MARKS = {
    "signal": "",
    "bent": " (maybe bent)",
    "near": " (near the noise)",
    "noise": " (noise)",
    "unknown": "",
}
"""What stands beside a component's name, by its standing."""


def print_findings(result: Result, *, explained: float = 0.0) -> None:
    """Print a line a component, and where there is noise which of them stand above it.

    Parameters
    ----------
    result
        What a fit found.
    explained
        The share of variance that the components explain without the noise; 0 where it is not known.
    """
    out = console()
    if result.absent:
        out.print(f"{result.headline}.", soft_wrap=True)
    variances, ratios = result.explained_variance, result.explained_variance_ratio
    edge, n_above = result.noise_edge, result.n_above_noise
    headings = ("component", "variance", "ratio", "together")
    shown = table(None, *headings, numbers=headings)
    together = np.cumsum(ratios)
    for place, standing in enumerate(result.standings):
        shown.add_row(
            f"pc{place + 1}{_MARKS[standing]}",
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
        if n_above is None:
            out.print(f"{NOT_ASSESSED}.", soft_wrap=True)
        for sentence in beyond_bound(
            variances.tolist(), most_variance(result.run, result.n_samples)
        ):
            out.print(sentence, soft_wrap=True)
    if n_above is not None:
        without = f"; without the noise these explain about {explained:.0%}" if explained else ""
        out.print(f"{above_the_noise(n_above, result.n_features)}{without}.", soft_wrap=True)
    if result.clipping is not None:
        out.print(result.clipping, soft_wrap=True)
    for sentence in bent_by_the_bound(result.standings):
        out.print(sentence, soft_wrap=True)
    cause = cause_of_noise(result)
    if cause is not None:
        said = in_options(cause)
        out.print(f"{said[0].upper()}{said[1:]}.", soft_wrap=True)


def _shares(ratios: Sequence[float]) -> list[str]:
    return [f"{ratio:.2%}" if math.isfinite(ratio) else "–" for ratio in ratios]
