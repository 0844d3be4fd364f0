"""Tables in delimited text files, parsed block by block; the first line names the columns.

Arrow's own messages quote cells, so none is passed on: when a block does not convert, a second pass
over the text finds the row to name.
"""

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpower.data.checks import not_a_number, require_distinct, require_shape
from fedpower.data.tables import arrow, sliced, with_key
from fedpower.errors import InputError

BLOCK_BYTES = 2**20
"""Bytes of text parsed at once, more when single lines are long."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CsvTable:
    """A delimited text file as a reader of batches.

    Parameters
    ----------
    name, path : the file.
    delimiter : what separates cells.
    columns : the names in the first line.
    logical : columns of true and false, which count as 1 and 0.
    block_bytes : bytes of text parsed at once.
    """

    name: str
    path: Path
    delimiter: str
    columns: tuple[str, ...] = ()
    logical: frozenset[str] = frozenset()
    block_bytes: int = BLOCK_BYTES

    @property
    def n_rows(self) -> None:
        """Unknown until the file has been read."""
        return

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, key: str | None = None
    ) -> Iterator[Any]:
        """Yield batches with numbers in every column but the key's."""
        pa = arrow()
        types = {
            column: pa.bool_() if column in self.logical else pa.float64() for column in columns
        }
        if key is not None:
            types[key] = pa.string()
        try:
            with self._open(types) as reader:
                for batch in reader:
                    yield from sliced(batch.select(with_key(columns, key)), max_rows)
            return
        except pa.ArrowException:
            pass  # its message quotes the cell: what follows must not carry it as context
        self._refuse_text(columns)
        raise _unreadable(self.name)

    @contextmanager
    def _open(self, types: dict[str, Any] | None) -> Iterator[Any]:
        """Open a streaming reader of the typed columns, or of all columns with inferred types."""
        csv, pa = arrow("csv"), arrow()
        ragged: list[tuple[int, int, int]] = []

        def note(row: Any) -> str:
            ragged.append((row.number - 1, row.expected_columns, row.actual_columns))
            return "error"

        try:
            with (
                pa.input_stream(str(self.path), compression="detect") as text,
                # left open, its thread may outlive the interpreter
                csv.open_csv(
                    text,
                    read_options=csv.ReadOptions(use_threads=False, block_size=self.block_bytes),
                    parse_options=csv.ParseOptions(
                        delimiter=self.delimiter,
                        newlines_in_values=True,
                        ignore_empty_lines=len(self.columns) != 1,
                        invalid_row_handler=note,
                    ),
                    convert_options=csv.ConvertOptions(
                        column_types=types, include_columns=list(types) if types else None
                    ),
                ) as reader,
            ):
                yield reader
        except pa.ArrowInvalid:
            if not ragged:
                raise
            row, expected, got = ragged[0]
            raise InputError(
                f"every row of {self.name} must have {expected} cells like its first line, got "
                f"{got} at row {row}; repair that row"
            ) from None
        except (OSError, EOFError, UnicodeDecodeError):
            raise _unreadable(self.name) from None

    def _refuse_text(self, columns: tuple[str, ...]) -> None:
        """Refuse the first row with a cell that is neither a number nor empty."""
        pa = arrow()
        row = 0
        with self._open(dict.fromkeys(columns, pa.string())) as reader:
            for batch in reader:
                found = [
                    (place, column)
                    for column in columns
                    if (place := _first_text(batch.column(column), column in self.logical)) >= 0
                ]
                if found:
                    place, column = min(found)
                    raise not_a_number(self.name, column, "text", row + place)
                row += batch.num_rows


