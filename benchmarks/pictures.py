"""Pictures of what was measured, drawn from ``results``: noise modes, accuracy on real data, growth."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.runner import Measured, distinct, exponents, having, kept, values
from fedpower.experiments.attack import GREY, INK, drawing, saved

DOCS = Path(__file__).parents[1] / "docs"


def draw_all() -> None:
    """Draw every picture into docs."""
    for name, (size, draw) in PICTURES.items():
        with drawing() as Figure:
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            (DOCS / f"{name}.svg").write_bytes(saved(figure, "svg"))


MODES = {
    "paper": ("noise as printed\nin the paper", "o", "white"),
    "step": ("each step noised,\nexact accounting", "s", "#9a9a9a"),
    "moment": ("fedpower's default:\nthe moment noised once", "D", "black"),
}


def draw_modes(figure: Any) -> None:
    """Draw every seed of every noise mode on one logarithmic axis."""
    found = kept("model1_modes")
    settings = found["settings"]
    axes = figure.subplots()
    for height, (mode, (_, marker, colour)) in enumerate(reversed(MODES.items())):
        errors = [seed["pooled"] for seed in found["measured"][mode]]
        middle = sum(errors) / len(errors)
        axes.scatter(errors, [height] * len(errors), marker=marker, s=42, facecolor=colour, edgecolor="black")
        axes.annotate(
            f"{middle:.2g}", (middle, height), xytext=(0, 10), textcoords="offset points", ha="center"
        )
    axes.set_xscale("log")
    axes.set_xlim(3e-3, 1)
    axes.set_ylim(-0.5, len(MODES) - 0.3)
    axes.set_yticks(range(len(MODES)), [label for label, *_ in reversed(MODES.values())])
    axes.set_xlabel("error sin θ of the eigenspace (a point per seed, mean above)")
    figure.suptitle(
        f"Same privacy (ε = {settings['epsilon']:g}, δ = {settings['delta']:g}): {settings['silos']} "
        f"organisations, {settings['rows']:,} rows, {settings['columns']} columns",
        fontsize=10,
    )
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", which="both", color=GREY, linewidth=0.6)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


LINES: dict[str, dict[str, Any]] = {
    "fedpower": {"color": "black", "marker": "D", "linestyle": "-", "linewidth": 2.0},
    "step": {"color": "#777777", "marker": "s", "linestyle": "--"},
    "paper": {"color": "black", "marker": "o", "markerfacecolor": "white", "linestyle": ":"},
    "Analyze-Gauss": {"color": "#777777", "marker": "^", "linestyle": "-"},
    "exponential mechanism": {"color": "#777777", "marker": "v", "linestyle": "-."},
    "OpenDP": {"color": "#777777", "marker": "P", "markerfacecolor": "white", "linestyle": ""},
    "diffprivlib": {"color": "black", "marker": "X", "markerfacecolor": "white", "linestyle": ""},
    "WDA": {"color": "#aaaaaa", "marker": "", "linestyle": (0, (1, 1))},
}
"""How each method is drawn: told apart by marker and line, so that grey print is enough."""

LABELS = {
    "fedpower": "fedpower (default)",
    "step": "every step noised, exact accounting",
    "paper": "noise as printed in the paper",
    "Analyze-Gauss": "Analyze-Gauss: trusted curator",
    "exponential mechanism": "exponential mechanism: trusted curator, pure ε",
    "OpenDP": "OpenDP: trusted curator, pure ε, where it finished",
    "diffprivlib": "diffprivlib: trusted curator, pure ε, where it finished",
    "WDA": "WDA: no privacy",
}
LEAST = 1e-5
"""Less variance lost than this is drawn as this."""


def draw_real(figure: Any) -> None:
    """Draw the fits on real data, silos split by label."""
    draw_accuracy(figure, having(kept("accuracy_real")["measured"], split="by label"))


def draw_peers(figure: Any) -> None:
    """Draw fedpower beside its peers."""
    draw_accuracy(figure, kept("accuracy_peers")["measured"]["fits"])


def draw_accuracy(figure: Any, rows: Sequence[Measured]) -> None:
    """Draw the share of variance lost against ε, a panel a data set."""
    sets, epsilons = distinct(rows, "data"), distinct(rows, "epsilon")
    columns = 3
    height = -(-(len(sets) + 1) // columns)  # one place is for the key
    figure.set_size_inches(9.6, 2.9 * height)
    grid = figure.subplots(height, columns, squeeze=False)
    places = list(grid.flat)
    for axes, data in zip(places, sets, strict=False):
        for method in LINES:
            _lost(axes, method, having(rows, data=data, method=method))
        axes.set_title(data, fontsize=10)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(LEAST / 2, 1.6)
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("share of variance lost")
    for axes in places[max(0, len(sets) - columns) : len(sets)]:
        axes.set_xlabel("ε")
    _key(places[len(sets)], distinct(rows, "method"))
    for axes in places[len(sets) :]:
        axes.axis("off")


def _lost(axes: Any, method: str, rows: Sequence[Measured]) -> None:
    found = {
        epsilon: [max(1 - each["captured"], LEAST) for each in having(rows, epsilon=epsilon)]
        for epsilon in distinct(rows, "epsilon")
    }
    if found:
        middle = [statistics.mean(each) for each in found.values()]
        _errorbar(axes, found, middle, markersize=5, **LINES[method])


def _key(axes: Any, methods: Sequence[str]) -> None:
    shown = [method for method in LINES if method in methods]
    handles = [axes.plot([], [], **LINES[method], label=LABELS[method])[0] for method in shown]
    axes.legend(handles=handles, loc="center left", fontsize=8)


LEAST_MB = 1.0
"""A fit that needs less memory than this of its own is drawn here."""

FITTED = "0.6"
MEASURES = {"seconds": "seconds", "rise_mb": "the fit's own MB"}


def draw_growth(figure: Any, measured: Sequence[Measured]) -> None:
    """Draw a column of two panels a curve: time with its fitted line above, memory below."""
    names = list(dict.fromkeys(each["curve"] for each in measured))
    grid = figure.subplots(len(MEASURES), len(names), sharex="col", sharey="row", squeeze=False)
    for column, name in enumerate(names):
        here = having(measured, curve=name)
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
    least = LEAST_MB if key == "rise_mb" else 0.0
    found = {
        size: [max(least, value) for value in values(having(measured, size=size), key)]
        for size in _sizes(measured)
    }
    shown = {size: each for size, each in found.items() if each}
    _errorbar(
        axes,
        shown,
        [statistics.median(each) for each in shown.values()],
        color=INK,
        marker="o" if key == "seconds" else "s",
        markerfacecolor=INK if key == "seconds" else "white",
        markersize=5,
        linestyle="none",
    )


def _line(axes: Any, measured: Sequence[Measured], slope: float) -> None:
    sizes = _sizes(measured)
    seconds = [statistics.median(values(having(measured, size=size))) for size in sizes]
    across, up = statistics.geometric_mean(sizes), statistics.geometric_mean(seconds)
    ends = [sizes[0], sizes[-1]]
    axes.plot(ends, [up * (size / across) ** slope for size in ends], color=FITTED, linestyle="--", zorder=1)
    axes.set_title(f"exponent {slope:.2f}", fontsize=9)


def _sizes(measured: Sequence[Measured]) -> list[int]:
    return sorted({each["size"] for each in measured})


def _errorbar(axes: Any, found: dict[Any, list[float]], middle: list[float], **look: Any) -> None:
    below = [centre - min(each) for centre, each in zip(middle, found.values(), strict=True)]
    above = [max(each) - centre for centre, each in zip(middle, found.values(), strict=True)]
    axes.errorbar(list(found), middle, yerr=[below, above], capsize=2, **look)


PICTURES: dict[str, tuple[tuple[float, float], Callable[[Any], None]]] = {
    "model1": ((7.2, 2.5), draw_modes),
    "accuracy-real": ((9.6, 5.8), draw_real),
    "accuracy-peers": ((9.6, 5.8), draw_peers),
    "speed": ((9.6, 4.6), lambda figure: draw_growth(figure, kept("growth")["measured"])),
}
"""By the name of its file: the size in inches, and what draws it."""
