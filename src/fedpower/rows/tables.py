"""Tables with named columns: raw batches come from Polars, and rules turn them into float64 blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import CellError, InputError, require
from fedpower.rows.source import Extra, pick_columns, require_shape
from fedpower.rules.expressions import Cells, Compiled, compiled, problems_in, staged, translated
from fedpower.rules.rules import Rule, TableRules
from fedpower.values import Block, Matrix, is_number, no_column, pl, require_distinct, shown

if TYPE_CHECKING:
    from pathlib import Path

Rows = int | NDArray[np.int64]
"""The number of the first of some rows, from 0, or of each of them."""

Read = Callable[[list[str], Collection[str], int], "Iterator[pl.DataFrame]"]
"""From own names of columns, those of them that hold numbers, and a number of rows to raw batches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A stored table, whole or in parts: files, a frame, a query; its columns by their names in the study."""

    name: str
    cells: Mapping[str, Cells]
    read: Read | None = None
    n_rows: int | None = None
    path: Path | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)  # from the names of folders, as Hive writes them
    parts: tuple[Table, ...] = ()
    query: Any = None  # of a database: what digests its cells
    sheet: str | None = None
    long_of: tuple[TableSource, TableRules] | None = None  # what one row per person was made from

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.cells)

    def batches(
        self, columns: Sequence[str], max_rows: int, *, numbers: Collection[str] = ()
    ) -> Iterator[tuple[Table, int, pl.DataFrame]]:
        """Yield each raw batch with the part that it is from and its first row there."""
        for part in self.parts or (self,):
            assert part.read is not None, "it has no parts"
            named = {part.cells[name].own: name for name in columns}
            keys = [pl.lit(value, dtype=pl.String()).alias(named[key])
                    for key, value in part.keys.items() if key in named]  # fmt: skip
            # The number of rows is wanted even without a column, of whatever one.
            stored = [own for own in named if own not in part.keys] or [next(iter(part.cells.values())).own]
            typed = {part.cells[name].own for name in numbers if not part.cells[name].words}
            words = {name: known for name in columns if (known := part.cells[name].words)}
            row = 0
            for batch in part.read(stored, typed, max_rows):
                if len(batch):
                    own = batch.rename(named, strict=False).with_columns(keys)
                    told = [translated(name, own.schema[name], known) for name, known in words.items()]
                    yield part, row, own.with_columns(told)
                row += len(batch)
                del batch  # or two batches are held while the next one is read

    def called(self, part: Table, name: str) -> str:
        """Return what a sentence about a part's row calls it: by its file, where there are several."""
        return part.name if self.parts else name


Span = tuple[float, float]

NO_LEVEL: Span = (0.0, 0.0)
"""The range of the column of other words, for rows that have one of the levels."""


class Odd(NamedTuple):
    """How many of a feature's cells are outside its public range, of how many that are there."""

    n_odd: int
    n_present: int
    span: Span


