"""Errors with one-sentence messages; the command line prints them and exits with status 2."""

import sys
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control and format characters (bidirectional overrides too), lone surrogates, line separators."""


class FedpowerError(ValueError):
    """Bad input or a refused request."""


class InputError(FedpowerError):
    """Data, a file or a parameter that cannot be used."""


class CellError(InputError):
    """Cells that are not numbers and have no rule. The message has column and row, never the cell.

    The message groups several problems by kind; ``problems`` has a sentence for each, by table.
    """

    def __init__(self, message: str, problems: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(message)
        self.problems = problems or {}


class NoRowsError(InputError):
    """Data without rows."""


class BudgetError(FedpowerError):
    """A release beyond a silo's privacy cap; nothing was charged and nothing left the silo."""


class LedgerError(FedpowerError):
    """A ledger file that is missing, damaged, of another silo, or readable by others."""


class ProtocolError(FedpowerError):
    """A message or a federation that breaks the protocol's rules."""


class RefusedError(ProtocolError):
    """A silo refused and would refuse again, until its reason is resolved."""


class NoiseWarning(UserWarning):
    """Nothing is determined in a private fit or analysis: the result may be nothing but noise."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside this package that called it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fedpower."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def require(condition: bool, name: str, must: str, value: object, hint: str = "") -> None:
    """Refuse a value of a parameter: "row_norm must be a positive finite number, got -1"."""
    if not condition:
        raise InputError(f"{name} must be {must}, got {value!r}" + (f"; {hint}" if hint else ""))


def is_showable(name: str) -> bool:
    """Return whether a name can be shown: nothing in it steers a terminal or turns text around."""
    if name.isascii() and name.isprintable():  # as nearly all are
        return True
    return all(unicodedata.category(letter) not in _STEERING for letter in name)


def installing(extra: str) -> str:
    """Return how an extra is installed, for sentences about a package that is not there."""
    return f"`pip install '.[{extra}]'` in a copy of the project"


def needed(package: str, extra: str, must: str) -> Any:
    """Return an optional package; where it is not there, refuse what ``must`` describes."""
    try:
        return import_module(package)
    except ImportError:
        raise InputError(f"{must} {package}, got none installed; run {installing(extra)}") from None
