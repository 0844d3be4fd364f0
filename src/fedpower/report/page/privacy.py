"""What is promised about the rows, in plain words, and what it cost: all from the record's statement."""

import math
from typing import Any

from fedpower.privacy.statement import ALL_NOT_PRIVATE, EDGE, PERSON, as_sentence
from fedpower.report.page.charts import bars
from fedpower.report.page.markup import (
    Figure,
    Markup,
    beside,
    column,
    element,
    equals,
    facts,
    figure,
    figures,
    folded,
    items,
    name,
    number,
    paragraphs,
    percent,
    section,
    table,
)

MODES = {
    "moment": "each silo’s moment (the average products of every two columns) was noised once, before it "
    "left; no later round or analysis of it is charged again",
    "step": "the product of every step was noised, as much as an exact calculation asks for",
    "paper": "the product of every step was noised, as much as the paper prints",
    "clipped": "sums of clipped products with public directions, perhaps after the moment, were each "
    "noised and charged",
}
SECURE = (
    "each silo added its share of the noise to a masked sum of moments (the average products of every "
    "two columns); no later analysis of that sum is charged again"
)
"""What stands in place of these where moments were summed securely."""

_EDGES = "each silo’s adjacency matrix was noised once before it left; no later analysis is charged again"
_SUMMED_EDGES = (
    "each silo added its share of the noise to a masked sum of adjacency matrices; no later analysis of "
    "that sum is charged again"
)
"""The same of networks whose edges are protected."""

_SHARED = "each silo added its share of the noise to masked sums"


def privacy_section(run: dict[str, Any]) -> Markup:
    """Return the privacy statement of a record, and a picture of the budget."""
    promise = run["privacy"]
    if not promise["private"]:
        return section(
            "privacy",
            "Privacy",
            element("p", _not_private(promise), class_="warning"),
            facts(
                (
                    ("What everybody may know", items(promise["public"])),
                    ("Notes", _sentences(promise["notes"])),
                ),
                kind="terms",
            ),
        )
    statement = (
        ("What is protected", f"{promise['unit'].capitalize()}."),
        ("Neighbours", f"{promise['neighbours'].capitalize()}."),
        ("Rows", _bound(run["parameters"])),
        ("Noise", [element("code", promise["mode"]), f": {_noised(run)}."]),
        ("Asked for", f"{equals('ε', promise['asked_epsilon'])} at {equals('δ', promise['delta'])}."),
        ("What everybody may know", items(promise["public"])),
        ("Notes", _sentences(promise["notes"])),
        ("What this supposes", _sentences(promise["assumptions"])),
    )
    return section(
        "privacy",
        "Privacy",
        _protections(promise),
        facts(statement, kind="terms"),
        _budgets(run["silos"]) or _spent_of_asked(promise),
    )


def _sentences(clauses: list[str]) -> Markup | None:
    return items(map(as_sentence, clauses)) if clauses else None


def summed_securely(run: dict[str, Any]) -> bool:
    """Return whether a record is of a fit whose moments left as one masked sum."""
    return bool(run["parameters"].get("aggregation") == "secure")


def worst(privacy: dict[str, Any]) -> dict[str, Any]:
    """Return the protection against the observer who sees most."""
    found: dict[str, Any] = max(privacy["protections"], key=lambda row: epsilon(row["epsilon"]))
    return found


def odds(value: float | None) -> str:
    """Return e^ε, the factor by which odds may shift."""
    return number(math.exp(epsilon(value)) if epsilon(value) < 700 else math.inf, 3)


def epsilon(value: float | None) -> float:
    """Return an ε of the record, in which None is infinite."""
    return math.inf if value is None else float(value)


def _noised(run: dict[str, Any]) -> str:
    mode = run["privacy"]["mode"]
    if run["privacy"]["unit"] == EDGE:
        return _SUMMED_EDGES if summed_securely(run) else _EDGES
    if summed_securely(run):
        return f"{MODES[mode]}; {_SHARED}" if mode == "clipped" else SECURE
    return MODES[mode]


def _bound(parameters: dict[str, Any]) -> str | None:
    """Return what was done to rows before anything was computed from them; None if that is not known."""
    if parameters.get("normalize"):
        return "Every row was brought to length 1."
    bound = parameters.get("row_norm")
    if bound is None:
        return None
    units = " (in scaled units)" if parameters.get("scale") is not None else ""
    centred = isinstance(parameters.get("center"), list)
    before = ", after the public centre was subtracted" if centred else ""
    return f"Rows longer than {number(bound)}{units} were shortened to that{before}."


