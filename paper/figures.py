"""The figures and their captions: errors by communications in every mode, and what the claims rest on."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.claims import CHANCE, rows_to
from paper.curves import MODES, SILO_EPSILON
from paper.own_claims import HALF
from paper.paper_claims import fedpower
from paper.pictures import INK, drawing, saved
from paper.settings import (
    BLUE,
    EPSILON,
    EPSILONS_SHOWN,
    GREEN,
    LOCAL_STEPS,
    LOCAL_STEPS_SHOWN,
    N_STEPS,
    ORANGE,
    PARTICIPATIONS_SHOWN,
    PURPLE,
    SKY,
    ModelName,
    Settings,
)
from paper.table import Table

SIZE = "n = {n_rows:,}, d = {n_features}, m = {n_silos}, k = {rank}, r = {iteration_rank}"


def captions(settings: Settings, table: Table) -> dict[str, str]:
    """Return the caption of every picture that there are runs for, by the picture's name."""
    made = {}
    there = table.figures
    if "3" in there:
        made["figure3"] = _panels(settings, table, "3", "I")
    if "4" in there:
        made["figure4"] = _panels(settings, table, "4", "II")
    if {"3", "4"} <= set(there):
        made["solvers"] = _solvers(table)
    if "schedules" in there:
        made["schedules"] = _schedules(table)
    if "alignment" in there:
        made["alignment"] = _alignment(table)
    if "silos" in there:
        made["silos"] = _silos(table)
    if "rows" in there:
        made["rows"] = _rows(table)
    if settings.quick:
        made = {name: f"{text} A quick run: not the paper's size." for name, text in made.items()}
    return made


def _panels(settings: Settings, table: Table, figure: str, model: ModelName) -> str:
    size = settings.sizes[model]
    facts = SIZE.format(**{name: getattr(size, name) for name in size.__slots__})
    low, high = min(EPSILONS_SHOWN), max(EPSILONS_SHOWN)
    ends = {
        noise: " and ".join(
            f"{table.last(**fedpower(model, noise, epsilon=epsilon)).mean():.2g}" for epsilon in (low, high)
        )
        for noise in MODES
    }
    errors = [table.last(**fedpower(model, "paper", epsilon=epsilon)).mean() for epsilon in EPSILONS_SHOWN]
    drowned = " The printed noise drowns the signal at every ε." if min(errors) > CHANCE else ""
    return (
        f"The paper's Figure {figure} (Model {model}: {facts}) in three noise modes at the same ε and "
        f"δ: at ε = {low:g} and {high:g} FedPower ends at {ends['paper']} with the noise as printed "
        f"(top), at {ends['step']} with each step noised under exact accounting (middle) and at "
        f"{ends['covariance']} with the covariance noised once (bottom).{drowned} {_SPREAD}"
    )


_SPREAD = "Lines: means over repetitions; bands: 10th to 90th percentile."


def _solvers(table: Table) -> str:
    shown: tuple[tuple[str, ModelName, float], ...] = (("3", "I", EPSILON), ("4", "II", max(EPSILONS_SHOWN)))
    errors = [
        (
            table.last(**fedpower(model, "paper", epsilon=epsilon)).mean(),
            table.last(figure=figure, solver="default", epsilon=epsilon).mean(),
        )
        for figure, model, epsilon in shown
    ]
    (first, first_default), (second, second_default) = errors
    return (
        "Everything on the same axes: one round of the default (star) is at "
        f"{first_default:.2g} where the paper's mode ends at {first:.2g} in Model I at "
        f"ε = {EPSILON:g}, and at {second_default:.2g} where it ends at {second:.2g} in Model II at "
        f"ε = {max(EPSILONS_SHOWN):g}. {_SPREAD}"
    )


def _schedules(table: Table) -> str:
    last = {
        (p, schedule): table.last(figure="schedules", panel="I", local_steps=p, schedule=schedule).mean()
        for p, schedule in ((1, "constant"), (4, "constant"), (4, "decaying"))
    }
    return (
        "Without noise, see where the dashed lines (constant p) level off and the solid ones go on: "
        f"in Model I constant p = 4 ends at {last[4, 'constant']:.1g}, p = 1 at "
        f"{last[1, 'constant']:.1g}, decaying p = 4 at {last[4, 'decaying']:.1g}. {_SPREAD}"
    )


