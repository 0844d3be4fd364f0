"""Rows from SQLite, DuckDB and PostgreSQL: a query's result, streamed, read-only, secrets kept out."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

import numpy as np

from fedpower.errors import InputError, installing
from fedpower.rows.columns import not_a_number, require_distinct, require_shape
from fedpower.rows.source import Block, Matrix, pl
from fedpower.rows.tables import Group, Part, Table, TableSource
from fedpower.rules.expressions import Cells

# --- where a database is ----------------------------------------------------------------------------------

_FORMS = "sqlite:///path.db, duckdb:///path.duckdb or postgresql://host:5432/name"
_FILES = {"sqlite": "SQLite", "duckdb": "DuckDB"}
_SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret"})
_SETTINGS = frozenset({
    "channel_binding", "connect_timeout", "gssencmode", "host", "hostaddr", "krbsrvname", "passfile",
    "port", "service", "sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert",
    "target_session_attrs", "user",
})  # fmt: skip
"""Parameters of libpq that a URL may set after its question mark."""

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]#@]*)(?::(?P<port>\d*))?")
_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*([A-Za-z]*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A database: a file, or a PostgreSQL server by libpq's settings, none of them secret."""

    kind: Literal["sqlite", "duckdb", "postgresql"]
    path: Path | None = None
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """What messages call it."""
        known = dict(self.settings)
        where = known.get("host") or known.get("service") or "libpq's default"
        return f"the PostgreSQL server at {where}" if self.path is None else str(self.path)


def parse_address(database: str) -> Address:
    """Return where a database URL points, or refuse it without quoting it."""
    scheme, sign, rest = database.partition("://")
    if sign and scheme in ("postgresql", "postgres"):
        return Address(kind="postgresql", settings=_libpq_settings(rest))
    if not sign or scheme not in _FILES:
        raise InputError(f"database must be a URL such as {_FORMS}, got another; give one of these forms")
    if not rest.startswith("/") or len(rest) == 1:
        raise InputError(
            f"a {_FILES[scheme]} database must be {scheme}:///path.db, with a fourth slash where the path "
            "begins with one, got another URL; name the file after three slashes"
        )
    return Address(kind="sqlite" if scheme == "sqlite" else "duckdb", path=Path(unquote(rest[1:])))


