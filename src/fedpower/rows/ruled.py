"""Sources whose tables' cells become numbers by rules, and what rules do not cover in them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from os.path import exists
from typing import Any

import numpy as np

from fedpower.exceptions import CellError, InputError
from fedpower.rows.source import Extra, RowSource, match_columns
from fedpower.rows.tables import Table, TableSource, refuse_first
from fedpower.rows.units import UnitRows, by_unit, features_of, keys_of
from fedpower.rules.expressions import MISSING, Cells, Problem, compiled, item_codes, problems_in, staged
from fedpower.rules.rules import KNOWN, SECONDS, Rule, TableRules, require_alone
from fedpower.values import Vector, no_column, pl, require_distinct, shown

_ROWS = 2**16
"""Rows that are searched for problems together."""

_RATINGS = 2**18
"""Ratings that are read together."""


def ruled(source: RowSource, rules: TableRules) -> RowSource:
    """Return the source of the features that rules make of a table's columns, in its order."""
    table = features_of(source)
    if not isinstance(table, TableSource):
        raise InputError(
            f"{source.name} must be a table with named columns to have rules, got unnamed columns"
        )
    if rules_of_source(source) is not None:
        return source
    persons = source if isinstance(source, UnitRows) else None
    kept = tuple(column for column in table.columns if column not in rules.dropped)
    own = rules.completed(kept)
    if rules.long is not None:
        person = rules.long[0].column
        if persons is not None or (person not in kept and person in table.table.columns):
            raise InputError(
                f"{source.name} must have one row per person to be used with unit, got one rating per row"
            )
        return _one_row_per_person(table, own)
    absent = [name for name in own.columns if name not in kept]
    if absent:
        raise no_column(source.name, absent, kept, ", for which there is a rule")
    require_alone(source.name, own)
    require_distinct(source.name, own.features)
    if not own.features:
        raise InputError(f"{source.name} must keep at least one column, got rules that drop all columns")
    made = replace(table, rules=own, columns=own.features)
    return made if persons is None else persons.over(made)


def match_tables(
    sources: Mapping[str, RowSource], rules: TableRules | None, *, extra: Extra = "refuse"
) -> tuple[tuple[str, ...] | None, dict[str, RowSource]]:
    """Return the columns of a fit, and the silos' sources with exactly these, by their rules."""
    if rules is None:
        columns, matched = match_columns(list(sources.values()), extra=extra)
        return columns, dict(zip(sources, matched, strict=True))
    held = set[str]()
    for source in sources.values():
        table = features_of(ruled(source, rules))
        assert isinstance(table, TableSource)
        held |= {*table.columns, *stored_table(table).columns}  # columns that are left out count too
    unknown = [name for name in rules.columns if name not in held]
    if unknown:
        raise no_column(
            next(iter(sources.values())).name, unknown, sorted(held), ", for which there is a rule"
        )
    kept = [
        source.select(tuple(name for name in source.columns or () if name not in rules.dropped), extra="drop")
        for source in sources.values()
    ]
    _, matched = match_columns(kept, extra=extra)
    made = [ruled(source, rules) for source in matched]
    return made[0].columns, dict(zip(sources, made, strict=True))


def stored_table(source: TableSource) -> Table:
    """Return the table whose cells rules read."""
    return source.table if source.table.long_of is None else source.table.long_of[0].table


def rules_of_source(source: RowSource) -> TableRules | None:
    """Return the rules that a source's features come from; None where they come as they are."""
    source = features_of(source)
    if not isinstance(source, TableSource):
        return None
    return source.rules if source.table.long_of is None else source.table.long_of[1]


# --- problems ---------------------------------------------------------------------------------------------


_KINDS = {
    MISSING: "missing cells",
    "dates or times": "dates",
    "an infinite value": "infinite values",
    "a larger one": "integers of 2^53 or more",
    "one with a comma": "decimal commas",
    "one with a point": "decimal points",
    "other words": "words that are not in the rule",
    "text": "text",
}
"""Short names of problems, by what cells are."""


