"""A table of features: what rules make of another table's cells, while it is streamed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpower.errors import CellError
from fedpower.rows.source import Vector
from fedpower.rows.tables import TableReader, arrow
from fedpower.rules.cells import Problem, read_cells
from fedpower.rules.rules import Rule, TableRules


@dataclass(frozen=True, kw_only=True, eq=False)
class RuledTable:
    """A table whose columns are the features that rules make of another's, as a reader of batches."""

    name: str
    table: TableReader
    rules: TableRules
    gaps: bool = False
    others: dict[str, tuple[int, int]] = field(default_factory=dict, init=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The features, and after them the table's own columns, for labels."""
        features = self.rules.features
        return (*features, *(name for name in self.table.columns if name not in features))

    @property
    def n_rows(self) -> int | None:
        """Number of rows, where known."""
        return self.table.n_rows

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield the wanted features, and labels as they are; a cell that no rule covers is refused."""
        pa = arrow()
        wanted = set(columns)
        used = [rule for rule in self.rules.rules if wanted.intersection(rule.features)]
        numbers = tuple(
            name for rule in used for name in rule.columns if rule.is_plain or name == rule.margin
        )
        others = (name for rule in used for name in rule.columns if name not in numbers)
        words = tuple(dict.fromkeys([*others, *labels]))
        places = {name: place for place, name in enumerate((*numbers, *words))}
        row = 0
        as_other = {rule.column: 0 for rule in used if rule.kind == "levels"}
        for batch in self.table.batches(numbers, max_rows, labels=words):
            found: dict[str, Vector] = {}
            for rule in used:
                cells = (batch.column(places[name]) for name in rule.columns)
                values, problems = read_cells(rule, *cells, gaps=self.gaps)
                self._refuse(rule, problems, row)
                found |= zip(rule.features, values, strict=True)
                if rule.kind == "levels":
                    as_other[rule.column] += int(np.count_nonzero(values[len(rule.levels)]))
            row += batch.num_rows
            arrays = [pa.array(found[name]) for name in columns]
            arrays += [batch.column(places[name]) for name in labels]
            yield pa.RecordBatch.from_arrays(arrays, names=[*columns, *labels])
            del batch, found, arrays
        self.others.update({column: (count, row) for column, count in as_other.items()})

    def _refuse(self, rule: Rule, problems: Sequence[Problem], row: int) -> None:
        """Refuse the first cell that the rule does not cover; ``row`` is the first of the batch."""
        for problem in problems:
            raise CellError(
                problem.sentence(
                    f"{rule.called} of {self.name}",
                    count=1,
                    row=row + int(np.flatnonzero(problem.places)[0]) + 1,
                )
            )
