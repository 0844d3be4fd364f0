"""Files of a federation: strict TOML and JSON with one set of error messages, and private writing."""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args

import msgspec

from fedpower.errors import InputError
from fedpower.report.codebook_file import as_toml, toml_key

_T = TypeVar("_T", bound="Table")
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
}


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of a file, whose keys are all known."""


def read_toml(path: Path, kind: type[_T], what: str) -> _T:
    """Return the content of a TOML file; error messages call the file ``what``."""
    try:
        content = msgspec.toml.decode(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{what} must exist, got no file at {path}") from None
    except IsADirectoryError:
        raise InputError(f"{what} must be a file, got the folder {path}") from None
    except OSError as error:
        raise InputError(f"{what} {path} must be readable, got {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path} must be TOML, got something else ({error})") from None
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise InputError(_explain(str(error), path, kind)) from None


def _explain(problem: str, path: Path, kind: type[Table]) -> str:
    """Return msgspec's message as one sentence that names table and key, and quotes no value."""
    problem, _, place = problem.partition(" - at `$.")
    keys = re.split(r"[.\[]", place.rstrip("`")) if place else []
    if match := _UNKNOWN.match(problem):
        key, known = match[1], _type_at(kind, keys).__struct_fields__
        close = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"its keys are {', '.join(known)}"
        return f"{_table(keys, path)} must have known keys only, got {key!r}; {hint}"
    if match := _MISSING.match(problem):
        return f"{_table(keys, path)} must have {match[1]!r}, got none"
    name = f"{keys[1]} in [{keys[0]}] of {path}" if len(keys) > 1 else f"{keys[0]} in {path}"
    if match := _TYPE.match(problem):
        wanted, given = (
            " or ".join(_KINDS.get(k, k) for k in kinds.split(" | ")) for kinds in match.groups()
        )
        wanted = f"a list whose entries are {wanted}" if keys[-1].endswith("]") else wanted
        return f"{name} must be {wanted}, got {given}"
    choices = ", ".join(map(repr, get_args(_type_at(kind, keys))))
    return f"{name} must be one of {choices}, got {problem.removeprefix('Invalid enum value ')}"


def _table(keys: list[str], path: Path) -> str:
    return f"[{'.'.join(keys)}] of {path}" if keys else str(path)


def _type_at(kind: Any, keys: list[str]) -> Any:
    """Return the type of a key, of which a table that may be missing is the first in a union."""
    for key in keys:
        kind = {field.name: field.type for field in msgspec.structs.fields(kind)}[key]
        kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    return kind


def to_toml(content: Mapping[str, Any]) -> str:
    """Return the text of a TOML file with this content: numbers, texts, lists of them, tables."""
    tables = {key: value for key, value in content.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {as_toml(value)}" for key, value in content.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{toml_key(key)} = {as_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


# Keys, journals and kits have mode 0600 in folders of mode 0700, whatever the umask.
def private_folder(folder: Path) -> Path:
    """Return a folder that only its owner may enter; it and its parents are made where missing."""
    if not folder.parent.exists():
        private_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def open_private(path: Path, flags: int) -> int:
    """Return a descriptor of a file that only its owner may read."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)  # the file may be older, and the umask may have removed bits
    return handle


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the new name may be lost with the power
    finally:
        os.close(folder)
