"""Persons as the unit of privacy: the person of each row, how many rows they have, what a row weighs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError, require
from fedpower.rows.arrays import ArraySource
from fedpower.rows.source import Extra, OverRows, RowSource, other_rows, pick_columns
from fedpower.rows.tables import TableSource, as_texts
from fedpower.rules.codebook import ranges_of
from fedpower.values import Block, Matrix, Vector, cached_property, is_sparse, pl, shown

Keys = NDArray[np.uint64]

PARTS = 2**16
"""P: weights' roots are whole numbers of 1/P where rows are whole numbers."""

TALLY_PARTS = 2**12
"""T: weights are whole numbers of 1/T where rows are counted."""

_MOST_UNITS = 2**26
"""Σ k z of so many is below 2⁶², and so are the sums of preparation."""

_ID_ROWS = 2**16
_WAITING = 16
"""Batches of ids that wait to be counted together."""


# --- weights ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """What rows weigh of persons who have so many rows each, and count for C at most."""

    counts: Vector
    most: int

    def __getitem__(self, part: slice) -> Weights:
        return Weights(self.counts[part], self.most)

    def exact(self) -> Vector:
        """Return w = min(1, C/m) for rows of persons with m rows."""
        return np.minimum(1.0, self.most / self.counts)

    def shares(self) -> Vector:
        """Return k = ⌊P√w⌋, the largest whole number with m·k² ≤ C·P², and P where m ≤ C."""
        rows = self.counts.astype(np.int64)
        shares = np.minimum(np.floor(PARTS * np.sqrt(self.most / self.counts)), PARTS).astype(np.int64)
        shares += shares < PARTS
        while (too_large := rows * shares**2 > self.most * PARTS**2).any():
            shares -= too_large
        return np.asarray(shares, dtype=np.float64)

    def tallies(self) -> NDArray[np.int64]:
        """Return ⌊T·b²⌋: a person's rows together have C·T at most."""
        shares = self.shares().astype(np.int64)
        return np.asarray(shares**2 // (PARTS**2 // TALLY_PARTS))


# --- rows by person ---------------------------------------------------------------------------------------


class UnitRows(OverRows):
    """A source whose every block has one column more than its features: the rows of each row's person."""

    def __init__(self, rows: RowSource, *, label: str, most: int, keys: Keys | None = None) -> None:
        super().__init__(rows)
        self.label, self.most, self.sparse = label, most, False
        self._keys = keys  # given for rows in memory; else the ids are in the table's column `label`

    @property
    def n_rows(self) -> int | None:
        return self.n_read if "_persons" in vars(self) else self.rows.n_rows

    @property
    def n_units(self) -> int:
        """Σ min(m, C): the public number, of persons where C is 1."""
        total = int(np.minimum(self._persons[1], self.most).sum(dtype=np.int64))
        if total > _MOST_UNITS:
            raise InputError(f"{self.name} must have at most {_MOST_UNITS:,} persons, got more; split it")
        return total

    @property
    def n_read(self) -> int:
        return int(self._persons[1].sum(dtype=np.int64))

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows and, after the features, m; refused at the end where a person has other rows."""
        known, counts = self._persons
        seen = np.zeros_like(counts)
        for keys, block in self._with_keys(max_rows):
            places = np.minimum(np.searchsorted(known, keys), known.size - 1)
            if not np.array_equal(known[places], keys):
                raise other_rows(self.name)
            np.add.at(seen, places, np.int32(1))
            wide = np.empty((block.shape[0], self.n_features + 1), order="F")
            wide[:, :-1] = np.asarray(block)
            wide[:, -1] = counts[places]
            del block
            yield wide
        if not np.array_equal(seen, counts):
            raise other_rows(self.name)

    def parted(self, block: Block) -> tuple[Matrix, Weights]:
        """Return a block's features, and what its rows weigh."""
        rows = np.asarray(block)
        return rows[:, :-1], Weights(np.ascontiguousarray(rows[:, -1]), self.most)

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> UnitRows:
        if self.columns is not None:
            pick_columns(self.name, self.columns, columns, extra=extra)
        return self.over(self.rows.select(columns, extra=extra))

    def over(self, rows: RowSource) -> UnitRows:
        """Return the same persons with other features, of the same rows."""
        made = UnitRows(rows, label=self.label, most=self.most, keys=self._keys)
        if "_persons" in vars(self):
            made.__dict__["_persons"] = self._persons
        return made

    @cached_property
    def _persons(self) -> tuple[Keys, NDArray[np.int32]]:
        """Every person's key, in ascending order, and number of rows."""

        def summed(counts: list[pl.DataFrame]) -> pl.DataFrame:
            return pl.concat(counts).group_by("key").agg(pl.col("len").sum())

        counts = [pl.DataFrame(schema={"key": pl.UInt64, "len": pl.UInt32})]
        for keys in self._all_keys():
            counts.append(pl.DataFrame({"key": keys}).group_by("key").len())
            if len(counts) > _WAITING:
                counts = [summed(counts)]
        total = summed(counts).sort("key")
        return total["key"].to_numpy(), total["len"].cast(pl.Int32).to_numpy()

    def _all_keys(self) -> Iterator[Keys]:
        if self._keys is not None:
            yield self._keys
            return
        assert isinstance(self.rows, TableSource)
        for part, rows, batch in self.rows.picked([self.label], _ID_ROWS):
            called = self.rows.table.called(part, self.rows.name)
            yield keys_of(batch[self.label], name=called, column=self.label, rows=rows)

    def _with_keys(self, max_rows: int) -> Iterator[tuple[Keys, Block]]:
        if self._keys is None:
            assert isinstance(self.rows, TableSource)
            for cells, block in self.rows.labelled(self.label, max_rows):
                yield keys_of(cells, name=self.name, column=self.label, rows=0), block
            return
        start = 0
        for block in self.rows.blocks(max_rows):
            stop = start + int(block.shape[0])
            yield self._keys[start:stop], block
            start = stop


def by_unit(source: RowSource, column: str, most: int = 1) -> UnitRows:
    """Return a table's rows by persons; the column of their ids is no longer a feature."""
    if isinstance(source, UnitRows):
        return source
    if not isinstance(source, TableSource):
        raise InputError(
            f"{source.name} must be a table with named columns to have unit={column!r}, got rows without"
        )
    have = source.table.columns
    require(column in have, "unit", f"a column of {source.name}, one of {shown(have)}", column)
    features = tuple(name for name in source.columns if name != column)
    if not features:
        raise InputError(f"{source.name} must have at least one column other than '{column}', got none")
    rows = source if features == source.columns else source.select(features, extra="drop")
    return UnitRows(rows, label=column, most=most)


def with_ids(source: RowSource, ids: Any, most: int = 1) -> UnitRows:
    """Return rows in memory by persons, whose ids are given as a vector."""
    if not (isinstance(source, ArraySource) and source.is_dense_array):
        raise InputError(
            f"{source.name} must be dense rows in memory to be used with units, got something else"
        )
    cells = np.asarray(ids)
    if cells.shape != (source.n_rows,):
        raise InputError(f"units must have one id per row, got shape {cells.shape} for {source.n_rows} rows")
    if cells.dtype.kind not in "biufUSMmO":
        raise InputError(f"units must be texts, numbers or days, got dtype {cells.dtype}")
    if isinstance(ids, np.ma.MaskedArray) or cells.dtype.kind in "US":
        # NumPy makes texts of what a list holds, of NaN too.
        column = as_texts(ids if isinstance(ids, list | tuple) else ids.tolist())
    else:
        column = as_texts(cells) if cells.dtype == object else pl.Series(values=cells)
    keys = keys_of(column, name=source.name, column="units", rows=0)
    return UnitRows(source, label="units", most=most, keys=keys)


def unit_of(source: RowSource) -> UnitRows | None:
    """Return the persons' rows that a source reads, directly or through others; else None."""
    inner: object = source
    while inner is not None and not isinstance(inner, UnitRows):
        inner = getattr(inner, "rows", None)
    return inner


def features_of(source: RowSource) -> RowSource:
    """Return the rows of a source without their persons."""
    return source.rows if isinstance(source, UnitRows) else source


def require_no_unit(source: RowSource, where: str) -> None:
    """Refuse persons where rows cannot be weighed."""
    if unit_of(source) is not None:
        raise InputError(f"{source.name} must be dense rows read on the CPU to count persons, got {where}")


# --- missing cells ----------------------------------------------------------------------------------------


def with_gaps(source: RowSource) -> RowSource:
    """Return a source that yields NaN for a missing number and refuses none; others as they are."""
    if isinstance(source, UnitRows):
        return source.over(with_gaps(source.rows))
    if isinstance(source, TableSource) or (isinstance(source, ArraySource) and not source.sparse):
        return replace(source, gaps=True)
    return source


def with_ranges(source: RowSource, ranges: Any) -> RowSource:
    """Return a source that counts cells outside public ranges, where it is a table."""
    if isinstance(source, UnitRows):
        return source.over(with_ranges(source.rows, ranges))
    if not isinstance(source, TableSource) or ranges is None:
        return source
    known = zip(source.columns, ranges_of(ranges, source.columns, source.n_features), strict=True)
    return replace(source, spans={name: span for name, span in known if span})


class FilledRows(OverRows):
    """A source in which a number per column replaces the missing cells."""

    def __init__(self, rows: RowSource, values: Vector) -> None:
        super().__init__(rows)
        self._values = values

    def blocks(self, max_rows: int) -> Iterator[Block]:
        for block in self.rows.blocks(max_rows):
            if is_sparse(block) or not np.isnan(np.sum(block)):
                yield block
                continue
            filled = np.array(block)  # persons' blocks have one column more, which has no gaps
            features = filled[:, : self.n_features]
            np.copyto(features, self._values, where=np.isnan(features))
            yield filled


# --- keys of persons --------------------------------------------------------------------------------------

_WHOLE = r"^(?:0|-?[1-9][0-9]*)$"
_POINTED = r"^(-?(?:0|[1-9][0-9]*))[.,]0*$"
_NUMBER = r"-?(?:(?:0|[1-9][0-9]*)(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_DAYTIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*"
_FOREIGN = r"\p{Nd}*[\p{Nd}&&[^0-9]]\p{Nd}*"
_SEVERAL_SPELLINGS = rf"^(?:{_NUMBER}|{_DAYTIME}|{_FOREIGN}|(?i:true|false))$"
_DIGITS = {"Float16": 11, "Float32": 24, "Float64": 53}


def keys_of(cells: pl.Series, *, name: str, column: str, rows: int | NDArray[np.int64]) -> Keys:
    """Return a key per id, the same for one person however the id is spelled and whatever its type is."""
    ids = _texts_of(cells, f"column '{column}' of {name}")
    missing = (ids == "").fill_null(value=True)
    if missing.any():
        place = int(missing.arg_max() or 0)
        row = rows + place if isinstance(rows, int) else int(rows[place])
        raise InputError(
            f"column '{column}' of {name} must have an id in every row, got a missing id at row {row + 1}"
        )
    return (ids if cells.dtype.is_integer() else _in_one_spelling(ids)).hash(seed=0).to_numpy()


def _texts_of(cells: pl.Series, called: str) -> pl.Series:
    kind = cells.dtype
    if kind.is_float():
        cells, digits = cells.fill_nan(None), _DIGITS[str(kind)]
        largest: Any = cells.abs().max()
        if largest is not None and largest > 2.0**digits:
            raise InputError(
                f"{called} must hold ids below 2^{digits}, got decimal numbers beyond 2^{digits}"
            )
        cells = cells.cast(pl.Float32) if kind == pl.Float16 else cells
    if kind == pl.Binary:  # text, or bytes such as those of a UUID
        cells = as_texts(cells)
    if kind == pl.Datetime:
        zone = getattr(kind, "time_zone", None)
        cells = cells.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else cells
        cells = cells.cast(pl.Datetime("us"))
    if kind.is_nested() or kind in (pl.Object, pl.Duration):
        raise InputError(f"{called} must hold ids as texts, numbers or days, got type {kind}")
    return cells.cast(pl.String).str.strip_chars()


def _in_one_spelling(texts: pl.Series) -> pl.Series:
    """Return texts in one form: NFKC, digits as 0 to 9, 1.0 as 1, times in UTC, truths as 1 and 0."""
    if texts.str.contains(r"[^\x00-\x7f]").any():
        texts = texts.str.normalize("NFKC").str.strip_chars()
    texts = texts.str.replace(_POINTED, "$1")
    odd = texts.str.contains(_SEVERAL_SPELLINGS) & ~texts.str.contains(_WHOLE)
    if not odd.any():
        return texts
    return texts.replace({text: _spelled_once(text) for text in texts.filter(odd).unique().to_list()})


def _spelled_once(text: str) -> str:
    if text.lower() in ("true", "false"):
        return str(int(text.lower() == "true"))
    if ":" in text:
        try:
            when = datetime.fromisoformat(text)
            when = when if when.tzinfo is None else when.astimezone(UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):
            return text
        return when.date().isoformat() if when.time() == time() else when.isoformat(" ")
    digits = "".join(str(unicodedata.decimal(letter, letter)) for letter in text)
    if not re.fullmatch(_NUMBER, digits):  # with a zero in front, as texts have
        return digits
    number = format(Decimal(digits.replace(",", ".")), "f")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return "0" if re.fullmatch("-?0*", number) else number