def _alignment(table: Table) -> str:
    panels = dict.fromkeys(row.panel for row in table.select(figure="alignment"))
    reported = []
    for panel in panels:
        low, high = (
            table.last(
                "misalignment", figure="alignment", panel=panel, alignment="procrustes", local_steps=p
            ).mean()
            for p in (4, 16)
        )
        reported.append(f"{low:.2g} and {high:.2g} in Model {panel.replace(' r=', ', r = ')}")
    return (
        "Misalignment ρ_t of the silos' bases in the last round against p, without noise: with "
        f"Procrustes at p = 4 and 16 it is {'; '.join(reported)}. Where r > k a basis has a column more "
        "than there are eigenvectors that stand out, and no rotation aligns that one. "
        "Bars: 10th to 90th percentile."
    )


def _silos(table: Table) -> str:
    errors = {
        row.n_silos: table.last(figure="silos", noise="paper", n_silos=row.n_silos).mean()
        for row in table.select(figure="silos")
    }
    fewest, most = min(errors), max(errors)
    return (
        f"Model I at ε = {SILO_EPSILON:g}, silos of the same size: from {fewest} to {most} of them "
        f"the error of the paper's mode falls from {errors[fewest]:.2g} to {errors[most]:.2g}; "
        "1/√m is the thin line. Bars: 10th to 90th percentile."
    )


def _rows(table: Table) -> str:
    def needed(**way: str) -> str:
        rows = np.log(rows_to(table, {"figure": "rows", **way}, HALF)).mean()
        return f"about n = {float(f'{np.exp(rows):.2g}'):,.0f}" if np.isfinite(rows) else "no n shown"

    return (
        f"Where the paper's noise would not drown Model II at ε = {EPSILON:g}: every silo holds each "
        "row so many times over that there are n rows (the covariance stays, the noise shrinks); the "
        f"error falls to {HALF:g} at {needed(solver='fedpower', noise='paper')} with the printed "
        f"noise, at {needed(solver='fedpower', noise='step')} with exact accounting and at "
        f"{needed(solver='default')} with the default. Bands: 10th to 90th percentile."
    )


VARIED: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "a": ("local_steps", "p", LOCAL_STEPS_SHOWN),
    "b": ("epsilon", "ε", EPSILONS_SHOWN),
    "c": ("participation", "K/m", PARTICIPATIONS_SHOWN),
}
"""By panel: what it varies, its sign, and the values."""

TITLES = {"a": "(a) effect of p", "b": "(b) effect of ε", "c": "(c) effect of K/m"}
ROW_NAMES = {
    "paper": "noise as printed (paper)",
    "step": "each step noised (step)",
    "covariance": "covariance noised once",
}
STYLES: tuple[dict[str, Any], ...] = (
    {"color": ORANGE, "marker": "o"},
    {"color": BLUE, "marker": "s"},
    {"color": GREEN, "marker": "^"},
)
ERROR = r"$\sin\,\theta_k$"
LINES = {"fedpower": "-", "krylov": "--", "default": "none"}


def draw_panels(figure: Any, table: Table, number: str, model: ModelName) -> None:
    """Draw one of the two figures.

    Parameters
    ----------
    figure
        Matplotlib's.
    table
        All runs.
    number, model
        Which figure, of which model.
    """
    grid = figure.subplots(len(MODES), len(VARIED), sharex=True, sharey=True)
    for row, noise in zip(grid, MODES, strict=True):
        for axes, panel in zip(row, VARIED, strict=True):
            where = {"figure": number, "noise": noise}
            for place in range(len(VARIED[panel][2])):
                _draw_value(axes, table, where, panel, place)
            axes.set_yscale("log")
        row[0].set_ylabel(f"{ROW_NAMES[noise]}\nerror {ERROR}")
    for axes, panel in zip(grid[0], VARIED, strict=True):
        sign = VARIED[panel][1]
        axes.set_title(TITLES[panel], fontsize=10, pad=22)
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles,
            [f"{sign} = {label}" for label in labels],
            loc="lower center",
            bbox_to_anchor=(0.5, 0.98),
            ncols=3,
            fontsize=8,
            columnspacing=1.0,
            handletextpad=0.4,
        )
    for axes in grid[-1]:
        axes.set_xlabel("communications (rounds)")
        axes.set_xticks(range(1, N_STEPS + 1))
        axes.set_xlim(0.6, N_STEPS + 0.4)
    _explain_lines(figure, grid[-1][0], model)