@contextmanager
def every_problem(sources: Iterable[RowSource], *, gaps: bool = False) -> Iterator[None]:
    """Let a table that is refused while it is read be refused with all problems of all tables.

    With ``gaps`` missing numbers are no problem.
    """
    try:
        yield
    except CellError:
        tables: dict[int, TableSource] = {}
        for source in map(features_of, sources):
            if isinstance(source, TableSource):
                tables.setdefault(id(stored_table(source)), source)  # once for all groups of one table
        problems = {stored_table(source).name: _problems_of(source, gaps=gaps) for source in tables.values()}
        problems = {name: own for name, own in problems.items() if own}
        found = [*chain.from_iterable(problems.values())]
        if len(found) < 2:
            for column, problem, count, sentence in found:
                if problem.got == "other words" and count > 1:  # not only in the first row
                    ending = sentence.removeprefix(f"column '{column}'")
                    raise CellError(f"column '{column}' of {next(iter(problems))}{ending}") from None
            raise
        kinds: dict[str, list[tuple[str, Problem, int]]] = {}
        for column, problem, count, _ in found:
            kinds.setdefault(_KINDS.get(problem.got, "other cells"), []).append((column, problem, count))
        sizes = {"column": len({column for column, *_ in found}), "table": len(problems)}
        where = " in ".join(f"{size} {thing}{'s' * (size > 1)}" for thing, size in sizes.items())
        if any(rules_of_source(source) for source in tables.values()):
            lines = [f"cells of {where} do not fit the rules:", *_by_kind(kinds)]
        else:
            lines = [f"cells of {where} need rules:"]
            lines += [f"  {kind}: {_columns_of(own)}" for kind, own in kinds.items()]
            files = " ".join(map(shlex.quote, problems)) if all(map(exists, problems)) else "FILES"
            lines.append(f"Draft them with: fedpower inspect {files} --draft codebook.toml")
        details = {name: tuple(sentence for *_, sentence in own) for name, own in problems.items()}
        raise CellError("\n".join(lines), details) from None


def _columns_of(found: Iterable[tuple[str, Problem, int]]) -> str:
    return shown([*dict.fromkeys(column for column, *_ in found)])


def _by_kind(kinds: Mapping[str, Sequence[tuple[str, Problem, int]]]) -> Iterator[str]:
    """Yield lines about cells that rules do not cover: which, how many, the words of rules, what to do."""
    for kind, found in kinds.items():
        total = sum(count for *_, count in found)
        yield f"  {kind}: {_columns_of(found)} in {total} cell{'s' * (total > 1)}"
        words = {column: problem.must for column, problem, _ in found if problem.got == "other words"}
        yield from (f"    {column!r} must {must}" for column, must in words.items())
        yield f"    {found[0][1].advice}"


def _problems_of(source: TableSource, *, gaps: bool) -> list[tuple[str, Problem, int, str]]:
    """Return the problems of a table: the column, what is wrong, in how many cells, and a sentence."""
    table = stored_table(source)
    own = rules_of_source(source) or TableRules(rules=()).completed(source.columns)
    rules, columns = own.kept, own.columns
    numbers = {name for rule in rules for name in rule.numbers}
    problems: dict[tuple[str, str, str], tuple[str, Problem, int, int]] = {}
    row = 0
    for part, _, batch in table.batches(columns, _ROWS, numbers=numbers):
        plan = [compiled(rule, part.cells, batch.schema, gaps=gaps) for rule in rules]
        for rule, problem, count, first in problems_in(staged(batch, plan), plan):
            key = (rule.column, problem.must, problem.got)
            called, known, total, at = problems.get(key, (rule.called, problem, 0, row + first + 1))
            problems[key] = (called, known, total + count, at)
        row += len(batch)
    return [
        (column, problem, count, problem.sentence(called, count=count, row=at))
        for (column, *_), (called, problem, count, at) in problems.items()
    ]


# --- tables of one rating per row -------------------------------------------------------------------------


