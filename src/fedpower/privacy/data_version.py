"""Which rows a release is made of, as their operator declares them: a public version of a data set."""

import hashlib
import json
import re
from dataclasses import dataclass, field

from fedpower.errors import InputError, Sentence

DEFAULT_VERSION = "1"
"""What rows are called whose operator declared nothing."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion:
    """The rows behind a silo's releases."""

    silo: str
    version: str
    columns: str
    fingerprint: str = field(repr=False)
    reading: str = ""
    data_set: str | None = None
    declared_by: str = Sentence("{data_version}")

    def __post_init__(self) -> None:
        check_label("a version of data", self.version)
        if self.data_set is not None:
            check_label("the name of a data set", self.data_set)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedAs:
    """What a ledger calls the rows of a release: ``key`` within its keys, ``name`` within its studies."""

    key: str
    name: str


THIS_FIT = BookedAs(key="", name="this fit")
"""Rows on a ledger that lives no longer than they do."""


def is_label(text: str) -> bool:
    """Return whether a text may name a version or a data set: it is shown to others as it is."""
    return _LABEL.fullmatch(text) is not None


def check_label(what: str, text: object) -> None:
    """Refuse a name that could not be shown to others as it is."""
    if not isinstance(text, str) or not is_label(text):
        raise InputError(
            "{what} must be 1 to 64 letters, digits or . _ : + - and begin with a letter or a "
            "digit, got {text!a}; call it 1, 2026-03 or the like",
            what=what,
            text=text,
        )


def columns_digest(columns: tuple[str, ...] | None, n_features: int) -> str:
    """Return the SHA-256 of the columns that a study uses, in its order."""
    return hashlib.sha256(json.dumps(["stored", n_features, columns]).encode()).hexdigest()
