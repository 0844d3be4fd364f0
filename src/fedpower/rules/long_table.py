"""Tables of one rating a row, read as one row a person."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import CellError, InputError
from fedpower.rows.person_keys import keys_of
from fedpower.rows.source import Vector
from fedpower.rows.tables import Group, arrow, plain, same_as
from fedpower.rules.cells import item_codes, read_cells
from fedpower.rules.ruled_table import RuledTable
from fedpower.rules.rules import KNOWN, LongForm

_RATINGS = 2**18
"""Ratings that are read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ratings:
    """All ratings of a table, by person and item."""

    starts: NDArray[np.int64]
    items: NDArray[np.int64]
    values: Vector
    names: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class LongTable(RuledTable):
    """A table of one rating a row, as a reader of batches of one row a person."""

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
                chosen = np.flatnonzero(same_as(batch.column(labels.index(group.column)), group.value))
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
            return _Ratings(starts=np.zeros(1, np.int64), items=item, values=np.zeros(0), names=None)
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
        ids = pa.chunked_array(names).take(pa.array(order[first])).combine_chunks() if named else None
        return _Ratings(
            starts=np.concatenate([before[first], before[-1:]]),
            items=item[counts],
            values=value[counts],
            names=ids,
        )
