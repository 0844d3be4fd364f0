"""Pages: a result, or an analysis, as one HTML file that needs nothing but itself (see templates/)."""

import base64
import functools
import hashlib
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedpower.options import call_of
from fedpower.privacy import statement
from fedpower.protocol.solvers.shared import POOLED
from fedpower.report import charts, text, view
from fedpower.report.record import Record
from fedpower.report.text import MISSING, column, count, number
from fedpower.report.view import ScoreHistogram

if TYPE_CHECKING:
    from jinja2 import Environment

    from fedpower.report.result import Result

Cell = str | float | int | None

_MOST_LOADINGS, _MOST_PANELS, _MOST_ROWS, _MOST_CELLS, _LONG = 500, 12, 500, 25, 8


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of cells by heading; the first names the rows."""

    title: str
    file: str
    columns: Mapping[str, Any]
    n_printed: int = 30

    def __post_init__(self) -> None:
        columns = {
            heading: [*map(_shown, cells.tolist() if isinstance(cells, np.ndarray) else cells)]
            for heading, cells in self.columns.items()
        }
        object.__setattr__(self, "columns", columns)

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return list(zip(*self.columns.values(), strict=True))


def _shown(cell: Cell) -> Cell:
    """Return a verdict in words, and nothing for a number that is not finite."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


class Picture(NamedTuple):
    drawn: Markup
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What an analysis found, for a terminal, a program and a page alike."""

    kind: str
    title: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


class Figure(NamedTuple):
    """A number in a table: its text, and its value for sorting."""

    text: str
    value: float | None = None

    @property
    def sort_key(self) -> str:
        """The value as JavaScript reads it; empty where there is none."""
        if self.value is None or math.isnan(self.value):
            return ""
        return f"{self.value:.12g}".replace("inf", "Infinity")


def result_page(fit: "Result") -> str:
    """Return the report of a result: the same bytes for the same result, wherever and whenever made."""
    return _page("result.html", fit.record, fit=fit, thing=statement.featured_as(fit.record.parameters))


def notebook_cell(fit: "Result") -> Markup:
    """Return the tiles and the scree plot of a report, in a frame that keeps their style to themselves."""
    page = _page("notebook.html", fit.record, fit=fit)
    return Markup('<iframe srcdoc="{}" style="width:100%;height:38rem;border:0"></iframe>').format(page)


def analysis_page(account: Account, record: Record) -> str:
    """Return the page of an analysis: the same bytes for the same release and settings."""
    return _page("analysis.html", record, account=account)


def rendered(template: str, **context: Any) -> str:
    return _environment().get_template(template).render(context)


def _page(template: str, record: Record, **context: Any) -> str:
    study_hash = record.federation.agreement if record.federation else record.study.hash
    promise, exact = record.privacy, record.privacy.mode == "none"
    return rendered(template, record=record, promise=promise, exact=exact, study_hash=study_hash, **context)


def drawn(chart: str, *data: Any) -> Markup:
    """Return a chart of ``templates/charts.html`` by its name."""
    picture: Markup = getattr(_environment().globals["charts"], chart)(*data)
    return picture


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined  # noqa: PLC0415 - only pages need it
    from jinja2.ext import Extension  # noqa: PLC0415

    class Dense(Extension):
        """Removes line breaks and indentation from the templates, never from what they are given."""

        def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
            return re.sub(r"\n\s*", "", source)

    place = Path(str(files(__package__))) / "__pycache__"  # where Python keeps its own bytecode
    kept = not sys.dont_write_bytecode and os.access(place, os.W_OK)
    made = Environment(
        loader=PackageLoader("fedpower.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=charts.printable,
        extensions=[Dense],
        bytecode_cache=FileSystemBytecodeCache(str(place)) if kept else None,
    )
    made.filters |= {
        "as_sentence": statement.as_sentence, "shell_quoted": shlex.quote, "percent": text.percent,
        "parameter": parameter, "epsilon": lambda value: text.equals("ε", value),
        "first_upper": lambda words: f"{words[:1].upper()}{words[1:]}", "square": lambda value: value**2,
        "or_infinite": lambda x: math.inf if x is None else x,
        "share": lambda share: f"{100 * share:.4g}%", "measured": text.measured,
    }  # fmt: skip
    for module in (statement, text, view, charts):  # templates call functions of these, and of this one
        made.globals |= vars(module)
    made.globals |= {**globals(), "call_of": call_of, "str": str, "zip": zip}
    made.globals["charts"] = made.get_template("charts.html").module
    return made


@functools.cache
def asset(name: str) -> Markup:
    return Markup(files(__package__).joinpath("templates", name).read_text(encoding="utf-8"))  # noqa: S704


def hashed(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def names(given: Iterable[Any], tag: str = "bdi") -> list[Markup]:
    """Return names that somebody gave: whichever way one is written, it turns nothing around it."""
    return [Markup(f"<{tag}>{{}}</{tag}>").format(charts.printable(name)) for name in given]  # noqa: S704


def figures(values: Iterable[float | None], text: Callable[[Any], str] = number) -> list[Figure]:
    return [Figure(text(value), value) for value in values]


def aligned(values: Iterable[float | None]) -> list[Figure]:
    """Return numbers with the same decimals."""
    listed = list(values)
    return [Figure(*pair) for pair in zip(column(listed), listed, strict=True)]


def whole(values: Iterable[int | None]) -> list[Figure]:
    return figures(values, lambda value: MISSING if value is None else f"{value:,}")


def listed(table: Table) -> tuple[dict[str, list[Any]], str | None]:
    """Return the columns of an analysis's table, and which of its rows are not shown."""
    columns: dict[str, list[Any]] = {}
    for heading, values in table.columns.items():
        cells = values[:_MOST_ROWS]
        if any(isinstance(cell, float) for cell in cells):
            columns[heading] = aligned(cell if isinstance(cell, int | float) else None for cell in cells)
        elif columns and not any(isinstance(cell, str) for cell in cells):
            columns[heading] = figures(cells)
        else:
            columns[heading] = names(cells)
    cut = f"The first {_MOST_ROWS} of {len(table.rows):,} rows are shown; {table.file} has all."
    return columns, cut if len(table.rows) > _MOST_ROWS else None


