"""What a fit found, on a terminal: components, and how far they may be off."""

import math

import numpy as np

from fedpower.cli.console import console, table
from fedpower.cli.words import in_options
from fedpower.protocol.solvers.angles import DETERMINED
from fedpower.report.result import Result
from fedpower.report.text import degrees
from fedpower.report.view import findings


def print_findings(result: Result) -> None:
    """Print a line a component, and which of them are determined."""
    out = console()
    if result.absent:
        out.print(f"{result.headline}.", soft_wrap=True)
    values, ratios = result.denoised_variance, result.denoised_variance_ratio
    angles = result.component_angles if result.component_angles.any() else None  # of an exact fit
    headings = ["component", "variance", "ratio", "together"]
    shown = table(None, *headings, *([] if angles is None else ["angle"]), numbers=headings)
    for place, together in enumerate(np.cumsum(ratios)):
        shares = [f"{each:.2%}" if math.isfinite(each) else "–" for each in (ratios[place], together)]
        angle = [] if angles is None else [_angle(float(angles[place]))]
        shown.add_row(f"pc{place + 1}", f"{values[place]:.6g}", *shares, *angle)
    out.print(shown)
    for sentence in findings(result, in_options):
        out.print(sentence, soft_wrap=True)


def _angle(angle: float) -> str:
    return degrees(angle) if angle <= DETERMINED else f"not determined ({degrees(angle)})"
