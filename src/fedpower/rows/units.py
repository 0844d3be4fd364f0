"""Persons as the unit of privacy: whose each row is, how many rows they have, and what each row weighs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.rows.arrays import ArraySource
from fedpower.rows.columns import other_rows, pick_columns, require_block_size, shown
from fedpower.rows.person_keys import Keys, keys_of
from fedpower.rows.source import Block, Extra, Matrix, OverRows, RowSource, Vector, pl
from fedpower.rows.tables import TableSource, as_texts

PARTS = 2**16
"""P: weights' roots are whole numbers of 1/P where rows are whole numbers."""

TALLY_PARTS = 2**12
"""T: weights are whole numbers of 1/T where rows are counted."""

_MOST_UNITS = 2**26
"""Σ k z of so many is below 2⁶², and so are the sums of preparation."""

_ID_ROWS = 2**16
"""Ids that are looked at together."""

_PENDING = 2**20
"""Ids that are kept as they come before they are counted, at least."""


def exact_weights(counts: Vector, most: int) -> Vector:
    """Return w = min(1, C/m) for rows of persons with m rows."""
    return np.minimum(1.0, most / counts)


def lattice_shares(counts: Vector, most: int) -> Vector:
    """Return k = ⌊P√w⌋, the largest whole number with m·k² ≤ C·P², and P where m ≤ C."""
    rows = counts.astype(np.int64)
    found = np.minimum(np.floor(PARTS * np.sqrt(most / counts)), PARTS).astype(np.int64)
    found += found < PARTS
    too_large = rows * found**2 > most * PARTS**2
    while too_large.any():
        found -= too_large
        too_large = rows * found**2 > most * PARTS**2
    return np.asarray(found, dtype=np.float64)


