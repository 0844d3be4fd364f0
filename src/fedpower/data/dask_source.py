"""Rows in a Dask array or data frame: one silo's rows spread over its own workers."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from fedpower.data.columns import (
    pick_columns,
    require_block_size,
    require_distinct,
    require_matrix,
    require_shape,
)
from fedpower.data.source import Block, Extra, RowSource
from fedpower.errors import InputError


def dask(module: str = "") -> Any:
    """Return dask or one of its modules, imported on first use."""
    return import_module(f"dask.{module}" if module else "dask")


@dataclass(frozen=True, kw_only=True, eq=False)
class DaskSource:
    """The rows of a Dask collection, partition by partition.

    Moments and products are computed where the partitions are (`dask_moment`), and only d×d or d×r
    numbers come back. `blocks` brings one partition at a time to this process: the fingerprint that a
    ledger needs is made so.

    Parameters
    ----------
    name : what error sentences call it.
    partitions : one delayed NumPy array or pandas data frame each; a partition may be empty.
    width : number of columns of a partition.
    n_rows : number of rows, None when only a pass can tell.
    columns : names of the columns kept; None when they have none.
    stored : names of a partition's columns; None when they have none.
    """

    name: str
    partitions: tuple[Any, ...]
    width: int
    n_rows: int | None
    columns: tuple[str, ...] | None
    stored: tuple[str, ...] | None

    def __post_init__(self) -> None:
        require_shape(self.name, self.n_rows, self.n_features)

    @property
    def n_features(self) -> int:
        """Number of columns kept."""
        return self.width if self.columns is None else len(self.columns)

    @property
    def sparse(self) -> bool:
        """Always false."""
        return False

    @property
    def density(self) -> float | None:
        """Always 1."""
        return 1.0

    def opener(self, place: int) -> "PartitionOpener":
        """Return what makes a source of the partition at a place, wherever it is."""
        return PartitionOpener(
            name=f"partition {place + 1} of {self.name}", columns=self.columns, stored=self.stored
        )

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows, one partition after the other."""
        require_block_size(max_rows)
        seen = 0
        for place, partition in enumerate(self.partitions):
            opened = self.opener(place)(partition.compute())
            if opened is not None:
                for block in opened.blocks(max_rows):
                    seen += int(block.shape[0])
                    yield block
        require_shape(self.name, seen, self.n_features)

    def named(self, columns: tuple[str, ...]) -> "DaskSource":
        """Return the source with names for its columns, given by position."""
        require_distinct("columns", columns)
        if len(columns) != self.width:
            raise InputError(
                f"columns must name each of the {self.width} columns of {self.name}, got "
                f"{len(columns)} names; give one name per column"
            )
        return replace(self, columns=columns, stored=columns)

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> "DaskSource":
        """Return the source with exactly these columns in this order; the others are not read."""
        if self.columns is None:
            raise InputError(
                "{source} must have column names to select by name, got none; name them with "
                "{with_columns}",
                source=self.name,
            )
        pick_columns(self.name, self.columns, columns, extra=extra)
        return replace(self, columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOpener:
    """Makes a source of one partition; travels to the worker that holds it."""

    name: str
    columns: tuple[str, ...] | None
    stored: tuple[str, ...] | None

    def __call__(self, partition: Any) -> RowSource | None:
        """Return the partition's rows as a source, None where it has none."""
        from fedpower.data.opening import open_source  # noqa: PLC0415 - it opens Dask collections

        if len(partition) == 0:
            return None
        if hasattr(partition, "columns"):
            return open_source(partition, name=self.name, columns=self.columns, extra="drop")
        source = open_source(partition, name=self.name, columns=self.stored)
        if self.columns is None or self.columns == self.stored:
            return source
        return source.select(self.columns, extra="drop")


def is_dask(data: Any) -> bool:
    """Whether the object is a Dask array or data frame, without importing Dask."""
    return "dask" in sys.modules and bool(dask("base").is_dask_collection(data))


def dask_source(collection: Any, name: str | None) -> DaskSource:
    """Return the source of a Dask array's or data frame's rows."""
    if hasattr(
        type(collection), "columns"
    ):  # a Delayed object has every attribute, its type has not
        name = name or "the Dask data frame"
        columns = tuple(str(label) for label in collection.columns)
        require_distinct(name, columns)
        return DaskSource(
            name=name,
            partitions=tuple(collection.to_delayed()),
            width=len(columns),
            n_rows=None,
            columns=columns,
            stored=columns,
        )
    if not hasattr(type(collection), "rechunk"):
        raise InputError(
            f"{name or 'a Dask collection'} must be a Dask array or data frame, got "
            f"{type(collection).__name__}; turn it into one of them"
        )
    name = name or "the Dask array"
    require_matrix(name, collection.shape, collection.dtype)
    rows, width = collection.shape
    whole_rows = collection.rechunk({1: -1})
    return DaskSource(
        name=name,
        partitions=tuple(whole_rows.to_delayed().ravel()),
        width=int(width),
        n_rows=None if rows != rows else int(rows),  # noqa: PLR0124 - unknown sizes are NaN
        columns=None,
        stored=None,
    )
