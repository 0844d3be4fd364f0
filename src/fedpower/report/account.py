"""``Account``: what an analysis found, for a terminal, a program and a page alike."""

from dataclasses import dataclass, field
from typing import Any

from fedpower.report.page.markup import Markup

Cell = str | float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under headings; a row's first cell names it.

    Attributes
    ----------
    title, headings, rows
        What it holds; one heading a column; text and numbers.
    file
        The name of its CSV file.
    printed
        Whether a terminal shows it, too.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    file: str
    printed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What an analysis of a released moment found.

    Attributes
    ----------
    kind
        The analysis, in one word.
    title
        What was computed, in one line.
    sentences
        What was found, what the noise allows, and what was done about it.
    tables
        The numbers.
    pictures
        Pairs of a picture and the line under it.
    facts
        Everything in JSON's types.
    """

    kind: str
    title: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    pictures: tuple[tuple[Markup, str], ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
