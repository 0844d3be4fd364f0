"""A digest of rows that does not depend on their order, summed up while they pass."""

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
from fedpower.rows.source import Block, Matrix
from fedpower.rows.sql.connection import Dialect, connected, find_dialect, reading
from fedpower.rows.sql.query import DuckdbFile, PostgresServer, SqliteFile, SqlQuery, parse_address
from fedpower.rows.tables import Group, TableSource, arrow, sliced

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

    def add(self, batch: Any) -> None:
        """Count a batch of columns of float64 or text."""
        pa, compute = arrow(), arrow("compute")
        text = pa.large_string()
        numbers, texts = [], []
        for place, cells in enumerate(batch.columns):
            if cells.type == pa.float64():
                numbers.append(cells.to_numpy(zero_copy_only=False))
                continue
            written = compute.fill_null(cells.cast(text), "")
            # What is null has the length -1, and what is empty is left out: most cells are numbers.
            lengths = compute.fill_null(compute.binary_length(cells.cast(text)), -1)
            if compute.all(compute.equal(lengths, 0)).as_py():
                continue
            piece = compute.binary_join_element_wise(
                pa.scalar(str(place), text), lengths.cast(text), written, pa.scalar(" ", text)
            )
            texts.append(compute.if_else(compute.equal(lengths, 0), pa.scalar("", text), piece))
        block = np.column_stack(numbers) if numbers else np.empty((batch.num_rows, 0))
        data, width = block.astype("<f8").tobytes(), 8 * block.shape[1]
        rows = [data[at * width : (at + 1) * width] for at in range(batch.num_rows)]
        if texts:
            lines = compute.binary_join_element_wise(*texts, pa.scalar("", text))
            written = lines.cast(pa.large_binary()).to_pylist()
            rows = [number + line for number, line in zip(rows, written, strict=True)]
        self._count(rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryTable:
    """A query as a reader of batches; every pass makes a connection of its own and closes it."""

    name: str
    query: SqlQuery
    dialect: Dialect
    digests: dict[str, str | None] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the query's columns."""
        return self.dialect.columns

    @property
    def types(self) -> tuple[Any, ...] | None:
        """Arrow types of the columns, where the database has them."""
        return self.dialect.types

    @property
    def n_rows(self) -> None:
        """Unknown until the rows have been read."""
        return

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield batches of the wanted columns only; labels come as text."""
        names = [*columns, *labels]
        features = [self.columns.index(column) for column in columns]
        places = [self.columns.index(column) for column in labels]
        tally = CellTally(self.columns) if _CELLS in self.digests else None
        statement = self.dialect.statement(self.query.text, features, places, with_cells=tally is not None)
        options = self.dialect.options(len(names), max_rows)
        for found in self._run(statement, options):
            batch = found
            if tally is not None:
                tally.add(found.select(range(len(names), found.num_columns)))
                batch = found.select(range(len(names)))
            self.dialect.check(batch, run=self._run, name=self.name, query=self.query.text, features=features)
            yield from sliced(batch.rename_columns(names), max_rows)
            del batch, found  # or two batches are held while the next one is read
        if tally is not None:
            digest = tally.digest()
            if self.digests[_CELLS] not in (None, digest):
                raise changing(self.name)
            self.digests[_CELLS] = digest

    def watch_cells(self) -> None:
        """Let every pass from now on be over the same cells, and tell which."""
        self.digests.setdefault(_CELLS, None)

    def digest(self) -> str:
        """Return the digest of all cells, from a pass unless one was made since `watch_cells`."""
        self.watch_cells()
        if self.digests[_CELLS] is None:
            for _ in self.batches((), _ROWS):
                pass
        return str(self.digests[_CELLS])

    def _run(self, statement: str, options: dict[str, str]) -> Iterator[Any]:
        """Yield the record batches of a statement as its driver makes them."""
        with (
            connected(self.query, self.name) as connection,
            reading(self.name),
            connection.cursor() as cursor,
        ):
            cursor.adbc_statement.set_options(**options)
            cursor.execute(statement)
            yield from cursor.fetch_record_batch()


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


def query_table(query: SqlQuery, name: str) -> QueryTable:
    """Return the reader of a query, after its database was asked for the columns."""
    with connected(query, name) as connection:
        dialect = find_dialect(connection, query, name)
    require_shape(name, None, len(dialect.columns))
    require_distinct(name, dialect.columns)
    return QueryTable(name=name, query=query, dialect=dialect)


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
