"""The growth curves, drawn from `results/speed_growth.json`: time and memory of a fit."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.measuring import Measured, exponents, of_way, values
from fedpower.experiments.look import INK, drawing, saved

RESULTS = Path(__file__).parents[1] / "results" / "speed_growth.json"
PICTURE = Path(__file__).parents[2] / "docs" / "speed.svg"
LEAST_MB = 1.0
"""A fit that needs less memory than this of its own is drawn here."""

FITTED = "0.6"
MEASURES = {"seconds": "seconds", "rise_mb": "the fit's own MB"}


def main() -> None:
    """Draw every curve that was measured."""
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))["measured"]
    with drawing() as Figure:
        figure = Figure(figsize=(9.6, 4.6), layout="constrained")
        draw(figure, measured)
        PICTURE.write_bytes(saved(figure, "svg"))


def draw(figure: Any, measured: Sequence[Measured]) -> None:
    """Draw a column of two panels a curve: time with its fitted line above, memory below."""
    names = list(dict.fromkeys(each["curve"] for each in measured))
    grid = figure.subplots(len(MEASURES), len(names), sharex="col", sharey="row", squeeze=False)
    for column, name in enumerate(names):
        here = of_way(measured, curve=name)
        for row, key in enumerate(MEASURES):
            axes = grid[row][column]
            _points(axes, here, key)
            axes.set_xscale("log")
            axes.set_yscale("log")
        slopes = exponents(here, _sizes(here))
        if slopes:
            _line(grid[0][column], here, statistics.median(slopes))
        grid[-1][column].set_xlabel(name)
    for row, label in enumerate(MEASURES.values()):
        grid[row][0].set_ylabel(label)
    figure.suptitle(
        "A fit, private unless marked exact: median and range of the repeats, exponent of the time",
        fontsize=10,
    )


def _points(axes: Any, measured: Sequence[Measured], key: str) -> None:
    """Draw the median at every size, with the range of the repeats."""
    least = LEAST_MB if key == "rise_mb" else 0.0
    found = {
        size: [max(least, value) for value in values(of_way(measured, size=size), key)]
        for size in _sizes(measured)
    }
    shown = {size: each for size, each in found.items() if each}
    middle = [statistics.median(each) for each in shown.values()]
    below = [centre - min(each) for centre, each in zip(middle, shown.values(), strict=True)]
    above = [max(each) - centre for centre, each in zip(middle, shown.values(), strict=True)]
    axes.errorbar(
        list(shown),
        middle,
        yerr=[below, above],
        color=INK,
        marker="o" if key == "seconds" else "s",
        markerfacecolor=INK if key == "seconds" else "white",
        markersize=5,
        linestyle="none",
        capsize=2,
    )


def _line(axes: Any, measured: Sequence[Measured], slope: float) -> None:
    """Draw the fitted power through the points' middle and write its exponent."""
    sizes = _sizes(measured)
    seconds = [statistics.median(values(of_way(measured, size=size))) for size in sizes]
    across, up = statistics.geometric_mean(sizes), statistics.geometric_mean(seconds)
    ends = [sizes[0], sizes[-1]]
    axes.plot(
        ends,
        [up * (size / across) ** slope for size in ends],
        color=FITTED,
        linestyle="--",
        zorder=1,
    )
    axes.set_title(f"exponent {slope:.2f}", fontsize=9)


def _sizes(measured: Sequence[Measured]) -> list[int]:
    return sorted({each["size"] for each in measured})


if __name__ == "__main__":
    main()
