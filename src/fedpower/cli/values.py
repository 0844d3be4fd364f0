"""What options may hold beyond click's own types: callbacks that turn words into values."""

import csv
import math
from pathlib import Path

import click

Value = str | None


def epsilon(ctx: click.Context, param: click.Parameter, value: Value) -> float | None:
    """Return a positive number, or infinity for no privacy; None where none was given."""
    if value is None:
        return None
    number = _number(value)
    if not number > 0:
        raise click.BadParameter(
            f"it must be a number above 0, got {value!r}; 1 is usual, and inf means no privacy"
        )
    return number


def rank(ctx: click.Context, param: click.Parameter, value: Value) -> int | float | str | None:
    """Return a number of components as int, a fraction of variance as float, or "auto"."""
    if value is None or value == "auto":
        return value
    number = _number(value)
    if value.isdecimal() and number >= 1:
        return int(value)
    if 0 < number < 1:
        return number
    raise click.BadParameter(
        "it must be a number of components such as 4, a fraction of variance such as 0.9, or auto "
        f"for as many as are determined, got {value!r}"
        + ("; it is now called auto" if value == "noise" else "")
    )


def schedule(ctx: click.Context, param: click.Parameter, value: Value) -> str | list[int] | None:
    """Return the name of a schedule, or the steps at which a round happens."""
    if value is None or value in ("every", "decaying", "halving"):
        return value
    try:
        return [int(step) for step in value.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"it must be every, decaying, halving or steps such as 2,4,5, got {value!r}"
        ) from None


def names(ctx: click.Context, param: click.Parameter, value: Value) -> tuple[str, ...] | None:
    """Return names with commas between them; one that holds a comma is quoted."""
    if value is None:
        return None
    found = tuple(name.strip() for row in csv.reader([value]) for name in row)
    if not found or "" in found:
        raise click.BadParameter(f"it must be names with commas between them, got {value!r}")
    return found


def named_paths(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, Path]:
    """Return paths by name from words NAME=PATH."""
    return {name: Path(path) for name, path in _by_name(value, "PATH").items()}


def named_keys(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Return public keys by name from words NAME=KEY."""
    return _by_name(value, "KEY")


def ranges(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, tuple[float, float]] | None:
    """Return what columns lie between, by name, from words COLUMN=LOW:HIGH."""
    found: dict[str, tuple[float, float]] = {}
    for word in value:
        name, _, ends = word.rpartition("=")
        low, high = (_number(end) for end in (ends.partition(":")[0], ends.partition(":")[2]))
        if not (name and math.isfinite(low) and math.isfinite(high) and low < high):
            raise click.BadParameter(
                f"it must be COLUMN=LOW:HIGH with the smaller number first, got {word!r}"
            )
        if name in found:
            raise click.BadParameter(f"it must name every column once, got {name!r} twice")
        found[name] = (low, high)
    return found or None


def renames(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str] | None:
    """Return new names of columns by their old ones, from words OLD=NEW."""
    found: dict[str, str] = {}
    for word in value:
        old, _, new = word.rpartition("=")
        if not (old and new):
            raise click.BadParameter(f"it must be OLD=NEW, got {word!r}")
        if old in found:
            raise click.BadParameter(f"it must name every column once, got {old!r} twice")
        found[old] = new
    return found or None


def versions(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> str | dict[str, str] | None:
    """Return one version for all silos, or versions by name from words NAME=VERSION."""
    if not value:
        return None
    if len(value) == 1 and "=" not in value[0]:
        return value[0]
    return _by_name(value, "VERSION")


def _by_name(words: tuple[str, ...], what: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name and value):
            raise click.BadParameter(f"it must be NAME={what}, got {word!r}")
        if name in found:
            raise click.BadParameter(f"it must name every silo once, got {name!r} twice")
        found[name] = value
    return found


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan
