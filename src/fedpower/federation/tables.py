"""Reading TOML files whose every key is known: what is missing, unknown or of another type is refused."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpower.errors import InputError

NUMBER = (int, float)
SPOKEN: dict[object, str] = {
    str: "text in quotes",
    int: "a whole number",
    NUMBER: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
Keys = Mapping[str, object]


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file; ``what`` is what sentences call it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{what} must exist, got no file at {path}; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{what} must be a file, got the folder {path}; give the file") from None
    except OSError as error:
        raise InputError(
            f"{what} {path} must be readable but is not ({error.strerror}); check its permissions"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{what} {path} must be TOML, got something else ({error}); correct that line"
        ) from None


def check_keys(where: str, table: Mapping[str, Any], keys: Keys, needed: tuple[str, ...]) -> None:
    """Refuse a table with a key that is not in ``keys``, of another type, or missing from ``needed``."""
    for name, value in table.items():
        if name not in keys:
            raise InputError(
                f"{where} must have only the keys {', '.join(keys)}, got {name!r}; remove it"
            )
        kind = keys[name]
        allowed = kind if isinstance(kind, tuple) and kind is not NUMBER else (kind,)
        if not any(_is(value, each) for each in allowed):
            spoken = " or ".join(SPOKEN[each] for each in allowed)
            raise InputError(f"{name} in {where} must be {spoken}, got {value!r}; change it")
    for name in needed:
        if name not in table:
            raise InputError(f"{where} must have {name!r}, got none; add it")


def _is(value: object, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind)
