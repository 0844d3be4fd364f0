"""The errors a user can meet: each is one sentence that says what must hold, what was got, what to do.

A sentence that speaks of parameters is a `Sentence`: it knows which they are, so that the command line
calls them by its options without reading the text. As a string it calls them as Python does.
"""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Self

_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control and format characters (bidirectional overrides too), lone surrogates, line separators."""

Names = Callable[[str, str], str]
"""From a parameter and a value, "" where none is meant, to what that is called: `in_python` is one."""

_PHRASES = {
    "without_column": " (table.drop(columns='{0}'), or open_source(path, drop=['{0}']) for a file)",
    "without_extra": 'extra_columns="drop" (extra="drop" of open_source)',
    "by_renaming": " (open_source(path, rename={{'old': 'new'}}))",
    "by_sharing": ' (extra_columns="drop" takes only what every silo has)',
    "with_columns": "open_source(data, columns=[...])",
    "with_n_features": "open_source(path, n_features=...)",
    "smaller_side": "min(n_samples, n_features)={0}",
    "steps": "{{2, 4, 5}}",
    "unbounded": "float('inf')",
    "never": "None waits for every silo",
    "elsewhere": "name another place",
    "gap": "spectrum_of_gap(...)",
    "silo_names": "pass a mapping from names to data",
}
"""What is done with more than one parameter, as it is said in Python; ``{0}`` is the value."""


def in_python(name: str, value: str) -> str:
    """Return what Python calls a parameter, a setting of it, or something done with several."""
    if name in _PHRASES:
        return _PHRASES[name].format(value)
    if not value:
        return name
    is_word = value.isidentifier() and value.islower() and value != "inf"
    return f"{name}={value!r}" if is_word else f"{name}={value}"


class Sentence(str):
    """A sentence that speaks of parameters, and knows which.

    In the template ``{name}`` is the fact given by that name or, where there is none, the parameter;
    ``{name:value}`` is a setting of it. A fact may be a sentence too.
    """

    __slots__ = ("_facts", "_template")
    _template: str
    _facts: Mapping[str, Any]

    def __new__(cls, template: str, /, **facts: Any) -> Self:
        """Return the sentence as Python says it."""
        made = super().__new__(cls, _filled(template, facts, in_python))
        made._template, made._facts = template, facts
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes it again: the text alone would not."""
        return _again, (self._template, dict(self._facts))

    def said(self, names: Names) -> str:
        """Return the sentence with parameters called by ``names``."""
        return _filled(self._template, self._facts, names)


class _Parameter:
    """A parameter in a template, to be called by ``names``."""

    def __init__(self, name: str, names: Names) -> None:
        self._name, self._names = name, names

    def __format__(self, value: str) -> str:
        return self._names(self._name, value)


class _Fields(dict[str, Any]):
    """What stands in a template's fields: facts, and parameters where there is no such fact."""

    def __init__(self, facts: Mapping[str, Any], names: Names) -> None:
        super().__init__(
            (name, fact.said(names) if isinstance(fact, Sentence) else fact) for name, fact in facts.items()
        )
        self._names = names

    def __missing__(self, name: str) -> _Parameter:
        return _Parameter(name, self._names)


def _filled(template: str, facts: Mapping[str, Any], names: Names) -> str:
    return template.format_map(_Fields(facts, names))


def _again(template: str, facts: dict[str, Any]) -> Sentence:
    return Sentence(template, **facts)


def require(condition: bool, name: str, must: str, value: object, hint: str = "") -> None:
    """Refuse a value of a parameter: "row_norm must be a positive finite number, got -1"."""
    if not condition:
        error = InputError(f"{name} must be {must}, got {value!r}" + (f"; {hint}" if hint else ""))
        error.parameter = name
        raise error


def is_showable(name: str) -> bool:
    """Return whether a name can be shown: nothing in it steers a terminal or turns text around."""
    if name.isascii() and name.isprintable():  # as nearly all are
        return True
    return all(unicodedata.category(letter) not in _STEERING for letter in name)


def installing(extra: str) -> str:
    """Return how an extra is installed, for sentences about a package that is not there."""
    return f"`pip install '.[{extra}]'` in a copy of the project"


class FedpowerError(ValueError):
    """Bad input or a refused request, in one sentence; the command line prints it and exits with 2.

    Parameters
    ----------
    sentence
        What must hold, what was got, what to do; with ``facts`` the template of a `Sentence`.

    Attributes
    ----------
    parameter, must, got, advice
        The parts of a sentence about one parameter (`about`); None where it is about something else.
    """

    parameter: str | None = None
    must: str | None = None
    got: str | None = None
    advice: str | None = None

    def __init__(self, sentence: str = "", /, **facts: Any) -> None:
        super().__init__(Sentence(sentence, **facts) if facts else sentence)

    @classmethod
    def about(cls, parameter: str, *, must: str, got: str, advice: str, **facts: Any) -> Self:
        """Return the error "<parameter> must <must>, got <got>; <advice>".

        Parameters
        ----------
        parameter
            The one that cannot be as it is.
        must, got, advice
            What must hold, what was given instead and what to do; ``must`` and ``advice`` are templates,
            as a `Sentence` has, for parameters and ``facts``.
        """
        parts = {"must": Sentence(must, **facts), "got": got, "advice": Sentence(advice, **facts)}
        error = cls(Sentence(f"{{{parameter}}} must {{must}}, got {{got}}; {{advice}}", **parts))
        error.parameter = parameter
        error.must, error.got, error.advice = parts["must"], got, parts["advice"]
        return error


class InputError(FedpowerError):
    """Data, a file or a parameter that cannot be used as it is."""


class CellError(InputError):
    """Cells that are no numbers and that no rule covers; their columns and rows are told, never a cell.

    Where there are several problems its lines after the first list them all, file by file.
    """


class NoRowsError(InputError):
    """Data without a single row."""


class BudgetError(FedpowerError):
    """A release that would overspend a silo's own privacy cap; nothing was charged and nothing left."""


class LedgerError(FedpowerError):
    """A ledger file that is missing, corrupt, foreign or not private to its owner."""


class ProtocolError(FedpowerError):
    """A message or a federation that breaks the protocol's rules."""


class RefusedError(ProtocolError):
    """A silo refused, and would refuse again: something must be settled before the next try."""
