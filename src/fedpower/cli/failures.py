"""The one place where errors become a sentence on stderr and an exit status."""

import errno
import os
import re
import sys
import traceback as tracebacks
import warnings
from collections.abc import Callable
from typing import Any

import click

from fedpower.errors import CellError, FedpowerError

REFUSED = 2
_OUR_FAULT = 1
INTERRUPTED = 130
_PIPE_CLOSED = 141
"""What a shell reports of a command whose reader has closed the pipe, such as `| head`."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PipeClosedError(Exception):
    """The reader of the command's output has closed the pipe."""


def exit_status(run: Callable[[], Any], *, traceback: bool, command: str = "") -> int:
    """Return the exit status of a command; an error becomes one sentence on stderr."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
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
        for line in (f"Error: {' '.join(sentence.split())}", *listed):
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
            return f"no room on the disk for {where} ({what}); no charge is made twice", REFUSED
        return f"{where} cannot be used ({what}); check path and permissions", REFUSED
    if isinstance(error, ValueError):
        return str(error) or "a value cannot be used; check the command's options", REFUSED
    what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")
    return f"unexpected {what}; run again with --traceback and report what it shows", _OUR_FAULT


_STUDIED = ("node", "study run", "study status", "study check", "study show")
"""Commands that read options from a study file, whose keys are Python's names."""

_WORDS = re.compile(
    r"""(?P<quoted>'[^']*'|"[^"]*"|`[^`]*`)|(?P<before>\b(?:with|correct|give|change) )?"""
    r"""\b(?P<name>[a-z]+(?:_[a-z]+)*)(?:=(?P<value>'\w+'|"\w+"|True)|\b)"""
)
_SAME_NAME = (
    *("codebook", "data_set", "data_version", "decimal", "drop", "edge_weight", "encoding"),
    *("extra_columns", "force", "n_features", "rename", "separator"),
)
_OTHERS = {
    **{name: f"--{name.replace('_', '-')}" for name in _SAME_NAME},
    **{"column": "--unit", "ranges": "--range", "rows": "--rows-per-unit"},
}


def in_options(sentence: str, command: str = "fit") -> str:
    """Return a sentence with parameters named as options: ``row_norm`` is --row-norm.

    A plain word such as ``noise`` is an option where a value follows, or where the sentence is about it.
    """
    from fedpower.options import FLAT, option_name  # noqa: PLC0415 - `fedpower --help` must not wait for NumPy

    subject = sentence.partition(" must ")[0]
    if command.startswith(_STUDIED) or ".toml" in subject:
        return sentence
    known = {name: option_name(name) for name, spec in FLAT.items() if spec.option is not None} | _OTHERS

    def named(word: re.Match[str]) -> str:
        before, name, value = word["before"] or "", word["name"], word["value"]
        is_subject = word.start() == 0 and name == subject
        is_meant = is_subject or value or "_" in (name or "") or (before and name not in ("noise", "rows"))
        if name not in known or not is_meant:
            return word[0]
        return before + known[name] + ("" if value in (None, "True") else f" {value[1:-1]}")

    return _WORDS.sub(named, sentence)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {' '.join(in_options(str(message)).split())}", err=True)
