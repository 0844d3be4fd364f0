"""The README's picture, drawn from `results/model1_modes.json`: the error of each noise mode."""

import json
from pathlib import Path
from typing import Any

from fedpower.experiments.look import GREY, drawing, saved

RESULTS = Path(__file__).parent / "results" / "model1_modes.json"
PICTURE = Path(__file__).parent.parent / "docs" / "model1.svg"

MODES = {
    "paper": ("noise as printed\nin the paper", "o", "white"),
    "step": ("each step noised,\nexact accounting", "s", "#9a9a9a"),
    "moment": ("fedpower's default:\nthe moment noised once", "D", "black"),
}


def main() -> None:
    """Draw every seed of every mode on one logarithmic axis."""
    found = json.loads(RESULTS.read_text())
    with drawing() as Figure:
        figure = Figure(figsize=(7.2, 2.5), layout="constrained")
        draw(figure, found)
        PICTURE.write_bytes(saved(figure, "svg"))


def draw(figure: Any, found: dict[str, Any]) -> None:
    """Draw what was measured."""
    settings = found["settings"]
    axes = figure.subplots()
    for height, (mode, (_, marker, colour)) in enumerate(reversed(MODES.items())):
        errors = [seed["pooled"] for seed in found["measured"][mode]]
        middle = sum(errors) / len(errors)
        axes.scatter(
            errors, [height] * len(errors), marker=marker, s=42, facecolor=colour, edgecolor="black"
        )
        axes.annotate(
            f"{middle:.2g}",
            (middle, height),
            xytext=(0, 10),
            textcoords="offset points",
            ha="center",
        )
    axes.set_xscale("log")
    axes.set_xlim(3e-3, 1)
    axes.set_ylim(-0.5, len(MODES) - 0.3)
    axes.set_yticks(range(len(MODES)), [label for label, *_ in reversed(MODES.values())])
    axes.set_xlabel("error sin θ of the eigenspace (a point per seed, mean above)")
    figure.suptitle(
        f"Same privacy (ε = {settings['epsilon']:g}, δ = {settings['delta']:g}): "
        f"{settings['silos']} organisations, {settings['rows']:,} rows, "
        f"{settings['columns']} columns",
        fontsize=10,
    )
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", which="both", color=GREY, linewidth=0.6)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


if __name__ == "__main__":
    main()
