"""What commands print: tables for people, one JSON object for programs."""

import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

_WIDTH_OF_FILES = 120
"""Columns of tables that are written to a file or a pipe."""

_BAR_CELLS = 40

MOST_NAMES = 12
"""Items of a list that are told one by one."""


class _Console(Console):
    """Where to print; that its reader has gone is for the command line to tell."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(*, stderr: bool = False) -> Console:
    """Return where to print; text is taken as it is, without markup."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(
        file=stream,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if stream.isatty() else _WIDTH_OF_FILES,
    )


def table(title: str | None, *headings: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table; the headings in ``numbers`` are set flush right."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        made.add_column(heading, justify="right" if heading in numbers else "left")
    return made


def print_json(record: Any) -> None:
    """Print one JSON object, strictly by the standard: no NaN and no Infinity."""
    click.echo(json.dumps(record, indent=2, allow_nan=False))


def print_facts(title: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """Print named facts: one JSON object for programs, a table of two columns for people."""
    if as_json:
        print_json(facts)
        return
    shown = table(title, "what", "value")
    for name, value in facts.items():
        shown.add_row(name.replace("_", " "), _spoken(value))
    console().print(shown)


def print_result(folder: Path) -> None:
    """Print where a result is and what to do with it."""
    from fedpower.report.record import REPORT  # noqa: PLC0415  (tables are printed without NumPy too)

    console().print(
        f"\nResult: {folder} (open {folder / REPORT}; project rows with `fedpower transform {folder} FILE`)",
        soft_wrap=True,
    )


def print_result_of_release(folder: Path) -> None:
    """Print where a released moment is and what to do with it."""
    console().print(
        f"\nMoment: {folder} (open {folder / 'report.html'}; analyse it with `fedpower derive "
        f"{folder} ANALYSIS`)",
        soft_wrap=True,
    )


def note(sentence: str) -> None:
    """Print a remark on stderr."""
    click.echo(f"Note: {sentence}", err=True)


def bar(share: float) -> str:
    """Return a picture of a share between 0 and 1."""
    filled = round(min(max(share, 0.0), 1.0) * _BAR_CELLS)
    try:
        "█░".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}]"
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def _spoken(value: Any) -> str:
    """Return a fact as a table's cell; of a long list the beginning."""
    if isinstance(value, list):
        more = f" and {len(value) - MOST_NAMES} more" if len(value) > MOST_NAMES else ""
        return ", ".join(str(each) for each in value[:MOST_NAMES]) + more
    return "–" if value is None else str(value)
