"""The table of every run, a line a round: what is written as runs.csv and what claims are tested on."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.runs import Run

Array = NDArray[np.float64]

DIGITS = 6
"""Significant digits of what was measured, in the table and in everything made from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run after a round; the columns of runs.csv.

    Attributes
    ----------
    figure, panel, curve
        Where it is shown (``abc``: in all three panels), and what it is called there.
    solver, noise, local_steps, epsilon, participation, n_rows
        The method, what is noised, p, ε (inf without noise), K/m and n.
    repetition, round
        Which rows, start and noise; communications so far.
    bytes_up, error
        What all silos sent so far, and sin θ_k.
    n_silos, schedule, alignment, misalignment
        m, how p goes on, how bases were rotated, and ρ_t of the round (empty where none were).
    """

    figure: str
    panel: str
    curve: str
    solver: str
    noise: str
    local_steps: int
    epsilon: float
    participation: float
    n_rows: int
    repetition: int
    round: int
    bytes_up: int
    error: float
    n_silos: int
    schedule: str
    alignment: str
    misalignment: float


COLUMNS = tuple(field.name for field in fields(Row))


class Table:
    """Rows, and the questions that claims and pictures ask of them."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        self._by_figure: dict[str, list[Row]] = {}
        for row in self.rows:
            self._by_figure.setdefault(row.figure, []).append(row)

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that there are rows of."""
        return tuple(self._by_figure)

    def select(self, **wanted: Any) -> list[Row]:
        """Return the rows whose columns have the wanted values, by repetition and round."""
        found = [
            row
            for row in self._by_figure.get(wanted["figure"], [])
            if all(getattr(row, name) == value for name, value in wanted.items())
        ]
        return sorted(found, key=lambda row: (row.repetition, row.round))

    def values(self, column: str = "error", **wanted: Any) -> Array:
        """Return one curve's numbers, repetitions × rounds.

        A run that stopped early keeps its last number: it would not change any more.
        """
        rows = self.select(**wanted)
        meant = {(row.solver, row.noise, row.epsilon, row.curve, row.panel) for row in rows}
        assert len(meant) == 1, f"one curve must be meant by {wanted}"
        runs: dict[int, list[float]] = {}
        for row in rows:
            runs.setdefault(row.repetition, []).append(float(getattr(row, column)))
        longest = max(len(run) for run in runs.values())
        return np.array([run + run[-1:] * (longest - len(run)) for run in runs.values()])

    def last(self, column: str = "error", **wanted: Any) -> Array:
        """Return one curve's numbers after the last round, by repetition."""
        return self.values(column, **wanted)[:, -1]

    def as_csv(self) -> str:
        """Return runs.csv."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([_cell(getattr(row, name)) for name in COLUMNS] for row in self.rows)
        return text.getvalue()


def read_table(text: str) -> Table:
    """Return the table that runs.csv holds."""
    kinds = {field.name: field.type for field in fields(Row)}
    convert: dict[Any, Any] = {int: int, str: str, float: lambda cell: float(cell or math.nan)}
    return Table(
        Row(**{name: convert[kinds[name]](cell) for name, cell in line.items()})
        for line in csv.DictReader(io.StringIO(text))
    )


def table_of(runs: Sequence[tuple[int, Run]]) -> Table:
    """Return the table of (repetition, run) pairs."""
    return Table(
        Row(
            figure=run.curve.figure,
            panel="".join(run.curve.panels),
            curve=run.curve.label,
            solver=run.curve.solver,
            noise=run.curve.noise,
            local_steps=run.curve.local_steps,
            epsilon=run.curve.epsilon,
            participation=run.curve.participation,
            n_rows=run.n_rows,
            repetition=repetition,
            round=point.round,
            bytes_up=point.bytes_up,
            error=rounded(point.error),
            n_silos=run.n_silos,
            schedule=run.curve.schedule,
            alignment=run.curve.alignment,
            misalignment=rounded(point.misalignment),
        )
        for repetition, run in runs
        for point in run.points
    )


def rounded(number: float) -> float:
    """Return a number to `DIGITS` significant digits."""
    return float(f"{number:.{DIGITS}g}")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{DIGITS}g}"
    return str(value)
