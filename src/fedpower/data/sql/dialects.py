"""What SQLite and PostgreSQL do differently: finding columns, and numbers of exact types.

The user's query is put inside ours under column names of our own, so that columns are picked by their
place: no name needs quoting, and names that differ in case only, or are no names, are kept apart. It also
makes anything but one query a syntax error. (The rule about SQL made of strings is silenced here: the
query is the operator's own, and runs with no rights but his.)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fedpower.data.checks import not_a_number
from fedpower.data.sql.address import SqliteFile
from fedpower.data.sql.connection import preparing
from fedpower.data.sql.query import SqlQuery

Run: TypeAlias = Callable[[str, dict[str, str]], Iterator[Any]]
"""What yields the batches of a statement under options of the driver."""

MIN_HINT, MAX_HINT = 2**16, 16 * 2**20
EXACT = ("numeric", "money")
"""PostgreSQL's decimals, which its driver gives as text or in cents: the server makes them float8."""


class Dialect(Protocol):
    """How a database is asked for columns and rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the query's columns."""
        ...

    def statement(self, query: str, features: Sequence[int], key: int | None) -> str:
        """Return the query for the feature columns, then the key, by their places."""
        ...

    def options(self, n_columns: int, max_rows: int) -> dict[str, str]:
        """Return the driver's options for batches of about `max_rows` rows."""
        ...

    def check(
        self, batch: Any, *, run: Run, name: str, query: str, features: Sequence[int]
    ) -> None:
        """Refuse a batch with text where a number must be; nulls are refused later."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sqlite:
    """SQLite, whose columns may hold a value of another type in every row.

    Its driver takes a column's type from the first rows, so every number is asked for as REAL, and
    what is no number as null.
    """

    columns: tuple[str, ...]

    def statement(self, query: str, features: Sequence[int], key: int | None) -> str:
        """Return a query of REAL columns, and of the key as text."""
        cells = [
            f"CASE typeof(c{place}) WHEN 'real' THEN c{place} "
            f"WHEN 'integer' THEN CAST(c{place} AS REAL) END"
            for place in features
        ]
        return self._around(query, cells + ([] if key is None else [f"CAST(c{key} AS TEXT)"]))

    def options(self, n_columns: int, max_rows: int) -> dict[str, str]:
        """Return the number of rows in a batch."""
        return {"adbc.sqlite.query.batch_rows": str(max_rows)}

    def check(
        self, batch: Any, *, run: Run, name: str, query: str, features: Sequence[int]
    ) -> None:
        """Find out whether the first null is a null or text, by a second pass over the types."""
        if not any(batch.column(place).null_count for place in range(len(features))):
            return
        kinds = self._around(query, [f"typeof(c{place})" for place in features])
        row = 0
        for found in run(kinds, self.options(len(features), 2**12)):
            for offset, words in enumerate(zip(*found.to_pydict().values(), strict=True)):
                for place, word in zip(features, words, strict=True):
                    if word in ("text", "blob"):
                        raise not_a_number(name, self.columns[place], word, row + offset)
                if "null" in words:
                    return
            row += found.num_rows

    def _around(self, query: str, cells: Sequence[str]) -> str:
        names = ", ".join(f"c{place}" for place in range(len(self.columns)))
        named = ", ".join(f"{cell} AS r{place}" for place, cell in enumerate(cells))
        return f"WITH fedpower_rows({names}) AS (\n{query}\n) SELECT {named} FROM fedpower_rows"  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """PostgreSQL, whose driver streams the rows of a binary COPY."""

    columns: tuple[str, ...]
    exact: tuple[bool, ...]

    def statement(self, query: str, features: Sequence[int], key: int | None) -> str:
        """Return a query of the columns as they are, decimals as float8."""
        cells = [
            f"CAST(CAST(c{place} AS numeric) AS float8)" if self.exact[place] else f"c{place}"
            for place in features
        ]
        cells += [] if key is None else [f"CAST(c{key} AS text)"]
        names = ", ".join(f"c{place}" for place in range(len(self.columns)))
        named = ", ".join(f"{cell} AS r{place}" for place, cell in enumerate(cells))
        return f"SELECT {named} FROM (\n{query}\n) AS fedpower_rows({names})"  # noqa: S608

    def options(self, n_columns: int, max_rows: int) -> dict[str, str]:
        """Return the number of bytes after which a batch is closed."""
        size = min(max(8 * n_columns * max_rows, MIN_HINT), MAX_HINT)
        return {"adbc.postgresql.batch_size_hint_bytes": str(size)}

    def check(
        self, batch: Any, *, run: Run, name: str, query: str, features: Sequence[int]
    ) -> None:
        """Nothing to refuse: a column of text has a type of its own here."""


def find_dialect(connection: Any, query: SqlQuery, name: str) -> Dialect:
    """Return how to ask for the query's rows, after a look at its columns but at no row."""
    with preparing(name), connection.cursor() as cursor:
        if isinstance(query.address, SqliteFile):
            return Sqlite(columns=_sqlite_columns(cursor, query.text))
        schema = cursor.adbc_execute_schema(
            f"SELECT * FROM (\n{query.text}\n) AS fedpower_rows"  # noqa: S608
        )
    kinds = [(field.metadata or {}).get(b"POSTGRESQL:type", b"").decode() for field in schema]
    return Postgres(columns=tuple(schema.names), exact=tuple(kind in EXACT for kind in kinds))


def _sqlite_columns(cursor: Any, query: str) -> tuple[str, ...]:
    """Return the names of a query's columns as they are written."""
    cursor.execute(f"SELECT * FROM (\n{query}\n) LIMIT 0")  # noqa: S608
    names = tuple(cursor.fetch_record_batch().schema.names)
    if any(_numbered(names)):  # names that occur twice, which only the query by itself tells
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "1"})
        cursor.execute(query)
        names = tuple(cursor.fetch_record_batch().schema.names)
    return names


def _numbered(names: Sequence[str]) -> Iterator[bool]:
    """Yield for each name whether it looks like that of a column whose name occurred before."""
    for name in names:
        stem, sign, number = name.rpartition(":")
        yield bool(sign) and number.isdigit() and any(stem.lower() == n.lower() for n in names)