def harmonised(
    table: Table,
    rename: Mapping[str, str],
    factors: Mapping[str, float],
    offsets: Mapping[str, float],
    words: Mapping[str, Mapping[str, str]],
) -> Table:
    """Return a table in the study's names, units and words: a cell x counts as factor · x + offset."""
    known = table.columns
    given_by = {"rename": rename, "factors": factors, "offsets": offsets, "words": words}
    for label, given in given_by.items():
        is_mapping = isinstance(given, Mapping) and all(isinstance(key, str) for key in given)
        require(is_mapping, label, "a mapping from names of columns", type(given).__name__)
        for name, value in given.items():
            if label == "rename":
                require(isinstance(value, str) and bool(value), label, f"a name for '{name}'", value)
            elif label == "words":
                pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
                good = all(isinstance(word, str) for pair in pairs for word in pair)
                require(good, f"words of '{name}'", "a mapping from own words to words", type(value).__name__)
            else:
                must = "a finite number other than 0" if label == "factors" else "a finite number"
                is_right = is_number(value) and bool(value or label != "factors")
                require(is_right, f"{label} of '{name}'", must, value)
        unknown = [name for name in given if name not in known]
        if unknown:
            raise InputError(
                f"{label} must be of columns of {table.name}, got {shown(unknown)}, not {shown(known, 40)}"
            )
        if label == "rename":
            known = tuple(rename.get(own, own) for own in known)
            require_distinct(f"{table.name}, renamed,", known)

    def converted(part: Table) -> Table:
        made = {}
        for own, cells in part.cells.items():
            name = rename.get(own, own)
            factor = float(factors.get(name, 1.0))
            offset = cells.offset * factor + float(offsets.get(name, 0.0))
            made[name] = replace(cells, factor=cells.factor * factor, offset=offset)
            if name in words:
                text = replace(made[name], dtype=pl.String(), decimal=cells.decimal or ".")
                made[name] = replace(text, words=words[name])
        return replace(part, cells=made, parts=tuple(map(converted, part.parts)))

    return converted(table)


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSource:
    """The rows of a table, or of one group in it, as float64 blocks of the features that rules make."""

    name: str
    table: Table
    columns: tuple[str, ...]
    n_rows: int | None
    group: tuple[str, str] | None = None  # the rows whose cell in a column is this text
    gaps: bool = False
    rules: TableRules | None = None
    spans: Mapping[str, Span] = field(default_factory=dict)  # in which cells are to be
    odd: dict[str, Odd] = field(default_factory=dict, repr=False)  # by feature, of the last pass
    plans: dict[Any, list[Compiled]] = field(default_factory=dict, init=False, repr=False)
    sparse: bool = field(default=False, init=False)
    density: float | None = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        require_distinct(self.name, self.columns)
        require_shape(self.name, self.n_rows, self.n_features)

    @property
    def n_features(self) -> int:
        return len(self.columns)

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows; a cell that no rule covers is refused, by its row in the stored table."""
        for _, block in self._read(None, max_rows):
            yield block
            del block  # or two blocks are held while the next one is read

    def labelled(self, column: str, max_rows: int) -> Iterator[tuple[pl.Series, Block]]:
        """Yield the cells of a column that is no feature with each block of rows."""
        if column not in self.table.columns:
            raise no_column(self.name, [column], self.table.columns)
        return self._read(column, max_rows)

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> TableSource:
        pick_columns(self.name, self.columns, columns, extra=extra)
        return replace(self, columns=columns)

    def picked(
        self, columns: Sequence[str], max_rows: int, *, numbers: Collection[str] = ()
    ) -> Iterator[tuple[Table, Rows, pl.DataFrame]]:
        """Yield raw batches of the rows of the group, and their numbers."""
        if self.group is None:
            yield from self.table.batches(columns, max_rows, numbers=numbers)
            return
        column, value = self.group
        for part, row, batch in self.table.batches([*columns, column], max_rows, numbers=numbers):
            rows = (as_labels(batch[column]) == value).arg_true().to_numpy()
            if rows.size:
                yield part, row + rows, batch[rows]

    def _read(self, label: str | None, max_rows: int) -> Iterator[tuple[Any, Matrix]]:
        features, rules = set(self.columns), [Rule(column=name) for name in self.columns]
        if self.rules is not None:
            rules = [rule for rule in self.rules.rules if not features.isdisjoint(rule.features)]
        columns = [name for rule in rules for name in rule.columns] + ([] if label is None else [label])
        numbers = {name for rule in rules for name in rule.numbers}
        spans = dict(self.spans) | {rule.column: rule.span for rule in rules if rule.span}
        spans |= {f"{rule.column}=other": NO_LEVEL for rule in rules if rule.kind == "levels"}
        spans = {name: span for name, span in spans.items() if name in features}
        seen, odd = 0, np.zeros(2 * len(spans), dtype=np.int64)
        for part, rows, batch in self.picked(columns, max_rows, numbers=numbers):
            seen += len(batch)
            cells = None if label is None else batch[label]
            key = (part.name, *batch.dtypes)  # text may come as numbers first
            if key not in self.plans:
                how = {"gaps": self.gaps, "plain": self.rules is None}
                schema = batch.schema  # a new object at every call
                self.plans[key] = [compiled(rule, part.cells, schema, **how) for rule in rules]
            block, outside = self._block(part, rows, batch, self.plans[key], spans)
            odd += outside
            yield cells, block
            del batch, block
        require_shape(self.name, seen, self.n_features)
        counts = zip(*odd.reshape(2, -1).tolist(), spans.values(), strict=True)
        self.odd.clear()
        self.odd.update(zip(spans, map(Odd._make, counts), strict=True))

    def _block(
        self,
        part: Table,
        rows: Rows,
        batch: pl.DataFrame,
        plan: Sequence[Compiled],
        spans: Mapping[str, Span],
    ) -> tuple[Matrix, NDArray[np.int64]]:
        """Return the features of a batch, and how many cells are outside spans, and how many are there.

        A column that is not finite is searched for uncovered cells.
        """
        values = {
            name: value.alias(name)
            for made in plan
            for name, value in zip(made.rule.features, made.values, strict=True)
        }
        ready = staged(batch, plan)
        frame = ready.select([values[name] for name in self.columns])
        cells = [pl.col(name).fill_nan(None) for name in spans]
        counts = [
            cell.is_between(*span).not_().sum() for cell, span in zip(cells, spans.values(), strict=True)
        ]
        counts += [cell.count() for cell in cells]
        found = frame.select(count.alias(f"{place}") for place, count in enumerate(counts)).to_numpy()
        outside = dict(zip(spans, found.ravel(), strict=False))
        own = {made.rule.column: made.rule.span for made in plan if made.rule.span}
        clipped = [pl.col(name).clip(*span) for name, span in own.items() if outside.get(name)]
        block: Matrix = frame.with_columns(clipped).to_numpy(order="c")
        with np.errstate(over="ignore", invalid="ignore"):
            odd = ~np.isfinite(block.sum(axis=0))
        if odd.any():
            names = {name for name, is_odd in zip(self.columns, odd, strict=True) if is_odd}
            doubted = [made for made in plan if names.intersection(made.rule.features)]
            refuse_first(ready, doubted, rows, self.table.called(part, self.name))
        return block, found.ravel()


def refuse_first(batch: pl.DataFrame, plan: Sequence[Compiled], rows: Rows, called: str) -> None:
    """Refuse the first row of a staged batch with a cell that no rule covers."""
    found = problems_in(batch, plan)
    if found:
        rule, problem, _, place = min(found, key=lambda each: each[-1])
        row = rows + place if isinstance(rows, int) else int(rows[place])
        raise CellError(problem.sentence(f"{rule.called} of {called}", count=1, row=row + 1))


def table_source(table: Table) -> TableSource:
    """Return the source of all rows and columns of a table."""
    return TableSource(name=table.name, table=table, columns=table.columns, n_rows=table.n_rows)


def as_labels(cells: pl.Series) -> pl.Series:
    """Return the cells of a column as texts that name groups."""
    if cells.dtype == pl.String:
        return cells
    return (cells.fill_nan(None) if cells.dtype.is_float() else cells).cast(pl.String)


def as_texts(values: Iterable[Any]) -> pl.Series:
    """Return Python objects as texts; what is missing as null."""

    def text(value: Any) -> str | None:
        try:
            if value is None or bool(value != value):  # noqa: PLR0124 - NaN and NaT
                return None
        except (TypeError, ValueError):  # NA will not be compared
            return None
        return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)

    return pl.Series(values=list(map(text, values)), dtype=pl.String)


# --- reading ----------------------------------------------------------------------------------------------


@contextmanager
def polars_runs(name: str, must: str) -> Iterator[None]:
    """Turn what Polars raises, which may quote cells, into one sentence."""
    try:
        yield
    except InputError:
        raise
    except pl.exceptions.DuplicateError:
        raise InputError(f"{name} must have distinct column names, got a repeated name") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, EOFError, ValueError) as error:
        raise InputError(f"{name} must be {must}, got {type(error).__name__} from Polars") from None


def lazy_read(scan: Callable[[], pl.LazyFrame], name: str, must: str) -> Read:
    """Return what reads a query again in every pass, in order, in bounded memory."""

    def read(columns: list[str], _: Collection[str], max_rows: int) -> Iterator[pl.DataFrame]:
        with polars_runs(name, must):
            frame = scan().select(columns)
            yield from frame.collect_batches(chunk_size=max_rows, maintain_order=True)

    return read


def cells_of(schema: Mapping[str, Any], pandas: Mapping[str, Any] | None = None) -> dict[str, Cells]:
    """Return how a typed table stores its columns, less the index that the metadata of pandas names."""
    index = (pandas or {}).get("index_columns", ())
    return {name: Cells(own=name, dtype=dtype) for name, dtype in schema.items() if name not in index}


# --- frames -----------------------------------------------------------------------------------------------


def frame_table(data: Any, name: str | None) -> Table | None:
    """Return the table of a data frame, a query, an Arrow table or dataset; None for anything else."""
    if is_a(data, "polars", "LazyFrame"):
        return _lazy_table(data, name or "the query")
    if is_a(data, "pandas", "DataFrame"):
        return _pandas_table(data, name or "the data frame")
    if is_a(data, "pyarrow.dataset", "Dataset"):
        return _dataset_table(data, name or "the dataset")
    if not (hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")):
        return None
    name = name or "the table"
    if is_a(data, "pyarrow", "RecordBatchReader"):
        raise InputError(f"{name} must be readable more than once, got a stream; use reader.read_all()")
    schema = None if isinstance(data, pl.DataFrame) else getattr(data, "schema", None)
    require_distinct(name, getattr(schema, "names", ()))
    try:
        frame = pl.DataFrame(data)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError):
        frame = None
    is_array = is_a(data, "pyarrow", "Array") or is_a(data, "pyarrow", "ChunkedArray")
    if frame is None or is_array or (hasattr(data, "name") and not hasattr(data, "columns")):
        kind = type(data).__name__
        raise InputError(f"{name} must be a 2-d table of rows by columns, got a {kind} of one dimension")
    return held_table(frame, name, cells_of(frame.schema, getattr(schema, "pandas_metadata", None)))


def is_a(data: Any, package: str, kind: str) -> bool:
    """Return whether data are of a package's type, without importing the package."""
    return isinstance(data, getattr(sys.modules.get(package), kind, ()))


