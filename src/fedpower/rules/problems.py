"""All that rules do not cover in some tables, found before anything is released and told in one list."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedpower.errors import CellError
from fedpower.rows.source import RowSource
from fedpower.rows.tables import TableReader, TableSource
from fedpower.rows.units import features_of
from fedpower.rules.cells import Problem, read_cells
from fedpower.rules.ruled import rules_of_source
from fedpower.rules.ruled_table import RuledTable
from fedpower.rules.rules import Rule, TableRules

_ROWS = 2**16
"""Rows looked at together."""


@contextmanager
def every_problem(sources: Iterable[RowSource]) -> Iterator[None]:
    """Let a table that is refused while it is read be refused with all problems of all tables."""
    try:
        yield
    except CellError:
        found = {name: lines for name, lines in _by_table(sources) if lines}
        count = sum(map(len, found.values()))
        if count < 2:
            raise
        listed = [line for name, lines in found.items() for line in (f"{name}:", *(f"  {x}" for x in lines))]
        tables = "1 table" if len(found) == 1 else f"{len(found)} tables"
        message = (
            f"tables must hold nothing but what rules cover, got {count} problems in {tables}; mend the "
            "cells, agree on rules in a code book (`fedpower inspect FILE --draft codebook.toml`), or "
            "leave columns out:"
        )
        raise CellError("\n".join([message, *listed])) from None


def _by_table(sources: Iterable[RowSource]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of every table, once, and a sentence for each of its problems."""
    seen: list[TableReader] = []
    for source in map(features_of, sources):
        if not isinstance(source, TableSource):
            continue
        reader, rules = source.reader, rules_of_source(source)
        if isinstance(reader, RuledTable):
            reader = reader.table
        rules = rules or TableRules(rules=()).completed(source.columns)
        if any(reader is each for each in seen):  # groups of one table
            continue
        seen.append(reader)
        yield reader.name, _problems_of(reader, rules)


def _problems_of(reader: TableReader, rules: TableRules) -> list[str]:
    """Return a sentence for each way in which a table is not covered by rules; none quotes a cell."""
    found: dict[tuple[str, str, str], tuple[Problem, int, int]] = {}
    row = 0
    places_of = {name: place for place, name in enumerate(rules.columns)}
    for batch in reader.batches((), _ROWS, labels=rules.columns):
        for rule in rules.rules:
            cells = [batch.column(places_of[name]) for name in rule.columns]
            for problem in read_cells(rule, *cells)[1]:
                key = (rule.column, problem.must, problem.got)
                places = np.flatnonzero(problem.places)
                first, count, at = found.get(key, (problem, 0, row + int(places[0]) + 1))
                found[key] = (first, count + int(places.size), at)
        row += batch.num_rows
    excused = {
        rule.column for rule in rules.rules if rule.is_plain and _reads_as_numbers(reader, rule, found)
    }
    called = {rule.column: rule.called for rule in rules.rules}
    return [
        problem.sentence(called[column], count=count, row=at)
        for (column, _, got), (problem, count, at) in found.items()
        if not (column in excused and got == "text")
    ]


def _reads_as_numbers(reader: TableReader, rule: Rule, found: dict[Any, Any]) -> bool:
    """Return whether what looks like text is read as numbers all the same, as with decimal commas."""
    if not any(column == rule.column and got == "text" for column, _, got in found):
        return False
    try:
        return not any(
            problem.got == "text"
            for batch in reader.batches((rule.column,), _ROWS)
            for problem in read_cells(rule, batch.column(0))[1]
        )
    except CellError:
        return False
