"""Tables whose cells become numbers by rules while they are streamed.

Whatever comes after sees columns of numbers alone, such as ``sex=F``: the features.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from fedpower.data.cells import FORMATS, read_cells
from fedpower.data.columns import match_columns, require_distinct, shown
from fedpower.data.rules import SECONDS, Rule, TableRules, require_alone
from fedpower.data.source import Extra, RowSource, Vector
from fedpower.data.tables import TableReader, TableSource, arrow
from fedpower.data.units import UnitRows, features_of
from fedpower.errors import CellError, InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class RuledTable:
    """A table whose columns are the features that rules make of another's, as a reader of batches.

    Parameters
    ----------
    name : what error sentences call it.
    table : the table as it is.
    rules : one for each of its columns that are used.
    """

    name: str
    table: TableReader
    rules: TableRules

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
        for batch in self.table.batches(numbers, max_rows, labels=words):
            found: dict[str, Vector] = {}
            for rule in used:
                values, problems = read_cells(
                    rule, *(batch.column(places[name]) for name in rule.columns)
                )
                for problem in problems:
                    raise CellError(
                        problem.sentence(
                            f"{rule.called} of {self.name}",
                            count=1,
                            row=row + int(np.flatnonzero(problem.places)[0]) + 1,
                        )
                    )
                found |= zip(rule.features, values, strict=True)
            row += batch.num_rows
            arrays = [pa.array(found[name]) for name in columns]
            arrays += [batch.column(places[name]) for name in labels]
            yield pa.RecordBatch.from_arrays(arrays, names=[*columns, *labels])
            del batch, found, arrays


def made_up(rule: Rule, values: Vector) -> list[list[Any]]:
    """Return columns that a rule covers, as text, by numbers around 0: nobody's data, for rehearsals."""
    if rule.kind != "comparison":
        return [_made_up(rule, values)]
    count = len(rule.levels)
    places = (np.abs(values * 1e6) % (count * (count - 1))).astype(int)
    first, apart = places % count, 1 + places // count
    columns = [[rule.levels[each] for each in side] for side in (first, (first + apart) % count)]
    if rule.margin:
        columns.append(_made_up(Rule(column=rule.margin, range=rule.range), values))
    return columns


def _made_up(rule: Rule, values: Vector) -> list[Any]:
    if rule.kind in ("number", "date"):
        low, high = rule.range or (0.0, 1.0)
        numbers = low + (high - low) / (1.0 + np.exp(-values)) if rule.range else values
        if rule.kind == "number":
            return [repr(each) for each in numbers.tolist()]
        start = datetime.fromisoformat(rule.origin)
        days = (numbers * SECONDS[rule.unit] / SECONDS["days"]).tolist()
        form = rule.format or FORMATS[0]
        return [(start + timedelta(days=int(each))).strftime(form) for each in days]
    words = rule.levels or ("no", "yes")
    return [words[int(place)] for place in np.abs(values * 1e6) % len(words)]


def ruled(source: RowSource, rules: TableRules) -> RowSource:
    """Return the source of the features that rules make of a table's columns, in its order.

    Parameters
    ----------
    source
        A table with named columns; those that rules drop are left out.
    rules
        Of its columns; one without a rule holds numbers.
    """
    if isinstance(source, UnitRows):
        return source.over(ruled(source.rows, rules))
    if not isinstance(source, TableSource):
        raise InputError(
            f"{source.name} must be a table with named columns to have rules, got rows without them; "
            "give a CSV, Parquet or Feather file, a data frame or a query, or a code book without rules"
        )
    if isinstance(source.reader, RuledTable):
        return source
    kept = tuple(column for column in source.columns if column not in rules.dropped)
    own = rules.completed(kept)
    beside = [name for rule in own.rules for name in rule.columns if name not in kept]
    if beside:
        raise InputError(
            f"{source.name} must have the column '{beside[0]}' that a rule reads, got {shown(kept)}; add "
            "it, or correct the rule"
        )
    require_alone(source.name, own)
    require_distinct(source.name, own.features)
    if not own.features:
        raise InputError(
            f"{source.name} must keep at least one column, got rules that drop all; keep one"
        )
    reader = RuledTable(name=source.name, table=source.reader, rules=own)
    return replace(source, reader=reader, columns=own.features)


def match_tables(
    sources: Mapping[str, RowSource], rules: TableRules | None, *, extra: Extra = "refuse"
) -> tuple[tuple[str, ...] | None, dict[str, RowSource]]:
    """Return the columns of a fit, and the silos' sources with exactly these, by their rules.

    Parameters
    ----------
    sources
        The silos' rows, by name.
    rules
        Of their columns; None without any.
    extra
        Whether columns that not every silo has are refused or dropped.
    """
    if rules is None:
        columns, matched = match_columns(list(sources.values()), extra=extra)
        return columns, dict(zip(sources, matched, strict=True))
    tables = [features_of(ruled(source, rules)) for source in sources.values()]
    # Columns that are left out count too.
    held = {
        column for each in tables if isinstance(each, TableSource) for column in each.reader.columns
    }
    unknown = [name for name in rules.columns if name not in held]
    if unknown:
        raise InputError(
            f"rules must be of columns that the tables have, got one for {shown(unknown)}, which none "
            "has; correct the name, or leave the rule out"
        )
    kept = [
        source.select(
            tuple(name for name in source.columns or () if name not in rules.dropped), extra="drop"
        )
        for source in sources.values()
    ]
    _, matched = match_columns(kept, extra=extra)
    made = [ruled(source, rules) for source in matched]
    return made[0].columns, dict(zip(sources, made, strict=True))


def rules_of_source(source: RowSource) -> TableRules | None:
    """Return the rules that a source's features come from; None where they come as they are."""
    reader = getattr(features_of(source), "reader", None)
    return reader.rules if isinstance(reader, RuledTable) else None