def _first_text(cells: Any, logical: bool) -> int:
    """Return the place of the first cell that Arrow cannot read as a number, or -1."""
    pa, compute = arrow(), arrow("compute")
    trimmed = compute.utf8_trim_whitespace(cells)
    empty = compute.is_in(trimmed, pa.array(arrow("csv").ConvertOptions().null_values))
    present = compute.if_else(empty, pa.scalar(None, pa.string()), trimmed)
    kind = pa.bool_() if logical else pa.float64()
    try:
        present.cast(kind)
    except pa.ArrowInvalid:
        for place, cell in enumerate(present):
            try:
                cell.cast(kind)
            except pa.ArrowInvalid:
                return place
    return -1


def _unreadable(name: str) -> InputError:
    """Return the error for a file that is not delimited text."""
    return InputError(
        f"{name} must be delimited text in UTF-8, got one that cannot be parsed to its end; "
        "write it again as plain CSV"
    )


def csv_reader(path: Path, name: str, *, delimiter: str = ",") -> CsvTable:
    """Return the reader of a CSV or TSV file, gzipped or not, after a look at its first block."""
    pa = arrow()
    try:
        heading, longest = _first_lines(path)
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError):
        raise _unreadable(name) from None
    if longest == 0:
        raise InputError(
            f"{name} must have a line of column names and rows, got an empty file; write it again"
        )
    _require_separator(name, heading, delimiter)
    size = max(BLOCK_BYTES, 16 * longest)
    probe = CsvTable(name=name, path=path, delimiter=delimiter, block_bytes=size)
    try:
        with probe._open(None) as reader:
            schema = reader.schema
            schema.names  # noqa: B018  (decodes them: Arrow does not check that they are UTF-8)
    except (pa.ArrowException, UnicodeDecodeError):
        raise _unreadable(name) from None
    _require_header(name, schema.names)
    if all(pa.types.is_null(kind) for kind in schema.types):
        require_shape(name, _count_first(probe), len(schema.names))
    logical = frozenset(field.name for field in schema if pa.types.is_boolean(field.type))
    return CsvTable(
        name=name,
        path=path,
        delimiter=delimiter,
        columns=tuple(schema.names),
        logical=logical,
        block_bytes=size,
    )


def _count_first(table: CsvTable) -> int:
    """Return the number of rows in the first block."""
    with table._open(None) as reader:
        return next((batch.num_rows for batch in reader), 0)


def _first_lines(path: Path) -> tuple[str, int]:
    """Return the first line, and the length of the longer of the first two; what is not UTF-8 raises."""
    with arrow().input_stream(str(path), compression="detect") as text:
        head, lines = b"", 0
        while lines < 2 and (part := text.read(2**16)):
            head += part
            lines = head.count(b"\n")
        # its end may be half a character
        decoded = codecs.getincrementaldecoder("utf-8")().decode(head)
        longest = max((len(line) for line in head.split(b"\n")[:2]), default=0)
        return decoded.partition("\n")[0], longest


def _require_separator(name: str, heading: str, delimiter: str) -> None:
    """Refuse a first line that is separated by something else than its file's ending says."""
    bare = re.sub(r'"[^"]*"', "", heading)
    if delimiter in bare:
        return
    wanted, other = ("commas", "\t") if delimiter == "," else ("tabs", ",")
    if ";" in bare:
        raise InputError(
            f"cells of {name} must be separated by {wanted}, got semicolons; save it with {wanted} "
            "between cells and points in numbers"
        )
    if other in bare:
        got, ending = ("tabs", ".tsv") if other == "\t" else ("commas", ".csv")
        raise InputError(
            f"cells of {name} must be separated by {wanted} as its ending says, got {got}; let its name "
            f"end in {ending}"
        )


def _require_header(name: str, columns: list[str]) -> None:
    """Refuse a first line that is a row of numbers (never quoted), or names that cannot be used."""
    try:
        numbers = [float(column) for column in columns]
    except ValueError:
        numbers = []
    if numbers and any(number != numbers[0] + place for place, number in enumerate(numbers)):
        raise InputError(
            f"the first line of {name} must name the columns, got only numbers; add a line of names"
        )
    require_distinct(name, columns)
