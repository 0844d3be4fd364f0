"""Pictures of what was measured, drawn from ``results``: noise modes, accuracy on real data, growth."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.runner import Measured, distinct, exponents, having, kept, values
from paper.pictures import GREY, INK, drawing, saved

DOCS = Path(__file__).parents[1] / "docs"


def draw_all() -> None:
    for name, (size, draw) in PICTURES.items():
        with drawing() as Figure:
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            (DOCS / f"{name}.svg").write_bytes(saved(figure, "svg"))


MODES = {
    "paper": ("noise as printed\nin the paper", "o", "white"),
    "step": ("each step noised,\nexact accounting", "s", "#9a9a9a"),
    "covariance": ("fedpower's default:\nthe covariance noised once", "D", "black"),
}


def draw_modes(figure: Any) -> None:
    found, axes = kept("model1_modes"), figure.subplots()
    settings, labels = found["settings"], []
    for height, (mode, (label, marker, colour)) in enumerate(reversed(MODES.items())):
        errors = [seed["pooled"] for seed in found["measured"][mode]]
        axes.scatter(errors, [height] * len(errors), marker=marker, s=42, facecolor=colour, edgecolor="black")
        place = {"xytext": (0, 10), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{statistics.mean(errors):.2g}", (statistics.mean(errors), height), **place)
        labels.append(label)
    axes.set(xscale="log", xlim=(3e-3, 1), ylim=(-0.5, len(MODES) - 0.3))
    axes.set_yticks(range(len(MODES)), labels)
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


# By method its label, colour, marker and line: marker and line distinguish them, also in grey print.
LINES = {
    "fedpower": ("fedpower (default)", "black", "D", "-"),
    "step": ("every step noised, exact accounting", "#777777", "s", "--"),
    "paper": ("noise as printed in the paper", "black", "o", ":"),
    "Analyze-Gauss": ("Analyze-Gauss: trusted curator", "#777777", "^", "-"),
    "exponential mechanism": ("exponential mechanism: trusted curator, pure ε", "#777777", "v", "-."),
    "OpenDP": ("OpenDP: trusted curator, pure ε, where it finished", "#777777", "P", ""),
    "diffprivlib": ("diffprivlib: trusted curator, pure ε, where it finished", "black", "X", ""),
    "WDA": ("WDA: no privacy", "#aaaaaa", "", (0, (1, 1))),
}
HOLLOW = ("paper", "OpenDP", "diffprivlib")


def _look(method: str) -> dict[str, Any]:
    label, colour, marker, line = LINES[method]
    look = {"color": colour, "marker": marker, "linestyle": line, "label": label}
    look |= {"markerfacecolor": "white"} if method in HOLLOW else {}
    return look | ({"linewidth": 2.0} if method == "fedpower" else {})


LEAST = 1e-5
"""Less variance lost than this is drawn as this."""


def draw_accuracy(figure: Any, rows: Sequence[Measured]) -> None:
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
        axes.set(xscale="log", yscale="log", ylim=(LEAST / 2, 1.6))
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("share of variance lost")
    for axes in places[max(0, len(sets) - columns) : len(sets)]:
        axes.set_xlabel("ε")
    methods, key = distinct(rows, "method"), places[len(sets)]
    handles = [key.plot([], [], **_look(method))[0] for method in LINES if method in methods]
    key.legend(handles=handles, loc="center left", fontsize=8)
    for axes in places[len(sets) :]:
        axes.axis("off")


def _lost(axes: Any, method: str, rows: Sequence[Measured]) -> None:
    found = {
        epsilon: [max(1 - each["captured"], LEAST) for each in having(rows, epsilon=epsilon)]
        for epsilon in distinct(rows, "epsilon")
    }
    if found:
        _errorbar(axes, found, statistics.mean, **_look(method))


LEAST_MB = 1.0
"""A fit that needs less memory than this of its own is drawn here."""

FITTED = "0.6"
MEASURES = {
    "seconds": ("seconds", 0.0, {"marker": "o", "markerfacecolor": INK}),
    "rise_mb": ("the fit's own MB", LEAST_MB, {"marker": "s", "markerfacecolor": "white"}),
}


def draw_growth(figure: Any, measured: Sequence[Measured]) -> None:
    names = distinct(measured, "curve")
    grid = figure.subplots(len(MEASURES), len(names), sharex="col", sharey="row", squeeze=False)
    for column, name in enumerate(names):
        here = having(measured, curve=name)
        sizes = sorted(distinct(here, "size"))
        seconds = [statistics.median(values(having(here, size=size))) for size in sizes]
        for (key, (_, least, look)), axes in zip(MEASURES.items(), grid[:, column], strict=True):
            found = {n: [max(least, each) for each in values(having(here, size=n), key)] for n in sizes}
            _errorbar(axes, found, statistics.median, color=INK, linestyle="none", **look)
            axes.set(xscale="log", yscale="log")
        if slopes := exponents(here, sizes):
            slope, across = statistics.median(slopes), statistics.geometric_mean(sizes)
            ends, up = [sizes[0], sizes[-1]], statistics.geometric_mean(seconds)
            line = [up * (size / across) ** slope for size in ends]
            grid[0][column].plot(ends, line, color=FITTED, linestyle="--", zorder=1)
            grid[0][column].set_title(f"exponent {slope:.2f}", fontsize=9)
        grid[-1][column].set_xlabel(name)
    for row, (label, *_) in enumerate(MEASURES.values()):
        grid[row][0].set_ylabel(label)
    figure.suptitle(
        "A fit, private unless marked exact: median and range of the repeats, exponent of the time",
        fontsize=10,
    )


def _errorbar(axes: Any, found: dict[Any, list[float]], middle: Callable[..., float], **look: Any) -> None:
    shown = {place: each for place, each in found.items() if each}
    centres = [middle(each) for each in shown.values()]
    ends = zip(centres, shown.values(), strict=True)
    ranges = [(centre - min(each), max(each) - centre) for centre, each in ends]
    axes.errorbar(list(shown), centres, yerr=list(zip(*ranges, strict=True)), capsize=2, markersize=5, **look)


PICTURES: dict[str, tuple[tuple[float, float], Callable[[Any], None]]] = {
    "model1": ((7.2, 2.5), draw_modes),
    "accuracy-real": (
        (9.6, 5.8),
        lambda figure: draw_accuracy(figure, having(kept("accuracy_real")["measured"], split="by label")),
    ),
    "accuracy-peers": (
        (9.6, 5.8),
        lambda figure: draw_accuracy(figure, kept("accuracy_peers")["measured"]["fits"]),
    ),
    "speed": ((9.6, 4.6), lambda figure: draw_growth(figure, kept("growth")["measured"])),
}
"""By the name of its file: the size in inches, and what draws it."""
