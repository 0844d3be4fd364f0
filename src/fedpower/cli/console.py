"""What commands print: tables, JSON, notes and progress; and the one place where errors become a sentence."""

# ruff: noqa: PLC0415 - `fedpower --help` must not wait for rich or NumPy

import errno
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
import traceback as tracebacks
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from fedpower.exceptions import CellError, FedpowerError, is_showable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from fedpower.protocol.coordinator import Round

_WIDTH_OF_FILES = 120  # columns of tables that are written to a file or a pipe


def console(*, stderr: bool = False) -> "Console":
    """Return where to print; text is taken as it is, without markup."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            """Leave a closed pipe to the command line."""
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH_OF_FILES
    return _Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def say(*lines: str, alarming: bool = False, err: bool = False, hanging: int = 0) -> None:
    """Print lines of text; a terminal breaks them between words, and indents what follows."""
    is_terminal, width = (sys.stderr if err else sys.stdout).isatty(), shutil.get_terminal_size().columns
    for line in (part for text in lines for part in printable(text).split("\n")):
        if is_terminal:
            indent = " " * (hanging or len(line) - len(line.lstrip()))
            line = textwrap.fill(  # noqa: PLW2901
                line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
        click.echo(click.style(line, fg="red", bold=True) if alarming else line, err=err)


def printable(text: str) -> str:
    """Return a text that cannot steer a terminal, whoever sent a part of it."""
    if text.isascii() and text.isprintable():  # as nearly all are
        return text
    return "".join(one if one == "\n" or is_showable(one) else "\N{REPLACEMENT CHARACTER}" for one in text)


def print_table(
    title: str | None, headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()
) -> None:
    """Print a table; the headings in ``numbers`` are set flush right."""
    from rich.padding import Padding
    from rich.table import Table

    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings:
        is_number = heading in numbers
        shown.add_column(printable(heading), justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        shown.add_row(*map(printable, row))
    screen = console()
    with screen.capture() as drawn:
        screen.print(Padding.indent(shown, 2))
    say(*([title] if title else []))
    click.echo("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def print_json(record: Any) -> None:
    """Print one JSON object, strictly by the standard: no NaN and no Infinity."""
    click.echo(json.dumps(record, indent=2, allow_nan=False))


def print_facts(title: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """Print named facts: one JSON object for programs, a table of two columns for people."""
    if as_json:
        print_json(facts)
    else:
        rows = [(name.replace("_", " "), _cell(value)) for name, value in facts.items()]
        print_table(title, ("what", "value"), rows)


def _cell(value: Any) -> str:
    from fedpower.report.text import and_more

    if isinstance(value, list):
        return ", ".join(and_more([str(item) for item in value]))
    return "–" if value is None else str(value)


_MOST_NOTES = 2


def note(sentence: str, kind: str = "Note", *, always: bool = False) -> None:
    """Print a remark on stderr: a command prints two, and all with --verbose."""
    context = click.get_current_context(silent=True)
    meta, verbose = ({}, False) if context is None else (context.meta, context.params.get("verbose"))
    meta["fedpower.notes"] = before = meta.get("fedpower.notes", 0) + 1
    if always or verbose or before <= _MOST_NOTES:
        say(f"{kind}: {sentence}", err=True)


# --- progress --------------------------------------------------------------------------------------


@contextmanager
def bars(**settings: Any) -> Iterator["Progress | None"]:
    """Give bars that are gone when the block ends; None without a terminal or with --quiet."""
    context = click.get_current_context(silent=True)
    if not sys.stderr.isatty() or (context is not None and context.meta.get("fedpower.quiet")):
        yield None
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
    )
    with progress.Progress(*columns, console=console(stderr=True), transient=True, **settings) as shown:
        yield shown


@contextmanager
def bar_of(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Give what to call with how many more are done."""
    with bars() as shown:
        task = None if shown is None else shown.add_task(what, total=total, note="")
        yield lambda count: None if shown is None or task is None else shown.advance(task, count)


def counted(blocks: Iterable[Any], advance: Callable[[int], None]) -> Iterator[Any]:
    """Yield blocks of rows as they come, and advance a bar by their rows."""
    for block in blocks:
        yield block
        advance(int(block.shape[0]))


class FitProgress:
    """Two lines about a fit: rows of the current pass, and rounds."""

    def __init__(self, shown: "Progress", silos: Iterable[str], n_steps: int | None) -> None:
        self._shown = shown
        self._read = Counter(dict.fromkeys(silos, 0))
        self._sizes: dict[str, int | None] = dict.fromkeys(self._read)
        self._rows = shown.add_task("rows", total=None, note=f"of {len(self._read)} silos")
        self._steps = shown.add_task("steps", total=n_steps, note="", visible=False)

    def rows(self, silo: str, count: int, total: int | None) -> None:
        """Count a block of rows; called from the threads that read, of which each silo has one at a time."""
        if total is not None and self._read[silo] >= total:  # the next pass
            self._read[silo] = 0
        self._read[silo] += count
        self._sizes[silo] = total
        known = [size for size in self._sizes.values() if size is not None]
        whole = sum(known) if len(known) == len(self._sizes) else None
        self._shown.update(self._rows, completed=self._read.total(), total=whole)

    def round(self, closed: "Round") -> None:
        """Count a closed round."""
        change = closed.notes.get("change")
        moved = "" if change is None else f", change sin θ = {change:.1e}"
        line = f"round {closed.number}, {len(closed.answers)} of {len(closed.asked)} answered{moved}"
        self._shown.update(self._steps, completed=closed.step, visible=True, note=line)


