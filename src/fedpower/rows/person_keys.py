"""One key for each person, however her id is spelled and whatever its type is."""

import unicodedata
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.rows.tables import arrow, plain

Keys = NDArray[np.uint64]
Rows = int | NDArray[np.int64]
"""The number of the first of some rows, from 0, or of each of them."""

_BEYOND_ASCII, _LATIN_1 = 0xC0, 0xC3
"""With what a letter begins in UTF-8 that is none of ASCII, and one of U+00C0 to U+00FF, all in NFKC."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_ODDER = np.uint64(0xD6E8FEB86659FD93)

_MOST_DIGITS = 18
"""A number of so many digits fits into 64 bits, whichever digits they are."""

_NUMBER = r"-?(?:(?:0|[1-9][0-9]*)(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*"
_TRUTH = r"(?i:true|false)"
_REWRITTEN = rf"^(?:{_NUMBER}|{_MOMENT}|{_TRUTH})$"
"""Texts that have several spellings."""


def _among(letters: bytes) -> NDArray[np.bool_]:
    found = np.zeros(256, np.bool_)
    found[list(letters)] = True
    return found


_FIRST = _among(b"0123456789-.,tTfF")
_LAST = _among(b"0123456789.,zZeE")
_INSIDE = _among(b"0123456789.,-+: TZzeE")
_LETTERS = "0123456789.,-+: TZzeEtrufalsRUFALS"
"""With what the texts of `_REWRITTEN` begin and end, what is in the long ones, and in any."""


def keys_of(cells: Any, *, name: str, column: str, rows: Rows) -> Keys:
    """Return a key for each id; ids of one person have the same."""
    ids = _whole_or_text(cells, name=name, column=column)
    compute, whole = arrow("compute"), arrow().types.is_integer(ids.type)
    if ids.null_count or not (whole or np.diff(_ends(ids)).all()):
        missing = compute.is_null(ids)
        if not whole:
            missing = compute.or_kleene(missing, compute.equal(ids, ""))
        place = int(np.flatnonzero(missing.to_numpy(zero_copy_only=False))[0])
        number = rows + place if isinstance(rows, int) else int(rows[place])
        raise InputError(
            f"column '{column}' of {name} must say in every row whose it is, got a missing id at row "
            f"{number + 1}; fill it in or leave that row out"
        )
    return _own_keys(ids) if whole else _text_keys(ids)


def _own_keys(ids: Any) -> Keys:
    """Return whole numbers as their own keys."""
    pa = arrow()
    kind = pa.uint64() if pa.types.is_uint64(ids.type) else pa.int64()
    return np.asarray(ids.cast(kind).to_numpy(zero_copy_only=False)).view(np.uint64)


def _whole_or_text(cells: Any, *, name: str, column: str) -> Any:
    """Return ids as an Arrow array of integers, or of texts without blanks around them."""
    pa, compute = arrow(), arrow("compute")
    types, cells = pa.types, plain(cells)
    if types.is_integer(cells.type):
        return cells
    if types.is_boolean(cells.type):
        return cells.cast(pa.int8())
    if types.is_floating(cells.type):
        cells = _exact(cells, name=name, column=column)
    try:
        if types.is_floating(cells.type) or types.is_decimal(cells.type):
            return cells.cast(pa.int64())
    except pa.ArrowInvalid:
        pass  # some are no whole numbers, or too long
    texts = compute.utf8_trim_whitespace(_texts(cells, name=name, column=column))
    data = texts.buffers()[2]
    letters = np.frombuffer(data or b"", np.uint8)
    begun = letters[letters >= _BEYOND_ASCII]
    return texts if (begun == _LATIN_1).all() else _in_one_form(texts)


def _exact(cells: Any, *, name: str, column: str) -> Any:
    """Return floats with NaN as null; refuse those so large that several ids become the same float."""
    pa, compute = arrow(), arrow("compute")
    kind = cells.type.to_pandas_dtype()
    if pa.types.is_float16(cells.type):
        cells = cells.cast(pa.float32())
    cells = compute.if_else(compute.is_nan(cells), pa.scalar(None, cells.type), cells)
    largest = compute.max(compute.abs(cells)).as_py()
    digits = int(np.finfo(kind).nmant) + 1
    if largest is not None and largest > 2.0**digits:
        raise InputError(
            f"column '{column}' of {name} must hold ids that are told apart, got decimal numbers beyond "
            f"2^{digits}, where several ids are the same number; write them as integers or text"
        )
    return cells


def _texts(cells: Any, *, name: str, column: str) -> Any:
    """Return ids of any other type as texts."""
    pa = arrow()
    types, kind = pa.types, cells.type
    try:
        if types.is_string(kind) or types.is_large_string(kind):
            return cells
        if types.is_timestamp(kind):
            cells = cells.cast(pa.timestamp("us"), safe=False)  # of UTC, where there is a zone
        if not types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType):
            return cells.cast(pa.large_string())
        if isinstance(kind, pa.UuidType):
            return pa.array([None if each is None else str(each) for each in cells.to_pylist()])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    raise InputError(
        f"column '{column}' of {name} must hold ids as texts, numbers or days, got type {kind}; write "
        "them as text"
    )


def _in_one_form(texts: Any) -> Any:
    """Return texts in Unicode's form NFKC; of nothing but digits, of whatever script, as 0 to 9."""
    compute = arrow("compute")
    texts = compute.utf8_trim_whitespace(compute.utf8_normalize(texts, form="NFKC"))
    foreign = compute.and_not(compute.utf8_is_decimal(texts), compute.ascii_is_decimal(texts))
    if not compute.any(foreign).as_py():
        return texts
    digits = [
        "".join(str(unicodedata.decimal(letter)) for letter in text)
        for text in texts.filter(foreign).to_pylist()
    ]
    return compute.replace_with_mask(texts, foreign, arrow().array(digits, texts.type))


