"""Scores written as they are computed, block by block: CSV, Parquet or NumPy."""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.report.files import as_text
from fedpower.report.score_counts import ScoreHistogram
from fedpower.rows.source import pl

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores on their way to a file."""

    names: tuple[str, ...]
    blocks: Iterable[tuple[Any, Array]]
    label: str | None = None

    @property
    def header(self) -> list[str]:
        """The names of all columns; that of the ids comes first."""
        return [*self.names] if self.label is None else [self.label, *self.names]


def write_csv(stream: IO[str], scores: Scores) -> int:
    """Write scores as text that reads back to the same numbers; return how many rows."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(as_text, scores.header))
    count = 0
    for cells, block in scores.blocks:
        rows = block.tolist()
        if cells is not None:
            labels = map(as_text, cells.to_list())
            rows = [[label, *row] for label, row in zip(labels, rows, strict=True)]
        writer.writerows(rows)
        count += len(block)
    return count


_SIDE, _EDGE = 480.0, 48.0
"""Of a picture of scores and of its margin, in units of SVG."""


def plotted(scores: Scores, kept: list[tuple[float, float]]) -> Scores:
    """Return scores that leave their first two numbers in ``kept`` as they go by."""

    def blocks() -> Iterable[tuple[Any, Array]]:
        for cells, block in scores.blocks:
            kept.extend((float(row[0]), float(row[1])) for row in block)
            yield cells, block

    return replace(scores, blocks=blocks())


def picture(
    names: tuple[str, ...],
    points: list[tuple[float, float]],
    title: str,
    behind: ScoreHistogram | None = None,
) -> str:
    """Return an SVG of the first two scores of every row, on axes of one unit."""
    numbers = np.array(points)
    whole = numbers if behind is None else np.vstack([numbers, behind.edges[:, [0, -1]].T])
    middle = (whole.max(axis=0) + whole.min(axis=0)) / 2
    reach = max(float((whole.max(axis=0) - whole.min(axis=0)).max()) / 2, 1e-300)
    room = _SIDE / 2 - _EDGE

    def placed(each: Array) -> Array:
        return np.asarray(_SIDE / 2 + room * (each - middle) / reach * [1.0, -1.0])

    places, grid = placed(numbers), "" if behind is None else _grid(behind.together(), placed)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
    low, high, last = _EDGE - 8, _SIDE - _EDGE + 8, _SIDE - 14
    ends = middle[:, np.newaxis] + reach * np.array([-1.0, 1.0])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE:g} {_SIDE:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12">'
        f"<title>{escape(title)}</title>"
        f'<rect width="{_SIDE:g}" height="{_SIDE:g}" fill="#fff"/>'
        f'<path d="M{low:g} {low:g}V{high:g}H{high:g}" fill="none" stroke="#888"/>'
        f'{grid}<g fill="#1f5fa8" fill-opacity="0.55">{dots}</g>'
        f'<text x="{low:g}" y="{last:g}">{ends[0, 0]:.3g}</text>'
        f'<text x="{high:g}" y="{last:g}" text-anchor="end">{ends[0, 1]:.3g}</text>'
        f'<text x="{_SIDE / 2:g}" y="{last:g}" text-anchor="middle">{escape(names[0])}</text>'
        f'<text x="{low - 6:g}" y="{high:g}" text-anchor="end">{ends[1, 0]:.2g}</text>'
        f'<text x="{low - 6:g}" y="{low + 8:g}" text-anchor="end">{ends[1, 1]:.2g}</text>'
        f'<text x="14" y="{_SIDE / 2:g}" text-anchor="middle" '
        f'transform="rotate(-90 14 {_SIDE / 2:g})">{escape(names[1])}</text></svg>\n'
    )


def _grid(found: ScoreHistogram, placed: Callable[[Array], Array]) -> str:
    """Return the places that hold rows for certain, darker where they hold more."""
    ((name, counts),) = found.counts.items()
    cells = []
    for left, right, low, high, count in found.cells(name):
        if count >= found.clear:
            (x, y), (far, foot) = placed(np.array([[left, high], [right, low]]))
            cells.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{far - x:.1f}" height="{foot - y:.1f}" '
                f'fill-opacity="{0.1 + 0.6 * count / counts.max():.2f}"/>'
            )
    return f'<g fill="#8a6d3b">{"".join(cells)}</g>'


def writer_for(path: Path, *, labelled: bool = False) -> Callable[[Path, Scores], int]:
    """Return what writes scores to a file of this ending and returns how many rows."""
    known = [ending for ending in WRITERS if not (labelled and ending == ".npy")]
    if path.suffix.lower() not in known:
        why = ", for an array of numbers holds no ids" if path.suffix.lower() in WRITERS else ""
        raise InputError(f"{path} must end in one of {', '.join(known)}, got {path.suffix!r}{why}; rename it")
    return WRITERS[path.suffix.lower()]


def _csv(path: Path, scores: Scores) -> int:
    with path.open("w", encoding="utf-8", newline="") as stream:
        return write_csv(stream, scores)


def _parquet(path: Path, scores: Scores) -> int:
    """Write the scores as float64, and ids in the type that they have in their table."""
    parts = []
    for cells, block in scores.blocks:
        columns = [*([] if cells is None else [cells]), *block.T]
        parts.append(pl.DataFrame(dict(zip(scores.header, columns, strict=True))))
    together = pl.concat(parts)
    together.write_parquet(path)
    return len(together)


def _npy(path: Path, scores: Scores) -> int:
    """Write the rows, then the header again with their number: NumPy leaves room for it to grow."""
    count, width = 0, len(scores.names)
    with path.open("wb") as stream:
        _npy_header(stream, 0, width)
        for _, block in scores.blocks:
            stream.write(np.ascontiguousarray(block, dtype="<f8").tobytes())
            count += len(block)
        stream.seek(0)
        _npy_header(stream, count, width)
    return count


def _npy_header(stream: IO[bytes], n_rows: int, width: int) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, width)}
    np.lib.format.write_array_header_1_0(stream, header)


WRITERS: dict[str, Callable[[Path, Scores], int]] = {".csv": _csv, ".parquet": _parquet, ".npy": _npy}
