"""Where a database is."""

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from fedpower.errors import InputError

FORMS = "sqlite:///path.db, duckdb:///path.duckdb or postgresql://host:5432/name"
_SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret"})
SETTINGS = frozenset({
    "channel_binding", "connect_timeout", "gssencmode", "host", "hostaddr", "krbsrvname", "passfile",
    "port", "service", "sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert",
    "target_session_attrs", "user",
})  # fmt: skip
"""Parameters of libpq that a URL may set after its question mark."""

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]#@]*)(?::(?P<port>\d*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteFile:
    """A SQLite database file."""

    path: Path

    @property
    def label(self) -> str:
        """What error sentences call it."""
        return str(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckdbFile:
    """A DuckDB database file."""

    path: Path

    @property
    def label(self) -> str:
        """What error sentences call it."""
        return str(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A PostgreSQL database: libpq's settings, none of them secret. What is left out libpq looks up."""

    settings: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """What error sentences call it."""
        found = dict(self.settings)
        where = found.get("host") or found.get("service") or "libpq's default"
        return f"the PostgreSQL server at {where}"


_Address = SqliteFile | DuckdbFile | PostgresServer
_FILES: dict[str, tuple[str, type[SqliteFile] | type[DuckdbFile]]] = {
    "sqlite": ("SQLite", SqliteFile),
    "duckdb": ("DuckDB", DuckdbFile),
}
"""By scheme: what databases in a file are called, and their addresses."""


def parse_address(database: str) -> _Address:
    """Return where a database URL points, or refuse it without quoting it."""
    scheme, sign, rest = database.partition("://")
    if not sign or scheme not in (*_FILES, "postgresql", "postgres"):
        raise InputError(
            f"database must be a URL such as {FORMS}, got another; give it in one of these forms"
        )
    return _file(scheme, rest) if scheme in _FILES else _postgres(rest)


def _file(scheme: str, rest: str) -> SqliteFile | DuckdbFile:
    """Return the file of ``sqlite:///relative`` or ``sqlite:////absolute``, and of DuckDB's."""
    kind, made = _FILES[scheme]
    if not rest.startswith("/") or len(rest) == 1:
        raise InputError(
            f"a {kind} database must be {scheme}:///path.db, with a fourth slash where the path begins "
            "with one, got another URL; name the file after three slashes"
        )
    return made(path=Path(unquote(rest[1:])))


def _postgres(rest: str) -> PostgresServer:
    """Return libpq's settings of ``postgresql://user@host:port/name?sslmode=…``."""
    head, _, query = rest.partition("?")
    netloc, _, name = head.partition("/")
    person, _, hosts = netloc.rpartition("@")
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _unusable() from None
    if ":" in person or _SECRETS & {key.lower() for key in given}:
        raise InputError(
            "database must not carry a password, got a URL with one; take it out and name the "
            "variable or the file that holds it with password_env or password_file"
        )
    if set("@/#") & set(name) or set("@#") & set(query) or not given.keys() <= SETTINGS:
        raise _unusable()
    found: dict[str, str] = {}
    if hosts:
        found["host"], found["port"] = _hosts(hosts)
    found |= {"dbname": unquote(name), "user": unquote(person), **given}
    return PostgresServer(settings=tuple((key, value) for key, value in found.items() if value))


def _hosts(netloc: str) -> tuple[str, str]:
    """Return the hosts and their ports, each joined by commas as libpq wants them."""
    found = [_HOST.fullmatch(word) for word in netloc.split(",")]
    if not all(found):
        raise _unusable()
    hosts = [unquote(match["host"].strip("[]")) for match in found if match]
    ports = [match["port"] or "" for match in found if match]
    return ",".join(hosts), ",".join(ports) if any(ports) else ""


def _unusable() -> InputError:
    return InputError(
        "database must be a URL such as postgresql://user@host:5432/name?sslmode=verify-full, got "
        f"one that cannot be read; write it so, with no parameters but {', '.join(sorted(SETTINGS))}"
    )


_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*([A-Za-z]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """The rows that a query gives, as a silo's data; anything that takes a file's path takes it too.

    It holds no password: that is read, whenever a connection is made, from where it is said to be.

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
    """

    query: str
    database: str
    user: str | None = None
    password_env: str | None = None
    password_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            required = field.name in ("query", "database")
            if (value is None and not required) or _is_word(field.name, value):
                continue
            raise InputError(f"{field.name} of a query must be text, got {_kind(value)}; give it as a string")
        _require_select(self.query)
        address = parse_address(self.database)
        if not isinstance(address, PostgresServer):
            kind, _ = _FILES["sqlite" if isinstance(address, SqliteFile) else "duckdb"]
            login = ("user", "password_env", "password_file")
            given = [key for key in login if getattr(self, key) is not None]
            if given:
                raise InputError(
                    f"a {kind} database must be named without {given[0]}, got one; leave it out: "
                    "whoever can read the file can read its tables"
                )
        elif self.user is not None and "user" in dict(address.settings):
            raise InputError(
                "the user must be given once, got one in database and one as user; leave one out"
            )
        if self.password_env is not None and self.password_file is not None:
            raise InputError(
                "the password must be in one place, got both password_env and password_file; leave one out"
            )

    @property
    def address(self) -> _Address:
        """Where the database is."""
        return parse_address(self.database)

    @property
    def text(self) -> str:
        """The query without the semicolon at its end."""
        return self.query.rstrip().rstrip(";").rstrip()

    def password(self) -> str | None:
        """Return the password from its variable or file; None where libpq is to find it."""
        if self.password_env is not None:
            found = os.environ.get(self.password_env)
            where = f"the environment variable {self.password_env}"
        elif self.password_file is not None:
            try:
                found = Path(self.password_file).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError):
                found = None
            where = f"the file {self.password_file}"
        else:
            return None
        if not found or "\0" in found:
            raise InputError(
                f"{where} must hold the database's password, got none there; set it, or correct "
                f"{'password_env' if self.password_env is not None else 'password_file'}"
            )
        return found


def _require_select(query: str) -> None:
    """Refuse what does not begin as a query that only reads; the connection is read-only besides."""
    found = _FIRST_WORD.match(query)
    word = found[1].upper() if found else ""
    if word not in ("SELECT", "WITH", "VALUES"):
        raise InputError(
            f"query must be a SELECT, got {'a statement that begins otherwise' if word else 'none'}; "
            "write one that gives the rows and changes nothing"
        )


def _is_word(name: str, value: object) -> bool:
    """Whether a parameter has a type it may have, and holds something."""
    kinds = (str, os.PathLike) if name == "password_file" else (str,)
    return isinstance(value, kinds) and os.fspath(value) != ""


def _kind(value: object) -> str:
    return "none" if value in (None, "") else type(value).__name__
