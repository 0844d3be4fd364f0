"""Progress on stderr: shown where that is a terminal and nobody asked for quiet, else nothing at all."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedpower.cli.console import console
from fedpower.protocol.coordinator import Round

if TYPE_CHECKING:
    from rich.progress import Progress

_QUIET = "fedpower.quiet"
Command = TypeVar("Command", bound=Callable[..., Any])
_Sized = TypeVar("_Sized", bound=Any)


def quiet_option(command: Command) -> Command:
    """Return the command with the option --quiet, which `wanted` knows of."""
    return click.option(
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=lambda ctx, param, value: ctx.meta.__setitem__(_QUIET, value),
        help="Show no progress.",
    )(command)


def wanted() -> bool:
    """Return whether progress is to be shown."""
    context = click.get_current_context(silent=True)
    return sys.stderr.isatty() and not (context is not None and context.meta.get(_QUIET))


@contextmanager
def bars(*columns: Any, **options: Any) -> Iterator["Progress | None"]:
    """Give bars with these columns, gone when the block ends; None where none are to be shown."""
    if not wanted():
        yield None
        return
    from rich.progress import Progress  # noqa: PLC0415

    made = Progress(*columns, console=console(stderr=True), transient=True, **options)
    with made as shown:
        yield shown


@contextmanager
def bar_of(what: str, total: int | None = None) -> Iterator[Callable[[int], None] | None]:
    """Give what to call with how many more are done; None where nothing is to be shown."""
    with bars(*_columns()) as shown:
        if shown is None:
            yield None
            return
        task = shown.add_task(what, total=total, note="")
        yield lambda count: shown.advance(task, count)


def counted(
    blocks: Iterable[_Sized],
    advance: Callable[[int], None] | None,
    *,
    size: Callable[[_Sized], int] = lambda block: int(block.shape[0]),
) -> Iterator[_Sized]:
    """Yield blocks of rows as they come; ``advance`` is told how many rows each had."""
    for block in blocks:
        yield block
        if advance is not None:
            advance(size(block))


class _FitProgress:
    """Two lines about a fit: rows of the pass under way, and rounds."""

    def __init__(self, shown: "Progress", silos: Iterable[str], n_steps: int | None) -> None:
        self._shown = shown
        self._read = dict.fromkeys(silos, 0)
        self._sizes: dict[str, int | None] = {}
        self._lock = threading.Lock()
        self._rows = shown.add_task("rows", total=None, note=f"of {len(self._read)} silos")
        self._steps = shown.add_task("steps", total=n_steps, note="", visible=False)

    def rows(self, silo: str, count: int, total: int | None) -> None:
        """Take note of a block of rows; called from the threads that read."""
        with self._lock:
            self._sizes[silo] = total
            before = self._read[silo]
            self._read[silo] = count if total is not None and before >= total else before + count
            known = [size for size in self._sizes.values() if size is not None]
            whole = sum(known) if len(known) == len(self._read) else None
            self._shown.update(self._rows, completed=sum(self._read.values()), total=whole)

    def round(self, closed: Round) -> None:
        """Take note of a closed round."""
        change = closed.notes.get("change")
        moved = "" if change is None else f", subspace moved by sin θ = {change:.1e}"
        line = f"round {closed.number}, {len(closed.answers)} of {len(closed.asked)} answered{moved}"
        self._shown.update(self._steps, completed=closed.step, visible=True, note=line)


@contextmanager
def progress_of_fit(silos: Iterable[str], n_steps: int | None = None) -> Iterator[_FitProgress | None]:
    """Give what to tell of rows and rounds; None where nothing is to be shown."""
    with bars(*_columns()) as shown:
        yield None if shown is None else _FitProgress(shown, silos, n_steps)


def _columns() -> tuple[Any, ...]:
    """Return what a line shows: what, how many of how many, the time since and the time left."""
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
