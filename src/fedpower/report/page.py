"""Pages: a result, or an analysis, as one HTML file that needs nothing but itself (see templates/)."""

import base64
import functools
import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from fedpower.options import call_of
from fedpower.privacy.statement import ALL_NOT_PRIVATE, EDGE, PERSON, as_sentence, featured_as
from fedpower.protocol.solvers.angles import DETERMINED
from fedpower.report.charts import (
    angles,
    bars,
    biplot,
    bytes_by_round,
    element,
    over_rounds,
    participation,
    printable,
    score_map,
    scree,
)  # fmt: skip
from fedpower.report.record import MOST_NAMES, PrivacyRecord, Record, finite_or_inf
from fedpower.report.text import (
    MISSING,
    column,
    count,
    date_and_time,
    degrees,
    equals,
    human_bytes,
    number,
    percent,
    signed,
    spelled,
)  # fmt: skip
from fedpower.report.view import POOLED, Fitted, ScoreHistogram, component_names, findings

if TYPE_CHECKING:
    from jinja2 import Environment

Cell = str | float | int | None

CONTENTS = {
    "privacy": "Privacy",
    "components": "Components",
    "loadings": "Loadings",
    "scores": "Scores",
    "rounds": "Rounds",
    "silos": "Silos",
    "provenance": "Where this comes from",
}
WEAK, LITTLE = 4.0, 10.0  # from which ε on docs/privacy.md calls the protection weak, or little
_MOST_DRAWN, _MOST_BEYOND, _MOST_BARS, _MOST_LOADINGS, _MOST_COMPONENTS = 60, 20, 15, 500, 20
_MOST_PANELS, _MOST_LISTED, _MOST_ROWS, _LONG = 12, 200, 500, 8
_MODES = {
    "moment": "each silo’s moment (the average products of every two columns) was noised once, before it "
    "left; no later round or analysis of it is charged again",
    "step": "the product of every step was noised, as much as an exact calculation asks for",
    "paper": "the product of every step was noised, as much as the paper prints",
    "clipped": "sums of clipped products with public directions, perhaps after the moment, were each "
    "noised and charged",
}
PAPER = """@misc{FP,
  title = {{FedPower}: Privacy-Preserving Distributed Eigenspace Estimation},
  author = {Guo, Xiao and Li, Xiang and Chang, Xiangyu and Wang, Shusen and Zhang, Zhihua},
  note = {the paper this package implements}
}"""  # as in docs/references.bib
_SOFTWARE = """@software{{fedpower,
  title = {{fedpower: PCA across organisations that cannot pool their rows}},
  author = {{{{The fedpower authors}}}},
  version = {{{version}}}
}}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under headings; a row's first cell names it."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    file: str
    printed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What an analysis found, for a terminal, a program and a page alike."""

    kind: str
    title: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    pictures: tuple[tuple[Markup, str], ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in a table: how it reads, and what it is sorted by."""

    text: str
    value: float | None = None

    @property
    def sort_key(self) -> str:
        """The value as JavaScript reads it; empty where there is none."""
        if self.value is None or math.isnan(self.value):
            return ""
        if math.isinf(self.value):
            return "Infinity" if self.value > 0 else "-Infinity"
        return str(self.value) if isinstance(self.value, int) else f"{self.value:.9g}"


class Grid:
    """A table of a page, by column; those that hold figures are flush right."""

    def __init__(self, caption: str, columns: Mapping[str, Iterable[Any]], *, sortable: bool = False) -> None:
        cells = [list(entries) for entries in columns.values()]
        self.caption, self.headings, self.sortable = caption, list(columns), sortable
        self.numeric = [any(isinstance(cell, Figure) for cell in entries) for entries in cells]
        self.rows = list(zip(*cells, strict=True))


def result_page(fit: Fitted) -> str:
    """Return the report of a result: the same bytes for the same result, wherever and whenever made."""
    scores = _scores(fit)
    return _rendered(
        "result.html",
        fit.record,
        title=fit.headline,
        contents={key: label for key, label in CONTENTS.items() if key != "scores" or scores},
        fit=fit,
        thing=featured_as(fit.record.parameters),
        exact=fit.record.privacy.mode == "none",
        summary=_summary(fit),
        scores=scores,
        **_components(fit),
        **_loadings(fit),
        **_rounds(fit.record),
        **_provenance(fit.record),
    )


def analysis_page(account: Account, record: Record) -> str:
    """Return the page of an analysis: the same bytes for the same release and settings."""
    return _rendered(
        "analysis.html",
        record,
        title=account.title,
        contents={"found": "What was found", "privacy": "Privacy", "silos": "Silos"},
        account=account,
        tables=[_of_account(table) for table in account.tables],
    )


def _rendered(template: str, record: Record, **context: Any) -> str:
    style, script = _asset("style.css"), _asset("script.js")
    return _environment().get_template(template).render(
        record=record,
        promise=record.privacy,
        study_hash=record.federation.agreement if record.federation else record.study.hash,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        **_privacy(record),
        **_silos(record),
        **context,
    )  # fmt: skip


@functools.cache
def _environment() -> "Environment":
    """Return Jinja with autoescape; what is not printable is replaced before it is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only pages need it
    from jinja2.ext import Extension  # noqa: PLC0415

    class Dense(Extension):
        """Removes line breaks and indentation from the templates, never from what they are given."""

        def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
            return re.sub(r"\n\s*", "", source)

    made = Environment(
        loader=PackageLoader("fedpower.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printable,
        extensions=[Dense],
    )
    made.filters |= {"as_sentence": as_sentence, "shell_quoted": shlex.quote}
    made.globals |= {
        "number": number, "equals": equals, "count": count, "spelled": spelled, "human_bytes": human_bytes,
        "date_and_time": date_and_time, "featured_as": featured_as, "most_names": MOST_NAMES,
        "modes": _MODES, "EDGE": EDGE, "PERSON": PERSON,
        "not_private": ALL_NOT_PRIVATE.replace("epsilon = inf", "ε = ∞"),
    }  # fmt: skip
    return made


@functools.cache
def _asset(name: str) -> Markup:
    return Markup(files(__package__).joinpath("templates", name).read_text(encoding="utf-8"))  # noqa: S704


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _name(text: str) -> Markup:
    """Return a name that somebody gave: whichever way it is written, it turns nothing around it."""
    return element("bdi", text)


def _figures(texts: Iterable[str], values: Iterable[float | None]) -> list[Figure]:
    return [Figure(text, value) for text, value in zip(texts, values, strict=True)]


def _aligned(values: Sequence[float | None]) -> list[Figure]:
    return _figures(column(values), values)


def _percentages(shares: Sequence[float | None]) -> list[Figure]:
    return _figures(map(percent, shares), shares)


def _whole(values: Sequence[int | None]) -> list[Figure]:
    return _figures([MISSING if value is None else f"{value:,}" for value in values], values)


def _of_account(table: Table) -> tuple[Grid, str | None]:
    """Return a table of an analysis, and which of its rows are not shown."""
    shown = table.rows[:_MOST_ROWS]
    columns = {
        heading: _cells([row[place] for row in shown], first=place == 0)
        for place, heading in enumerate(table.headings)
    }
    cut = f"The first {_MOST_ROWS} of {len(table.rows):,} rows are shown; {table.file} has all."
    return Grid(table.title, columns, sortable=True), cut if len(shown) < len(table.rows) else None


def _cells(cells: list[Cell], *, first: bool) -> list[Any]:
    """Return a column of a table: numbers that line up, or names."""
    if any(isinstance(cell, float) for cell in cells):
        return _aligned([float(cell) if isinstance(cell, int | float) else None for cell in cells])
    return [
        Figure(number(cell), cell)
        if isinstance(cell, int) and not first
        else _name("" if cell is None else str(cell))
        for cell in cells
    ]


def _summary(fit: Fitted) -> dict[str, str]:
    """Return the three lines at the top: what was found, what was spent, what that means."""
    promise = fit.record.privacy
    explained = float(fit.denoised_variance_ratio.sum())
    share = "" if math.isnan(explained) else f", with {percent(explained)} of the variance"
    sentences = [f"{count(fit.n_components, 'component')}{share}."]
    sentences += ["No noise was added."] if promise.mode == "none" else []
    sentences += findings(fit)
    sentences += [f"Beware: {remark}." for remark in fit.record.remarks]
    return {"Found": " ".join(sentences), "Spent": _spent(promise), "Meaning": _meaning(promise)}


def _spent(promise: PrivacyRecord) -> str:
    if promise.mode == "none":
        return "Nothing was charged: no budget limits what an exact result reveals."
    if not promise.private:
        return f"{equals('ε', promise.asked_epsilon)} was asked for, but it bought no protection."
    spent, asked = equals("ε", promise.worst_epsilon), equals("ε", promise.asked_epsilon)
    more = "" if spent == asked else f"; {asked} was asked for"
    return f"At most {spent} of each silo’s privacy budget, at {equals('δ', promise.delta)}{more}."


def _meaning(promise: PrivacyRecord) -> str:
    if promise.mode == "none":
        return (
            "NOT PRIVATE: nothing is protected. Exact numbers left every silo, and anyone who reads them "
            "can learn about single rows."
        )
    if not promise.private:
        return f"NOT PRIVATE: nothing is promised, because {promise.leak}."
    protected = {PERSON: "person’s data", EDGE: "edge"}.get(promise.unit, "row")
    spent = float(f"{promise.worst_epsilon:.4g}")  # a fit for ε = 4 spends 4 less the last of its digits
    strength = " That is weak protection." if spent >= WEAK else ""
    strength = " That promises little." if spent > LITTLE else strength
    return (
        f"Anyone who sees what left a silo learns a bounded amount about any one {protected}: the odds for "
        f"or against what it held shift by a factor of {_odds(promise.worst_epsilon)} at most, except with a "
        f"probability of {number(promise.delta)}.{strength}"
    )


def _odds(epsilon: float) -> str:
    """Return e^ε, the factor by which odds may shift."""
    return number(math.exp(epsilon) if epsilon < 700 else math.inf, 3)


def _privacy(record: Record) -> dict[str, Any]:
    """Return the table of observers, and a chart of the budget: of ledgers, or of what was asked for."""
    promise = record.privacy
    if not promise.private:
        return {}
    spent = [finite_or_inf(row.epsilon) for row in promise.protections]
    observers = [
        Markup("Against {}{}").format(row.observer, element("span", f"who sees {row.sees}", class_="aside"))
        for row in promise.protections
    ]
    deltas = [row.delta for row in promise.protections]
    protections: dict[str, Any] = {
        "Observer": observers,
        "ε": _figures(map(number, spent), spent),
        "Odds\u00a0×": _figures(map(_odds, spent), spent),
        "δ": _figures(map(number, deltas), deltas),
    }
    budgets, chart = _budgets(record) or (None, _spent_of_asked(promise, spent))
    grid = Grid("What each observer can learn at most", protections)
    return {"protections": grid, "budgets": budgets, "budget_chart": chart}


def _budgets(record: Record) -> tuple[Grid, Markup] | None:
    """Return each silo's ledger after the fit, where one operator holds all of them; else None."""
    held = [(silo.name, silo.budget) for silo in record.silos if silo.budget is not None]
    if not held:
        return None
    names, budgets = [name for name, _ in held], [budget for _, budget in held]
    used, deltas = [budget.used for budget in budgets], [budget.delta for budget in budgets]
    columns: dict[str, Any] = {
        "Silo": map(_name, names),
        "ε spent": _aligned([finite_or_inf(budget.spent) for budget in budgets]),
        "ε left for one fit": _aligned([budget.left for budget in budgets]),
        "ε of the cap": _aligned([budget.cap for budget in budgets]),
        "δ": _figures(map(number, deltas), deltas),
        "Used": _percentages(used),
    }
    description = (
        f"Of {len(held)} ledgers, the fullest is used to {percent(max(used))} and the emptiest to "
        f"{percent(min(used))}. The table below has the numbers."
    )
    texts = [percent(share) for share in used]
    chart = bars("Budget used by silo", description, used, names, texts, kind="shares", most=1.0)
    return Grid("Ledgers after this fit", columns, sortable=True), chart


def _spent_of_asked(promise: PrivacyRecord, spent: list[float]) -> Markup:
    """Return what the study spent of what it asked for, towards each observer."""
    asked = float(finite_or_inf(promise.asked_epsilon))
    return bars(
        "Spent of what was asked for",
        f"Of {equals('ε', asked)} asked for, {number(max(spent))} was spent towards the observer who sees "
        "most. The table of observers above has the numbers.",
        [min(epsilon, 2 * asked) for epsilon in spent],
        [f"{row.observer[:1].upper()}{row.observer[1:]}" for row in promise.protections],
        [equals("ε", epsilon) for epsilon in spent],
        kind="shares",
        most=asked,
        names=False,
    )


def _components(fit: Fitted) -> dict[str, Any]:
    """Return variances and angles, drawn and in a table."""
    exact, drawn = fit.record.privacy.mode == "none", min(fit.n_components, _MOST_DRAWN)
    following = [] if fit.spectrum is None else fit.spectrum[fit.n_components :].tolist()
    beyond = following[: max(_MOST_BEYOND, fit.n_components)]
    values, ratios = fit.denoised_variance.tolist(), fit.denoised_variance_ratio.tolist()
    alone, together = fit.component_angles.tolist(), fit.subspace_angles.tolist()
    places = [str(fit.n_components + place) for place in range(1, len(beyond) + 1)]
    columns: dict[str, Any] = {
        "Component": [f"pc{place}" for place in range(1, fit.n_components + 1)],
        "Variance": _aligned(values),
        "Share of all": _percentages(ratios),
        "Together": _percentages(np.cumsum(ratios).tolist()),
        "Angle": _figures(map(degrees, alone), alone),
        "Angle together": _figures(map(degrees, together), together),
    }
    caption = "Eigenvalues beyond the components" + ("" if exact else ", with their noise")
    return {
        "scree": scree(
            values[:drawn],
            determined=fit.determined[:drawn],
            # those of a private fit hold noise, which the variances do not
            beyond=beyond if exact and drawn == fit.n_components else [],
        ),
        "angles": angles(alone[:drawn], together[:drawn], DETERMINED) if any(alone) else None,
        "n_drawn": drawn,
        "components": Grid("Variance and angle of each component", columns, sortable=True),
        "beyond": Grid(caption, {"Number": places, "Eigenvalue": _aligned(beyond)}) if beyond else None,
    }


def _loadings(fit: Fitted) -> dict[str, Any]:
    """Return what each component is made of: the largest loadings drawn, all of them in a table."""
    plane, axes = None, ""
    if fit.n_components > 1:
        first, second = fit.components[:2].tolist()
        thing = featured_as(fit.record.parameters)
        plane = biplot(first, second, fit.names, ("pc1", "pc2"), of=thing)
        undetermined = [place for place in (0, 1) if not fit.determined[place]]
        verb = "is" if len(undetermined) == 1 else "are"
        axes = f"{component_names(undetermined)} {verb}" if undetermined else ""
    parts = [_component(fit, place) for place in range(min(fit.n_components, _MOST_COMPONENTS))]
    return {"plane": plane, "undetermined_axes": axes, "loadings": parts}


def _component(fit: Fitted, place: int) -> dict[str, Any]:
    thing, label, loadings = featured_as(fit.record.parameters), f"pc{place + 1}", fit.components[place]
    order = np.argsort(-np.abs(loadings), kind="stable")[:_MOST_LOADINGS].tolist()
    known, values = fit.names, loadings[order].tolist()
    names = [known[feature] for feature in order]
    texts = [signed(f"{value + 0.0:.4f}") for value in values]
    top, many = min(len(values), _MOST_BARS), len(loadings)
    columns: dict[str, Any] = {
        thing.capitalize(): map(_name, names),
        "Loading": _figures(texts, values),
        "Share of the component": _percentages([value**2 for value in values]),
    }
    chart = bars(
        f"Largest loadings of {label}",
        f"The {count(top, thing)} with the largest loadings by size, from {texts[0]} to {texts[top - 1]}. "
        "The table below has the numbers.",
        values[:top],
        names[:top],
        texts[:top],
        kind="loadings",
    )
    return {
        "label": label,
        "share": percent(float(fit.denoised_variance_ratio[place])),
        "determined": fit.determined[place],
        "chart": chart,
        "caption": f"The {top} largest of {many:,} loadings" if many > top else None,
        "title": f"All {count(many, 'loading')}"
        if len(order) == many
        else f"The {len(order)} largest of {many:,} loadings (components.csv has all)",
        "table": Grid(f"Loadings of {label}", columns, sortable=True),
    }


def _scores(fit: Fitted) -> dict[str, Any] | None:
    """Return a map of the counts of scores for each silo, that of all silos first; None without any."""
    scores = fit.score_counts
    if scores is None:
        return None
    silos = list(scores.counts)
    panels = [_panel(scores, silo) for silo in silos[:_MOST_PANELS]]
    if len(silos) > 1:
        panels.insert(0, _panel(scores.together(), POOLED))
    begin = (
        "Rows are counted by their scores on pc1 (to the right) and pc2 (upwards); what is beyond the "
        "outermost places counts there."
    )
    if scores.noise_std == 0:
        reading = f"{begin} The counts are exact, and NOT private."
    else:
        together = ", and of all silos’ together with the noise of all" if len(silos) > 1 else ""
        reading = (
            f"{begin} Every count of a silo has noise of standard deviation {number(scores.noise_std, 3)}"
            f"{together}. A place that noise alone may have filled is left empty: the least count drawn is "
            "one that noise reaches anywhere in 1 of 20 such pictures. An empty place may hold a few rows."
        )
    cut = f"The first {_MOST_PANELS} of {len(silos)} silos are drawn; score_counts.csv has all."
    return {
        "sentences": [reading, scores.fractions, cut if len(silos) > _MOST_PANELS else None],
        "panels": panels,
    }


def _panel(scores: ScoreHistogram, silo: str) -> dict[str, Any]:
    counts, clear = scores.counts[silo], scores.clear
    chart = score_map(f"Scores of {silo}", counts.tolist(), scores.edges.tolist(), least=clear)
    largest = float(counts.max())
    if largest < clear:
        caption = f"nothing stands above the noise of ±{number(clear, 3)}"
        return {"silo": silo, "chart": chart, "caption": caption, "table": None}
    least = "" if scores.noise_std == 0 else f"; below {number(clear, 3)} is noise"
    caption = f"fullest place: {number(largest, 3)} {'row' if largest == 1 else 'rows'}{least}"
    cells = sorted((cell for cell in scores.cells(silo) if cell[4] >= clear), key=lambda cell: -cell[4])
    listed = cells[:_MOST_LISTED]
    columns: dict[str, Any] = {
        "pc1": [_between(*cell[:2], scores.edges[0]) for cell in listed],
        "pc2": [_between(*cell[2:4], scores.edges[1]) for cell in listed],
        "Count": _figures([number(cell[4]) for cell in listed], [cell[4] for cell in listed]),
    }
    title = f"{count(len(cells), 'place')} with rows"
    title = f"The {len(listed)} fullest of {title}" if len(listed) < len(cells) else title
    grid = Grid(f"Counts of scores of {silo}", columns)
    return {"silo": silo, "chart": chart, "caption": caption, "table": grid, "title": title}


def _between(low: float, high: float, edges: Any) -> str:
    """Return what is in a bin, in words; the outermost ones go on without end."""
    if math.isclose(low, edges[0]):
        return f"below {number(high, 3)}"
    if math.isclose(high, edges[-1]):
        return f"above {number(low, 3)}"
    return f"{number(low, 3)} to {number(high, 3)}"


def _rounds(record: Record) -> dict[str, Any]:
    """Return convergence and bytes over the rounds."""
    rounds = record.rounds
    numbers = [entry.round for entry in rounds]
    up, down = [entry.bytes_up for entry in rounds], [entry.bytes_down for entry in rounds]
    columns: dict[str, list[Any]] = {
        "Round": _figures(map(str, numbers), numbers),
        "Question": [entry.kind for entry in rounds],
        "Step": _figures([str(entry.step) for entry in rounds], [entry.step for entry in rounds]),
        "Answered": _whole([entry.n_participants for entry in rounds]),
        "Bytes up": _whole(up),
        "Bytes down": _whole(down),
    }
    drawn = []
    for kind, shape, heading in (
        ("change", "dot", "Change (sin θ)"), ("misalignment", "square", "Misalignment (ρ)"),
    ):  # fmt: skip
        values = [getattr(entry, kind) for entry in rounds]
        if any(values):  # a covariance that left whole has moved by 0, once
            columns[heading] = _figures(map(number, values), values)
        if sum(value is not None for value in values) > 1:
            drawn.append((kind, shape, values))
    return {
        "rounds": Grid("Rounds", columns, sortable=len(rounds) > 1),
        "measured": [kind for kind, _, _ in drawn],
        "convergence": over_rounds(numbers, drawn) if drawn else None,
        "traffic": bytes_by_round(numbers, up, down),
    }


def _silos(record: Record) -> dict[str, Any]:
    """Return who answered in which round, as a grid and in numbers; unknown columns are left out."""
    known = {silo.name: silo for silo in record.silos}
    silent = record.federation.silent if record.federation else {}
    set_aside = record.federation.set_aside if record.federation else {}
    names = list(dict.fromkeys([*known, *silent, *record.absent]))
    present = [[silo in entry.participants for entry in record.rounds] for silo in names]
    columns: dict[str, list[Any]] = {
        "Silo": [_name(silo) for silo in names],
        f"{record.counted.capitalize()}s": _whole(
            [known[silo].rows if silo in known else None for silo in names]
        ),
        "Rounds answered": _whole([sum(row) for row in present]),
    }
    if silent:
        columns["Questions missed"] = _whole([silent.get(silo, 0) for silo in names])
    if set_aside:
        columns["Set aside"] = [_name(set_aside.get(silo, MISSING)) for silo in names]
    sources = [known[silo].source if silo in known else None for silo in names]
    if any(sources):
        columns["Rows come from"] = [_name(source or MISSING) for source in sources]
    return {
        "participation": participation(names, present, [entry.round for entry in record.rounds]),
        "complete": all(all(row) for row in present),
        "silos": Grid("Silos", columns, sortable=len(names) > 1),
    }


def _provenance(record: Record) -> dict[str, Any]:
    """Return what gives this result again, how to cite it, and all parameters."""
    parameters = {
        "Parameter": [element("code", key) for key in record.parameters],
        "Value": [element("code", _value(value)) for value in record.parameters.values()],
    }
    return {
        "call": f"{call_of(record.parameters)}.fit_silos(silos)",
        "citation": f"{PAPER}\n\n{_SOFTWARE.format(version=record.versions.get('fedpower'))}",
        "parameters": Grid("Parameters", parameters),
    }


def _value(value: Any) -> str:
    if isinstance(value, list) and len(value) > _LONG:
        return f"{count(len(value), 'number')}, in run.json"
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
