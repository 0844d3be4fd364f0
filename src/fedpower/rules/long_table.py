"""Tables of one rating a row, read as one row a person."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedpower.errors import CellError, InputError
from fedpower.rows.source import pl
from fedpower.rows.tables import Part, Table, TableSource
from fedpower.rows.units import keys_of
from fedpower.rules.expressions import Cells, compiled, first_problem, item_codes
from fedpower.rules.rules import KNOWN, LongForm, TableRules

_RATINGS = 2**18
"""Ratings that are read together."""


def long_table(source: TableSource, rules: TableRules, form: LongForm) -> Table:
    """Return the table of one row a person that a table of one rating a row amounts to."""
    cells = {name: Cells(own=name, dtype=pl.Float64()) for name in rules.features}
    labels = [name for name in source.table.columns if name not in cells]
    cells |= {name: Cells(own=name, dtype=pl.String()) for name in labels}

    def read(numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        odd = [label for label in words if label != form.person]
        if odd:
            raise InputError(
                f"{source.name} must have one row a person to be split or labelled by '{odd[0]}', got one "
                "rating a row; name the column of persons, or a file for each silo"
            )
        ratings = _ratings(source, rules, form)
        persons = ratings.group_by("key", maintain_order=True).agg(pl.col("name").first())
        known = ratings.filter(pl.col("item") >= 0)
        places = {name: place for place, name in enumerate(rules.features)}
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
            made = {name: pl.Series(values=block[:, places[name]]) for name in numbers}
            yield pl.DataFrame(made | dict.fromkeys(words, persons["name"][start:stop]))

    part = Part(name=source.name, cells=cells, read=read)
    return Table(name=source.name, parts=(part,), long_of=(source, rules))


def _ratings(source: TableSource, rules: TableRules, form: LongForm) -> pl.DataFrame:
    """Return all ratings by person and item, -1 where none counts; a second one of an item is refused."""
    wanted = (form.person, form.item, form.rating.column)
    ruled_by = {rule.column: rule for rule in rules.rules}
    found = []
    for part, rows, batch in source.picked((), wanted, _RATINGS):
        called = source.table.called(part, source.name)
        read = {name: compiled(ruled_by[name], part.cells, batch.schema) for name in wanted}
        for name in wanted:
            problem = first_problem(batch, read[name].problems)
            if problem is not None:
                at = rows + problem[0] if isinstance(rows, int) else int(rows[problem[0]])
                raise read[name].problems[problem[1]].error(f"{ruled_by[name].called} of {called}", at + 1)
        person, item = (part.cells[name] for name in wanted[:2])
        value, known = read[form.rating.column].values[:2]
        code = item_codes(item, batch.schema[item.own], form.rating.items).fill_null(-1)
        persons = batch[person.own]
        numbers = batch.lazy().select(
            pl.when(known > 0).then(code).otherwise(-1).cast(pl.Int64).alias("item"),
            value.alias("value"),
            pl.col(person.own).cast(pl.String).alias("name"),
        ).collect()  # fmt: skip
        keys = keys_of(persons, name=called, column=form.person, rows=rows)
        places = np.arange(rows, rows + len(batch)) if isinstance(rows, int) else rows
        found.append(numbers.with_columns(pl.Series("key", keys), pl.Series("row", places)))
    if not found:
        kinds = {"item": pl.Int64, "value": pl.Float64, "name": pl.String, "key": pl.UInt64, "row": pl.Int64}
        return pl.DataFrame(schema=kinds)
    ratings = pl.concat(found).sort("key", "item", "row")
    pair = pl.struct("key", "item")
    twice = ratings.filter((pl.col("item") >= 0) & ~pair.is_first_distinct())["row"].to_list()
    if twice:
        raise CellError(
            f"{source.name} must have one rating of an item by a person, got a second one at row "
            f"{min(twice) + 1}; keep one of them"
        )
    return ratings