def _one_row_per_person(source: TableSource, rules: TableRules) -> UnitRows:
    more = [rule.column for rule in rules.rules if rule.kind == "number"]
    if rules.long is None or more:
        raise InputError(
            f"{source.name} must have the columns of persons, items and ratings that the rules name and no "
            f"others, got {shown(more or source.columns)}"
        )
    person = rules.long[0].column
    cells = {name: Cells(own=name, dtype=pl.Float64()) for name in rules.features}
    labels = [name for name in source.table.columns if name not in cells]
    cells |= {name: Cells(own=name, dtype=pl.String()) for name in labels}

    places = {name: place for place, name in enumerate(rules.features)}

    def read(columns: list[str], _: Collection[str], max_rows: int) -> Iterator[pl.DataFrame]:
        odd = [label for label in columns if label not in places and label != person]
        if odd:
            raise InputError(
                f"{source.name} must have one row per person to be split or labelled by '{odd[0]}', got one "
                "rating per row"
            )
        ratings = _ratings(source, rules)
        persons = ratings.group_by("key", maintain_order=True).agg(pl.col("name").first())
        known = ratings.filter(pl.col("item") >= 0)
        starts = known["key"].search_sorted(persons["key"]).to_numpy()
        ends = np.append(starts[1:], len(known))
        items, values = known["item"].to_numpy(), known["value"].to_numpy()
        for start in range(0, len(persons), max_rows):
            stop = min(start + max_rows, len(persons))
            rows = np.repeat(np.arange(stop - start), (ends - starts)[start:stop])
            part = slice(starts[start], ends[stop - 1])
            block = np.zeros((stop - start, len(places)))
            block[rows, 2 * items[part]] = values[part]
            block[rows, 2 * items[part] + 1] = KNOWN
            made = {name: pl.Series(values=block[:, places[name]]) for name in columns if name != person}
            yield pl.DataFrame(made | {person: persons["name"][start:stop]}).select(columns)

    table = Table(name=source.name, cells=cells, read=read, long_of=(source, rules))
    return by_unit(TableSource(name=source.name, table=table, columns=rules.features, n_rows=None), person)


def _ratings(source: TableSource, rules: TableRules) -> pl.DataFrame:
    """Return all ratings by person and item, -1 where none counts; a second one of an item is refused."""
    three = rules.long
    assert three is not None
    person, item, rating = three
    types = {"item": pl.Int64, "value": pl.Float64, "name": pl.String, "key": pl.UInt64, "row": pl.Int64}
    parts = [pl.DataFrame(schema=types)]
    for part, rows, batch in source.picked([rule.column for rule in three], _RATINGS):
        called = source.table.called(part, source.name)
        plan = [compiled(rule, part.cells, batch.schema) for rule in three]
        refuse_first(batch, plan, rows, called)
        value, known = plan[2].values[:2]
        code = item_codes(item.column, batch.schema[item.column], rating.items).fill_null(-1)
        numbers = batch.select(
            pl.when(known > 0).then(code).otherwise(-1).cast(pl.Int64).alias("item"),
            value.alias("value"),
            pl.col(person.column).cast(pl.String).alias("name"),
        )
        keys = keys_of(batch[person.column], name=called, column=person.column, rows=rows)
        places = pl.Series("row", rows + np.arange(len(batch)) if isinstance(rows, int) else rows, pl.Int64)
        parts.append(numbers.with_columns(pl.Series("key", keys), places))
    ratings = pl.concat(parts).sort("key", "item", "row")
    again = (pl.col("item") >= 0) & ~pl.struct("key", "item").is_first_distinct()
    twice = ratings.filter(again)["row"].min()
    if twice is not None:
        raise CellError(
            f"{source.name} must have one rating of an item by a person, got a second one at row {twice + 1}"  # type: ignore[operator]
        )
    return ratings


# --- rehearsals -------------------------------------------------------------------------------------------


def made_up(rule: Rule, values: Vector, items: Sequence[str] = ()) -> list[list[Any]]:
    """Return columns that a rule covers, as text, from simulated numbers around 0, for rehearsals."""
    low, high = rule.range or (0.0, 1.0)
    within = low + (high - low) / (1.0 + np.exp(-values))
    numbers = (within if rule.range or rule.kind == "rating" else values).tolist()
    scattered, words = np.abs(values * 1e6), rule.levels or ("no", "yes")
    match rule.kind:
        case "comparison":
            first, step = scattered % len(words), 1 + scattered // len(words) % (len(words) - 1)
            sides = (first, (first + step) % len(words))
            chosen = [[words[int(place)] for place in side] for side in sides]
            return [*chosen, [repr(number) for number in numbers]] if rule.margin else chosen
        case "number":
            made = [repr(number) for number in numbers]
        case "date":
            start, form = datetime.fromisoformat(rule.origin), rule.format or "%Y-%m-%d"
            days = SECONDS[rule.unit] / SECONDS["days"]
            made = [(start + timedelta(days=int(number * days))).strftime(form) for number in numbers]
        case "rating":  # every third is missing, in a table of one row per person
            gaps = scattered % 3 < (0 if rule.items else 1)
            made = ["" if gap else repr(number) for number, gap in zip(numbers, gaps, strict=True)]
        case "person":  # of two ratings each
            made = [str(place // 2) for place in range(len(values))]
        case "item":
            made = [items[place % len(items)] for place in range(len(values))]
        case _:
            made = [words[int(place)] for place in scattered % len(words)]
    return [made]
