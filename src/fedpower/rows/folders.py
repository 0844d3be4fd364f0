"""A folder, or the files that a pattern names, as one table: its parts, one after the other."""

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpower.errors import InputError
from fedpower.rows.columns import shown
from fedpower.rows.source import Matrix
from fedpower.rows.tables import NotPlainError, PlainReader, TableReader, arrow

_HIDDEN = (".", "_")
"""Files and folders that begin so are a writer's own (_SUCCESS, .crc), and no parts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FolderTable:
    """Files with the same columns as one reader of batches; rows are counted through all of them."""

    name: str
    columns: tuple[str, ...]
    parts: tuple[TableReader, ...]
    told: tuple[dict[str, Any], ...]

    @property
    def n_rows(self) -> int | None:
        """Number of rows, where every file tells its own."""
        counts = [part.n_rows for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield the batches of each file in turn, with the columns that its folders tell."""
        names = [*columns, *labels]
        for part, told in zip(self.parts, self.told, strict=True):
            own = tuple(name for name in columns if name not in told)
            beside = tuple(name for name in labels if name not in told)
            if not own and not beside:  # the number of rows is wanted still, of whatever column
                beside = part.columns[:1]
            for batch in part.batches(own, max_rows, labels=beside):
                yield _joined(batch, [*own, *beside], names, told)

    def plain_rows(self, columns: tuple[str, ...], max_rows: int) -> Iterator[Matrix]:
        """Yield the plain rows of each file in turn, up to the first that is not plain."""
        for part, told in zip(self.parts, self.told, strict=True):
            if not isinstance(part, PlainReader) or not told.keys().isdisjoint(columns):
                raise NotPlainError
            yield from part.plain_rows(columns, max_rows)


def _joined(batch: Any, found: list[str], names: list[str], told: dict[str, Any]) -> Any:
    """Return the batch of all names, constant where the folders tell the value."""
    pa = arrow()
    cells = [
        pa.repeat(told[name], batch.num_rows) if name in told else batch.column(found.index(name))
        for name in names
    ]
    return pa.RecordBatch.from_arrays(cells, names=names)


def is_pattern(path: Path) -> bool:
    """Return whether a path that does not exist names files by a pattern: with * or ? or [ ]."""
    return glob.has_magic(str(path)) and not path.exists()


def parts_of(path: Path) -> list[Path]:
    """Return the files of a folder, at whatever depth, or of a pattern, in the order of their paths."""
    if is_pattern(path):
        found = [Path(each) for each in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    else:
        found = list(path.rglob("*"))
    base = base_of(path)
    kept = [each for each in found if each.is_file() and not _is_hidden(each.relative_to(base))]
    return sorted(kept, key=lambda each: each.as_posix())


def base_of(path: Path) -> Path:
    """Return the folder under which all parts are, a pattern's where its signs begin; else the path."""
    while glob.has_magic(str(path)) and not path.exists():
        path = path.parent
    return path


def _is_hidden(path: Path) -> bool:
    """Return whether a name on the way to a file begins as those of a writer's own files do."""
    return any(name.startswith(_HIDDEN) and name.strip(".") != "" for name in path.parts)


def folder_reader(
    path: Path, name: str, *, kind_of: Callable[[Path], str | None], read: Callable[[Path, str], TableReader]
) -> FolderTable:
    """Return the reader of a folder or a pattern."""
    files = parts_of(path)
    kinds = {each: kind_of(each) for each in files}
    tables = [each for each in files if kinds[each]]
    if not tables:
        raise InputError(
            f"{name} must hold CSV, TSV, Parquet, Feather or Arrow files, got "
            f"{'none of them' if files else 'nothing'}; check the path"
        )
    odd = next((each for each in files if kinds[each] != kinds[tables[0]]), None)
    if odd is not None:
        first = tables[0]
        raise InputError(
            f"{name} must hold the parts of one table and nothing else, got {first.name} and {odd.name}; "
            f"move the others out, or give a pattern in quotes such as '{first.parent}/*{kinds[first]}'"
        )
    readers = [read(each, str(each)) for each in tables]
    columns = readers[0].columns
    for part in readers[1:]:
        _require_same(readers[0], part)
    told = _told_by_folders(tables, base_of(path), columns, name)
    return FolderTable(name=name, columns=(*columns, *told[0]), parts=tuple(readers), told=tuple(told))


def _require_same(first: TableReader, part: TableReader) -> None:
    """Refuse a part with other columns than the first; their order may differ."""
    missing = [column for column in first.columns if column not in part.columns]
    more = [column for column in part.columns if column not in first.columns]
    if missing or more:
        got = f"none named {shown(missing)}" if missing else f"also {shown(more)}"
        raise InputError(
            f"{part.name} must have the columns of {first.name}, of whose table it is a part, got {got}; "
            "write the parts with the same columns, or give them as silos of their own"
        )


def _told_by_folders(
    files: Sequence[Path], base: Path, columns: tuple[str, ...], name: str
) -> list[dict[str, Any]]:
    """Return for each file what the folders on its way tell, as Hive writes it: ``year=2024``."""
    ds, pa = arrow("dataset"), arrow()
    ways = [each.relative_to(base).parent for each in files]
    keys = [[word.partition("=")[0] for word in way.parts if "=" in word] for way in ways]
    odd = next((place for place, each in enumerate(keys) if each != keys[0]), None)
    if odd is not None:
        raise InputError(
            f"every part of {name} must lie in folders of the same keys, got {shown(keys[0]) or 'none'} "
            f"for {files[0]} and {shown(keys[odd]) or 'none'} for {files[odd]}; move it"
        )
    wanted = [key for key in keys[0] if key not in columns]
    hive = ds.HivePartitioning(pa.schema([(key, pa.string()) for key in wanted]))
    told = [ds.get_partition_keys(hive.parse(f"{way.as_posix()}/")) for way in ways]
    kinds = {
        key: pa.int64() if all(_is_whole(each.get(key)) for each in told) else pa.string() for key in wanted
    }
    return [{key: pa.scalar(each.get(key), pa.string()).cast(kinds[key]) for key in wanted} for each in told]


def _is_whole(word: str | None) -> bool:
    """Return whether a word is a whole number, or nothing."""
    return word is None or (word.removeprefix("-").isdecimal() and len(word) < 16)
