"""The page of an analysis: what a released moment shows, and the promise it was released under."""

from typing import Any

from fedpower.report.account import Account, Cell, Table
from fedpower.report.moment import Moment
from fedpower.report.page.document import document
from fedpower.report.page.markup import (
    Figure,
    Markup,
    column,
    element,
    facts,
    figure,
    items,
    moment_of_time,
    name,
    number,
    paragraphs,
    section,
    table,
)
from fedpower.report.page.privacy import privacy_section
from fedpower.report.page.run import silos_section
from fedpower.report.page.summary import sizes
from fedpower.report.record import without

_MOST_ROWS = 500


def analysis_page(account: Account, moment: Moment) -> str:
    """Return the page of an analysis: the same bytes for the same moment and settings."""
    run = moment.record
    federation = run.get("federation") or {}
    head = element(
        "header",
        element("p", "Computed from a released moment", class_="kicker"),
        element("h1", account.title + without(run)),
        facts(
            (
                ("Study", element("code", (federation.get("agreement") or run["study"]["hash"])[:12])),
                ("Silos", f"{len(run['silos']):,}"),
                *sizes(moment.record["parameters"], moment.n_samples, moment.n_features),
                ("Released", moment_of_time(run["finished"])),
            )
        ),
    )
    private = run["privacy"]["private"]
    lead = element(
        "section",
        items(account.sentences),
        class_="lead" if private else "lead unprotected",
        id="summary",
        aria_label="Summary",
    )
    found = section(
        "found",
        "What was found",
        (figure(picture, caption) for picture, caption in account.pictures),
        (_table(each) for each in account.tables),
    )
    contents = {"found": "What was found", "privacy": "Privacy", "silos": "Silos"}
    sections = (lead, found, privacy_section(run), silos_section(run))
    return document(account.title, head, contents, sections, version=run["versions"]["fedpower"])


def _table(each: Table) -> list[Markup]:
    shown = each.rows[:_MOST_ROWS]
    texts: list[list[Any]] = []
    for place in range(len(each.headings)):
        cells = [row[place] for row in shown]
        texts.append(_cells(cells, first=place == 0))
    left_out = (
        f"The first {_MOST_ROWS} of {len(each.rows):,} rows are shown; {each.file} has all."
        if len(shown) < len(each.rows)
        else None
    )
    rows = list(zip(*texts, strict=True))
    return [
        element("h3", each.title),
        table(each.title, each.headings, rows, sortable=True),
        *paragraphs(left_out),
    ]


def _cells(cells: list[Cell], *, first: bool) -> list[Any]:
    """Return a column of a table: numbers that line up, or names."""
    if any(isinstance(cell, float) for cell in cells):
        values = [float(cell) if isinstance(cell, int | float) else None for cell in cells]
        return [Figure(text, value) for text, value in zip(column(values), values, strict=True)]
    return [
        Figure(number(cell), cell)
        if isinstance(cell, int) and not first
        else name("" if cell is None else str(cell))
        for cell in cells
    ]
