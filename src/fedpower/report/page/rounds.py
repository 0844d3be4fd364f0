"""How the run went: whether it settled, what travelled, and who answered."""

from collections.abc import Sequence
from typing import Any

from fedpower.report.page.charts import Series, bytes_by_round, over_rounds, participation
from fedpower.report.page.markup import Markup, element, name
from fedpower.report.page.tables import (
    Figure,
    beside,
    figure,
    figures,
    folded,
    paragraphs,
    section,
    table,
)
from fedpower.report.page.words import MISSING, count, counted, human_bytes, number

Rounds = list[dict[str, Any]]


def rounds_section(run: dict[str, Any]) -> Markup:
    """Return convergence and bytes over the rounds; words alone where there was one round."""
    rounds: Rounds = run["rounds"]
    moved = f"{human_bytes(run['bytes_up'])} up from the silos and {human_bytes(run['bytes_down'])} down"
    solver = run["solver"]
    told = f"Solver {solver['solver']}, because {solver['reason']}."
    if len(rounds) == 1:
        return section(
            "rounds",
            "Rounds",
            *paragraphs(
                f"One round did it, with {moved}: there is no convergence to watch. {told}",
            ),
            _table(rounds),
        )
    return section(
        "rounds",
        "Rounds",
        *paragraphs(f"{count(len(rounds), 'round')}, with {moved}. {told}"),
        _convergence(rounds),
        figure(
            element(
                "div",
                bytes_by_round(
                    [each["round"] for each in rounds],
                    [each["bytes_up"] for each in rounds],
                    [each["bytes_down"] for each in rounds],
                ),
                class_="plot",
            ),
            [
                element("span", element("b", "■", class_="up"), " up from the silos", class_="key"),
                element("span", element("b", "□", class_="down"), " down to them", class_="key"),
                "Bytes (vertical) by round.",
            ],
        ),
        _table(rounds),
    )


def silos_section(run: dict[str, Any]) -> Markup:
    """Return who answered in which round, as a grid and in numbers."""
    rounds: Rounds = run["rounds"]
    silent = (run.get("federation") or {}).get("silent", {})
    told = {each["name"]: each for each in run["silos"]}
    names = [*told, *(each for each in silent if each not in told)]
    present = [[silo in each["participants"] for each in rounds] for silo in names]
    tally = [f"{sum(row)} of {len(rounds)}" for row in present]
    grid = beside(
        [name(silo) for silo in names],
        participation(present, [each["round"] for each in rounds]),
        tally,
        kind="grid",
    )
    complete = all(all(row) for row in present)
    return section(
        "silos",
        "Silos",
        figure(
            element(
                "div", grid, class_="scroll", role="region", tabindex="0", aria_label="Who answered"
            ),
            [
                element("span", element("b", "■", class_="answered"), " answered", class_="key"),
                element(
                    "span",
                    element("b", "×", class_="missing"),
                    " was not asked, or did not answer in time",
                    class_="key",
                )
                if not complete
                else None,
                "A row a silo, a column a round.",
            ],
        ),
        _silos(names, told, present, silent, (run.get("federation") or {}).get("set_aside", {})),
    )


def _convergence(rounds: Rounds) -> Markup | list[Markup]:
    series = [
        Series(kind=kind, shape=shape, values=[each[kind] for each in rounds])
        for kind, shape in (("change", "dot"), ("misalignment", "square"))
    ]
    drawn = [each for each in series if sum(value is not None for value in each.values) > 1]
    if not drawn:
        return paragraphs(
            "No basis moved from round to round, so there is no convergence to watch."
        )
    words = {
        "change": ("●", "change of the leading subspace, as the solver measures it (sin θ)"),
        "misalignment": ("▪", "how far silos’ bases lay apart before averaging (ρ)"),
    }
    keys = [
        element("span", element("b", words[each.kind][0], class_=each.kind), f" {words[each.kind][1]}",
                class_="key")
        for each in drawn
    ]  # fmt: skip
    picture = over_rounds("Convergence over rounds", [each["round"] for each in rounds], drawn)
    return figure(
        element("div", picture, class_="plot"), [*keys, "Logarithmic scale (vertical) by round."]
    )


def _table(rounds: Rounds) -> Markup:
    measured = [
        (key, heading)
        for key, heading in (("change", "Change (sin θ)"), ("misalignment", "Misalignment (ρ)"))
        if any(each[key] for each in rounds)  # a moment that left whole has moved by 0, once
    ]
    headings = ["Round", "Question", "Step", "Answered", "Bytes up", "Bytes down"]
    rows = [
        (
            Figure(str(each["round"]), each["round"]),
            each["kind"],
            Figure(str(each["step"]), each["step"]),
            Figure(str(each["n_participants"]), each["n_participants"]),
            Figure(f"{each['bytes_up']:,}", each["bytes_up"]),
            Figure(f"{each['bytes_down']:,}", each["bytes_down"]),
            *(Figure(number(each[key]), each[key]) for key, _ in measured),
        )
        for each in rounds
    ]
    shown = table(
        "Rounds", [*headings, *(heading for _, heading in measured)], rows, sortable=len(rows) > 1
    )
    few = len(rounds) <= 3
    return shown if few else folded(f"All {len(rounds)} rounds in numbers", shown, kind="long")


def _silos(
    names: Sequence[str],
    told: dict[str, dict[str, Any]],
    present: Sequence[Sequence[bool]],
    silent: dict[str, int],
    set_aside: dict[str, str],
) -> Markup:
    """Return a line a silo; columns of which nothing is known are left out."""
    sizes = [told.get(silo, {}).get("rows") for silo in names]
    answered = [sum(row) for row in present]
    columns: dict[str, list[Any]] = {
        "Silo": [name(silo) for silo in names],
        "Rows": figures([MISSING if size is None else f"{size:,}" for size in sizes], sizes),
        "Rounds answered": figures(map(str, answered), answered),
    }
    if silent:
        missed = [silent.get(silo, 0) for silo in names]
        columns["Questions missed"] = figures(map(str, missed), missed)
    if set_aside:
        columns["Set aside"] = [name(set_aside.get(silo, MISSING)) for silo in names]
    sources = [told.get(silo, {}).get("source") for silo in names]
    if any(sources):
        columns["Rows come from"] = [name(source or MISSING) for source in sources]
    rows = list(zip(*columns.values(), strict=True))
    shown = table("Silos", list(columns), rows, sortable=len(rows) > 1)
    things = "silo" if len(names) == 1 else "silos"
    return folded(f"The {counted(len(names))} {things} in numbers", shown, is_open=len(names) <= 12)
