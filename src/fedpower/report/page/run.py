"""How the run went: rounds and who answered; how to run it again, with which versions, how to cite it."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from fedpower.options import call_of
from fedpower.privacy.statement import counted_as
from fedpower.report.page.charts import Series, bytes_by_round, over_rounds, participation
from fedpower.report.page.markup import (
    MISSING,
    Figure,
    Markup,
    beside,
    count,
    counted,
    element,
    equals,
    facts,
    figure,
    figures,
    folded,
    human_bytes,
    name,
    number,
    paragraphs,
    second_of_time,
    section,
    table,
)
from fedpower.report.page.privacy import summed_securely

Rounds = list[dict[str, Any]]


def rounds_section(run: dict[str, Any]) -> Markup:
    """Return convergence and bytes over the rounds; words alone where there was one round."""
    rounds: Rounds = run["rounds"]
    moved = f"{human_bytes(run['bytes_up'])} up from the silos and {human_bytes(run['bytes_down'])} down"
    solver = run["solver"]
    choice = f"Solver {solver['solver']}, because {solver['reason']}."
    if len(rounds) == 1:
        return section(
            "rounds",
            "Rounds",
            *paragraphs(f"One round did it, with {moved}: there is no convergence to watch. {choice}"),
            _table(rounds),
        )
    return section(
        "rounds",
        "Rounds",
        *paragraphs(f"{count(len(rounds), 'round')}, with {moved}. {choice}"),
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
    known = {each["name"]: each for each in run["silos"]}
    names = list(dict.fromkeys([*known, *silent, *(run.get("absent") or ())]))
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
            element("div", grid, class_="scroll", role="region", tabindex="0", aria_label="Who answered"),
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
        _silos(
            names,
            known,
            present,
            silent,
            (run.get("federation") or {}).get("set_aside", {}),
            thing=counted_as(run["parameters"]),
        ),
    )


def _convergence(rounds: Rounds) -> Markup | list[Markup]:
    series = [
        Series(kind=kind, shape=shape, values=[each[kind] for each in rounds])
        for kind, shape in (("change", "dot"), ("misalignment", "square"))
    ]
    drawn = [each for each in series if sum(value is not None for value in each.values) > 1]
    if not drawn:
        return paragraphs("No basis moved from round to round, so there is no convergence to watch.")
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
    return figure(element("div", picture, class_="plot"), [*keys, "Logarithmic scale (vertical) by round."])


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
    shown = table("Rounds", [*headings, *(heading for _, heading in measured)], rows, sortable=len(rows) > 1)
    few = len(rounds) <= 3
    return shown if few else folded(f"All {len(rounds)} rounds in numbers", shown, kind="long")


def _silos(
    names: Sequence[str],
    known: dict[str, dict[str, Any]],
    present: Sequence[Sequence[bool]],
    silent: dict[str, int],
    set_aside: dict[str, str],
    *,
    thing: str,
) -> Markup:
    """Return one row per silo; columns of which nothing is known are left out."""
    sizes = [known.get(silo, {}).get("rows") for silo in names]
    answered = [sum(row) for row in present]
    columns: dict[str, list[Any]] = {
        "Silo": [name(silo) for silo in names],
        f"{thing.capitalize()}s": figures(
            [MISSING if size is None else f"{size:,}" for size in sizes], sizes
        ),
        "Rounds answered": figures(map(str, answered), answered),
    }
    if silent:
        missed = [silent.get(silo, 0) for silo in names]
        columns["Questions missed"] = figures(map(str, missed), missed)
    if set_aside:
        columns["Set aside"] = [name(set_aside.get(silo, MISSING)) for silo in names]
    sources = [known.get(silo, {}).get("source") for silo in names]
    if any(sources):
        columns["Rows come from"] = [name(source or MISSING) for source in sources]
    rows = list(zip(*columns.values(), strict=True))
    shown = table("Silos", list(columns), rows, sortable=len(rows) > 1)
    things = "silo" if len(names) == 1 else "silos"
    return folded(f"The {counted(len(names))} {things} in numbers", shown, is_open=len(names) <= 12)


PAPER = """@misc{FP,
  title = {{FedPower}: Privacy-Preserving Distributed Eigenspace Estimation},
  author = {Guo, Xiao and Li, Xiang and Chang, Xiangyu and Wang, Shusen and Zhang, Zhihua},
  note = {the paper this package implements}
}"""
"""As in docs/references.bib."""

_SOFTWARE = """@software{{fedpower,
  title = {{fedpower: PCA across organisations that cannot pool their rows}},
  author = {{{{The fedpower authors}}}},
  version = {{{version}}}
}}"""

LONG = 8
"""A list of more numbers than that is told by its length."""


def provenance_section(run: dict[str, Any]) -> Markup:
    """Return the command that gives this result again, versions, terms and BibTeX."""
    citation = f"{PAPER}\n\n{_SOFTWARE.format(version=run['versions']['fedpower'])}"
    return section(
        "provenance",
        "Where this comes from",
        element("h3", "Run it again"),
        _rerun(run),
        element("h3", "How to cite"),
        element("pre", element("code", citation)),
        element("h3", "Versions and terms"),
        facts(run["versions"].items(), kind="facts versions"),
        facts(_identities(run), kind="terms"),
        folded("All parameters", _parameters(run["parameters"])),
    )


def _rerun(run: dict[str, Any]) -> list[Markup]:
    if run["command"] is not None:
        return [
            element("pre", element("code", _words(run["command"]))),
            *paragraphs(_elsewhere(run["command"]), _again(run)),
        ]
    if run.get("federation"):
        return paragraphs(
            [
                "Every party keeps its kit and its silo file, and the runner gives ",
                element("code", "fedpower run study.toml"),
                " with the study file whose hash is ",
                element("code", run["federation"]["agreement"]),
                ".",
            ],
            _again(run),
        )
    return [
        element("pre", element("code", f"{call_of(run['parameters'])}.fit_silos(silos)")),
        *paragraphs(_again(run)),
    ]


def _elsewhere(command: list[str]) -> Any:
    """Return what to change in a command whose result is there already; None for one that replaces it."""
    if "--force" in command:
        return None
    options = element("code", "-o"), element("code", "--force")
    return [
        "Give it another ", options[0], ", or ", options[1], ": a result that is there is not replaced "
        "otherwise.",
    ]  # fmt: skip


def _again(run: dict[str, Any]) -> str:
    privacy = run["privacy"]
    if privacy["mode"] == "none":
        return "Exact fits of the same rows give the same result."
    if summed_securely(run):
        asked = equals("ε", privacy["asked_epsilon"])
        return f"A secure sum is asked for afresh: running this again spends {asked} again."
    return (
        "Noise comes from the operating system, so a silo without a ledger adds other noise and spends "
        "again; with the same ledgers, rows and terms the same answers come again and nothing is charged."
    )


def _words(command: list[str]) -> list[Markup]:
    """Return a command as a shell takes it; a line is broken between its words."""
    return [element("span", shlex.quote(word), " ", class_="word") for word in command]


def _identities(run: dict[str, Any]) -> list[tuple[str, Any]]:
    federation = run.get("federation") or {}
    return [
        ("Hash of the terms", element("code", run["study"]["hash"])),
        ("Hash of the agreement", _code(federation.get("agreement"))),
        ("Run", _code(federation.get("run"))),
        ("Started", run["started"] and second_of_time(run["started"])),
        ("Finished", second_of_time(run["finished"])),
    ]


def _code(text: str | None) -> Markup | None:
    return None if text is None else element("code", text)


def _parameters(parameters: dict[str, Any]) -> Markup:
    rows = [(element("code", key), element("code", _value(value))) for key, value in parameters.items()]
    return table("Parameters", ["Parameter", "Value"], rows)


def _value(value: Any) -> str:
    if isinstance(value, list) and len(value) > LONG:
        return f"{count(len(value), 'number')}, in run.json"
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
