"""A silo's own names and units, turned into the study's before anything else sees the rows."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.rows.columns import is_number, not_a_number, require_distinct, shown
from fedpower.rows.source import Matrix
from fedpower.rows.tables import NotPlainError, PlainReader, TableReader, arrow, is_numeric, plain


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
                raise InputError.about(
                    "rename",
                    must="give every column a name",
                    got=f"none for '{own}'",
                    advice="give it in quotes",
                )
        for label in ("factors", "offsets"):
            for name, value in getattr(self, label).items():
                if not (is_number(value) and math.isfinite(value) and (value or label != "factors")):
                    raise InputError.about(
                        label,
                        must="be finite numbers" + (" other than 0" * (label == "factors")),
                        got=f"another for '{name}'",
                        advice="correct it",
                    )

    @property
    def is_given(self) -> bool:
        """Whether anything is to be done at all."""
        return bool(self.rename or self.factors or self.offsets)


def _require_mapping(label: str, value: object) -> None:
    """Refuse what does not map names to something."""
    if not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise InputError.about(
            label,
            must="map names of columns to what they become",
            got=type(value).__name__,
            advice="give for instance {example}",
            example="{'gewicht_kg': 'weight'}" if label == "rename" else "{'weight': 2.2046}",
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class HarmonisedTable:
    """A table under the study's names and in its units; only its own silo has the other one."""

    reader: TableReader
    columns: tuple[str, ...]
    own: Mapping[str, str]
    linear: Mapping[str, tuple[float, float]]

    @property
    def name(self) -> str:
        """What error sentences call it."""
        return self.reader.name

    @property
    def n_rows(self) -> int | None:
        """Number of rows, where known."""
        return self.reader.n_rows

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield the table's batches, converted and renamed; labels are renamed alone."""
        wanted = tuple(self.own[name] for name in columns)
        beside = tuple(self.own[name] for name in labels)
        row = 0
        for batch in self.reader.batches(wanted, max_rows, labels=beside):
            cells = [
                self._converted(batch.column(place), name, row) if name in self.linear
                else batch.column(place)
                for place, name in enumerate(columns)
            ]  # fmt: skip
            cells += [batch.column(len(columns) + place) for place in range(len(labels))]
            row += batch.num_rows
            yield arrow().RecordBatch.from_arrays(cells, names=[*columns, *labels])

    def plain_rows(self, columns: tuple[str, ...], max_rows: int) -> Iterator[Matrix]:
        """Yield the table's plain rows, converted; what is then too large is for `batches` to tell."""
        if not isinstance(self.reader, PlainReader):
            raise NotPlainError
        wanted = tuple(self.own[name] for name in columns)
        changed = [(place, self.linear[n]) for place, n in enumerate(columns) if n in self.linear]
        for block in self.reader.plain_rows(wanted, max_rows):
            for place, (factor, offset) in changed:
                with np.errstate(over="ignore"):
                    block[:, place] = block[:, place] * factor + offset
                if not np.isfinite(block[:, place]).all():
                    raise NotPlainError
            yield block

    def _converted(self, cells: Any, name: str, row: int) -> Any:
        """Return cells in the study's unit."""
        pa, compute = arrow(), arrow("compute")
        cells = plain(cells)
        if not is_numeric(cells.type):
            raise not_a_number(self.name, name, f"type {cells.type}", row)
        try:
            numbers = cells.cast(pa.float64(), safe=pa.types.is_integer(cells.type))
        except pa.ArrowInvalid:
            raise InputError(
                f"column '{name}' of {self.name} must hold integers that are exact in float64 to be "
                "converted, below 2^53 in size, got a larger one; leave the column out"
            ) from None
        factor, offset = self.linear[name]
        return compute.add(compute.multiply(numbers, factor), offset)


def harmonised(reader: TableReader, harmony: Harmony) -> TableReader:
    """Return a table under other names and in other units; names that it does not have are refused."""
    if not harmony.is_given:
        return reader
    _require_known(reader.name, "rename", harmony.rename, reader.columns)
    columns = tuple(harmony.rename.get(own, own) for own in reader.columns)
    require_distinct(f"{reader.name}, renamed,", columns)
    for label in ("factors", "offsets"):
        _require_known(reader.name, label, getattr(harmony, label), columns)
    linear = {
        name: (float(harmony.factors.get(name, 1.0)), float(harmony.offsets.get(name, 0.0)))
        for name in columns
        if name in harmony.factors or name in harmony.offsets
    }
    return HarmonisedTable(
        reader=reader, columns=columns, own=dict(zip(columns, reader.columns, strict=True)), linear=linear
    )


def _require_known(name: str, label: str, given: Mapping[str, Any], have: tuple[str, ...]) -> None:
    """Refuse names that a table does not have, with those that it has."""
    unknown = [each for each in given if each not in have]
    if unknown:
        raise InputError.about(
            label,
            must="be of columns of {source}",
            got=shown(unknown),
            advice="its columns are {columns}",
            source=name,
            columns=", ".join(f"'{each}'" for each in have[:_MOST_LISTED])
            + (f" and {len(have) - _MOST_LISTED} more" * (len(have) > _MOST_LISTED)),
        )


_MOST_LISTED = 40
"""Names of columns that a sentence lists at most."""