def _draw_value(axes: Any, table: Table, where: dict[str, Any], panel: str, place: int) -> None:
    column, _, values = VARIED[panel]
    value = values[place]
    for solver, line in LINES.items():
        ours = solver != "fedpower"
        if ours and column == "local_steps" and value != LOCAL_STEPS:
            continue  # local steps are FedPower's own: the others are drawn once
        usual = {"local_steps": LOCAL_STEPS, "epsilon": EPSILON, "participation": 1.0}
        wanted = {**where, **usual, column: value, "solver": solver}
        if ours:
            wanted["local_steps"] = 1
        if not table.select(**wanted):
            continue
        errors = table.values(**wanted)
        rounds = np.arange(1, errors.shape[1] + 1)
        style: dict[str, Any] = {"markersize": 4.5, **STYLES[place]}
        if ours and column == "local_steps":
            style["color"] = INK
        if solver == "default":
            style |= {"marker": "*", "markersize": 11, "markeredgecolor": INK}
        elif solver == "krylov":
            style |= {"markerfacecolor": "white", "markersize": 4}
        low, high = np.percentile(errors, [10, 90], axis=0)
        axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15, linewidth=0)
        label = None if ours else f"{value:g}"
        axes.plot(rounds, errors.mean(axis=0), linestyle=line, label=label, **style)


def _explain_lines(figure: Any, axes: Any, model: ModelName) -> None:
    shown = (
        ("FedPower", {"linestyle": "-", "marker": "o"}),
        ("krylov", {"linestyle": "--", "marker": "o", "markerfacecolor": "white"}),
        ("the default, one round", {"linestyle": "none", "marker": "*", "markersize": 11}),
    )
    handles = [axes.plot([], [], color=INK, **style)[0] for _, style in shown]
    names = [label for label, _ in shown]
    figure.legend(handles, names, loc="outside upper center", ncols=3, title=f"Model {model}")


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
    ("fedpower", "covariance"): (
        "FedPower, covariance noised once",
        {"color": PURPLE, "marker": "D", "linestyle": ":"},
    ),
    ("krylov", "covariance"): (
        "krylov, covariance noised once",
        {"color": GREEN, "marker": "o", "linestyle": "--"},
    ),
    ("default", "covariance"): (
        "the default: covariance noised once, uploaded",
        {"color": INK, "marker": "*", "markersize": 11, "linestyle": "-"},
    ),
}
"""By solver and noise: what it is called and how it is drawn."""


def draw_all(table: Table, captions: Mapping[str, str]) -> dict[str, bytes]:
    """Return every picture that has a caption, by file name."""
    draw = {
        "solvers": _draw_solvers,
        "figure3": lambda figure, table: draw_panels(figure, table, "3", "I"),
        "figure4": lambda figure, table: draw_panels(figure, table, "4", "II"),
        "schedules": _draw_schedules,
        "alignment": _draw_alignment,
        "silos": _draw_silos,
        "rows": _draw_rows,
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
    axes.errorbar(places, means, yerr=reach, label=label, capsize=2.5, **{"markersize": 4.5, **style})


def _rounds(axes: Any, most: int) -> None:
    axes.set_xlabel("communications (rounds)")
    axes.set_xticks(range(1, most + 1))
    axes.set_xlim(0.6, most + 0.4)


def _draw_solvers(figure: Any, table: Table) -> None:
    left, right = figure.subplots(1, 2)
    for axes, number, model, epsilon in ((left, "3", "I", EPSILON), (right, "4", "II", max(EPSILONS_SHOWN))):
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


def _draw_schedules(figure: Any, table: Table) -> None:
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


def _draw_alignment(figure: Any, table: Table) -> None:
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
        axes.set_title(f"Model {name}" + (f", {rank.replace('=', ' = ')}" if rank else ""), fontsize=10)
        axes.label_outer()
    figure.axes[0].set_ylabel(r"misalignment $\rho_t$, last round")
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2)


def _draw_silos(figure: Any, table: Table) -> None:
    axes = figure.subplots()
    counts = sorted({row.n_silos for row in table.select(figure="silos")})
    for noise in ("paper", "step"):
        label, style = WAYS["fedpower", noise]
        errors = np.array([table.last(figure="silos", noise=noise, n_silos=count) for count in counts]).T
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


def _draw_rows(figure: Any, table: Table) -> None:
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
