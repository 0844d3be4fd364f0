"""A sentence under each picture that says what to see, with numbers from the runs."""

import numpy as np

from fedpower.experiments.reproduction.curves import MODES, SILO_EPSILON
from fedpower.experiments.reproduction.own_claims import HALF
from fedpower.experiments.reproduction.paper_claims import fedpower
from fedpower.experiments.reproduction.settings import EPSILON, EPSILONS_SHOWN, ModelName, Settings
from fedpower.experiments.reproduction.statistics import CHANCE, rows_to
from fedpower.experiments.reproduction.table import Table

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
            f"{table.last(**fedpower(model, noise, epsilon=epsilon)).mean():.2g}"
            for epsilon in (low, high)
        )
        for noise in MODES
    }
    errors = [
        table.last(**fedpower(model, "paper", epsilon=epsilon)).mean() for epsilon in EPSILONS_SHOWN
    ]
    drowned = " The printed noise drowns the signal at every ε." if min(errors) > CHANCE else ""
    return (
        f"The paper's Figure {figure} (Model {model}: {facts}) in three noise modes at the same ε and "
        f"δ: at ε = {low:g} and {high:g} FedPower ends at {ends['paper']} with the noise as printed "
        f"(top), at {ends['step']} with each step noised under exact accounting (middle) and at "
        f"{ends['moment']} with the moment noised once (bottom).{drowned} {_SPREAD}"
    )


_SPREAD = "Lines: means over repetitions; bands: 10th to 90th percentile."


def _solvers(table: Table) -> str:
    shown: tuple[tuple[str, ModelName, float], ...] = (
        ("3", "I", EPSILON),
        ("4", "II", max(EPSILONS_SHOWN)),
    )
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
        (p, schedule): table.last(
            figure="schedules", panel="I", local_steps=p, schedule=schedule
        ).mean()
        for p, schedule in ((1, "constant"), (4, "constant"), (4, "decaying"))
    }
    return (
        "Without noise, see where the dashed lines (constant p) level off and the solid ones go on: "
        f"in Model I constant p = 4 ends at {last[4, 'constant']:.1g}, p = 1 at "
        f"{last[1, 'constant']:.1g}, decaying p = 4 at {last[4, 'decaying']:.1g}. {_SPREAD}"
    )


def _alignment(table: Table) -> str:
    panels = dict.fromkeys(row.panel for row in table.select(figure="alignment"))
    told = []
    for panel in panels:
        low, high = (
            table.last(
                "misalignment",
                figure="alignment",
                panel=panel,
                alignment="procrustes",
                local_steps=p,
            ).mean()
            for p in (4, 16)
        )
        told.append(f"{low:.2g} and {high:.2g} in Model {panel.replace(' r=', ', r = ')}")
    return (
        "Misalignment ρ_t of the silos' bases in the last round against p, without noise: with "
        f"Procrustes at p = 4 and 16 it is {'; '.join(told)}. Where r > k a basis has a column more "
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
        return (
            f"about n = {float(f'{np.exp(rows):.2g}'):,.0f}" if np.isfinite(rows) else "no n shown"
        )

    return (
        f"Where the paper's noise would not drown Model II at ε = {EPSILON:g}: every silo holds each "
        "row so many times over that there are n rows (the moment stays, the noise shrinks); the "
        f"error falls to {HALF:g} at {needed(solver='fedpower', noise='paper')} with the printed "
        f"noise, at {needed(solver='fedpower', noise='step')} with exact accounting and at "
        f"{needed(solver='default')} with the default. Bands: 10th to 90th percentile."
    )
