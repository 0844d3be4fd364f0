"""The errors a user can meet: each is one sentence that says what must hold, what was got, what to do."""

import unicodedata

STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control and format characters (bidirectional overrides too), lone surrogates, line separators."""


def is_showable(name: str) -> bool:
    """Return whether a name can be shown: nothing in it steers a terminal or turns text around."""
    return all(unicodedata.category(letter) not in STEERING for letter in name)


def installing(extra: str) -> str:
    """Return how an extra is installed, for sentences about a package that is not there."""
    return f"`pip install '.[{extra}]'` in a copy of the project"


class FedpowerError(ValueError):
    """Bad input or a refused request, in one sentence; the command line prints it and exits with 2."""


class InputError(FedpowerError):
    """Data, a file or a parameter that cannot be used as it is."""


class BudgetError(FedpowerError):
    """A release that would overspend a silo's own privacy cap; nothing was charged and nothing left."""


class LedgerError(FedpowerError):
    """A ledger file that is missing, corrupt, foreign or not private to its owner."""


class ProtocolError(FedpowerError):
    """A message or a federation that breaks the protocol's rules."""
