"""Pictures of the accuracy benchmarks: variance lost against ε, a panel for each data set."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.render import kept
from benchmarks.takeaways import Rows, values_of

DOCS = Path(__file__).parents[1] / "docs"

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


def main() -> None:
    """Draw both pictures."""
    plt.rcParams.update({"font.size": 9, "font.family": "DejaVu Sans", "svg.hashsalt": "fedpower"})
    real = kept("accuracy_real")["measured"]
    draw("accuracy-real", [row for row in real if row["split"] == "by label"])
    draw("accuracy-peers", kept("accuracy_peers")["measured"]["fits"])


def draw(name: str, rows: Rows) -> None:
    """Draw one picture and save it as SVG and PNG."""
    sets, epsilons = values_of(rows, "data"), values_of(rows, "epsilon")
    columns = 3
    height = -(-(len(sets) + 1) // columns)  # one place is for the key
    figure, grid = plt.subplots(
        height, columns, figsize=(9.6, 2.9 * height), layout="constrained", squeeze=False
    )
    places = list(grid.flat)
    for axes, data in zip(places, sets, strict=False):
        for method in LINES:
            _line(axes, method, [r for r in rows if (r["data"], r["method"]) == (data, method)])
        axes.set_title(data, fontsize=10)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(LEAST / 2, 1.6)
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("share of variance lost")
    for axes in places[max(0, len(sets) - columns) : len(sets)]:
        axes.set_xlabel("ε")
    _key(places[len(sets)], values_of(rows, "method"))
    for axes in places[len(sets) :]:
        axes.axis("off")
    for kind in ("svg", "png"):
        plain = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(DOCS / f"{name}.{kind}", metadata=plain, dpi=130)
    plt.close(figure)


def _line(axes: Any, method: str, rows: Rows) -> None:
    """Draw the mean over seeds of what is lost, with the range that the seeds span."""
    found = values_of(rows, "epsilon")
    if not found:
        return
    lost = [[max(1 - r["captured"], LEAST) for r in rows if r["epsilon"] == e] for e in found]
    middle = [statistics.mean(each) for each in lost]
    spread = [
        [centre - min(each) for centre, each in zip(middle, lost, strict=True)],
        [max(each) - centre for centre, each in zip(middle, lost, strict=True)],
    ]
    axes.errorbar(found, middle, yerr=spread, markersize=5, capsize=2, **LINES[method])


def _key(axes: Any, methods: Sequence[str]) -> None:
    shown = [method for method in LINES if method in methods]
    handles = [axes.plot([], [], **LINES[method], label=LABELS[method])[0] for method in shown]
    axes.legend(handles=handles, loc="center left", frameon=False, fontsize=8)


if __name__ == "__main__":
    main()
