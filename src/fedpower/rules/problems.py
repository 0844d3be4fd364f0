"""All that rules do not cover in some tables, found before anything is released and told in one list."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fedpower.errors import CellError
from fedpower.rows.source import RowSource
from fedpower.rows.tables import Table, TableSource
from fedpower.rows.units import features_of
from fedpower.rules.expressions import Problem, compiled, counted_problems, staged
from fedpower.rules.ruled import rules_of_source, stored_table
from fedpower.rules.rules import TableRules

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
            f"tables must hold nothing but what rules cover, got {count} problems in {tables}; fix the "
            "cells, agree on rules in a code book (`fedpower inspect FILE --draft codebook.toml`), or "
            "leave columns out:"
        )
        raise CellError("\n".join([message, *listed])) from None


def _by_table(sources: Iterable[RowSource]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of every table, once, and a sentence for each of its problems."""
    seen: list[Table] = []
    for source in map(features_of, sources):
        if not isinstance(source, TableSource):
            continue
        table, rules = stored_table(source), rules_of_source(source)
        if not any(table is each for each in seen):  # groups of one table
            seen.append(table)
            yield table.name, _problems_of(table, rules or TableRules(rules=()).completed(source.columns))


def _problems_of(table: Table, rules: TableRules) -> list[str]:
    """Return a sentence for each way in which a table is not covered by rules; none quotes a cell."""
    found: dict[tuple[str, str, str], tuple[str, Problem, int, int]] = {}
    numbers = [n for rule in rules.rules for n in rule.columns if rule.is_plain or n == rule.margin]
    words = [name for name in rules.columns if name not in numbers]
    before, last = 0, table.parts[0]
    end = 0
    for part, row, batch in table.batches(numbers, _ROWS, words=words):
        before, last = (before, last) if part is last else (before + end, part)
        end = row + len(batch)
        schema = batch.schema
        read = [(rule, compiled(rule, part.cells, schema)) for rule in rules.rules if rule.kind != "drop"]
        listed = [(rule, problem) for rule, each in read for problem in each.problems]
        ready = staged(batch, (each for _, each in read))
        counts = counted_problems(ready, [problem for _, problem in listed])
        for (rule, problem), (count, first) in zip(listed, counts, strict=True):
            if count:
                key = (rule.column, problem.must, problem.got)
                called, known, total, at = found.get(key, (rule.called, problem, 0, before + row + first + 1))
                found[key] = (called, known, total + count, at)
    return [problem.sentence(called, count=count, row=at) for called, problem, count, at in found.values()]
