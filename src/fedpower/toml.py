"""TOML files that people write: read whole into structures, refused by table and key, and written."""

import difflib
import json
import math
import re
from collections.abc import Mapping
from datetime import date
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args

import msgspec

from fedpower.exceptions import InputError

_T = TypeVar("_T", bound="Part")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r"\[(?:\.\.\.|\d+)\]|[^.`\[\]]+")
"""A step on the way to where msgspec found a problem: [...] is a value of a table, [0] an entry of a list."""

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"Object missing required field `(.*?)`")
_TYPE = re.compile(r"Expected `(.*?)`, got `(.*?)`")
_KINDS = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "date": "a date",
}


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a file: unknown keys are refused, defaults are not written."""


def as_part(content: Any, kind: type[_T], what: str) -> _T:
    """Return content that came in another way as a structure; error messages call it ``what``."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise InputError(_explain(str(error), what, kind)) from None


def read_toml(path: str | PathLike[str], kind: type[_T], what: str) -> _T:
    """Return the content of a TOML file; error messages call the file ``what``."""
    try:
        return msgspec.toml.decode(Path(path).read_bytes(), type=kind)
    except msgspec.ValidationError as error:
        raise InputError(_explain(str(error), path, kind)) from None
    except FileNotFoundError:
        raise InputError(f"{what} must exist, got no file at {path}") from None
    except IsADirectoryError:
        raise InputError(f"{what} must be a file, got the folder {path}") from None
    except OSError as error:
        raise InputError(f"{what} {path} must be readable, got {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path} must be TOML, got something else ({error})") from None


def _explain(problem: str, path: object, kind: type[Part]) -> str:
    """Return msgspec's message as one sentence that names table and key, and quotes no value."""
    problem, _, place = problem.partition(" - at `$.")
    path_to = _PLACE.findall(place)
    keys = [key for key in path_to if not key.startswith("[")]
    if match := _UNKNOWN.match(problem):
        key, known = match[1], _type_at(kind, path_to).__struct_encode_fields__
        close = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"its keys are {', '.join(known)}"
        return f"{_table(keys, path)} must have known keys only, got {key!r}; {hint}"
    if match := _MISSING.match(problem):
        return f"{_table(keys, path)} must have {match[1]!r}, got none"
    name = f"{keys[-1]} in {_table(keys[:-1], path)}" if keys else str(path)
    if match := _TYPE.match(problem):
        wanted, given = (
            " or ".join(_KINDS.get(kind, kind) for kind in part.split(" | ") if kind != "null")
            for part in match.groups()
        )
        if path_to[-1:] == ["[...]"]:
            wanted = f"a table whose values are {wanted}"
        elif path_to and path_to[-1].startswith("["):
            wanted = f"a list whose entries are {wanted}"
        return f"{name} must be {wanted}, got {given}"
    choices = ", ".join(map(repr, get_args(_type_at(kind, path_to))))
    return f"{name} must be one of {choices}, got {problem.removeprefix('Invalid enum value ')}"


def _table(keys: list[str], path: object) -> str:
    return f"[{'.'.join(keys)}] of {path}" if keys else str(path)


def _type_at(kind: Any, path_to: list[str]) -> Any:
    """Return the type of a key, of which a table that may be missing is the first in a union."""
    for key in path_to:
        if key.startswith("["):
            kind = get_args(kind)[-1 if key == "[...]" else 0]
            continue
        kind = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}[key]
        kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    return kind


def to_toml(content: Mapping[str, Any]) -> str:
    """Return the text of a file: plain values first, then tables, then lists of tables."""
    tables, lists, lines = [], [], []
    for key, value in content.items():
        if isinstance(value, Mapping):
            tables += ["", f"[{toml_key(key)}]", *_pairs(value)]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lists += [line for entry in value for line in ("", f"[[{toml_key(key)}]]", *_pairs(entry))]
        else:
            lines += _pairs({key: value})
    return "\n".join([*lines, *tables, *lists]) + "\n"


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{toml_key(key)} = {as_toml(value)}" for key, value in table.items()]


def as_toml(value: Any) -> str:
    """Return a value in TOML, which has JSON's texts (but for DEL) and numbers, and infinity."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs(value))} }}"
    if isinstance(value, date) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else as_toml(name)