def _libpq_settings(rest: str) -> tuple[tuple[str, str], ...]:
    """Return libpq's settings of ``postgresql://user@host:port/name?sslmode=…``."""
    head, _, query = rest.partition("?")
    netloc, _, name = head.partition("/")
    person, _, netloc = netloc.rpartition("@")
    hosts = [_HOST.fullmatch(word) for word in netloc.split(",")]
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        given = {"": ""}
    if ":" in person or _SECRETS & {key.lower() for key in given}:
        raise InputError(
            "database must not carry a password, got a URL with one; take it out and name the "
            "variable or the file that holds it with password_env or password_file"
        )
    odd = set("@/#") & set(name) or set("@#") & set(query)
    if odd or not given.keys() <= _SETTINGS or not all(hosts):
        raise InputError(
            "database must be a URL such as postgresql://user@host:5432/name?sslmode=verify-full, got "
            f"one that cannot be read; write it so, with no parameters but {', '.join(sorted(_SETTINGS))}"
        )
    ports = [match["port"] or "" for match in hosts if match]
    settings = {
        "host": ",".join(unquote(match["host"].strip("[]")) for match in hosts if match),
        "port": ",".join(ports) if any(ports) else "",
        "dbname": unquote(name),
        "user": unquote(person),
        **given,
    }
    return tuple((key, value) for key, value in settings.items() if value)


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """The rows that a query gives, as a silo's data; anything that takes a file's path takes it too.

    It holds no password: that is read from its place whenever a connection is made.

    Parameters
    ----------
    query
        One SELECT (or WITH … SELECT) whose columns are the features.
    database
        ``sqlite:///path.db`` or ``duckdb:///path.duckdb`` (four slashes for a path from the root) or
        ``postgresql://host:5432/name``; what a PostgreSQL URL leaves out comes from the variables
        and files that libpq reads (PGHOST, PGSSLMODE, ``~/.pgpass``, a service file).
    user
        PostgreSQL's user.
    password_env, password_file
        The environment variable or the file that holds the password.

    Examples
    --------
    >>> from fedpower import SqlQuery
    >>> SqlQuery("SELECT age, dose FROM visits", "sqlite:///ward.db").address.kind
    'sqlite'
    """

    query: str
    database: str
    user: str | None = None
    password_env: str | None = None
    password_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            kinds = (str, os.PathLike) if each.name == "password_file" else (str,)
            is_optional = each.name not in ("query", "database")
            if (value is None and is_optional) or (isinstance(value, kinds) and os.fspath(value) != ""):
                continue
            kind = "none" if value in (None, "") else type(value).__name__
            raise InputError(f"{each.name} of a query must be text, got {kind}; give it as a string")
        first = _FIRST_WORD.match(self.query)
        word = first[1].upper() if first else ""
        if word not in ("SELECT", "WITH", "VALUES"):  # the connection is read-only besides
            got = "a statement that begins otherwise" if word else "none"
            raise InputError(f"query must be a SELECT, got {got}; write one that changes nothing")
        address = self.address
        if address.path is not None:
            for key in ("user", "password_env", "password_file"):
                if getattr(self, key) is not None:
                    raise InputError(
                        f"a {_FILES[address.kind]} database must be named without {key}, got one; leave it "
                        "out: anyone who can read the file can read its tables"
                    )
        elif self.user is not None and "user" in dict(address.settings):
            raise InputError("user must be given once, got one in database and one as user; leave one out")
        if self.password_env is not None and self.password_file is not None:
            raise InputError(
                "the password must be in one place, got both password_env and password_file; leave one out"
            )

    @property
    def address(self) -> Address:
        """The database's place."""
        return parse_address(self.database)

    @property
    def text(self) -> str:
        """The query without the semicolon at its end."""
        return self.query.rstrip().rstrip(";").rstrip()

    def password(self) -> str | None:
        """Return the password from its variable or file; None where libpq looks it up."""
        if self.password_env is None and self.password_file is None:
            return None
        if self.password_env is not None:
            key, where = "password_env", f"the environment variable {self.password_env}"
            password = os.environ.get(self.password_env)
        else:
            key, where = "password_file", f"the file {self.password_file}"
            try:
                password = Path(self.password_file or "").read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError):
                password = None
        if not password or "\0" in password:
            raise InputError(
                f"{where} must hold the database's password, got none there; set it, or correct {key}"
            )
        return password


def query_of(data: Mapping[str, Any], *, name: str, folder: Path | None = None) -> SqlQuery:
    """Return the query that a mapping describes, relative paths in it within the folder."""
    keys = [each.name for each in fields(SqlQuery)]
    if "password" in data:
        raise InputError(
            f"{name} must not hold a password, got one; put it into an environment variable or a file "
            "and name that with password_env or password_file"
        )
    unknown = [str(key) for key in data if key not in keys]
    if unknown:
        near = difflib.get_close_matches(unknown[0], keys)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(
            f"{name} must describe a query by {', '.join(keys)}, got '{unknown[0]}'{hint}; remove it"
        )
    for key in ("query", "database"):
        if key not in data:
            raise InputError(f'{name} must give {key}, got none; add {key} = "…"')
    given = dict(data)
    if folder is not None and isinstance(given["database"], str):
        address = parse_address(given["database"])
        if address.path is not None:
            path = str(folder / address.path).replace("%", "%25")
            given["database"] = f"{address.kind}:///{path}"
        if isinstance(given.get("password_file"), str) and given["password_file"]:
            given["password_file"] = str(folder / given["password_file"])
    return SqlQuery(**given)


# --- connections ------------------------------------------------------------------------------------------

_CONNECT_SECONDS = "10"
"""How long a PostgreSQL server may take to accept a connection, unless the user sets another limit."""

