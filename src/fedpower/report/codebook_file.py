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

FORMAT = "fedpower-codebook/2"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PER_COLUMN, _COUNTED = ("offset", "scale", "low", "high"), ("present", "outside")
_PUBLIC = ("row_norm", "normalize", "offset", "scale")  # instead of numbers that preparation finds
_HEAD = "# A code book: what cells become, how columns are centred, scaled and bounded. It is public.\n"
_FOUND = (
    "# Cells are clipped to low and high; then (cell - offset) / scale; then rows longer than bound are\n"
    "# shortened to it. [cost] is what finding this cost each silo, once: fits that use it cost no more.\n"
)


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a file: unknown keys are refused, defaults are not written."""


class _Cost(Part):
    epsilon: float = 0.0
    delta: float = 0.0
    mu: float = 0.0
    rows: int = 0


class _Clipped(Part):
    rows: float
    energy: float
    uneven: float


class _Column(Part):
    offset: float
    scale: float
    low: float
    high: float
    name: str | None = None
    present: float | None = None
    outside: float | None = None
    found: str = "given"


class CodeBookFile(Part):
    """The content of a code book's file."""

    format: str
    row_norm: float | None = None
    normalize: bool = False
    offset: list[float] | dict[str, float] | None = None
    scale: list[float] | dict[str, float] | None = None
    bound: float | None = None
    cost: _Cost | None = None
    clipped: _Clipped | None = None
    rules: Any = None
    column: list[_Column] | None = None

    @classmethod
    def of(cls, book: CodeBook) -> "CodeBookFile":
        """Return the file of a code book."""
        rules = None if book.rules is None else book.rules.as_content()
        if book.follows_rules:
            return cls(format=FORMAT, rules=rules)
        if book.is_draft:
            numbers = {key: _builtin(getattr(book, key)) for key in _PUBLIC}
            return cls(format=FORMAT, rules=rules, **numbers)
        keys = (*_PER_COLUMN, *(key for key in _COUNTED if getattr(book, key) is not None))
        vectors = zip(*(getattr(book, key).tolist() for key in keys), strict=True)
        names = book.columns or (None,) * len(book.found)
        return cls(
            format=FORMAT,
            bound=book.bound,
            cost=_Cost(epsilon=book.epsilon, delta=book.delta, mu=book.mu, rows=book.n_rows),
            clipped=book.clipped
            and _Clipped(**dict(zip(_Clipped.__struct_fields__, book.clipped, strict=True))),
            rules=rules,
            column=[
                _Column(name=name, found=found, **dict(zip(keys, numbers, strict=True)))
                for name, found, numbers in zip(names, book.found, vectors, strict=True)
            ],
        )

    def book(self, where: str, rules: TableRules | None = None) -> CodeBook:
        """Return the code book, with these rules or its own; problems are reported as those of ``where``."""
        if self.rules is not None and rules is None:
            rules = table_rules(self.rules, where)
            if not rules.features:
                raise InputError(f"the rules in {where} must keep at least one column, got none")
        public = {key: getattr(self, key) for key in _PUBLIC}
        if self.column is None and (rules is not None or any(public.values())):
            return CodeBook(rules=rules, **public)
        columns, cost = self.column or [], self.cost or _Cost()
        numbers = [self.bound, *(getattr(column, key) for column in columns for key in _PER_COLUMN)]
        if not columns or not all(value is not None and math.isfinite(value) for value in numbers):
            raise InputError(
                f"the code book {where} must have a bound, and {', '.join(_PER_COLUMN)} for every column, "
                "got one without"
            )
        names = [column.name for column in columns if column.name is not None]
        if 0 < len(names) < len(columns):
            raise InputError(
                f"the code book {where} must name all columns or none, got {len(names)} of {len(columns)}"
            )
        counted = [key for key in _COUNTED if all(getattr(column, key) is not None for column in columns)]
        vectors: dict[str, Any] = {
            key: np.array([getattr(column, key) for column in columns]) for key in (*_PER_COLUMN, *counted)
        }
        return CodeBook(
            columns=tuple(names) or None,
            **vectors,
            bound=float(self.bound or 0.0),
            found=tuple(column.found for column in columns),
            epsilon=cost.epsilon,
            delta=cost.delta,
            mu=cost.mu,
            n_rows=cost.rows,
            rules=rules,
            clipped=None if self.clipped is None else msgspec.structs.astuple(self.clipped),
        )


def _builtin(value: Any) -> Any:
    kept = value is None or isinstance(value, float | int | Mapping)
    return value if kept else np.asarray(value, dtype=float).tolist()


def write_code_book(book: CodeBook, path: str | PathLike[str], *, force: bool = False) -> Path:
    """Write a code book to a file, whole or not at all, and return its path."""
    with new_file(Path(path), force=force) as place:
        place.write_text(rendered(book), encoding="utf-8")
    return Path(path)


def rendered(book: CodeBook) -> str:
    """Return the text of a code book's file: plain values first, then tables, then lists of tables."""
    file = CodeBookFile.of(book)
    tables, lists, lines = [], [], []
    for key, value in msgspec.to_builtins(file, builtin_types=(date,)).items():
        if isinstance(value, Mapping):
            tables += ["", f"[{toml_key(key)}]", *_pairs(value)]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lists += [line for entry in value for line in ("", f"[[{toml_key(key)}]]", *_pairs(entry))]
        else:
            lines += _pairs({key: value})
    return _HEAD + (_FOUND if file.column else "") + "\n".join([*lines, *tables, *lists]) + "\n"


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{toml_key(key)} = {as_toml(value)}" for key, value in table.items()]


def as_toml(value: Any) -> str:
    """Return a value in TOML, which has JSON's texts (but for DEL) and numbers, and infinity."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs(value))} }}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """Return a key as TOML writes it."""
    return name if _BARE_KEY.fullmatch(name) else as_toml(name)


def read_code_book(path: str | PathLike[str]) -> CodeBook:
    """Return the code book of a file.

    Parameters
    ----------
    path
        A TOML file that `write_code_book`, `fedpower prepare` or `fedpower inspect` wrote, or a person.
    """
    where = f"the code book {path}"
    try:
        content = msgspec.toml.decode(Path(path).read_bytes())
        if content.get("format") != FORMAT:
            raise InputError(
                f"{path} must be a code book of format {FORMAT!r}, got {content.get('format')!r}; make one "
                "with `fedpower prepare` or `fedpower inspect`"
            )
        return msgspec.convert(content, CodeBookFile).book(str(path))
    except FileNotFoundError:
        raise InputError(f"a code book must exist, got no file at {path}; check the path") from None
    except msgspec.ValidationError as error:
        keys = ", ".join(CodeBookFile.__struct_fields__)
        raise InputError(
            f"{where} must have numbers for its bound and columns, and no keys but {keys}, got another "
            f"({error})"
        ) from None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{where} must be readable TOML, got something else ({reason})") from None
