"""Sources whose tables' cells become numbers by rules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.rows.columns import match_columns, require_distinct, shown
from fedpower.rows.source import Extra, RowSource, Vector
from fedpower.rows.tables import Table, TableSource
from fedpower.rows.units import UnitRows, by_unit, features_of
from fedpower.rules.long_table import long_table
from fedpower.rules.rules import SECONDS, Rule, TableRules, require_alone


def made_up(rule: Rule, values: Vector, items: Sequence[str] = ()) -> list[list[Any]]:
    """Return columns that a rule covers, as text, by numbers around 0: nobody's data, for rehearsals."""
    if rule.kind != "comparison":
        return [_made_up(rule, values, items)]
    count = len(rule.levels)
    places = (np.abs(values * 1e6) % (count * (count - 1))).astype(int)
    first, apart = places % count, 1 + places // count
    columns = [[rule.levels[each] for each in side] for side in (first, (first + apart) % count)]
    if rule.margin:
        columns.append(_made_up(Rule(column=rule.margin, range=rule.range), values))
    return columns


def _made_up(rule: Rule, values: Vector, items: Sequence[str] = ()) -> list[Any]:
    if rule.kind in ("number", "date"):
        low, high = rule.range or (0.0, 1.0)
        numbers = low + (high - low) / (1.0 + np.exp(-values)) if rule.range else values
        if rule.kind == "number":
            return [repr(each) for each in numbers.tolist()]
        start = datetime.fromisoformat(rule.origin)
        days = (numbers * SECONDS[rule.unit] / SECONDS["days"]).tolist()
        form = rule.format or "%Y-%m-%d"
        return [(start + timedelta(days=int(each))).strftime(form) for each in days]
    if rule.kind == "rating":
        low, high = rule.range or (0.0, 1.0)
        numbers = low + (high - low) / (1.0 + np.exp(-values))
        # Every third is not there, in a table of one row a person.
        gone = np.abs(values * 1e6) % 3 < 1 if not rule.items else np.zeros(len(values), np.bool_)
        return ["" if no else repr(each) for each, no in zip(numbers.tolist(), gone, strict=True)]
    if rule.kind == "person":  # of two ratings each
        return [str(place // 2) for place in range(len(values))]
    if rule.kind == "item":
        return [items[place % len(items)] for place in range(len(values))]
    words = rule.levels or ("no", "yes")
    return [words[int(place)] for place in np.abs(values * 1e6) % len(words)]


def ruled(source: RowSource, rules: TableRules) -> RowSource:
    """Return the source of the features that rules make of a table's columns, in its order."""
    if isinstance(source, UnitRows):
        if rules_of_source(source) is not None:
            return source
        if rules.long is not None:
            raise _says_already(source.name)
        return source.over(ruled(source.rows, rules))
    if not isinstance(source, TableSource):
        raise InputError(
            f"{source.name} must be a table with named columns to have rules, got rows without them; "
            "give a CSV, Parquet or Feather file, a data frame or a query, or a code book without rules"
        )
    if rules_of_source(source) is not None:
        return source
    kept = tuple(column for column in source.columns if column not in rules.dropped)
    own = rules.completed(kept)
    if rules.long is not None:
        if rules.long.person not in kept and rules.long.person in source.table.columns:
            raise _says_already(source.name)
        return _one_row_a_person(source, own)
    beside = [name for rule in own.rules for name in rule.columns if name not in kept]
    if beside:
        raise InputError(
            f"{source.name} must have the column '{beside[0]}' that a rule reads, got {shown(kept)}; add "
            "it, or correct the rule"
        )
    require_alone(source.name, own)
    require_distinct(source.name, own.features)
    if not own.features:
        raise InputError(f"{source.name} must keep at least one column, got rules that drop all; keep one")
    return replace(source, rules=own, columns=own.features)


def _says_already(name: str) -> InputError:
    return InputError(
        f"{name} must have one row a person to be given unit, got rules of one rating a "
        "row, which say whose each is; leave unit out"
    )


def _one_row_a_person(source: TableSource, rules: TableRules) -> UnitRows:
    """Return the persons of a table of one rating a row; all its columns must be spoken of."""
    form = rules.long
    if form is None:
        raise InputError(
            f"{source.name} must have the columns of persons, items and ratings that the rules name, got "
            f"{shown(source.columns)}; bring all three"
        )
    more = [rule.column for rule in rules.rules if rule.kind == "number"]
    if more:
        raise InputError(
            f"{source.name} must have the columns of persons, items and ratings alone for tables of one "
            f"rating a row, got {shown(more)} beside them; drop it by a rule or leave it out"
        )
    made = TableSource(
        name=source.name, table=long_table(source, rules, form), columns=rules.features, n_rows=None
    )
    return by_unit(made, form.person)


def match_tables(
    sources: Mapping[str, RowSource], rules: TableRules | None, *, extra: Extra = "refuse"
) -> tuple[tuple[str, ...] | None, dict[str, RowSource]]:
    """Return the columns of a fit, and the silos' sources with exactly these, by their rules."""
    if rules is None:
        columns, matched = match_columns(list(sources.values()), extra=extra)
        return columns, dict(zip(sources, matched, strict=True))
    tables = [features_of(ruled(source, rules)) for source in sources.values()]
    # Columns that are left out count too.
    held = {
        column
        for each in tables
        if isinstance(each, TableSource)
        for column in (*each.columns, *stored_table(each).columns)
    }
    unknown = [name for name in rules.columns if name not in held]
    if unknown:
        raise InputError(
            f"rules must be of columns that the tables have, got one for {shown(unknown)}, which none "
            "has; correct the name, or leave the rule out"
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
