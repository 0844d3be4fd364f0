"""A query from a mapping, or from the table ``[data]`` of a TOML file."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedpower.data.sql.address import SqliteFile, parse_address
from fedpower.data.sql.query import SqlQuery
from fedpower.data.sql.table import QueryTable, query_table
from fedpower.errors import InputError

KEYS = tuple(field.name for field in fields(SqlQuery))


def query_of(data: Mapping[str, Any], *, name: str, folder: Path | None = None) -> SqlQuery:
    """Return the query that a mapping describes.

    Parameters
    ----------
    data : ``query``, ``database`` and, for PostgreSQL, ``user`` and ``password_env`` or
        ``password_file``.
    name : what error sentences call it.
    folder : where relative paths of SQLite files and password files begin; the working directory by
        default.
    """
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


def query_file(path: Path, name: str) -> QueryTable:
    """Return the reader of the query in a TOML file; paths in it begin at the file's folder."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise InputError(
            f"{name} must be a TOML file in UTF-8, got one that cannot be parsed; correct it"
        ) from None
    data = found.get("data")
    if not isinstance(data, dict):
        raise InputError(
            f"{name} must have a table [data] with query and database, got none; add it"
        )
    return query_table(query_of(data, name=f"[data] of {name}", folder=path.parent), name)


def _within(folder: Path | None, data: dict[str, Any]) -> dict[str, Any]:
    """Return the description with relative paths put into the folder."""
    if folder is None:
        return data
    if isinstance(data.get("password_file"), str) and data["password_file"]:
        data["password_file"] = str(folder / data["password_file"])
    if isinstance(data["database"], str):
        address = parse_address(data["database"])
        if isinstance(address, SqliteFile):
            data["database"] = sqlite_url(folder / address.path)
    return data


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file."""
    return f"sqlite:///{str(path).replace('%', '%25')}"
