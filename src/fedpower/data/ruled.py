"""Tables whose cells become numbers by rules while they are streamed.

Whatever comes after sees columns of numbers alone, such as ``sex=F``: the features.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.data.cells import FORMATS, Problem, item_codes, read_cells
from fedpower.data.columns import match_columns, require_distinct, shown
from fedpower.data.rules import KNOWN, SECONDS, LongForm, Rule, TableRules, require_alone
from fedpower.data.source import Extra, RowSource, Vector
from fedpower.data.tables import Group, TableReader, TableSource, arrow, plain, same_as
from fedpower.data.units import UnitRows, by_unit, features_of, keys_of
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
                cells = (batch.column(places[name]) for name in rule.columns)
                values, problems = read_cells(rule, *cells)
                self._refuse(rule, problems, row)
                found |= zip(rule.features, values, strict=True)
            row += batch.num_rows
            arrays = [pa.array(found[name]) for name in columns]
            arrays += [batch.column(places[name]) for name in labels]
            yield pa.RecordBatch.from_arrays(arrays, names=[*columns, *labels])
            del batch, found, arrays

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


_RATINGS = 2**18
"""Ratings that are read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ratings:
    """All ratings of a table, by person and item.

    Attributes
    ----------
    starts
        Where each person's ratings begin; where the last one's end.
    items, values
        What was rated, as places among the items that count, and how: between −1 and 1.
    names
        By person: the id as it is written, where it was asked for.
    """

    starts: NDArray[np.int64]
    items: NDArray[np.int64]
    values: Vector
    names: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class _LongTable(RuledTable):
    """A table of one rating a row, as a reader of batches of one row a person.

    All ratings are held while they are put in order, 24 bytes each. A person whose every rating is of
    other items than those that count is a row of zeros: how many persons there are is public.

    Parameters
    ----------
    group : which of the table's rows are meant; None for all.
    """

    group: Group | None = None

    @property
    def n_rows(self) -> int | None:
        """Number of persons: not known before a pass."""
        return None

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield the wanted features of each person, and their ids as written where they are a label."""
        form, pa = self.rules.long, arrow()
        assert form is not None, "its rules name the three columns"
        odd = [label for label in labels if label != form.person]
        if odd:
            raise InputError(
                f"{self.name} must have one row a person to be split or labelled by '{odd[0]}', got one "
                "rating a row; name the column of persons, or a file for each silo"
            )
        found = self._ratings(form, named=bool(labels))
        places = [self.rules.features.index(name) for name in columns]
        n_persons = len(found.starts) - 1
        for start in range(0, n_persons, max_rows):
            stop = min(start + max_rows, n_persons)
            part = slice(found.starts[start], found.starts[stop])
            rows = np.repeat(np.arange(stop - start), np.diff(found.starts[start : stop + 1]))
            block = np.zeros((stop - start, 2 * len(form.rating.items)))
            block[rows, 2 * found.items[part]] = found.values[part]
            block[rows, 2 * found.items[part] + 1] = KNOWN
            arrays = [pa.array(np.ascontiguousarray(block[:, place])) for place in places]
            arrays += [found.names.slice(start, stop - start) for _ in labels]
            yield pa.RecordBatch.from_arrays(arrays, names=[*columns, *labels])

    def _ratings(self, form: LongForm, *, named: bool) -> _Ratings:
        """Return all ratings in order; two of one item by one person are refused."""
        pa, group = arrow(), self.group
        wanted = (form.person, form.item, form.rating.column)
        labels = tuple(dict.fromkeys((*wanted, *(() if group is None else (group.column,)))))
        ruled_by = {rule.column: rule for rule in self.rules.rules}
        keys, items, values, rows, names = [], [], [], [], []
        row = 0
        for batch in self.table.batches((), _RATINGS, labels=labels):
            count = batch.num_rows
            chosen = np.arange(count)
            if group is not None:
                chosen = np.flatnonzero(
                    same_as(batch.column(labels.index(group.column)), group.value)
                )
            read = {}
            for column, cells in zip(wanted, batch.columns, strict=False):
                read[column], problems = read_cells(ruled_by[column], cells)
                self._refuse(ruled_by[column], problems, row)
            persons = plain(batch.column(0))
            keys.append(keys_of(persons, name=self.name, column=form.person, rows=row)[chosen])
            code = item_codes(batch.column(1), form.rating.items)[chosen]
            value, known = (each[chosen] for each in read[form.rating.column])
            items.append(np.where(known > 0, code, -1))
            values.append(value)
            rows.append(chosen + row)
            if named:
                names.append(persons.cast(pa.string()).take(pa.array(chosen)))
            row += count
        key = np.concatenate(keys) if keys else np.zeros(0, np.uint64)
        item = np.concatenate(items) if items else np.zeros(0, np.int64)
        if key.size == 0:
            return _Ratings(
                starts=np.zeros(1, np.int64), items=item, values=np.zeros(0), names=None
            )
        order = np.lexsort((item, key))
        key, item, value = key[order], item[order], np.concatenate(values)[order]
        twice = (key[1:] == key[:-1]) & (item[1:] == item[:-1]) & (item[1:] >= 0)
        if twice.any():
            at = np.concatenate(rows)[order[1:][twice]].min() + 1
            raise CellError(
                f"{self.name} must have one rating of an item by a person, got a second one at row "
                f"{at}; keep one of them"
            )
        first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        counts = item >= 0
        before = np.concatenate([[0], np.cumsum(counts)])
        ids = (
            pa.chunked_array(names).take(pa.array(order[first])).combine_chunks() if named else None
        )
        return _Ratings(
            starts=np.concatenate([before[first], before[-1:]]),
            items=item[counts],
            values=value[counts],
            names=ids,
        )


def made_up(rule: Rule, values: Vector, items: Sequence[str] = ()) -> list[list[Any]]:
    """Return columns that a rule covers, as text, by numbers around 0: nobody's data, for rehearsals.

    ``items`` are those that are rated, in a table of one rating a row.
    """
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
        form = rule.format or FORMATS[0]
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
    """Return the source of the features that rules make of a table's columns, in its order.

    Parameters
    ----------
    source
        A table with named columns; those that rules drop are left out.
    rules
        Of its columns; one without a rule holds numbers.
    """
    if isinstance(source, UnitRows):
        if isinstance(getattr(source.rows, "reader", None), RuledTable):
            return source
        if rules.long is not None:
            raise _says_already(source.name)
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
    if rules.long is not None:
        if rules.long.person not in kept and rules.long.person in source.reader.columns:
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
        raise InputError(
            f"{source.name} must keep at least one column, got rules that drop all; keep one"
        )
    reader = RuledTable(name=source.name, table=source.reader, rules=own)
    return replace(source, reader=reader, columns=own.features)


def _says_already(name: str) -> InputError:
    return InputError(
        "{source} must have one row a person to be given {unit}, got rules of one rating a row, which "
        "say whose each is; leave {unit} out",
        source=name,
    )


def _one_row_a_person(source: TableSource, rules: TableRules) -> UnitRows:
    """Return the persons of a table of one rating a row; all its columns must be spoken of.

    Each has one row, so that nothing is weighed; but what is promised, and counted, is by person.
    """
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
    reader = _LongTable(name=source.name, table=source.reader, rules=rules, group=source.group)
    made = replace(source, reader=reader, columns=rules.features, n_rows=None, group=None)
    return by_unit(made, form.person)


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