_FIRST_STATEMENTS = {
    "sqlite": ["PRAGMA busy_timeout = 10000"],
    "duckdb": [],
    "postgresql": [
        "SET default_transaction_read_only = on",
        "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
    ],
}
_CODES = {
    "25006": "a statement that changes data",
    "42501": "no permission for a table or column in it",
    "57014": "that the server cancelled it",
}
"""What an SQLSTATE means here, where a plain word helps."""


@contextmanager
def connected(query: SqlQuery, name: str) -> Iterator[Any]:
    """Yield a DBAPI connection to the query's database that cannot change it."""
    address, secret = query.address, query.password()
    if address.path is not None and not address.path.is_file():
        raise InputError(
            f"the database of {name} must be a file that exists, got none at {address.path}; check "
            f"the path ({address.kind}:////… where it begins with a slash)"
        )
    is_duckdb = address.kind == "duckdb"
    module = "adbc_driver_duckdb" if is_duckdb else f"adbc_driver_{address.kind}.dbapi"
    try:
        driver = import_module(module)
    except ImportError:
        package = "duckdb" if is_duckdb else f"adbc-driver-{address.kind}"
        extra = installing("duckdb" if is_duckdb else "sql")
        raise InputError(
            f"{name} must be read with the driver {package}, got none installed; run {extra}"
        ) from None
    try:
        if is_duckdb:  # its own ``connect`` has no option to open a file read-only
            connection = import_module("adbc_driver_manager.dbapi").connect(
                driver=driver.driver_path(),
                entrypoint="duckdb_adbc_init",
                db_kwargs={"path": str(address.path), "access_mode": "READ_ONLY"},
                autocommit=True,
            )
        elif address.path is not None:
            connection = driver.connect(f"{address.path.resolve().as_uri()}?mode=ro", autocommit=True)
        else:
            connection = driver.connect(conninfo(address, query.user, secret), autocommit=True)
    except import_module("adbc_driver_manager").Error as error:
        reason = " ".join((str(error).partition("Failed to connect:")[2] or str(error)).split())
        if secret is not None and secret in str(error):
            reason = "the reason is withheld because the password, or a word like it, is in it"
        raise InputError(
            f"{name} must be able to reach {address.label}, got no connection ({reason}); check that it "
            "runs, its address, user and password"
        ) from None
    with connection:
        with _preparing(name), connection.cursor() as cursor:
            for statement in _FIRST_STATEMENTS[address.kind]:
                cursor.execute(statement)
        yield connection


def conninfo(address: Address, user: str | None, password: str | None) -> str:
    """Return libpq's connection string."""
    settings = {"fallback_application_name": "fedpower", **dict(address.settings)}
    settings |= {key: word for key, word in (("user", user), ("password", password)) if word is not None}
    if "service" not in settings and "PGCONNECT_TIMEOUT" not in os.environ:
        settings.setdefault("connect_timeout", _CONNECT_SECONDS)
    quoted = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in settings.items()}
    return " ".join(f"{key}='{value}'" for key, value in quoted.items())


@contextmanager
def _preparing(name: str) -> Iterator[None]:
    """Turn a database's refusal of the query's text into one line, with what it says of it."""
    try:
        yield
    except _failures() as error:
        text = str(error)
        said = text.partition("Failed to prepare query: ")[2] or text.partition(" Error: ")[2]
        said = said.partition("\nquery:")[0].partition("\n\nLINE ")[0]
        for key, value in getattr(error, "details", None) or ():
            if key in ("PG_DIAG_MESSAGE_PRIMARY", b"PG_DIAG_MESSAGE_PRIMARY"):
                said = str(value, "utf-8", "replace") if isinstance(value, bytes) else str(value)
        message = " ".join(said.split()) or "an error without a message"
        raise InputError(
            f"{name} must be a query that its database can run, got the error '{message}'; correct the "
            "query or the database"
        ) from None


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn a failure while rows come into one line without its words, which may quote cells."""
    try:
        yield
    except _failures() as error:
        code = getattr(error, "sqlstate", None)
        what = _CODES.get(code or "", "an error from the database") + (f" (SQLSTATE {code})" if code else "")
        raise InputError(
            f"{name} must be a query that runs to its end, got {what}; run it in the database's own "
            "shell to see why"
        ) from None


def _failures() -> tuple[type[Exception], ...]:
    """Return what the drivers raise, and Arrow where it reads from them."""
    arrow = import_module("pyarrow")
    return (import_module("adbc_driver_manager").Error, arrow.ArrowException, OSError)


# --- statements -------------------------------------------------------------------------------------------

_EXACT = ("numeric", "money")
"""PostgreSQL's decimals, which its driver gives as text or in cents: the server makes them float8."""

