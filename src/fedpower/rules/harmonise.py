"""A silo's own names and units, turned into the study's before anything else sees the rows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedpower.errors import InputError
from fedpower.rows.columns import is_number, require_distinct, shown
from fedpower.rows.tables import Part, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmony:
    """What a silo's columns are called and measured in elsewhere: a cell x counts as factor · x + offset."""

    rename: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    offsets: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for label in ("rename", "factors", "offsets"):
            _require_mapping(label, getattr(self, label))
        for own, name in self.rename.items():
            if not (isinstance(name, str) and name):
                raise InputError(
                    f"rename must give every column a name, got none for '{own}'; give it in quotes"
                )
        for label in ("factors", "offsets"):
            for name, value in getattr(self, label).items():
                if not (is_number(value) and math.isfinite(value) and (value or label != "factors")):
                    raise InputError(
                        f"{label} must "
                        f"{'be finite numbers' + ' other than 0' * (label == 'factors')}, "
                        f"got another for '{name}'; correct it"
                    )

    @property
    def is_given(self) -> bool:
        """Whether anything is to be done at all."""
        return bool(self.rename or self.factors or self.offsets)


def _require_mapping(label: str, value: object) -> None:
    """Refuse what does not map names to something."""
    if not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        example = "{'gewicht_kg': 'weight'}" if label == "rename" else "{'weight': 2.2046}"
        raise InputError(
            f"{label} must map names of columns to what they become, got {type(value).__name__}; give for "
            f"instance {example}"
        )


def harmonised(table: Table, harmony: Harmony) -> Table:
    """Return a table under other names and in other units; names that it does not have are refused."""
    if not harmony.is_given:
        return table
    _require_known(table.name, "rename", harmony.rename, table.columns)
    columns = tuple(harmony.rename.get(own, own) for own in table.columns)
    require_distinct(f"{table.name}, renamed,", columns)
    for label in ("factors", "offsets"):
        _require_known(table.name, label, getattr(harmony, label), columns)
    return replace(table, parts=tuple(_renamed(part, columns, harmony) for part in table.parts))


def _renamed(part: Part, columns: tuple[str, ...], harmony: Harmony) -> Part:
    cells = {}
    for name, stored in zip(columns, part.cells.values(), strict=True):
        factor, offset = float(harmony.factors.get(name, 1.0)), float(harmony.offsets.get(name, 0.0))
        cells[name] = replace(stored, factor=stored.factor * factor, offset=stored.offset * factor + offset)
    return replace(part, cells=cells)


def _require_known(name: str, label: str, given: Mapping[str, Any], have: tuple[str, ...]) -> None:
    """Refuse names that a table does not have, with those that it has."""
    unknown = [each for each in given if each not in have]
    if unknown:
        listed = ", ".join(f"'{name}'" for name in have[:_MOST_LISTED])
        more = f" and {len(have) - _MOST_LISTED} more" * (len(have) > _MOST_LISTED)
        raise InputError(
            f"{label} must be of columns of {name}, got {shown(unknown)}; its columns are {listed}{more}"
        )


_MOST_LISTED = 40
"""Names of columns that a sentence lists at most."""