def held_table(frame: pl.DataFrame, name: str, cells: Mapping[str, Cells] | None = None) -> Table:
    """Return the table of a frame in memory."""

    def read(columns: list[str], _: Collection[str], max_rows: int) -> Iterator[pl.DataFrame]:
        return frame.select(columns).iter_slices(max_rows)

    return Table(name=name, cells=cells or cells_of(frame.schema), read=read, n_rows=len(frame))


def _lazy_table(frame: pl.LazyFrame, name: str) -> Table:
    must = "a query that runs to its end"
    with polars_runs(name, must):
        schema = frame.collect_schema()
        plan = frame.show_graph(raw_output=True, engine="streaming", plan_stage="physical")
    if '"in-memory-map' in str(plan):  # a step that holds all of its rows at once
        raise InputError(f"{name} must be a query that Polars can stream, got another; use its collect()")
    return Table(name=name, cells=cells_of(schema), read=lazy_read(lambda: frame, name, must))


def _dataset_table(dataset: Any, name: str) -> Table:
    must = "readable to its end in every pass"
    require_distinct(name, dataset.schema.names)
    with polars_runs(name, must):
        schema = pl.DataFrame(dataset.schema.empty_table()).schema
    few = {"batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}

    def read(columns: list[str], _: Collection[str], max_rows: int) -> Iterator[pl.DataFrame]:
        with polars_runs(name, must):
            for batch in dataset.to_batches(columns=columns, batch_size=max_rows, **few):
                yield from pl.DataFrame(batch).iter_slices(max_rows)

    return Table(name=name, cells=cells_of(schema, dataset.schema.pandas_metadata), read=read)


def _pandas_table(frame: Any, name: str) -> Table:
    """Return the table of a pandas frame; Python objects, and what Polars has no type for, are text."""
    columns = [str(label) for label in frame.columns]
    require_distinct(name, columns)
    made, cells = {}, {}
    for place, column in enumerate(columns):
        values, series = frame.iloc[:, place], cast("pl.Series | None", None)
        if values.dtype != object:
            with suppress(Exception):
                series = cast("pl.Series", pl.from_pandas(values, nan_to_null=False))
        is_text = {"decimal": ".", "logical": True} if series is None else {}
        made[column] = as_texts(values) if series is None else series
        cells[column] = Cells(own=column, dtype=made[column].dtype, **is_text)  # type: ignore[arg-type]
    return held_table(pl.DataFrame(made), name, cells)
