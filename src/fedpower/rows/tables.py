"""Tables with named columns: raw batches come from Polars, and rules turn them into float64 blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.rows.columns import pick_columns, require_block_size, require_distinct, require_shape, shown
from fedpower.rows.source import Block, Extra, Matrix, pl
from fedpower.rules.expressions import Cells, Compiled, Problem, compiled, first_problem, staged
from fedpower.rules.rules import Rule, TableRules

if TYPE_CHECKING:
    from pathlib import Path

Rows = int | NDArray[np.int64]
"""The number of the first of some rows, from 0, or of each of them."""

Read = Callable[[list[str], list[str], int], "Iterator[pl.DataFrame]"]
"""From the own names of columns of numbers and of words, and a number of rows, to raw batches of both."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One stored piece of a table: a file, a frame in memory, a query."""

    name: str
    cells: Mapping[str, Cells]
    read: Read
    n_rows: int | None = None
    path: Path | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)  # from the names of folders, as Hive writes them


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A stored table in one part or several, and what its columns are called in the study."""

    name: str
    parts: tuple[Part, ...]
    query: Any = None  # of a database: what digests its cells
    sheet: str | None = None
    in_memory: bool = False
    long_of: tuple[TableSource, TableRules] | None = None  # what one row per person was made from

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(self.parts[0].cells)

    @property
    def cells(self) -> Mapping[str, Cells]:
        """How columns are stored, in the first part."""
        return self.parts[0].cells

    @property
    def n_rows(self) -> int | None:
        """Number of rows, where every part has its own."""
        counts = [part.n_rows for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    def batches(
        self, numbers: Sequence[str], max_rows: int, *, words: Sequence[str] = ()
    ) -> Iterator[tuple[Part, int, pl.DataFrame]]:
        """Yield each raw batch with its part and its first row there; columns have their own names."""
        for part in self.parts:
            row = 0
            own = [part.cells[name].own for name in numbers]
            beside = [part.cells[name].own for name in words]
            beside = [name for name in dict.fromkeys(beside) if name not in own]
            for batch in part.read(own, beside, max_rows):
                if len(batch):
                    yield part, row, batch
                row += len(batch)
                del batch  # or two batches are held while the next one is read

    def called(self, part: Part, name: str) -> str:
        """Return what a sentence about a part's row calls it: by its file, where there are several."""
        return name if len(self.parts) == 1 else part.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows whose cell in a column is this text."""

    column: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The rules of a source as expressions over batches of one schema."""

    read: list[tuple[Rule, Compiled]]
    features: list[pl.Expr]


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSource:
    """The rows of a table, or of one group in it, as float64 blocks of the features that rules make."""

    name: str
    table: Table
    columns: tuple[str, ...]
    n_rows: int | None
    group: Group | None = None
    gaps: bool = False
    rules: TableRules | None = None
    others: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_distinct(self.name, self.columns)
        require_shape(self.name, self.n_rows, self.n_features)

    @property
    def n_features(self) -> int:
        """Number of feature columns."""
        return len(self.columns)

    @property
    def in_memory(self) -> bool:
        """Whether its rows are in this process."""
        return self.table.in_memory

    @property
    def sparse(self) -> bool:
        """Always false."""
        return False

    @property
    def density(self) -> float | None:
        """Always 1."""
        return 1.0

    @property
    def used(self) -> tuple[Rule, ...]:
        """The rules that its features come from; a column without one holds numbers."""
        if self.rules is None:
            return tuple(Rule(column=name) for name in self.columns)
        wanted = set(self.columns)
        return tuple(rule for rule in self.rules.rules if wanted.intersection(rule.features))

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows; a cell that no rule covers is refused, by its row in the stored table."""
        for _, _, block in self._read(None, max_rows):
            yield block
            del block  # or two blocks are held while the next one is read

    def labelled(self, column: str, max_rows: int) -> Iterator[tuple[pl.Series, Block]]:
        """Yield the cells of a column that is no feature beside each block of rows."""
        self._require_label(column)
        return ((cells, block) for cells, _, block in self._read(column, max_rows))

    def labels(self, column: str, max_rows: int) -> Iterator[tuple[pl.Series, Rows, str]]:
        """Yield the cells of such a column, their row numbers, and what the table of these is called."""
        self._require_label(column)
        for part, rows, batch in self.picked((), (column,), max_rows):
            yield batch[part.cells[column].own], rows, self.table.called(part, self.name)

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> TableSource:
        """Return the source with exactly these columns in this order; the others are not read."""
        pick_columns(self.name, self.columns, columns, extra=extra)
        return replace(self, columns=columns)

    def _require_label(self, column: str) -> None:
        if column not in self.table.columns:
            raise InputError(
                f"{self.name} must have the column '{column}' to label its rows, got "
                f"{shown(self.table.columns)}; name one of its columns"
            )

    def _read(self, label: str | None, max_rows: int) -> Iterator[tuple[Any, Rows, Matrix]]:
        """Yield labels, row numbers and features; nothing is kept of a batch that was yielded."""
        require_block_size(max_rows)
        rules = self.used
        numbers = [name for rule in rules for name in rule.columns if rule.is_plain or name == rule.margin]
        others = [name for rule in rules for name in rule.columns if name not in numbers]
        words = (*others, *(() if label is None else (label,)))
        as_other = {rule.column: 0 for rule in rules if rule.kind == "levels"}
        plans: dict[Any, _Plan] = {}
        seen = 0
        for part, rows, batch in self.picked(numbers, words, max_rows):
            seen += len(batch)
            cells = None if label is None else batch[part.cells[label].own]
            key = (part.name, *batch.dtypes)  # text may come as numbers first
            if key not in plans:
                plans[key] = self._plan(part, batch, rules)
            block = self._block(part, rows, batch, plans[key])
            for column in as_other:
                name = f"{column}=other"
                if name in self.columns:
                    as_other[column] += int(np.count_nonzero(block[:, self.columns.index(name)]))
            yield cells, rows, block
            del batch, block
        require_shape(self.name, seen, self.n_features)
        self.others.update({column: (count, seen) for column, count in as_other.items()})

    def picked(
        self, numbers: Sequence[str], words: Sequence[str], max_rows: int
    ) -> Iterator[tuple[Part, Rows, pl.DataFrame]]:
        """Yield raw batches of the rows of the group, and their numbers."""
        group = self.group
        words = words if group is None else (*words, group.column)
        for part, row, batch in self.table.batches(numbers, max_rows, words=words):
            if group is None:
                yield part, row, batch
                continue
            same = as_labels(batch[part.cells[group.column].own]) == group.value
            rows = np.flatnonzero(same.fill_null(value=False).to_numpy())
            if rows.size:
                yield part, row + rows, batch[rows]

    def _plan(self, part: Part, batch: pl.DataFrame, rules: Sequence[Rule]) -> _Plan:
        plain, schema = self.rules is None, batch.schema
        read = [(rule, compiled(rule, part.cells, schema, gaps=self.gaps, plain=plain)) for rule in rules]
        values = {
            name: value.alias(name)
            for rule, each in read
            for name, value in zip(rule.features, each.values, strict=True)
        }
        return _Plan(read=read, features=[values[name] for name in self.columns])

    def _block(self, part: Part, rows: Rows, batch: pl.DataFrame, plan: _Plan) -> Matrix:
        """Return the features of a batch; columns with anything but finite numbers are looked at again."""
        ready = staged(batch, (each for _, each in plan.read))
        block: Matrix = ready.select(plan.features).to_numpy(order="c")
        with np.errstate(over="ignore", invalid="ignore"):
            odd = ~np.isfinite(block.sum(axis=0))
        if odd.any():
            names = {name for name, is_odd in zip(self.columns, odd, strict=True) if is_odd}
            problems = [
                (rule, problem)
                for rule, each in plan.read
                if names.intersection(rule.features)
                for problem in each.problems
            ]
            self._refuse(part, rows, ready, problems)
        return block

    def _refuse(
        self, part: Part, rows: Rows, batch: pl.DataFrame, problems: Sequence[tuple[Rule, Problem]]
    ) -> None:
        """Refuse the first row with a cell that no rule covers."""
        found = first_problem(batch, [problem for _, problem in problems])
        if found is not None:
            place, which = found
            rule, problem = problems[which]
            row = rows + place if isinstance(rows, int) else int(rows[place])
            raise problem.error(f"{rule.called} of {self.table.called(part, self.name)}", row + 1)


def table_source(table: Table, kind: type[TableSource] = TableSource) -> TableSource:
    """Return the source of all rows and columns of a table."""
    return kind(name=table.name, table=table, columns=table.columns, n_rows=table.n_rows)


def as_labels(cells: pl.Series) -> pl.Series:
    """Return the cells of a column as texts that name groups."""
    if cells.dtype == pl.String:
        return cells
    return (cells.fill_nan(None) if cells.dtype.is_float() else cells).cast(pl.String)


def as_texts(values: Iterable[Any]) -> pl.Series:
    """Return Python objects as texts; what is missing as null."""
    texts = [None if _is_missing(value) else _as_text(value) for value in values]
    return pl.Series(values=texts, dtype=pl.String)


def _as_text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _is_missing(value: Any) -> bool:
    """Return whether a cell is None, NaN, NaT or NA, of which the last will not be compared."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124
    except (TypeError, ValueError):
        return True


