"""The picture of the attack: what a curious coordinator learns, with and without noise."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpower.errors import InputError
from fedpower.experiments.attack import MODES, AttackResult, chance_cosine
from fedpower.experiments.attack_messages import AttackSetting
from fedpower.experiments.look import NOISE_STYLES, drawing, saved


def draw_attack(
    results: Sequence[AttackResult], path: Path, setting: AttackSetting | None = None
) -> None:
    """Write the picture of ``results`` to a file of the format its name says.

    Parameters
    ----------
    results
        What `attack` returned.
    path
        PNG, SVG or PDF.
    setting
        What it was played on, for the caption.
    """
    setting = setting or AttackSetting()
    with drawing() as Figure:
        figure = Figure(figsize=(9.0, 4.6), dpi=150)
        _draw(figure, results, setting)
        try:
            path.write_bytes(saved(figure, path.suffix.removeprefix(".") or "none"))
        except ValueError as error:
            raise InputError(
                f"a picture's name must end in .png, .svg or .pdf, got {path.name!r}; rename it"
            ) from error


def _draw(figure: Any, results: Sequence[AttackResult], setting: AttackSetting) -> None:
    left, right = figure.subplots(1, 2)
    (exact,) = [each for each in results if each.mode == "none"]
    for mode in MODES:
        played = sorted(
            (each for each in results if each.mode == mode), key=lambda each: each.epsilon
        )
        if not played:
            continue
        epsilons = [each.epsilon for each in played]
        left.plot(epsilons, [each.error for each in played], label=mode, **NOISE_STYLES[mode])
        right.plot(epsilons, [each.row_cosine for each in played], label=mode, **NOISE_STYLES[mode])
    rounding = max(exact.error, 1e-16)
    left.axhline(rounding, color="0.0", linewidth=1)
    left.annotate(
        f"without noise: {exact.error:.0e}, the moment itself",
        (0.03, rounding),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        xytext=(0, 5),
        fontsize=8,
    )
    left.set_yscale("log")
    left.set_ylim(rounding / 20, 20)
    left.set_ylabel("relative error of the rebuilt moment")
    left.set_title("The silo's moment", fontsize=10)
    right.axhline(exact.row_cosine, color="0.0", linewidth=1)
    right.annotate(
        f"without noise: {exact.row_cosine:.2f}, the row itself",
        (0.03, exact.row_cosine),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        xytext=(0, -12),
        fontsize=8,
    )
    chance = chance_cosine(setting)
    right.axhline(chance, color="0.6", linewidth=1, label=f"a blind guess: {chance:.2f}")
    right.set_ylim(0, 1.08)
    right.set_ylabel("|cos| of the row and what is read off")
    right.set_title("One patient's row", fontsize=10)
    ticks = sorted({each.epsilon for each in results if math.isfinite(each.epsilon)})
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("ε promised by each silo")
        axes.tick_params(labelsize=8)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_size(9)
        axes.legend(title="noise mode", fontsize=8, title_fontsize=8, loc="center")
    figure.text(
        0.02,
        0.02,
        f"A coordinator that follows Algorithm 1 solves for the moment from what one of "
        f"{setting.n_silos} silos sent in {setting.n_steps} rounds\n"
        f"({setting.n_rows} rows, {setting.n_features} columns, rank {setting.iteration_rank}, "
        f"δ = {setting.delta:g}; medians). A moment that is rebuilt well under noise is the use of the "
        "method;\na row that is read off is a breach.",
        fontsize=8,
    )
    figure.subplots_adjust(left=0.08, right=0.98, top=0.92, bottom=0.26, wspace=0.24)
