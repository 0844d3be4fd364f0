"""The paper's Figures 3 and 4: a column a panel, a row a noise mode."""

from typing import Any

import numpy as np

from fedpower.experiments.look import BLUE, GREEN, INK, ORANGE
from fedpower.experiments.reproduction.curves import MODES
from fedpower.experiments.reproduction.settings import (
    EPSILON,
    EPSILONS_SHOWN,
    LOCAL_STEPS,
    LOCAL_STEPS_SHOWN,
    N_STEPS,
    PARTICIPATIONS_SHOWN,
    ModelName,
)
from fedpower.experiments.reproduction.table import Table

VARIED: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "a": ("local_steps", "p", LOCAL_STEPS_SHOWN),
    "b": ("epsilon", "ε", EPSILONS_SHOWN),
    "c": ("participation", "K/m", PARTICIPATIONS_SHOWN),
}
"""By panel: what it varies, its sign, and the values."""

TITLES = {
    "a": "(a) effect of p",
    "b": "(b) effect of ε",
    "c": "(c) effect of K/m",
}
ROW_NAMES = {
    "paper": "noise as printed (paper)",
    "step": "each step noised (step)",
    "moment": "moment noised once (moment)",
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
    """Draw one value of what a panel varies: FedPower, and what the library has for this noise."""
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
    """Say once what solid, dashed and starred mean."""
    shown = (
        ("FedPower", {"linestyle": "-", "marker": "o"}),
        ("krylov", {"linestyle": "--", "marker": "o", "markerfacecolor": "white"}),
        ("the default, one round", {"linestyle": "none", "marker": "*", "markersize": 11}),
    )
    handles = [axes.plot([], [], color=INK, **style)[0] for _, style in shown]
    names = [label for label, _ in shown]
    figure.legend(handles, names, loc="outside upper center", ncols=3, title=f"Model {model}")
