"""A digest of rows that does not depend on their order, summed up while they pass."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.rows.columns import require_distinct, require_shape
from fedpower.rows.source import Block, Matrix, pl
from fedpower.rows.sql.connection import Dialect, connected, find_dialect, frame_of, reading
from fedpower.rows.sql.query import DuckdbFile, PostgresServer, SqliteFile, SqlQuery, parse_address
from fedpower.rows.tables import Group, Part, Table, TableSource
from fedpower.rules.expressions import Cells

_LANES = 8

_CELLS = "cells"

_ROWS = 2**14
"""Rows of a query that are looked at together where only their cells are wanted."""


class RowTally:
    """The number of rows, and the sum of a 512-bit digest of each."""

    _kind = "fedpower.rows in any order/1"

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self.n_rows = 0
        self._sum = np.zeros(_LANES, dtype=np.uint64)

    def add(self, block: Matrix) -> None:
        """Count a block of rows, −0 as +0."""
        data = memoryview((block + 0.0).astype("<f8").tobytes())
        width = 8 * block.shape[1]
        self._count([data[at : at + width] for at in range(0, len(data), width)])

    def _count(self, rows: Sequence[bytes | memoryview]) -> None:
        digests = b"".join([hashlib.blake2b(row).digest() for row in rows])
        self._sum += np.frombuffer(digests, dtype="<u8").reshape(-1, _LANES).sum(axis=0, dtype="<u8")
        self.n_rows += len(rows)

    def digest(self) -> str:
        """Return the SHA-256 of columns, number of rows and sum."""
        head = json.dumps([self._kind, self._columns], ensure_ascii=False)
        state = hashlib.sha256(head.encode())
        state.update(self.n_rows.to_bytes(8, "little"))
        state.update(self._sum.astype("<u8").tobytes())
        return state.hexdigest()


class CellTally(RowTally):
    """The same of cells: numbers as float64, and texts with their places and lengths before them."""

    _kind = "fedpower.cells in any order/1"

    def add(self, batch: pl.DataFrame) -> None:  # type: ignore[override]
        """Count a batch of columns of float64 or text."""
        numbers = [name for name, kind in batch.schema.items() if kind == pl.Float64]
        block = batch.select(numbers).to_numpy() if numbers else np.empty((len(batch), 0))
        data, width = block.astype("<f8").tobytes(), 8 * block.shape[1]
        texts = [
            _counted_text(place, name)
            for place, (name, kind) in enumerate(batch.schema.items())
            if kind != pl.Float64
        ]
        lines = [""] * len(batch)
        if texts:
            lines = batch.select(pl.concat_str(texts).alias("line"))["line"].to_list()
        self._count([data[at * width : (at + 1) * width] + line.encode() for at, line in enumerate(lines)])


def _counted_text(place: int, name: str) -> pl.Expr:
    """Return a text with its place and length before it, -1 for null; nothing where it is empty."""
    text = pl.col(name).cast(pl.String)
    written = pl.format(
        "{} {} {} ", pl.lit(place), text.str.len_bytes().cast(pl.Int64).fill_null(-1), text.fill_null("")
    )
    return pl.when(text == "").then(pl.lit("")).otherwise(written)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredQuery:
    """A query as what reads raw batches; every pass makes a connection of its own and closes it."""

    name: str
    query: SqlQuery
    dialect: Dialect
    digests: dict[str, str | None] = field(default_factory=dict)

    def read(self, numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        """Yield batches of the wanted columns only; words come as text."""
        names = [*numbers, *words]
        columns = self.dialect.columns
        features, labels = ([columns.index(name) for name in some] for some in (numbers, words))
        tally = CellTally(columns) if _CELLS in self.digests else None
        statement = self.dialect.statement(self.query.text, features, labels, with_cells=tally is not None)
        options = self.dialect.options(len(names), max_rows)
        for found in self._run(statement, options):
            batch = found
            if tally is not None:
                tally.add(found[:, len(names) :])
                batch = found[:, : len(names)]
            self.dialect.check(batch, run=self._run, name=self.name, query=self.query.text, features=features)
            batch.columns = names
            yield from batch.iter_slices(max_rows)
            del batch, found  # or two batches are held while the next one is read
        if tally is not None:
            digest = tally.digest()
            if self.digests[_CELLS] not in (None, digest):
                raise changing(self.name)
            self.digests[_CELLS] = digest

    def watch_cells(self) -> None:
        """Require every pass from now on to be over the same cells, and keep their digest."""
        self.digests.setdefault(_CELLS, None)

    def digest(self) -> str:
        """Return the digest of all cells, from a pass unless one was made since `watch_cells`."""
        self.watch_cells()
        if self.digests[_CELLS] is None:
            for _ in self.read([], [], _ROWS):
                pass
        return str(self.digests[_CELLS])

    def _run(self, statement: str, options: dict[str, str]) -> Iterator[pl.DataFrame]:
        """Yield the batches of a statement as its driver makes them."""
        with (
            connected(self.query, self.name) as connection,
            reading(self.name),
            connection.cursor() as cursor,
        ):
            cursor.adbc_statement.set_options(**options)
            cursor.execute(statement)
            for batch in cursor.fetch_record_batch():
                yield frame_of(batch)


@dataclass(frozen=True, kw_only=True, eq=False)
class QuerySource(TableSource):
    """The rows of a query, the same in every pass or refused."""

    passes: dict[tuple[tuple[str, ...], Group | None], str] = field(default_factory=dict)

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows in whatever order the database gives them, checked to be finite."""
        tally = RowTally(self.columns)
        for block in super().blocks(max_rows):
            tally.add(np.asarray(block))
            yield block
            del block
        found = tally.digest()
        first = self.passes.setdefault((self.columns, self.group), found)
        if found != first or self.n_rows not in (None, tally.n_rows):
            raise changing(self.name)


