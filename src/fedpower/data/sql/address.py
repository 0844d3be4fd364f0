"""Where a database is: ``sqlite:///path.db`` or ``postgresql://host:5432/name``, never with a password.

A URL that cannot be used is never quoted: a password may stand in it where none was looked for.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from fedpower.errors import InputError

FORMS = "sqlite:///path.db or postgresql://host:5432/name"
SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret"})
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
class PostgresServer:
    """A PostgreSQL database: libpq's settings, none of them secret. What is left out libpq looks up."""

    settings: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """What error sentences call it."""
        found = dict(self.settings)
        where = found.get("host") or found.get("service") or "libpq's default"
        return f"the PostgreSQL server at {where}"


Address = SqliteFile | PostgresServer


def parse_address(database: str) -> Address:
    """Return where a database URL points, or refuse it without quoting it."""
    scheme, sign, rest = database.partition("://")
    if not sign or scheme not in ("sqlite", "postgresql", "postgres"):
        raise InputError(
            f"database must be a URL such as {FORMS}, got another; give it in one of these forms"
        )
    if scheme == "sqlite":
        return _sqlite(rest)
    return _postgres(rest)


def _sqlite(rest: str) -> SqliteFile:
    """Return the file of ``sqlite:///relative`` or ``sqlite:////absolute``."""
    if not rest.startswith("/") or len(rest) == 1:
        raise InputError(
            "a SQLite database must be sqlite:///path.db, with a fourth slash where the path begins "
            "with one, got another URL; name the file after three slashes"
        )
    return SqliteFile(path=Path(unquote(rest[1:])))


def _postgres(rest: str) -> PostgresServer:
    """Return libpq's settings of ``postgresql://user@host:port/name?sslmode=…``."""
    head, _, query = rest.partition("?")
    netloc, _, name = head.partition("/")
    person, _, hosts = netloc.rpartition("@")
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _unusable() from None
    if ":" in person or SECRETS & {key.lower() for key in given}:
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
