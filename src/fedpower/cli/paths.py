"""Paths among a command's words, and what a shell offers for them."""

from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem


class _Offered(click.Path):
    """A path for which a shell offers what is wanted here, where there is some, else every path."""

    def __init__(self, wanted: Callable[[Path], bool], otherwise: str) -> None:
        super().__init__(path_type=Path)
        self.wanted = wanted
        self.otherwise = otherwise

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the paths that begin with what is typed and are wanted."""
        return offered(incomplete, self.wanted, self.otherwise)


def offered(incomplete: str, wanted: Callable[[Path], bool], otherwise: str) -> list[CompletionItem]:
    """Return what a shell is to offer for the beginning of a path."""
    folder, _, beginning = incomplete.rpartition("/")
    place = Path(f"{folder}/" if "/" in incomplete else ".")
    try:
        found = sorted(
            path.name for path in place.iterdir() if path.name.startswith(beginning) and wanted(path)
        )
    except OSError:
        found = []
    if not found:
        return [CompletionItem(incomplete, type=otherwise)]
    prefix = incomplete.removesuffix(beginning)
    return [CompletionItem(f"{prefix}{name}") for name in found]


def is_ledger(path: Path) -> bool:
    """Return whether a path is called like a ledger."""
    return path.suffix == ".ledger"


def _is_result(path: Path) -> bool:
    """Return whether a path is a folder with a result in it."""
    from fedpower.report.record import ARRAYS  # noqa: PLC0415

    return (path / ARRAYS).is_file()


def _is_moment(path: Path) -> bool:
    """Return whether a path is a folder with a released moment in it."""
    from fedpower.report.record import MOMENT as STORED  # noqa: PLC0415

    return (path / STORED).is_file()


def any_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return that every file is offered: for words that are a path, or NAME=PATH."""
    return [CompletionItem(incomplete, type="file")]


PATH = click.Path(path_type=Path)
LEDGER = _Offered(is_ledger, "file")
MOMENT = _Offered(_is_moment, "dir")
RESULT = _Offered(_is_result, "dir")
AXES = _Offered(lambda path: path.suffix in (".npy", ".npz") or _is_result(path), "file")