def tally_weights(counts: Vector, most: int) -> NDArray[np.int64]:
    """Return ⌊T·b²⌋: a person's rows together have C·T at most."""
    shares = lattice_shares(counts, most).astype(np.int64)
    return np.asarray(shares**2 // (PARTS**2 // TALLY_PARTS))


class _Ids(Protocol):
    """Whose rows they are, as keys: alone, and beside the rows."""

    def iter_ids(self) -> Iterator[Keys]:
        """Yield the keys of all rows; refuse a row without an id by its number."""
        ...

    def iter_blocks_with_ids(self, max_rows: int) -> Iterator[tuple[Keys, Block]]:
        """Yield the keys of the rows of each block, and the block."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnIds:
    """Ids that stand in a column of a table."""

    table: TableSource
    column: str

    def iter_ids(self) -> Iterator[Keys]:
        for cells, rows, name in self.table.labels(self.column, _ID_ROWS):
            yield keys_of(cells, name=name, column=self.column, rows=rows)

    def iter_blocks_with_ids(self, max_rows: int) -> Iterator[tuple[Keys, Block]]:
        for cells, block in self.table.labelled(self.column, max_rows):
            yield keys_of(cells, name=self.table.name, column=self.column, rows=0), block


@dataclass(frozen=True, slots=True, kw_only=True)
class _GivenIds:
    """Ids that were given beside rows in memory."""

    rows: RowSource
    keys: Keys

    def iter_ids(self) -> Iterator[Keys]:
        yield self.keys

    def iter_blocks_with_ids(self, max_rows: int) -> Iterator[tuple[Keys, Block]]:
        start = 0
        for block in self.rows.blocks(max_rows):
            stop = start + int(block.shape[0])
            yield self.keys[start:stop], block
            start = stop


class _Persons:
    """How many rows each person has, by key in ascending order."""

    def __init__(self, chunks: Iterable[Keys]) -> None:
        counts = pl.DataFrame(schema={"key": pl.UInt64, "len": pl.UInt32})
        held: list[pl.DataFrame] = []
        size = 0
        for chunk in chunks:
            held.append(pl.DataFrame({"key": chunk}).group_by("key").len())
            size += chunk.size
            # Merged when as many wait as are counted: each key is grouped a few times in all.
            if size >= max(_PENDING, len(counts)):
                counts, held, size = _summed([counts, *held]), [], 0
        counts = _summed([counts, *held]).sort("key")
        self.keys: Keys = counts["key"].to_numpy()
        self.counts: NDArray[np.int32] = counts["len"].cast(pl.Int32).to_numpy()

    def places(self, keys: Keys) -> NDArray[np.int64] | None:
        """Return where keys are among the persons'; None where one of them is not."""
        places = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return places if np.array_equal(self.keys[places], keys) else None


def _summed(counts: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(counts).group_by("key").agg(pl.col("len").sum())


class UnitRows(OverRows):
    """A source whose every block has one column more than its features: the rows of each row's person."""

    def __init__(self, rows: RowSource, ids: _Ids, *, label: str, most: int) -> None:
        super().__init__(rows)
        self.label = label
        self.most = most
        self._ids = ids
        self._counted: _Persons | None = None
        self._lock = threading.Lock()

    @property
    def n_rows(self) -> int | None:
        """Number of rows that a pass reads, where known."""
        return self.rows.n_rows if self._counted is None else self.n_read

    @property
    def sparse(self) -> bool:
        """Always false."""
        return False

    @property
    def n_units(self) -> int:
        """Σ min(m, C): the public number, of persons where C is 1."""
        found = int(np.minimum(self._count().counts, self.most).sum(dtype=np.int64))
        if found > _MOST_UNITS:
            raise InputError(
                f"{self.name} must count for {_MOST_UNITS:,} at most, so that sums fit into 64 bits, got "
                "more persons; split it into silos"
            )
        return found

    @property
    def n_read(self) -> int:
        """Number of rows, counted."""
        return int(self._count().counts.sum(dtype=np.int64))

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows with m beside them; refused at the end where a person has other rows."""
        require_block_size(max_rows)
        persons = self._count()
        seen = np.zeros_like(persons.counts)
        for keys, block in self._ids.iter_blocks_with_ids(max_rows):
            places = persons.places(keys)
            if places is None:
                raise other_rows(self.name)
            np.add.at(seen, places, np.int32(1))
            wide = np.empty((block.shape[0], self.n_features + 1), order="F")
            wide[:, :-1] = np.asarray(block)
            wide[:, -1] = persons.counts[places]
            del block
            yield wide
        if not np.array_equal(seen, persons.counts):
            raise other_rows(self.name)

    def parted(self, block: Block) -> tuple[Matrix, Vector]:
        """Return a block's features, and m for each of its rows."""
        rows = np.asarray(block)
        return rows[:, :-1], np.ascontiguousarray(rows[:, -1])

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> UnitRows:
        """Return the source with exactly these features; the ids stay beside them."""
        if self.columns is not None:
            pick_columns(self.name, self.columns, columns, extra=extra)
        return self.over(self.rows.select(columns, extra=extra))

    def over(self, rows: RowSource) -> UnitRows:
        """Return the same persons with other features, of the same rows."""
        made = UnitRows(rows, _ids_for(rows, self._ids), label=self.label, most=self.most)
        made._counted = self._counted
        return made

    def _count(self) -> _Persons:
        with self._lock:
            if self._counted is None:
                self._counted = _Persons(self._ids.iter_ids())
        return self._counted


def by_unit(source: RowSource, column: str, most: int = 1) -> UnitRows:
    """Return a table's rows by persons; the column of their ids is no feature any more."""
    if isinstance(source, UnitRows):
        return source
    if not isinstance(source, TableSource):
        raise InputError(
            "{source} must be a table with named columns to have {unit:{column}}, got rows without; give "
            "a CSV, Parquet, Feather or Arrow file, a data frame or a query",
            source=source.name,
            column=column,
        )
    if column not in source.table.columns:
        raise InputError(
            "{source} must have the column '{column}' that says whose each row is, got "
            "{columns}; correct {unit}, or add the column",
            source=source.name,
            column=column,
            columns=shown(source.table.columns),
        )
    features = tuple(name for name in source.columns if name != column)
    if not features:
        raise InputError(
            f"{source.name} must have a feature beside the column '{column}', which only says whose each "
            "row is, got none; add one"
        )
    rows = source if features == source.columns else source.select(features, extra="drop")
    return UnitRows(rows, _ColumnIds(table=rows, column=column), label=column, most=most)


def with_ids(source: RowSource, ids: Any, most: int = 1) -> UnitRows:
    """Return rows in memory by persons, whose ids are given as a vector."""
    if source.sparse or not isinstance(source, ArraySource):
        raise InputError(
            f"{source.name} must be dense rows in memory to be given units, got others; give a NumPy "
            "array, or a table with a column of ids and unit='…'"
        )
    cells = np.asarray(ids)
    if cells.shape != (source.n_rows,):
        raise InputError(
            f"units must have one id per row, got shape {cells.shape} for {source.n_rows} rows; give "
            "the person of each row"
        )
    keys = keys_of(_given_cells(ids, cells), name=source.name, column="units", rows=0)
    return UnitRows(source, _GivenIds(rows=source, keys=keys), label="units", most=most)


def _given_cells(ids: Any, cells: NDArray[Any]) -> pl.Series:
    """Return given ids as a column."""
    if isinstance(ids, np.ma.MaskedArray):
        return as_texts(ids.tolist())
    if cells.dtype == object:
        return as_texts(cells)
    if cells.dtype.kind in "US" and not hasattr(ids, "__array__"):
        return as_texts(ids)  # NumPy has made texts of a list, of NaN too
    if cells.dtype.kind not in "biufUSMm":
        raise InputError(
            f"units must be texts, numbers or days, got dtype {cells.dtype}; give the ids as text"
        )
    return as_texts(cells.tolist()) if cells.dtype.kind in "US" else pl.Series(values=cells)


def unit_of(source: RowSource) -> UnitRows | None:
    """Return the persons' rows that a source reads, or that it holds to be the same; else None."""
    found: object = source
    while found is not None and not isinstance(found, UnitRows):
        found = getattr(found, "rows", None)
    return found


def features_of(source: RowSource) -> RowSource:
    """Return the rows of a source, whosever they are."""
    return source.rows if isinstance(source, UnitRows) else source


def require_no_unit(source: RowSource, where: str) -> None:
    """Refuse persons where rows cannot be weighed."""
    unit = unit_of(source)
    if unit is not None:
        raise InputError(
            "{source} must be dense rows that the processor reads to count persons, got {where}; leave "
            "that out, or leave {unit} out",
            source=source.name,
            where=where,
        )


def _ids_for(rows: RowSource, ids: _Ids) -> _Ids:
    if isinstance(ids, _ColumnIds):
        assert isinstance(rows, TableSource), "a selection of a table's columns is a table"
        return _ColumnIds(table=rows, column=ids.column)
    assert isinstance(ids, _GivenIds)
    return _GivenIds(rows=rows, keys=ids.keys)