def _text_keys(texts: Any) -> Keys:
    """Return the keys of texts: of numbers these, else a hash."""
    pa = arrow()
    whole, odd = _numbers(texts)
    if whole.all():
        return _own_keys(texts.cast(pa.int64()))
    keys = _hashed(texts)
    keys[whole] = _own_keys(texts.filter(pa.array(whole)).cast(pa.int64()))
    other = np.flatnonzero(odd)
    if other.size:
        keys[other] = _odd_keys(texts.take(pa.array(other)), keys[other])
    return keys


def _odd_keys(texts: Any, hashed: Keys) -> Keys:
    """Return the keys of texts that may be of `_REWRITTEN`, given their hashes."""
    pa, compute = arrow(), arrow("compute")
    cut = compute.ascii_rtrim(texts, characters="0")  # of 120.00 that is 120.
    pointed = compute.ends_with(cut, ".").to_numpy(zero_copy_only=False)
    pointed |= compute.ends_with(cut, ",").to_numpy(zero_copy_only=False)
    cut = compute.ascii_rtrim(cut, characters=".,")
    whole = pointed & _numbers(cut)[0]
    hashed[whole] = _own_keys(cut.filter(pa.array(whole)).cast(pa.int64()))
    letters = compute.ascii_trim(texts, characters=_LETTERS)
    rest = np.flatnonzero((np.diff(_ends(letters)) == 0) & ~whole)
    some = texts.take(pa.array(rest))
    found = compute.match_substring_regex(some, pattern=_REWRITTEN)
    rest = rest[found.to_numpy(zero_copy_only=False)]
    if rest.size:
        hashed[rest] = _rewritten(some.filter(found))
    return hashed


def _numbers(texts: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which texts are whole numbers of a few digits, and which may be of `_REWRITTEN`."""
    ends, data = _ends(texts), texts.buffers()[2]
    letters = np.frombuffer(data or b"\0", np.uint8)
    starts, lengths = np.minimum(ends[:-1], letters.size - 1), np.diff(ends)
    first = letters[starts]
    digits = arrow("compute").ascii_is_decimal(texts).to_numpy(zero_copy_only=False)
    padded = (first == ord("0")) & (lengths > 1)
    whole = digits & ~padded & (lengths <= _MOST_DIGITS)
    odd = _FIRST[first] & _LAST[letters[ends[1:] - 1]] & ~whole & ~(digits & padded)
    for part in (2, 3):
        odd &= _INSIDE[letters[starts + lengths // part]] | (lengths <= len("false"))
    return whole, odd


def _rewritten(texts: Any) -> Keys:
    """Return the keys of texts that have several spellings, one spelling after the other."""
    encoded = texts.dictionary_encode()
    spelled = [_spelled_once(text) for text in encoded.dictionary.to_pylist()]
    keys = _hashed(arrow().array(spelled, arrow().large_string()))
    for place, text in enumerate(spelled):
        if text.removeprefix("-").isdecimal() and len(text) <= 20:
            number = int(text)
            if -(2**63) <= number < 2**64:
                keys[place] = np.uint64(number % 2**64)
    return np.asarray(keys[encoded.indices.to_numpy()])


def _spelled_once(text: str) -> str:
    """Return the one spelling of a number, a time or a truth."""
    if text.lower() in ("true", "false"):
        return str(int(text.lower() == "true"))
    if ":" in text:
        return _day_and_time(text)
    number = format(Decimal(text.replace(",", ".")), "f")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return "0" if number == "-0" else number


def _day_and_time(text: str) -> str:
    """Return a time of a day in UTC, to the microsecond; the day alone at midnight."""
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is not None:
            when = when.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return text
    return when.date().isoformat() if when.time() == time() else when.isoformat(" ")


def _ends(texts: Any) -> NDArray[np.int64]:
    """Return where texts begin and end in the bytes of all of them."""
    wide = arrow().types.is_large_string(texts.type)
    where = texts.buffers()[1]
    if where is None:
        return np.zeros(1, np.int64)
    ends = np.frombuffer(where, dtype=np.int64 if wide else np.int32)
    return ends[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)


def _hashed(texts: Any) -> Keys:
    """Return 64 bits for each text, from its bytes eight at a time."""
    ends, data = _ends(texts), texts.buffers()[2]
    raw = np.zeros((0 if data is None else data.size) + 8, np.uint8)
    if data is not None:
        raw[:-8] = np.frombuffer(data, np.uint8)
    # Eight bytes from every place on, so that one index reads a word.
    words = np.ndarray((raw.size - 7,), dtype="<u8", buffer=raw, strides=(1,))
    starts, lengths = ends[:-1], np.diff(ends)
    found = lengths.astype(np.uint64) * _ODDER
    shortest, longest = (int(lengths.min()), int(lengths.max())) if lengths.size else (0, 0)
    for begin in range(0, longest, 8):
        # Texts that go on here; all of them, where all are as long.
        some = slice(None) if begin < shortest else np.flatnonzero(lengths > begin)
        word = words[starts[some] + begin]
        if shortest < begin + 8:
            keep = np.minimum(lengths[some] - begin, 8).astype(np.uint64)
            word &= ~np.uint64(0) >> (np.uint64(64) - keep * np.uint64(8))
        mixed = (found[some] ^ word) * _ODD
        mixed ^= mixed >> np.uint64(29)
        mixed *= _ODDER
        mixed ^= mixed >> np.uint64(32)
        found[some] = mixed
    return found