_REAL = "CASE typeof({c}) WHEN 'real' THEN {c} WHEN 'integer' THEN CAST({c} AS REAL) "
_SQLITE_CELLS = (
    # Numbers as they are, since text has only fifteen of their digits, and everything else as text.
    _REAL + "ELSE 0.0 END",
    "CASE typeof({c}) WHEN 'real' THEN '' WHEN 'integer' THEN '' WHEN 'null' THEN 'null' ELSE quote({c}) END",
)
_SQLITE_TEXT = (
    "CASE WHEN typeof({c}) = 'real' AND {c} = CAST({c} AS INTEGER) "
    "THEN CAST(CAST({c} AS INTEGER) AS TEXT) ELSE CAST({c} AS TEXT) END"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialect:
    """How a database is asked for columns and rows."""

    kind: str
    columns: tuple[str, ...]
    types: tuple[Any, ...]  # None for SQLite, where every row may have its own
    exact: tuple[bool, ...] = ()

    def statement(self, query: str, features: Sequence[int], labels: Sequence[int], *, cells: bool) -> str:
        """Return the query for numbers, then labels as text, then perhaps all cells, by their places."""
        every = range(len(self.columns)) if cells else ()
        if self.kind == "sqlite":
            chosen = [(_REAL + "END").format(c=f"c{place}") for place in features]
            chosen += [_SQLITE_TEXT.format(c=f"c{place}") for place in labels]
            chosen += [form.format(c=f"c{place}") for place in every for form in _SQLITE_CELLS]
            return self.around(query, chosen)
        chosen = [
            f"CAST(CAST(c{place} AS numeric) AS float8)" if self.exact and self.exact[place] else f"c{place}"
            for place in features
        ]
        chosen += [f"CAST(c{place} AS VARCHAR)" for place in (*labels, *every)]
        return self.around(query, chosen)

    def around(self, query: str, chosen: Sequence[str]) -> str:
        """Return a query of expressions over the columns c0, c1, … of another one."""
        names = ", ".join(f"c{place}" for place in range(len(self.columns)))
        selected = ", ".join(f"{cell} AS r{place}" for place, cell in enumerate(chosen))
        if self.kind == "sqlite":
            return f"WITH fedpower_rows({names}) AS (\n{query}\n) SELECT {selected} FROM fedpower_rows"  # noqa: S608
        return f"SELECT {selected} FROM (\n{query}\n) AS fedpower_rows({names})"  # noqa: S608

    def options(self, n_columns: int, max_rows: int) -> dict[str, str]:
        """Return the driver's options for batches of about `max_rows` rows; DuckDB has its own size."""
        if self.kind == "sqlite":
            return {"adbc.sqlite.query.batch_rows": str(max_rows)}
        size = min(max(8 * n_columns * max_rows, 2**16), 2**24)
        return {} if self.kind == "duckdb" else {"adbc.postgresql.batch_size_hint_bytes": str(size)}


def _find_dialect(connection: Any, query: SqlQuery, name: str) -> _Dialect:
    """Return how to ask for the query's rows, from its columns and no row."""
    kind = query.address.kind
    # Nothing but a query may be in brackets.
    bracketed = f"SELECT * FROM (\n{query.text}\n) AS fedpower_rows"  # noqa: S608
    with _preparing(name), connection.cursor() as cursor:
        if kind == "sqlite":
            names = _sqlite_columns(cursor, query.text)
            return _Dialect(kind=kind, columns=names, types=(None,) * len(names))
        schema = cursor.adbc_execute_schema(bracketed)
        if kind == "duckdb":  # in brackets a name that occurs twice is changed
            schema = cursor.adbc_execute_schema(query.text)
            return _Dialect(kind=kind, columns=tuple(schema.names), types=_types(schema))
    stored = [(each.metadata or {}).get(b"POSTGRESQL:type", b"").decode() for each in schema]
    exact = tuple(each in _EXACT for each in stored)
    types = [pl.Float64() if is_exact else each for each, is_exact in zip(_types(schema), exact, strict=True)]
    return _Dialect(kind=kind, columns=tuple(schema.names), types=tuple(types), exact=exact)


def _sqlite_columns(cursor: Any, query: str) -> tuple[str, ...]:
    """Return the names of a query's columns as they are written."""
    cursor.execute(f"SELECT * FROM (\n{query}\n) LIMIT 0")  # noqa: S608
    names = tuple(cursor.fetch_record_batch().schema.names)
    lower = {name.lower() for name in names}
    parts = [name.rpartition(":") for name in names]
    if any(sign and number.isdigit() and stem.lower() in lower for stem, sign, number in parts):
        # "a:1" may stand for a second column "a", which only the query by itself tells.
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "1"})
        cursor.execute(query)
        names = tuple(cursor.fetch_record_batch().schema.names)
    return names