def odds(epsilon: float, digits: int = 3) -> str:
    """Return e^ε, the most by which odds change."""
    return number(math.exp(epsilon) if epsilon < 700 else math.inf, digits)


def largest_loadings(fit: "Result", place: int) -> tuple[list[str], list[Figure]]:
    """Return names and loadings of a component, largest first; noised ones have two decimals."""
    loadings, known = fit.components[place], fit.names
    decimals = 4 if fit.record.privacy.mode == "none" else 2
    order = np.argsort(-np.abs(loadings), kind="stable")[:_MOST_LOADINGS].tolist()
    shown = figures(loadings[order].tolist(), lambda value: text.signed(f"{value + 0.0:.{decimals}f}"))
    return [known[feature] for feature in order], shown


def loading_map(fit: "Result") -> tuple[list[list[float]], list[str], list[str]]:
    """Return the largest loadings by column, with names of columns and of components: those determined."""
    components = [place for place, known in enumerate(fit.determined) if known][:20]
    largest = np.abs(fit.components[components]).max(axis=0, initial=0.0)
    columns = sorted(np.argsort(-largest, kind="stable")[:_MOST_CELLS].tolist())
    loadings = fit.components[np.ix_(components, columns)].T.tolist()
    return loadings, [fit.names[place] for place in columns], [fit.score_names[place] for place in components]


def score_panels(scores: ScoreHistogram) -> list[tuple[str, ScoreHistogram, list[Any]]]:
    """Return silos, all together first, with counts and the bins that certainly hold rows, fullest first."""
    panels = [(silo, scores) for silo in list(scores.counts)[:_MOST_PANELS]]
    if len(scores.counts) > 1:
        panels.insert(0, (POOLED, scores.together()))
    return [(silo, held, _fullest(held, silo)) for silo, held in panels]


def _fullest(scores: ScoreHistogram, silo: str) -> list[Any]:
    bins = product(*map(_between, scores.edges))
    cells = zip(bins, scores.counts[silo].ravel().tolist(), strict=True)
    clear = ((*words, held) for words, held in cells if held >= scores.clear)
    return sorted(clear, key=lambda cell: -cell[-1])


def _between(edges: Any) -> list[str]:
    """Return what bins are called; the outermost ones have no end."""
    ends = [number(edge, 3) for edge in edges.tolist()]
    inner = [f"{low} to {high}" for low, high in pairwise(ends)]
    return [f"below {ends[1]}", *inner[1:-1], f"above {ends[-2]}"]


def parameter(value: Any) -> str:
    """Return the value of a parameter, of long lists their length."""
    if isinstance(value, list) and len(value) > _LONG:
        return f"{count(len(value), 'number')}, in run.json"
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
