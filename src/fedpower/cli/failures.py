"""The one place where errors become a sentence on stderr and an exit status."""

import errno
import os
import sys
import traceback as tracebacks
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from fedpower.errors import CellError, FedpowerError

REFUSED = 2
_OUR_FAULT = 1
INTERRUPTED = 130
_PIPE_CLOSED = 141
"""What a shell reports of a command that wrote to a reader who had gone: `| head` has enough."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PipeClosedError(Exception):
    """Nobody reads what the command prints any more."""


def exit_status(run: Callable[[], Any], *, traceback: bool, command: str = "") -> int:
    """Return the exit status of a command; what it raises is told in one sentence on stderr."""
    try:
        with _plain_warnings():
            status = run()
    except PipeClosedError:
        # what is still buffered goes nowhere, without a word at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return REFUSED
    except Exception as error:  # this is the last resort of every command
        if traceback:
            click.echo("".join(tracebacks.format_exception(error)), err=True, nl=False)
        sentence, status = reported(error, command)
        sentence, *listed = sentence.splitlines() if isinstance(error, CellError) else (sentence,)
        click.echo(f"Error: {' '.join(sentence.split())}", err=True)
        for line in listed:
            click.echo(line, err=True)
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
            return (
                f"{where} must have room on its disk, got none left ({what}); make room and run the "
                "command again: nothing half-written was kept, and no charge is made twice",
                REFUSED,
            )
        return f"{where} must be usable but is not ({what}); check path and permissions", REFUSED
    if isinstance(error, ValueError):
        return str(error) or "a value cannot be used; check the command's options", REFUSED
    what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")
    return (
        f"something went wrong that should not have ({what}); run the command again with "
        "--traceback and report what it shows",
        _OUR_FAULT,
    )


_STUDIED = ("run", "status", "coordinator", "silo", "federation", "study check", "study show")
"""Commands that read options from a study file, whose keys are Python's names."""


def in_options(sentence: str, command: str = "fit") -> str:
    """Return a sentence that begins with an option's name, as the command line calls it."""
    from fedpower.options import FLAT, option_name  # noqa: PLC0415 - `fedpower --help` must not wait for NumPy

    sentence = sentence.replace("force=True", "--force")
    name, must, rest = sentence.partition(" must ")
    studied = command.startswith(_STUDIED)
    known = name in FLAT and FLAT[name].option is not None
    return f"{option_name(name)}{must}{rest}" if must and known and not studied else sentence


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings as sentences, without the line of code that raised them."""
    with warnings.catch_warnings():

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            click.echo(f"Warning: {' '.join(in_options(str(message)).split())}", err=True)

        warnings.showwarning = show
        yield