def _types(schema: Any) -> tuple[Any, ...]:
    """Return the Polars types of an Arrow schema."""
    return tuple(_frame_of(schema.empty_table().combine_chunks()).dtypes)


def _frame_of(batch: Any) -> pl.DataFrame:
    """Return a batch as a frame; intervals, which Polars does not import, become texts."""
    arrow = import_module("pyarrow")
    columns = []
    for column in batch.columns:
        if arrow.types.is_interval(column.type):
            texts = [None if cell is None else str(cell) for cell in column.to_pylist()]
            columns.append(pl.Series(values=texts, dtype=pl.String))
        else:
            columns.append(pl.Series(values=column))
    return pl.DataFrame([each.alias(f"r{place}") for place, each in enumerate(columns)])


# --- rows -------------------------------------------------------------------------------------------------

_LANES = 8
_DIGEST_ROWS = 2**14


class RowTally:
    """The number of rows, and the sum of a 512-bit digest of each: the same in any order."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self.n_rows = 0
        self._sum = np.zeros(_LANES, dtype=np.uint64)

    def add(self, block: Matrix, texts: Sequence[str] | None = None) -> None:
        """Count rows of numbers, −0 as +0, each perhaps followed by a text."""
        data, width = memoryview((block + 0.0).astype("<f8").tobytes()), 8 * block.shape[1]
        rows: list[Any] = [data[at * width : (at + 1) * width] for at in range(len(block))]
        if texts is not None:
            rows = [bytes(row) + text.encode() for row, text in zip(rows, texts, strict=True)]
        digests = b"".join([hashlib.blake2b(row).digest() for row in rows])
        self._sum += np.frombuffer(digests, dtype="<u8").reshape(-1, _LANES).sum(axis=0, dtype="<u8")
        self.n_rows += len(rows)

    def add_cells(self, batch: pl.DataFrame) -> None:
        """Count rows of columns of float64 or text; texts with their places and lengths before them."""
        numbers = batch.select(pl.selectors.float())
        others = [place for place, kind in enumerate(batch.dtypes) if not kind.is_float()]
        block = numbers.to_numpy() if numbers.width else np.empty((len(batch), 0))
        lines = [""] * len(batch)
        if others:
            texts = [_counted_text(place, batch.columns[place]) for place in others]
            lines = batch.select(pl.concat_str(texts).alias("line"))["line"].to_list()
        self.add(block, lines)

    def digest(self) -> str:
        """Return the SHA-256 of columns, number of rows and sum."""
        head = json.dumps(["fedpower.rows in any order/2", self._columns, self.n_rows])
        return hashlib.sha256(head.encode() + self._sum.astype("<u8").tobytes()).hexdigest()


def _counted_text(place: int, name: str) -> pl.Expr:
    """Return a text with its place and length before it, -1 for null; nothing where it is empty."""
    text = pl.col(name).cast(pl.String)
    size = text.str.len_bytes().cast(pl.Int64).fill_null(-1)
    written = pl.format("{} {} {} ", pl.lit(place), size, text.fill_null(""))
    return pl.when(text == "").then(pl.lit("")).otherwise(written)


class StoredQuery:
    """A query as what reads raw batches; every pass makes a connection of its own and closes it."""

    def __init__(self, query: SqlQuery, name: str) -> None:
        self.name, self.query = name, query
        with connected(query, name) as connection:
            self.dialect = _find_dialect(connection, query, name)
        self._watched = False
        self._digest: str | None = None

    def read(self, numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        """Yield batches of the wanted columns only; words come as text."""
        names, columns = [*numbers, *words], self.dialect.columns
        features, labels = ([columns.index(name) for name in some] for some in (numbers, words))
        tally = RowTally(columns) if self._watched else None
        statement = self.dialect.statement(self.query.text, features, labels, cells=tally is not None)
        for received in self._run(statement, self.dialect.options(len(names), max_rows)):
            batch = received[:, : len(names)]
            if tally is not None:
                tally.add_cells(received[:, len(names) :])
            if self.dialect.kind == "sqlite" and any(batch[:, at].null_count() for at in range(len(numbers))):
                self._refuse_text(features)
            batch.columns = names
            yield from batch.iter_slices(max_rows)
            del batch, received  # or two batches are held while the next one is read
        if tally is not None:
            if self._digest not in (None, tally.digest()):
                raise _changing(self.name)
            self._digest = tally.digest()

    def _refuse_text(self, features: Sequence[int]) -> None:
        """Find out whether SQLite's first null is a null or text, by a second pass over the types."""
        row = 0
        kinds = self.dialect.around(self.query.text, [f"typeof(c{place})" for place in features])
        for batch in self._run(kinds, self.dialect.options(len(features), 2**12)):
            for offset, words in enumerate(batch.iter_rows()):
                for place, word in zip(features, words, strict=True):
                    if word in ("text", "blob"):
                        raise not_a_number(self.name, self.dialect.columns[place], word, row + offset)
                if "null" in words:
                    return
            row += len(batch)

    def watch_cells(self) -> None:
        """Require every pass from now on to be over the same cells, and keep their digest."""
        self._watched = True

    def digest(self) -> str:
        """Return the digest of all cells, from a pass unless one was made since `watch_cells`."""
        self.watch_cells()
        if self._digest is None:
            for _ in self.read([], [], _DIGEST_ROWS):
                pass
        return str(self._digest)

    def _run(self, statement: str, options: dict[str, str]) -> Iterator[pl.DataFrame]:
        with (
            connected(self.query, self.name) as connection,
            _reading(self.name),
            connection.cursor() as cursor,
        ):
            cursor.adbc_statement.set_options(**options)
            cursor.execute(statement)
            for batch in cursor.fetch_record_batch():
                yield _frame_of(batch)


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
        first = self.passes.setdefault((self.columns, self.group), tally.digest())
        if tally.digest() != first or self.n_rows not in (None, tally.n_rows):
            raise _changing(self.name)


def _changing(name: str) -> InputError:
    return InputError(
        f"{name} must give the same rows in every pass, got other rows than before; select rows that no "
        "longer change, by a date for instance, and start again"
    )


def query_table(query: SqlQuery, name: str) -> Table:
    """Return the table of a query, after its database was asked for the columns."""
    stored = StoredQuery(query, name)
    columns = stored.dialect.columns
    require_shape(name, None, len(columns))
    require_distinct(name, columns)
    cells = {
        column: Cells(own=column, dtype=kind)
        for column, kind in zip(columns, stored.dialect.types, strict=True)
    }
    return Table(name=name, parts=(Part(name=name, cells=cells, read=stored.read),), query=stored)