def changing(name: str) -> InputError:
    """Return the error for a query that gives other rows than in an earlier pass."""
    return InputError(
        f"{name} must give the same rows in every pass, got other rows than before; select rows that no "
        "longer change, by a date for instance, and start again"
    )


def query_table(query: SqlQuery, name: str) -> Table:
    """Return the table of a query, after its database was asked for the columns."""
    with connected(query, name) as connection:
        dialect = find_dialect(connection, query, name)
    require_shape(name, None, len(dialect.columns))
    require_distinct(name, dialect.columns)
    stored = StoredQuery(name=name, query=query, dialect=dialect)
    types = dialect.types or [None] * len(dialect.columns)
    cells = {
        column: Cells(own=column, dtype=kind) for column, kind in zip(dialect.columns, types, strict=True)
    }
    return Table(name=name, parts=(Part(name=name, cells=cells, read=stored.read),), query=stored)


KEYS = tuple(field.name for field in fields(SqlQuery))


def query_of(data: Mapping[str, Any], *, name: str, folder: Path | None = None) -> SqlQuery:
    """Return the query that a mapping describes."""
    if "password" in data:
        raise InputError(
            f"{name} must not hold a password, got one; put it into an environment variable or a file "
            "and name that with password_env or password_file"
        )
    unknown = [str(key) for key in data if key not in KEYS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], KEYS)
        raise InputError(
            f"{name} must describe a query by {', '.join(KEYS)}, got '{unknown[0]}'"
            f"{f' (did you mean {near[0]}?)' if near else ''}; correct or remove it"
        )
    missing = [key for key in ("query", "database") if key not in data]
    if missing:
        raise InputError(f'{name} must give {missing[0]}, got none; add {missing[0]} = "…"')
    return SqlQuery(**_within(folder, dict(data)))


def _within(folder: Path | None, data: dict[str, Any]) -> dict[str, Any]:
    """Return the description with relative paths put into the folder."""
    if folder is None:
        return data
    if isinstance(data.get("password_file"), str) and data["password_file"]:
        data["password_file"] = str(folder / data["password_file"])
    if isinstance(data["database"], str):
        address = parse_address(data["database"])
        if not isinstance(address, PostgresServer):
            data["database"] = _file_url(address, folder)
    return data


def _file_url(address: SqliteFile | DuckdbFile, folder: Path) -> str:
    """Return the URL of a database file in a folder."""
    scheme = "sqlite" if isinstance(address, SqliteFile) else "duckdb"
    return f"{scheme}:///{str(folder / address.path).replace('%', '%25')}"
