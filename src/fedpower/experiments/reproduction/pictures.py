"""The pictures: errors against communications in every mode, and what the claims rest on."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.experiments.look import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, drawing, saved
from fedpower.experiments.reproduction.panels import ERROR, draw_panels
from fedpower.experiments.reproduction.settings import EPSILON, EPSILONS_SHOWN, LOCAL_STEPS
from fedpower.experiments.reproduction.table import Table

Array = NDArray[np.float64]

KINDS = ("svg", "png")
CAPTION_INCHES = 0.17
"""Height of a line of a caption."""

WAYS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("fedpower", "paper"): ("FedPower, noise as printed", {"color": ORANGE, "marker": "s"}),
    ("fedpower", "step"): (
        "FedPower, exact accounting (step)",
        {"color": SKY, "marker": "^", "linestyle": "--"},
    ),
    ("krylov", "step"): (
        "krylov, every product noised (step)",
        {"color": BLUE, "marker": "v", "linestyle": "-."},
    ),
    ("fedpower", "moment"): (
        "FedPower, moment noised once",
        {"color": PURPLE, "marker": "D", "linestyle": ":"},
    ),
    ("krylov", "moment"): (
        "krylov, moment noised once",
        {"color": GREEN, "marker": "o", "linestyle": "--"},
    ),
    ("default", "moment"): (
        "the default: moment noised once, uploaded",
        {"color": INK, "marker": "*", "markersize": 11, "linestyle": "-"},
    ),
}
"""By solver and noise: what it is called and how it is drawn."""


def draw_all(table: Table, captions: Mapping[str, str]) -> dict[str, bytes]:
    """Return every picture that has a caption, by file name."""
    draw = {
        "solvers": _solvers,
        "figure3": lambda figure, table: draw_panels(figure, table, "3", "I"),
        "figure4": lambda figure, table: draw_panels(figure, table, "4", "II"),
        "schedules": _schedules,
        "alignment": _alignment,
        "silos": _silos,
        "rows": _rows,
    }
    sizes = {"figure3": (9.6, 8.6), "figure4": (9.6, 8.6), "solvers": (9.6, 5.0)}
    sizes |= {"schedules": (9.6, 4.3), "alignment": (9.6, 4.3)}
    made: dict[str, bytes] = {}
    with drawing() as Figure:
        for name, caption in captions.items():
            width, height = sizes.get(name, (6.4, 4.8))
            lines = textwrap.wrap(caption, int(width * 16.5))
            figure = Figure(figsize=(width, height), dpi=150)
            below = (len(lines) + 0.6) * CAPTION_INCHES / height
            figure.set_layout_engine("constrained", rect=(0, below, 1, 1 - below))
            draw[name](figure, table)
            figure.text(0.012, 0.35 * CAPTION_INCHES / height, "\n".join(lines), fontsize=8)
            made |= {f"{name}.{kind}": saved(figure, kind) for kind in KINDS}
    return made


def band(axes: Any, places: Any, values: Array, *, label: str | None, **style: Any) -> None:
    """Draw the mean over repetitions and a band from the 10th to the 90th percentile."""
    low, high = np.percentile(values, [10, 90], axis=0)
    axes.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(places, values.mean(axis=0), label=label, **{"markersize": 4.5, **style})


def bars(axes: Any, places: Any, values: Array, *, label: str | None, **style: Any) -> None:
    """Draw the mean over repetitions and bars from the 10th to the 90th percentile."""
    means = values.mean(axis=0)
    low, high = np.percentile(values, [10, 90], axis=0)
    reach = np.clip([means - low, high - means], 0.0, None)
    axes.errorbar(
        places, means, yerr=reach, label=label, capsize=2.5, **{"markersize": 4.5, **style}
    )


def _rounds(axes: Any, most: int) -> None:
    axes.set_xlabel("communications (rounds)")
    axes.set_xticks(range(1, most + 1))
    axes.set_xlim(0.6, most + 0.4)


def _solvers(figure: Any, table: Table) -> None:
    left, right = figure.subplots(1, 2)
    for axes, number, model, epsilon in (
        (left, "3", "I", EPSILON),
        (right, "4", "II", max(EPSILONS_SHOWN)),
    ):
        for (solver, noise), (label, style) in WAYS.items():
            errors = table.values(
                figure=number,
                solver=solver,
                noise=noise,
                epsilon=epsilon,
                participation=1.0,
                local_steps=LOCAL_STEPS if solver == "fedpower" else 1,
            )
            band(axes, range(1, errors.shape[1] + 1), errors, label=label, **style)
            if solver == "default":  # one round, and nothing to add
                axes.axhline(errors.mean(), color=INK, linewidth=0.7)
        axes.set_yscale("log")
        axes.set_title(f"Model {model}, ε = {epsilon:g}", fontsize=10)
        _rounds(axes, 10)
    left.set_ylabel(f"error {ERROR}")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)


def _schedules(figure: Any, table: Table) -> None:
    left, right = figure.subplots(1, 2)
    ways = (
        (1, "constant", "p = 1", {"color": INK, "marker": "o", "linestyle": "-"}),
        (2, "constant", "constant p = 2", {"color": ORANGE, "marker": "s", "linestyle": "--"}),
        (2, "decaying", "decaying p = 2", {"color": ORANGE, "marker": "s", "linestyle": "-"}),
        (4, "constant", "constant p = 4", {"color": BLUE, "marker": "^", "linestyle": "--"}),
        (4, "decaying", "decaying p = 4", {"color": BLUE, "marker": "^", "linestyle": "-"}),
    )
    for axes, model in ((left, "I"), (right, "II")):
        for p, schedule, label, style in ways:
            errors = table.values(figure="schedules", panel=model, local_steps=p, schedule=schedule)
            hollow = "white" if schedule == "constant" and p > 1 else style["color"]
            count = errors.shape[1]
            band(axes, range(1, count + 1), errors, label=label, markerfacecolor=hollow, **style)
        axes.set_yscale("log")
        axes.set_title(f"Model {model}, no noise", fontsize=10)
        _rounds(axes, count)
    left.set_ylabel(f"error {ERROR}")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=5)


def _alignment(figure: Any, table: Table) -> None:
    panels = list(dict.fromkeys(row.panel for row in table.select(figure="alignment")))
    steps = sorted({row.local_steps for row in table.select(figure="alignment")})
    ways = (
        ("procrustes", "Procrustes", {"color": BLUE, "marker": "o", "linestyle": "-"}),
        ("identity", "identity (none)", {"color": ORANGE, "marker": "s", "linestyle": "--"}),
    )
    for axes, panel in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        for alignment, label, style in ways:
            where = {"figure": "alignment", "panel": panel, "alignment": alignment}
            spread = np.array([table.last("misalignment", **where, local_steps=p) for p in steps]).T
            bars(axes, steps, spread, label=label, **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(steps, [str(p) for p in steps])
        axes.set_xlabel("local steps p")
        name, _, rank = panel.partition(" ")
        axes.set_title(
            f"Model {name}" + (f", {rank.replace('=', ' = ')}" if rank else ""), fontsize=10
        )
        axes.label_outer()
    figure.axes[0].set_ylabel(r"misalignment $\rho_t$, last round")
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2)


def _silos(figure: Any, table: Table) -> None:
    axes = figure.subplots()
    counts = sorted({row.n_silos for row in table.select(figure="silos")})
    for noise in ("paper", "step"):
        label, style = WAYS["fedpower", noise]
        errors = np.array(
            [table.last(figure="silos", noise=noise, n_silos=count) for count in counts]
        ).T
        bars(axes, counts, errors, label=label, **style)
        guide = errors.mean(axis=0)[-1] * np.sqrt(counts[-1] / np.array(counts))
        axes.plot(counts, guide, color=INK, linewidth=0.7)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("number of silos m")
    axes.set_ylabel(f"last error {ERROR}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2)


def _rows(figure: Any, table: Table) -> None:
    axes = figure.subplots()
    sizes = sorted({row.n_rows for row in table.select(figure="rows")})
    for (solver, noise), (label, style) in WAYS.items():
        where = {"figure": "rows", "solver": solver, "noise": noise}
        if not table.select(**where):
            continue
        errors = np.array([table.last(**where, n_rows=size) for size in sizes]).T
        band(axes, sizes, errors, label=label, **style)
    axes.axvline(sizes[0], color=INK, linewidth=0.7)
    axes.annotate(
        "the paper's n",
        (sizes[0], 0.02),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        xytext=(4, 0),
        fontsize=8,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows n of all silos")
    axes.set_ylabel(f"last error {ERROR}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2)
