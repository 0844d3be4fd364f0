"""Code books as files: TOML that people read. The record of a result holds them in the same form."""

import json
import math
import re
from collections.abc import Mapping
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedpower.errors import InputError
from fedpower.report.files import new_file
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import TableRules, table_rules
from fedpower.toml import Part, read_toml

FORMAT = "fedpower-codebook/2"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PUBLIC = ("row_norm", "normalize", "offset", "scale")  # what people give
_FOUND = ("bound", "clipped", "epsilon", "delta", "mu", "n_rows")  # what preparation computes
_VECTORS = ("offset", "scale", "low", "high", "present", "outside")
_HEAD = "# A code book: what cells become, how columns are centred, scaled and bounded. It is public.\n"
_COMPUTED = (
    "# Cells are clipped to low and high; then (cell - offset) / scale; then rows longer than bound are\n"
    "# shortened to it. epsilon, delta and mu are its cost for each silo: fits that use it cost no more.\n"
)


class _Column(Part, frozen=True):
    offset: float
    scale: float
    low: float
    high: float
    name: str | None = None
    present: float | None = None
    outside: float | None = None
    found: str = "given"


class CodeBookFile(Part, frozen=True):
    """The content of a code book's file."""

    format: str
    row_norm: float | None = None
    normalize: bool = False
    offset: list[float] | dict[str, float] | None = None
    scale: list[float] | dict[str, float] | None = None
    bound: float | None = None
    clipped: tuple[float, float] | None = None
    epsilon: float = 0.0
    delta: float = 0.0
    mu: float = 0.0
    n_rows: int = 0
    rules: Any = None
    column: list[_Column] | None = None

    @classmethod
    def of(cls, book: CodeBook) -> "CodeBookFile":
        content: dict[str, Any] = {"rules": None if book.rules is None else book.rules.as_content()}
        if book.follows_rules:
            return cls(format=FORMAT, **content)
        for key in _PUBLIC if book.is_draft else _FOUND:
            value = getattr(book, key)
            plain = value is None or isinstance(value, float | int | tuple | Mapping)
            content[key] = value if plain else np.asarray(value, dtype=float).tolist()
        if not book.is_draft:
            columns = {key: getattr(book, key) for key in (*_VECTORS, "found")} | {"name": book.columns}
            known = {key: np.asarray(v).tolist() for key, v in columns.items() if v is not None}
            rows = zip(*known.values(), strict=True)
            content["column"] = [_Column(**dict(zip(known, row, strict=True))) for row in rows]
        return cls(format=FORMAT, **content)

    def book(self, where: str, rules: TableRules | None = None) -> CodeBook:
        """Return the code book, with these rules or its own; problems are reported as those of ``where``."""
        if self.rules is not None and rules is None:
            rules = table_rules(self.rules, where)
            if not rules.features:
                raise InputError(f"the rules in {where} must keep at least one column, got none")
        public = {key: getattr(self, key) for key in _PUBLIC}
        if self.column is None and (rules is not None or any(public.values())):
            return CodeBook(rules=rules, **public)
        columns = self.column or []
        numbers = [self.bound, *(getattr(column, key) for column in columns for key in _VECTORS[:4])]
        if not columns or not all(value is not None and math.isfinite(value) for value in numbers):
            raise InputError(f"the code book {where} must have a bound and finite numbers of every column")
        if len({column.name is None for column in columns}) > 1:
            raise InputError(f"the code book {where} must name all columns or none, got some")
        vectors: dict[str, Any] = {key: [getattr(column, key) for column in columns] for key in _VECTORS}
        return CodeBook(
            columns=None if columns[0].name is None else tuple(str(column.name) for column in columns),
            **{key: values for key, values in vectors.items() if None not in values},
            **{key: getattr(self, key) for key in _FOUND},
            found=tuple(column.found for column in columns),
            rules=rules,
        )


def write_code_book(book: CodeBook, path: str | PathLike[str], *, force: bool = False) -> Path:
    """Write a code book to a file, whole or not at all, and return its path."""
    with new_file(Path(path), force=force) as place:
        place.write_text(rendered(book), encoding="utf-8")
    return Path(path)


def rendered(book: CodeBook) -> str:
    """Return the text of a code book's file."""
    file = CodeBookFile.of(book)
    content = msgspec.to_builtins(file, builtin_types=(date,))
    return _HEAD + (_COMPUTED if file.column else "") + to_toml(content)


def to_toml(content: Mapping[str, Any]) -> str:
    """Return the text of a file: plain values first, then tables, then lists of tables."""
    tables, lists, lines = [], [], []
    for key, value in content.items():
        if isinstance(value, Mapping):
            tables += ["", f"[{toml_key(key)}]", *_pairs(value)]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lists += [line for entry in value for line in ("", f"[[{toml_key(key)}]]", *_pairs(entry))]
        else:
            lines += _pairs({key: value})
    return "\n".join([*lines, *tables, *lists]) + "\n"


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{toml_key(key)} = {as_toml(value)}" for key, value in table.items()]


def as_toml(value: Any) -> str:
    """Return a value in TOML, which has JSON's texts (but for DEL) and numbers, and infinity."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs(value))} }}"
    if isinstance(value, date) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else as_toml(name)


def read_code_book(path: str | PathLike[str]) -> CodeBook:
    """Return the code book of a file.

    Parameters
    ----------
    path
        A TOML file that `write_code_book`, `fedpower fit` or `fedpower inspect` wrote, or a person.
    """
    file = read_toml(path, CodeBookFile, "the code book")
    if file.format != FORMAT:
        raise InputError(f"{path} must be a code book of format {FORMAT!r}, got {file.format!r}")
    return file.book(str(path))