# --- errors -----------------------------------------------------------------------------------------

REFUSED = 2
_OUR_FAULT = 1
INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def exit_status(run: Callable[[], Any], *, traceback: bool, command: str = "", verbose: bool = False) -> int:
    """Return the exit status of a command; an error becomes one sentence on stderr."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status = run()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return REFUSED
    except Exception as error:  # this is the last resort of every command
        if traceback:
            click.echo("".join(tracebacks.format_exception(error)), err=True, nl=False)
        sentence, status = reported(error, command)
        sentence, *listed = sentence.splitlines() if isinstance(error, CellError) else (sentence,)
        say(f"Error: {' '.join(sentence.split())}", *listed, err=True)
        if isinstance(error, CellError) and error.problems:
            details = [(f"{name}:", *(f"  {line}" for line in own)) for name, own in error.problems.items()]
            lines = [in_options(line, command) for line in chain(*details)]
            say(*lines if verbose else ["Every problem: add --verbose"], err=True)
    return status if isinstance(status, int) else 0


def reported(error: Exception, command: str = "") -> tuple[str, int]:
    """Return the sentence for an error of a command, and the exit status that goes with it."""
    if isinstance(error, click.Abort):
        return str(error) or "interrupted, so no result was written", INTERRUPTED
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "fedpower"
        return f"{error.format_message().rstrip('.')}; see `{path} --help`", REFUSED
    if isinstance(error, click.ClickException):
        return error.format_message(), REFUSED
    if isinstance(error, FedpowerError):
        return in_options(str(error), command), REFUSED
    if isinstance(error, OSError):
        where = "a file" if error.filename is None else f"{error.filename}"
        what = error.strerror or str(error) or type(error).__name__
        if error.errno in _NO_ROOM:
            return f"no room on the disk for {where} ({what}); no charge is made twice", REFUSED
        return f"{where} cannot be used ({what}); check path and permissions", REFUSED
    if isinstance(error, ValueError):
        return str(error) or "a value cannot be used; check the command's options", REFUSED
    what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")
    return f"unexpected {what}; run again with --traceback and report what it shows", _OUR_FAULT


_STUDIED = ("node", "study run", "study status", "study check", "study show")
"""Commands that read options from a study file, whose keys are Python's names."""

_VALUE = r"""'[^']*'|"[^"]*"|\[[^\]]*\]|\{[^}]*\}|[\w.]*\w\b(?!\()"""
_PAIR = re.compile(r"\{'([^']*)': '([^']*)'\}")
_NETWORK = re.compile(r"unit=('edge'|Edge\(\) or Node\(\))")
_WORDS = re.compile(
    rf"""(?P<quoted>(?<!\w)'[^']*'|"[^"]*"|`[^`]*`)|(?P<before>\b(?:with|correct|give|change) )?"""
    rf"""\b(?P<name>[a-z]+(?:_[a-z]+)*)(?:=(?P<value>{_VALUE})|\b)"""
)
_MARKS = "[]'\""
_PLAIN = ("columns", "nodes", "variants")
"""Options whose names are words of sentences that mean no option."""


def in_options(sentence: str, command: str = "fit") -> str:
    """Return a sentence with parameters named as options: ``row_norm`` is --row-norm.

    A plain word such as ``noise`` is an option where a value follows, or where the sentence is about it.
    About a study or a TOML file, only values are written as such a file has them.
    """
    from fedpower.cli.options import SHARED
    from fedpower.options import FLAT, option_name

    subject = sentence.partition(" must ")[0]
    of_file = command.startswith(_STUDIED) or ".toml" in subject
    known = {name: option_name(name) for name, spec in FLAT.items() if spec.option is not None}
    known |= {name: words.split()[0] for name, (words, _, _) in SHARED.items()}
    known |= {"column": "--unit", "rows": "--rows-per-unit", "gap": "--gap", "spectrum": "--spectrum"}

    def named(word: re.Match[str]) -> str:
        before, name, value = word["before"] or "", word["name"], word["value"]
        is_subject = word.start() == 0 and name == subject
        is_option = is_subject or "_" in (name or "") or (before and name not in ("noise", "rows"))
        is_meant = value or (is_option and name not in _PLAIN)
        if name not in known or not is_meant or (of_file and not value):
            return word[0]
        if name in ("epsilon", "delta") and value not in (None, "inf"):
            return word[0]  # a statement about privacy
        if of_file and name != "force":
            return f"{before}{name} = {value.lower() if value in ('True', 'False') else value}"
        if value == "False":
            return before + known[name].replace("--", "--no-", 1)
        if pair := _PAIR.fullmatch(value or ""):
            value = f"{pair[1]}={pair[2]}"
        is_flag = value in (None, "True") or value.startswith("{")
        given = "" if is_flag else shlex.quote(value.strip(_MARKS).replace("', '", ","))
        return f"{before}{known[name]} {given}".rstrip()

    return _WORDS.sub(named, _NETWORK.sub("network='edge'", sentence))


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning as a note; one about privacy always."""
    always = issubclass(category, RuntimeWarning)
    note(" ".join(in_options(str(message)).split()), "Warning", always=always)
