"""One key for each person, however their id is spelled and whatever its type is."""

from __future__ import annotations

import re
import sys
import unicodedata
from datetime import UTC, datetime, time
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.rows.source import pl

Keys = NDArray[np.uint64]

_WHOLE = r"^-?(?:0|[1-9][0-9]*)$"
_POINTED = r"^(-?(?:0|[1-9][0-9]*))[.,]0*$"
_NUMBER = r"-?(?:(?:0|[1-9][0-9]*)(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*"
_TRUTH = r"(?i:true|false)"
_REWRITTEN = rf"^(?:{_NUMBER}|{_MOMENT}|{_TRUTH})$"
"""Texts that have several spellings."""


def keys_of(cells: pl.Series, *, name: str, column: str, rows: int | NDArray[np.int64]) -> Keys:
    """Return a key for each id; ids of one person have the same. Whole numbers are their own keys."""
    ids = _whole_or_text(cells, name=name, column=column)
    missing = ids.is_null() if ids.dtype != pl.String else ids.is_null() | (ids == "").fill_null(value=False)
    if missing.any():
        place = int(missing.arg_max() or 0)
        number = rows + place if isinstance(rows, int) else int(rows[place])
        raise InputError(
            f"column '{column}' of {name} must say in every row whose it is, got a missing id at row "
            f"{number + 1}; fill it in or leave that row out"
        )
    return _as_keys(ids) if ids.dtype != pl.String else text_keys(_in_one_spelling(ids))


def text_keys(texts: pl.Series) -> Keys:
    """Return the keys of texts as they are: whole numbers themselves, all others by a hash."""
    whole = texts.str.contains(_WHOLE)
    found = texts.hash(seed=0).to_numpy().copy()
    if whole.any():
        digits = texts.filter(whole)
        small, large = (digits.cast(kind, strict=False) for kind in (pl.Int64, pl.UInt64))
        keys = small.cast(pl.UInt64, wrap_numerical=True).fill_null(large)
        places = whole.arg_true().to_numpy()
        fits = keys.is_not_null().to_numpy()
        found[places[fits]] = keys.drop_nulls().to_numpy()
    return found


def _as_keys(ids: pl.Series) -> Keys:
    kind = ids if ids.dtype == pl.UInt64 else ids.cast(pl.Int64).cast(pl.UInt64, wrap_numerical=True)
    return kind.to_numpy()


def _whole_or_text(cells: pl.Series, *, name: str, column: str) -> pl.Series:
    """Return ids as integers, or as texts without blanks around them."""
    kind = cells.dtype
    if kind == pl.Boolean:
        return cells.cast(pl.Int8)
    if kind.is_integer() and kind != pl.Int128:
        return cells
    if kind.is_float():
        cells = _exact(cells, name=name, column=column)
        whole = cells.cast(pl.Int64, strict=False)
        if (whole.cast(kind) == cells).all():
            return whole
        cells = cells.cast(pl.Float32) if kind == pl.Float16 else cells
    try:
        if kind == pl.Datetime:
            zone = getattr(kind, "time_zone", None)
            cells = cells.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else cells
            cells = cells.cast(pl.Datetime("us"))
        if not (kind.is_nested() or kind in (pl.Object, pl.Duration)):
            return cells.cast(pl.String).str.strip_chars()
    except pl.exceptions.PolarsError:
        pass
    raise InputError(
        f"column '{column}' of {name} must hold ids as texts, numbers or days, got type {kind}; write "
        "them as text"
    )


def _exact(cells: pl.Series, *, name: str, column: str) -> pl.Series:
    """Return floats with NaN as null; refuse those so large that several ids become the same float."""
    cells = cells.fill_nan(None)
    largest: Any = cells.abs().max()
    digits = 24 if cells.dtype == pl.Float32 else 11 if cells.dtype == pl.Float16 else 53
    if largest is not None and largest > 2.0**digits:
        raise InputError(
            f"column '{column}' of {name} must hold ids that are told apart, got decimal numbers beyond "
            f"2^{digits}, where several ids are the same number; write them as integers or text"
        )
    return cells


def _in_one_spelling(texts: pl.Series) -> pl.Series:
    """Return texts in one form: NFKC, digits as 0 to 9, 1.0 as 1, times in UTC, truths as 1 and 0."""
    if texts.str.contains(r"[^\x00-\x7f]").any():
        texts = texts.str.normalize("NFKC").str.strip_chars()
        foreign = texts.str.contains(r"^\p{Nd}+$")
        if foreign.any():
            digits = _foreign_digits()
            texts = texts.to_frame("id").select(
                pl.when(foreign).then(pl.col("id").str.replace_many(digits)).otherwise(pl.col("id"))
            )["id"]
    texts = texts.str.replace(_POINTED, "$1")
    odd = texts.str.contains(_REWRITTEN) & ~texts.str.contains(_WHOLE) | (texts == "-0")
    if not odd.any():
        return texts
    spelled = {text: _spelled_once(text) for text in texts.filter(odd).unique().to_list()}
    return texts.replace(spelled)


@cache
def _foreign_digits() -> dict[str, str]:
    letters = (chr(code) for code in range(128, sys.maxunicode + 1))
    return {each: str(unicodedata.decimal(each)) for each in letters if unicodedata.category(each) == "Nd"}


def _spelled_once(text: str) -> str:
    """Return the one spelling of a number, a time or a truth."""
    if text.lower() in ("true", "false"):
        return str(int(text.lower() == "true"))
    if ":" in text:
        return _day_and_time(text)
    number = format(Decimal(text.replace(",", ".")), "f")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return "0" if re.fullmatch("-?0*", number) else number


def _day_and_time(text: str) -> str:
    """Return a time of a day in UTC, to the microsecond; the day alone at midnight."""
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is not None:
            when = when.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return text
    return when.date().isoformat() if when.time() == time() else when.isoformat(" ")
