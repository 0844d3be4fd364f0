"""Code books as files: TOML that people read, written and read in this one place."""

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
_PER_COLUMN = ("offset", "scale", "low", "high")
_SHARES = ("present", "outside")  # of a column's rows and cells; only where they were counted
_CLIPPED = ("rows", "energy", "uneven")


class _Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of the file: keys that it does not know are refused."""


class _Cost(_Part):
    epsilon: float = 0.0
    delta: float = 0.0
    mu: float = 0.0
    rows: int = 0


class _Clipped(_Part):
    rows: float
    energy: float
    uneven: float


class _Column(_Part):
    offset: float
    scale: float
    low: float
    high: float
    name: str | None = None
    present: float | None = None
    outside: float | None = None
    found: str = "given"


class _File(_Part):
    format: str
    rules: Any = None
    bound: float | None = None
    cost: _Cost = msgspec.field(default_factory=_Cost)
    clipped: _Clipped | None = None
    column: list[_Column] | None = None


def write_code_book(book: CodeBook, path: str | PathLike[str], *, force: bool = False) -> Path:
    """Write a code book to a file, whole or not at all, and return where it is."""
    with new_file(Path(path), force=force) as place:
        place.write_text(rendered(book), encoding="utf-8")
    return Path(path)


def rendered(book: CodeBook) -> str:
    """Return the text of a code book's file."""
    if book.is_draft or book.follows_rules:
        assert book.rules is not None, "a code book has rules or numbers"
        more = "has no number yet" if book.is_draft else "needs nothing else"
        head = f"# A code book: what the cells of tables become. It is public, and {more}."
        return "\n".join([head, f"format = {as_toml(FORMAT)}", *_rule_lines(book.rules)]) + "\n"
    lines = [
        "# A code book: how columns are centred, scaled and bounded before their covariance is taken.",
        "# It is public. Cells are clipped to low and high; then (cell - offset) / scale; then rows",
        "# longer than bound are shortened to it.",
        f"format = {as_toml(FORMAT)}",
        f"bound = {book.bound!r}",
        "",
        "[cost]",
        "# what finding it cost each silo, once; fits that use it are not charged for it again",
        f"epsilon = {book.epsilon!r}",
        f"delta = {book.delta!r}",
        f"mu = {book.mu!r}",
        f"rows = {book.n_rows}",
        *([] if book.rules is None else _rule_lines(book.rules)),
    ]
    if book.clipped is not None:
        lines += [
            "",
            "[clipped]",
            "# shares of rows that are shortened, of their energy that is cut off, and how unevenly",
            *(f"{key} = {share!r}" for key, share in zip(_CLIPPED, book.clipped, strict=True)),
        ]
    lines += [] if book.columns else ["", "# columns have no names: they go by their order"]
    counted = [key for key in _SHARES if getattr(book, key) is not None]
    for place in range(book.offset.size):
        lines += ["", "[[column]]"]
        if book.columns:
            lines.append(f"name = {as_toml(book.columns[place])}")
        lines += [f"{key} = {float(getattr(book, key)[place])!r}" for key in (*_PER_COLUMN, *counted)]
        lines.append(f"found = {as_toml(book.found[place])}")
    return "\n".join(lines) + "\n"


def _rule_lines(rules: TableRules) -> list[str]:
    lines = ["", "[rules]", "# what cells become first, column by column of the tables"]
    return lines + [f"{toml_key(column)} = {as_toml(rule)}" for column, rule in rules.as_content().items()]


def as_toml(value: Any) -> str:
    """Return a value in TOML, which has JSON's texts (but for DEL) and numbers, and infinity."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_key(key)} = {as_toml(entry)}" for key, entry in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """Return a name as TOML has it before the sign of equality."""
    return name if _BARE_KEY.fullmatch(name) else as_toml(name)


def read_code_book(path: str | PathLike[str]) -> CodeBook:
    """Return the code book of a file; what is wrong with it is said in one sentence."""
    place = Path(path)
    try:
        content = msgspec.toml.decode(place.read_bytes())
    except FileNotFoundError:
        raise InputError(f"a code book must exist, got no file at {place}; check the path") from None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"the code book {place} must be readable TOML, got something else ({reason}); correct it"
        ) from None
    if content.get("format") != FORMAT:
        raise InputError(
            f"{place} must be a code book of format {FORMAT!r}, got {content.get('format')!r}; make one with "
            "`fedpower prepare` or `fedpower inspect`"
        )
    unknown = [key for key in content if key not in _File.__struct_fields__]
    if unknown:
        raise InputError(
            f"the code book {place} must have only the keys {', '.join(_File.__struct_fields__)}, got "
            f"{unknown[0]!r}; write rules under [rules]"
        )
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise InputError(
            f"the code book {place} must have numbers for its bound and columns, got another ({error}); "
            "correct it, or make it again with `fedpower prepare`"
        ) from None
    rules = None
    if file.rules is not None:
        rules = table_rules(file.rules, str(place))
        if not rules.features:
            raise InputError(
                f"the rules in {place} must keep a column at least, got none; write one per line under "
                "[rules]"
            )
    if rules is not None and file.column is None:
        return CodeBook(rules=rules)
    return _of_file(file, place, rules)


def _of_file(file: _File, place: Path, rules: TableRules | None) -> CodeBook:
    columns, names = file.column or [], [column.name for column in file.column or []]
    found = [file.bound, *(getattr(column, key) for column in columns for key in _PER_COLUMN)]
    if not columns or not all(value is not None and math.isfinite(value) for value in found):
        raise InputError(
            f"the code book {place} must have a bound, and {', '.join(_PER_COLUMN)} for every column, got "
            "one without; correct it, or make it again with `fedpower prepare`"
        )
    if None in names and any(name is not None for name in names):
        raise InputError(
            f"all columns of the code book {place} must have names or none, got some of each; name them"
        )
    keys = (*_PER_COLUMN, *(key for key in _SHARES if all(getattr(c, key) is not None for c in columns)))
    cost, cut = file.cost, file.clipped
    return CodeBook(
        columns=None if None in names else tuple(name for name in names if name is not None),
        **{key: np.array([getattr(column, key) for column in columns]) for key in keys},
        bound=float(file.bound or 0.0),
        found=tuple(column.found for column in columns),
        epsilon=cost.epsilon,
        delta=cost.delta,
        mu=cost.mu,
        n_rows=cost.rows,
        rules=rules,
        clipped=None if cut is None else (cut.rows, cut.energy, cut.uneven),
    )