# --- frames -----------------------------------------------------------------------------------------------


@contextmanager
def polars_runs(name: str, must: str, advice: str) -> Iterator[None]:
    """Turn what Polars raises, which may quote cells, into one sentence."""
    failed = ""
    try:
        yield
    except InputError:
        raise
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        failed = type(error).__name__
    if failed:
        raise InputError(f"{name} must be {must}, got {failed} from Polars; {advice}") from None


def lazy_read(scan: Callable[[], pl.LazyFrame]) -> Read:
    """Return what reads a query anew in every pass, in order, in bounded memory."""

    def read(numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        frame = scan().select([*numbers, *words])
        yield from frame.collect_batches(chunk_size=max_rows, maintain_order=True)

    return read


def guarded(read: Read, name: str, must: str, advice: str) -> Read:
    """Return the same reader, whose failures are one sentence."""

    def reading(numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        with polars_runs(name, must, advice):
            yield from read(numbers, words, max_rows)

    return reading


def cells_of(schema: Mapping[str, Any], *, without: Iterable[str] = ()) -> dict[str, Cells]:
    """Return how a typed table stores its columns, less those that pandas stored as the index."""
    left_out = set(without)
    return {name: Cells(own=name, dtype=dtype) for name, dtype in schema.items() if name not in left_out}


def pandas_index(metadata: Mapping[str, Any] | None) -> list[str]:
    """Return the columns that pandas stored as the index."""
    return [label for label in (metadata or {}).get("index_columns", ()) if isinstance(label, str)]


_QUERY = "a query that runs to its end", "collect it by itself to see why"
_FALLBACK = '"in-memory-map'
"""What Polars calls a step of a query that holds all of its rows at once."""


def frame_table(data: Any, name: str | None) -> Table | None:
    """Return the table of a data frame, a lazy frame, an Arrow table or dataset; None for anything else."""
    pandas, datasets = sys.modules.get("pandas"), sys.modules.get("pyarrow.dataset")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return _pandas_table(data, name or "the data frame")
    if datasets is not None and isinstance(data, datasets.Dataset):
        return _dataset_table(data, name or "the dataset")
    if "polars" in sys.modules and isinstance(data, pl.LazyFrame):
        return _lazy_table(data, name or "the query")
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _arrow_table(data, name or "the table")
    return None


def _lazy_table(frame: pl.LazyFrame, name: str) -> Table:
    with polars_runs(name, *_QUERY):
        schema = frame.collect_schema()
        plan = frame.show_graph(raw_output=True, engine="streaming", plan_stage="physical")
    if _FALLBACK in str(plan):
        raise InputError(
            f"{name} must be a query that Polars can stream, got one with a step that holds all rows at "
            "once; give its collect(), which does so too, or write it to Parquet first"
        )
    read = guarded(lazy_read(lambda: frame), name, *_QUERY)
    return Table(name=name, parts=(Part(name=name, cells=cells_of(schema), read=read),))


def _arrow_table(data: Any, name: str) -> Table:
    """Return the table of anything that exports itself as one to Arrow."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(data, arrow.RecordBatchReader):
        raise InputError(
            f"{name} must be readable more than once, got a stream of record batches; "
            "give a table (reader.read_all()) or a file"
        )
    schema = None if isinstance(data, pl.DataFrame) else getattr(data, "schema", None)
    require_distinct(name, getattr(schema, "names", ()))
    try:
        frame = data if isinstance(data, pl.DataFrame) else pl.DataFrame(data)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError):
        frame = None
    if frame is None or (arrow is not None and isinstance(data, arrow.Array | arrow.ChunkedArray)) or (
        hasattr(data, "name") and not hasattr(data, "columns")
    ):  # fmt: skip
        raise InputError(
            f"{name} must be a 2-d table of rows by columns, got a {type(data).__name__} of one "
            "dimension; give a table that holds it, such as df[['a']] in place of df['a']"
        )
    cells = cells_of(frame.schema, without=pandas_index(getattr(schema, "pandas_metadata", None)))

    def read(numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        return frame.select([*numbers, *words]).iter_slices(max_rows)

    part = Part(name=name, cells=cells, read=read, n_rows=len(frame))
    return Table(name=name, parts=(part,), in_memory=True)


def _dataset_table(dataset: Any, name: str) -> Table:
    """Return the table of an Arrow dataset; only of Parquet files are the rows counted beforehand."""
    ds = sys.modules["pyarrow.dataset"]
    must, advice = "readable to its end in every pass", "check its files, or give their folder instead"
    require_distinct(name, dataset.schema.names)
    parquet = isinstance(dataset, ds.FileSystemDataset) and isinstance(dataset.format, ds.ParquetFileFormat)
    with polars_runs(name, must, advice):
        n_rows = int(dataset.count_rows()) if parquet else None
        empty = pl.DataFrame(dataset.schema.empty_table())
    options = ds.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True) if parquet else None

    def read(numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        scanner = dataset.scanner(
            columns=[*numbers, *words],
            batch_size=max_rows,
            batch_readahead=1,
            fragment_readahead=1,
            fragment_scan_options=options,
            use_threads=False,
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield from pl.DataFrame(batch).iter_slices(max_rows)

    cells = cells_of(empty.schema, without=pandas_index(dataset.schema.pandas_metadata))
    part = Part(name=name, cells=cells, read=guarded(read, name, must, advice), n_rows=n_rows)
    return Table(name=name, parts=(part,))


def _pandas_table(frame: Any, name: str) -> Table:
    """Return the table of a pandas data frame, converted a slice at a time; its index is no column."""
    columns = [str(label) for label in frame.columns]
    require_distinct(name, columns)
    series = {column: frame.iloc[:, place] for place, column in enumerate(columns)}
    cells = {column: _pandas_cells(column, values) for column, values in series.items()}

    def read(numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        for start in range(0, len(frame), max_rows):
            stop = start + max_rows
            yield pl.DataFrame(
                {
                    each: _converted(series[each].iloc[start:stop], cells[each], is_word=each in words)
                    for each in (*numbers, *words)
                }
            )

    part = Part(name=name, cells=cells, read=read, n_rows=len(frame))
    return Table(name=name, parts=(part,), in_memory=True)


def _pandas_cells(column: str, values: Any) -> Cells:
    """Return how a pandas column is stored: of objects, whether all of them are numbers."""
    if values.dtype == object:
        odd = ((row, type(value).__name__) for row, value in enumerate(values) if not _is_number(value))
        row, kind = next(odd, (0, ""))
        dtype = pl.String() if kind else pl.Float64()
        return Cells(own=column, dtype=dtype, first_object=(row, f"type {kind}") if kind else None)
    try:
        return Cells(own=column, dtype=_from_pandas(values.iloc[:1]).dtype)
    except Exception:
        return Cells(own=column, dtype=pl.String(), first_object=(0, f"dtype {values.dtype}"))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | Decimal) or _is_missing(value)


def _converted(values: Any, cells: Cells, *, is_word: bool) -> pl.Series:
    """Return some cells of a pandas column; objects as floats where all of the column are numbers."""
    if cells.first_object is not None or (values.dtype == object and is_word):
        return as_texts(values)
    if values.dtype == object:
        numbers = [None if _is_missing(value) else float(value) for value in values]
        return pl.Series(values=numbers, dtype=pl.Float64)
    return _from_pandas(values)


def _from_pandas(values: Any) -> pl.Series:
    found: Any = pl.from_pandas(values, nan_to_null=False)
    return found  # type: ignore[no-any-return]
