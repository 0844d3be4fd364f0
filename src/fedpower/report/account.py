"""``Account``: what an analysis found, for a terminal, a program and a page alike."""

from dataclasses import dataclass, field
from typing import Any

from fedpower.report.page.markup import Markup

Cell = str | float | int | None


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
    """What an analysis of a released moment found."""

    kind: str
    title: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    pictures: tuple[tuple[Markup, str], ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
