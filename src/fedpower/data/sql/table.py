"""A query as a table: its rows streamed as Arrow batches, and held to be the same in every pass."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpower.data.checks import require_distinct, require_shape
from fedpower.data.kernel import block_rows
from fedpower.data.source import Block
from fedpower.data.sql.connection import connected, reading
from fedpower.data.sql.dialects import Dialect, find_dialect
from fedpower.data.sql.query import SqlQuery
from fedpower.data.sql.tally import RowTally
from fedpower.data.tables import Group, TableSource, sliced, with_key
from fedpower.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryTable:
    """A query as a reader of batches; every pass makes a connection of its own and closes it."""

    name: str
    query: SqlQuery
    dialect: Dialect

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the query's columns."""
        return self.dialect.columns

    @property
    def n_rows(self) -> None:
        """Unknown until the rows have been read."""
        return

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, key: str | None = None
    ) -> Iterator[Any]:
        """Yield batches of the wanted columns only; the key's cells come as text."""
        names = with_key(columns, key)
        features = [self.columns.index(column) for column in columns]
        place = None if key is None else self.columns.index(key)
        statement = self.dialect.statement(self.query.text, features, place)
        options = self.dialect.options(len(names), max_rows)
        for batch in self._run(statement, options):
            self.dialect.check(
                batch, run=self._run, name=self.name, query=self.query.text, features=features
            )
            yield from sliced(batch.rename_columns(names), max_rows)
            del batch  # or two batches are held while the next one is read

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
    """The rows of a query, the same in every pass or refused.

    Each pass is one statement, so its rows are those of one moment. The digest of the first complete pass
    is kept, and a later pass over other rows, or over another number of them than was counted, is refused
    at its end, before anything is made of it: so no release is computed on rows other than those that its
    ledger entry names, or for another number of rows.

    Parameters
    ----------
    passes : the digest of the first pass, by columns and group; shared by every selection.
    """

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
            raise InputError(
                f"{self.name} must give the same rows in every pass, got other rows than before; "
                "select rows that no longer change, by a date for instance, and start again"
            )

    def fingerprint(self) -> str:
        """Return the digest of columns and rows in any order, from a pass unless one was made."""
        if (self.columns, self.group) not in self.passes:
            for _ in self.blocks(block_rows(self.n_features)):
                pass
        return self.passes[self.columns, self.group]


def query_table(query: SqlQuery, name: str) -> QueryTable:
    """Return the reader of a query, after its database was asked for the columns."""
    with connected(query, name) as connection:
        dialect = find_dialect(connection, query, name)
    require_shape(name, None, len(dialect.columns))
    require_distinct(name, dialect.columns)
    return QueryTable(name=name, query=query, dialect=dialect)