def _not_private(promise: dict[str, Any]) -> str:
    if promise["leak"] is not None:
        return (
            f"NOT PRIVATE although {equals('ε', promise['asked_epsilon'])} was asked for: "
            f"{promise['leak']}; noise was added, and nothing is promised."
        )
    return f"{ALL_NOT_PRIVATE}.".replace("epsilon = inf", "ε = ∞")


def _protections(promise: dict[str, Any]) -> list[Markup]:
    rows = [
        (
            [f"Against {row['observer']}", element("span", f"who sees {row['sees']}", class_="aside")],
            Figure(number(epsilon(row["epsilon"])), row["epsilon"]),
            Figure(odds(row["epsilon"]), row["epsilon"]),
            Figure(number(row["delta"]), row["delta"]),
        )
        for row in promise["protections"]
    ]
    return [
        table("What each observer can learn at most", ["Observer", "ε", "Odds\u00a0×", "δ"], rows),
        *paragraphs([_odds_of(promise), element("sup", "ε"), " at most, except with probability δ."]),
    ]


def _odds_of(promise: dict[str, Any]) -> str:
    if promise["unit"] == PERSON:
        return "The odds that a person was in the data, or what her rows held, shift by the factor e"
    if promise["unit"] == EDGE:
        return "The odds that a given edge is there, or what it weighs, shift by the factor e"
    return "The odds that a given row was in the data, or what it held, shift by the factor e"


def _budgets(silos: list[dict[str, Any]]) -> list[Markup] | None:
    """Return each silo's ledger after the fit, where one operator holds all of them; else None."""
    held = [(each["name"], each["budget"]) for each in silos if "budget" in each]
    if not held:
        return None
    used = [budget["used"] for _, budget in held]
    picture = bars(
        "Budget used by silo",
        f"Of {len(held)} ledgers, the fullest is used to {percent(max(used))} and the emptiest to "
        f"{percent(min(used))}. The table below has the numbers.",
        used,
        most=1.0,
    )
    numbers = {
        key: figures(column(values), values)
        for key in ("spent", "left", "cap")
        for values in [[epsilon(budget[key]) for _, budget in held]]
    }
    rows = [
        (
            name(silo),
            numbers["spent"][place],
            numbers["left"][place],
            numbers["cap"][place],
            Figure(number(budget["delta"]), budget["delta"]),
            Figure(percent(budget["used"]), budget["used"]),
        )
        for place, (silo, budget) in enumerate(held)
    ]
    return [
        element("h3", "Budgets after this fit"),
        figure(
            beside(
                [name(silo) for silo, _ in held], picture, [percent(share) for share in used],
                kind="shares",
            ),
            "Share of each silo’s cap that is used, by this fit and all before it. Epsilons do not add "
            "up; squares of μ do, of how far one row may move what left, measured in its noise: the "
            "share is of μ².",
        ),
        folded(
            "The ledgers in numbers",
            table(
                "Ledgers after this fit",
                ["Silo", "ε spent", "ε left for one fit", "ε of the cap", "δ", "Used"],
                rows,
                sortable=True,
            ),
        ),
    ]  # fmt: skip


def _spent_of_asked(promise: dict[str, Any]) -> list[Markup]:
    """Return what the study spent of what it asked for, towards each observer."""
    spent = [epsilon(row["epsilon"]) for row in promise["protections"]]
    asked = float(promise["asked_epsilon"])
    picture = bars(
        "Spent of what was asked for",
        f"Of {equals('ε', asked)} asked for, {number(max(spent))} was spent towards the observer who "
        "sees most. The table of observers above has the numbers.",
        [min(each, 2 * asked) for each in spent],
        most=asked,
    )
    labels = [f"{row['observer'][:1].upper()}{row['observer'][1:]}" for row in promise["protections"]]
    return [
        element("h3", "Spent of what was asked for"),
        figure(
            beside(labels, picture, [equals("ε", each) for each in spent], kind="shares"),
            f"The pale bar is the {equals('ε', asked)} that was asked for. What each silo has spent on "
            "other studies, and what it has left, is known to that silo alone.",
        ),
    ]
