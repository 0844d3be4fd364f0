"""Code books as files: TOML that people read, written and read in this one place."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.report.atomic import new_file
from fedpower.report.record import plain
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import TableRules, table_rules

FORMAT = "fedpower-codebook/1"
RULED_FORMAT = "fedpower-codebook/2"
"""Of code books with rules, which a reader that does not know them must refuse."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PER_COLUMN = ("offset", "scale", "low", "high")
_SHARES = ("present", "outside")
"""Of a column's rows and cells; only where they were counted."""

_CLIPPED = ("rows", "energy", "uneven")
_PUBLIC = ("row_norm", "normalize", "offset", "scale")
"""What people write in place of numbers that preparation finds."""


def write_code_book(book: CodeBook, path: str | PathLike[str], *, force: bool = False) -> Path:
    """Write a code book to a file, whole or not at all, and return where it is."""
    with new_file(Path(path), force=force) as place:
        place.write_text(rendered(book), encoding="utf-8")
    return Path(path)


def rendered(book: CodeBook) -> str:
    """Return the text of a code book's file."""
    if book.is_draft or book.follows_rules:
        public = {} if book.follows_rules else {key: plain(getattr(book, key)) for key in _PUBLIC}
        lines = [
            "# A code book: what the cells of tables become, and public numbers about columns. It is public.",
            f"format = {json.dumps(RULED_FORMAT)}",
            *(f"{key} = {as_toml(value)}" for key, value in public.items() if value not in (None, False)),
        ]
        return "\n".join([*lines, *([] if book.rules is None else _rule_lines(book.rules))]) + "\n"
    lines = [
        "# A code book: how columns are centred, scaled and bounded before their moment is taken.",
        "# It is public. Cells are clipped to low and high; then (cell - offset) / scale; then rows",
        "# longer than bound are shortened to it.",
        f"format = {json.dumps(FORMAT if book.rules is None else RULED_FORMAT)}",
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
            *(f"{key} = {each!r}" for key, each in zip(_CLIPPED, book.clipped, strict=True)),
        ]
    names = book.columns or tuple(f"x{place}" for place in range(book.offset.size))
    lines += [] if book.columns else ["", "# columns have no names: they go by their order"]
    for place, name in enumerate(names):
        lines += ["", "[[column]]"]
        if book.columns:
            lines.append(f"name = {as_toml(name)}")
        counted = [key for key in _SHARES if getattr(book, key) is not None]
        lines += [f"{key} = {float(getattr(book, key)[place])!r}" for key in (*_PER_COLUMN, *counted)]
        lines.append(f"found = {json.dumps(book.found[place])}")
    return "\n".join(lines) + "\n"


def _rule_lines(rules: TableRules) -> list[str]:
    lines = ["", "[rules]", "# what cells become first, column by column of the tables"]
    return lines + [f"{toml_key(column)} = {as_toml(said)}" for column, said in rules.as_content().items()]


def as_toml(value: Any) -> str:
    """Return a value in TOML, which has JSON's texts (but for DEL) and numbers, and infinity."""
    if isinstance(value, list):
        return f"[{', '.join(as_toml(each) for each in value)}]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_key(key)} = {as_toml(each)}" for key, each in value.items())
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
        content = tomllib.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"a code book must exist, got no file at {place}; check the path") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"the code book {place} must be readable TOML, got something else ({reason}); correct it"
        ) from None
    if content.get("format") not in (FORMAT, RULED_FORMAT):
        raise InputError(
            f"{place} must be a code book of format {FORMAT!r} or {RULED_FORMAT!r}, got "
            f"{content.get('format')!r}; make one with `fedpower prepare` or `fedpower inspect`"
        )
    known = ("format", *_PUBLIC, "rules", "bound", "cost", "clipped", "column")
    public = {key: content[key] for key in _PUBLIC if key in content}
    odd = [key for key in content if key not in known]
    if odd:
        raise InputError(
            f"the code book {place} must have only the keys {', '.join(known)}, got "
            f"{odd[0]!r}; write rules under [rules]"
        )
    rules = None
    if "rules" in content:
        rules = table_rules(content["rules"], str(place))
        if not rules.features:
            raise InputError(
                f"the rules in {place} must keep a column at least, got none; write one a line under [rules]"
            )
    columns = content.get("column")
    if rules is not None and columns is None:
        return CodeBook(rules=rules, **public)
    if public and columns is None:
        return CodeBook(**public)
    if not isinstance(columns, list) or not columns or not all(map(_is_column, columns)):
        raise InputError(
            f"every column of the code book {place} must have the numbers {', '.join(_PER_COLUMN)}, got "
            "one that has not; correct it, or make it anew with `fedpower prepare`"
        )
    named = [each.get("name") for each in columns]
    if not (all(isinstance(name, str) for name in named) or named == [None] * len(named)):
        raise InputError(
            f"all columns of the code book {place} must have names or none, got some of each; name them"
        )
    cost = content.get("cost", {})
    numbers = [content.get("bound"), *(cost.get(key, 0.0) for key in ("epsilon", "delta", "mu"))]
    if not all(_is_number(each) for each in numbers) or not isinstance(cost.get("rows", 0), int):
        raise InputError(
            f"the bound and the cost in the code book {place} must be numbers, got others; correct them"
        )
    cut = content.get("clipped")
    if cut is not None and not (isinstance(cut, dict) and all(_is_number(cut.get(key)) for key in _CLIPPED)):
        raise InputError(
            f"what is clipped in the code book {place} must be the numbers {', '.join(_CLIPPED)}, got "
            "others; correct them, or leave them out"
        )
    counted = [key for key in _SHARES if all(_is_number(each.get(key)) for each in columns)]
    vectors: dict[str, Any] = {
        key: np.array([float(each[key]) for each in columns]) for key in (*_PER_COLUMN, *counted)
    }
    return CodeBook(
        columns=None if named[0] is None else tuple(named),
        **vectors,
        bound=float(content["bound"]),
        found=tuple(str(each.get("found", "given")) for each in columns),
        epsilon=float(cost.get("epsilon", 0.0)),
        delta=float(cost.get("delta", 0.0)),
        mu=float(cost.get("mu", 0.0)),
        n_rows=cost.get("rows", 0),
        rules=rules,
        clipped=None if cut is None else tuple(float(cut[key]) for key in _CLIPPED),  # type: ignore[arg-type]
    )


def code_book_of_record(record: Mapping[str, Any]) -> CodeBook | None:
    """Return the code book that a fit found, from its record; None where it found none."""
    book = record.get("code_book")
    if book is None:
        return None
    return CodeBook(
        **{
            **book,
            "rules": rules_of_record(record),
            "columns": None if book["columns"] is None else tuple(book["columns"]),
            "found": tuple(book["found"]),
            "clipped": None if book.get("clipped") is None else tuple(book["clipped"]),
            **{
                key: np.array(book[key], dtype=np.float64)
                for key in (*_PER_COLUMN, *(key for key in _SHARES if book.get(key) is not None))
            },
        }
    )


def rules_of_record(record: Mapping[str, Any]) -> TableRules | None:
    """Return the rules of a fit's tables, from its record; None where it had none."""
    said = record.get("rules")
    return None if said is None else table_rules(said, "the record of the fit")


def _is_column(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(value.get(key)) for key in _PER_COLUMN)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
