"""Rows in a Dask array or data frame: one silo's rows spread over its own workers."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from fedpower.errors import InputError
from fedpower.rows.arrays import ArraySource, array_source
from fedpower.rows.source import RowSource, require_block_size, require_matrix, require_shape
from fedpower.rows.tables import frame_table, table_source
from fedpower.values import Block, require_distinct


def dask(module: str = "") -> Any:
    """Return dask or one of its modules, imported on first use."""
    return import_module(f"dask.{module}" if module else "dask")


@dataclass(frozen=True, kw_only=True, eq=False)
class DaskSource(ArraySource):
    """The rows of a Dask collection, partition by partition."""

    partitions: tuple[Any, ...]

    def opener(self, place: int) -> "PartitionOpener":
        """Return what makes a source of the partition at a place, wherever it is."""
        name = f"partition {place + 1} of {self.name}"
        return PartitionOpener(name=name, width=self.width, columns=self.columns, keep=self.keep)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOpener:
    """Makes a source of one partition; travels to the worker that holds it."""

    name: str
    width: int
    columns: tuple[str, ...] | None
    keep: tuple[int, ...] | None

    def __call__(self, partition: Any) -> RowSource | None:
        """Return the partition's rows as a source, None where it has none."""
        if len(partition) == 0:
            return None
        table = frame_table(partition, self.name)
        if table is not None:
            source = table_source(table)
            return source if self.columns is None else source.select(self.columns, extra="drop")
        rows = array_source(partition, self.name)
        if rows.width != self.width:
            raise InputError(
                f"{self.name} must have {self.width} columns as the others have, got {rows.width}"
            )
        return replace(rows, columns=self.columns, keep=self.keep)


def is_dask(data: Any) -> bool:
    """Whether the object is a Dask array or data frame, without importing Dask."""
    return "dask" in sys.modules and bool(dask("base").is_dask_collection(data))


def dask_source(collection: Any, name: str | None) -> DaskSource:
    """Return the source of a Dask array's or data frame's rows."""
    if hasattr(type(collection), "columns"):  # a Delayed object has every attribute, its type has not
        name = name or "the Dask data frame"
        columns = tuple(str(label) for label in collection.columns)
        require_distinct(name, columns)
        parts = tuple(collection.to_delayed())
        return DaskSource(name=name, partitions=parts, width=len(columns), n_rows=None, columns=columns)
    if not hasattr(type(collection), "rechunk"):
        raise InputError(
            f"{name or 'data'} must be a Dask array or data frame, got {type(collection).__name__}"
        )
    name = name or "the Dask array"
    require_matrix(name, collection.shape, collection.dtype)
    rows, width = collection.shape
    parts = tuple(collection.rechunk({1: -1}).to_delayed().ravel())
    n_rows = None if rows != rows else int(rows)  # noqa: PLR0124 - unknown sizes are NaN
    return DaskSource(name=name, partitions=parts, width=int(width), n_rows=n_rows)
