"""From the words of a command line to silos, their ledgers and public vectors."""

import csv
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from fedpower.cli.console import note
from fedpower.cli.options import reading_of
from fedpower.errors import InputError
from fedpower.estimator.fitting import named_sources
from fedpower.options import Options
from fedpower.rows.opening import (
    Reading,
    existing,
    is_text,
    name_of_silo,
    open_source,
    rows_at,
    split_by_group,
)
from fedpower.rows.plink import VariantList
from fedpower.rows.source import Extra, RowSource
from fedpower.rows.tables import TableSource
from fedpower.rows.units import by_unit
from fedpower.rules.inspecting import doubtful
from fedpower.rules.ruled import match_tables, ruled

Silos = dict[str, Path | RowSource]


def open_silos(
    files: Sequence[str],
    *,
    groups: str | None = None,
    columns: tuple[str, ...] | None = None,
    drop: tuple[str, ...] = (),
    n_features: int | None = None,
    **reading: Unpack[Reading],
) -> Silos:
    """Return the silos by name: each file one, or each value of the column ``groups`` of one file."""
    named = named_files(files)
    if groups is None:
        _tell_parts(named)
        if columns is None and not drop and n_features is None and not any(reading.values()):
            return dict(named)
        ways = _ways(named, reading)
        opened = _opened(named, ways)
        if columns is not None:
            _tell_unnamed([str(named[name]) for name in opened if opened[name] is None])
        return {
            name: open_source(
                path,
                columns=columns,
                drop=_where_they_are(drop, name, opened),
                extra="drop",
                n_features=n_features,
                **ways[name],
            )
            for name, path in named.items()
        }
    if len(named) > 1:
        raise InputError(
            f"--groups must go with one file, got {len(named)}; give one file, or leave --groups "
            "out and let each file be a silo"
        )
    path = next(iter(named.values()))
    return dict(split_by_group(path, groups, drop=drop, columns=columns, **reading))


def _ways(named: Mapping[str, Path], reading: Reading) -> dict[str, Reading]:
    """Return how each file is read; what applies to none of them is left to the first to refuse."""
    form: Reading = {**reading, "rename": None}
    texts = {name for name, path in named.items() if is_text(path)} or set(named)
    ways: dict[str, Reading] = {name: {**form} if name in texts else {} for name in named}
    asked = reading.get("rename")
    if asked:
        have = _opened(named, ways)
        for name, way in ways.items():
            way["rename"] = {old: asked[old] for old in _where_they_are(tuple(asked), name, have)}
    return ways


def _opened(named: Mapping[str, Path], ways: Mapping[str, Reading]) -> dict[str, tuple[str, ...] | None]:
    """Return the names of the columns of each file; None where they have none."""
    return {name: open_source(path, **ways[name]).columns for name, path in named.items()}


def _where_they_are(
    words: tuple[str, ...], name: str, columns: Mapping[str, tuple[str, ...] | None]
) -> tuple[str, ...]:
    """Return those columns that a silo has; one that is nowhere is left to it to refuse as a slip."""
    known = {column for each in columns.values() for column in each or ()}
    return tuple(word for word in words if word in (columns[name] or ()) or word not in known)


def own_tables(named: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return for each silo what its own file says about reading, from the options of a command."""
    ways = _ways(named, reading_of(options))
    opened = _opened(named, ways)
    found = {}
    for name, way in ways.items():
        data = {key: way.get(key) for key in ("separator", "decimal", "encoding")}
        data |= {"drop": list(_where_they_are(options["drop"], name, opened))}
        data |= {"extra_columns": options["extra_columns"]}
        tables: dict[str, dict[str, Any]] = {"data": data, "columns": {"rename": way.get("rename")}}
        found[name] = {
            table: kept
            for table, keys in tables.items()
            if (kept := {key: value for key, value in keys.items() if value})
        }
    return found


def note_doubts(silos: Mapping[str, Path | RowSource], options: Options) -> int:
    """Report columns that may not be measurements, before anything is spent; return how many there are."""
    width, rules, unit = 0, options.rules, options.person.column
    for silo in silos.values():
        source = open_source(silo)
        if unit:
            source = by_unit(source, unit).rows
        if rules is not None and isinstance(source, TableSource):
            source = ruled(source, rules)
        width = max(width, source.n_features)
        for column, why in doubtful(source):
            note(
                f"column {column!r} of {source.name} {why}; unless it is a measurement, leave it out "
                f"with --drop {shlex.quote(column)} or by a rule (for your eyes)"
            )
    return width


def listed_columns(files: Sequence[str], listed: VariantList) -> tuple[str, ...]:
    """Return the columns of a public list of variants, by the first file where it names no alleles."""
    return listed.columns(open_source(next(iter(named_files(files).values()))))


def require_charge(options: Mapping[str, Any]) -> None:
    """Refuse ledgers for exact numbers, which nothing is charged for."""
    if math.isinf(options["epsilon"]) and (options["ledgers"] or options["named_ledgers"]):
        raise InputError(
            "a ledger must be charged a finite epsilon, got --epsilon inf, which releases exact "
            "numbers; give a finite one, or leave the ledgers out"
        )


def find_ledgers(
    silos: Sequence[str], *, folder: Path | None, named: Mapping[str, Path]
) -> dict[str, Path] | None:
    """Return the ledger of every silo; None where none was given at all."""
    if folder is None and not named:
        return None
    unknown = [name for name in named if name not in silos]
    if unknown:
        raise InputError(
            f"--ledger must name a silo of this fit, got {unknown[0]!r}; the silos are {', '.join(silos)}"
        )
    ledgers = {name: named.get(name) or _ledger_in(folder, name) for name in silos}
    for name, path in ledgers.items():
        if not path.exists():
            raise InputError(
                f"silo {name!r} must have a ledger, got none at {path}; create it with "
                f"`fedpower budget init {path} --epsilon E --delta D`"
            )
    return ledgers


def agreed_columns(
    silos: Mapping[str, Path | RowSource], extra: Extra, options: Options
) -> tuple[str, ...] | None:
    """Return the columns a fit of these silos has, in order; None where they have no names."""
    return match_tables(named_sources(dict(silos), options), options.rules, extra=extra)[0]


def read_nodes(path: Path) -> list[str]:
    """Return the names of nodes, the first cell of every line of a text file."""
    with existing(path).open(newline="", encoding="utf-8-sig") as stream:
        names = [row[0].strip() for row in csv.reader(stream) if row]
    if names and names[0].lower() in ("node", "nodes", "name", "id"):
        names = names[1:]
    if not names:
        raise InputError(f"{path} must name every node, one a line, got none; write them down")
    return names


def read_vector(path: Path, columns: tuple[str, ...] | None) -> NDArray[np.float64]:
    """Return public numbers, one per column, from a ``.npy`` or a CSV of name,value lines."""
    if not path.is_file():
        raise InputError(f"{path} must be a file that exists, got none there; check the path")
    if path.suffix.lower() == ".npy":
        try:
            loaded: Any = np.load(path, allow_pickle=False)
            return np.asarray(loaded, dtype=np.float64)
        except (ValueError, OSError, EOFError):
            raise InputError(
                f"{path} must hold one number per column, got no such array; save it with numpy.save"
            ) from None
    if columns is None:
        raise InputError(
            f"{path} must be a .npy file because the silos' columns have no names, got names; "
            "save one number per column with numpy.save, or name the columns with --columns"
        )
    values = _values_by_name(path)
    missing = [column for column in columns if column not in values]
    if missing:
        raise InputError(
            f"{path} must give a number for every column, got none for {missing[0]!r}; add the "
            f"line {missing[0]},NUMBER"
        )
    unknown = [name for name in values if name not in columns]
    if unknown:
        raise InputError(
            f"{path} must name columns of the fit and no others, got also {unknown[0]!r}; take that line "
            "out, or correct the name"
        )
    return np.array([values[column] for column in columns])


def _values_by_name(path: Path) -> dict[str, float]:
    values: dict[str, float] = {}
    with path.open(newline="", encoding="utf-8-sig") as stream:
        for number, row in enumerate(csv.reader(stream), start=1):
            if not row:
                continue
            try:
                name, text = row
                value = float(text)
            except ValueError:
                if number == 1 and len(row) == 2:  # a heading
                    continue
                raise InputError(
                    f"{path} must hold lines of name,value, got something else in line {number}; correct it"
                ) from None
            if name in values:
                raise InputError(
                    f"{path} must name every column once, got {name!r} twice; take one of the lines out"
                )
            values[name] = value
    return values


def named_files(files: Sequence[str]) -> dict[str, Path]:
    """Return the silos' files by name: NAME=PATH, or a path, which gives its name."""
    named: dict[str, Path] = {}
    seen: dict[object, str] = {}
    for word in files:
        name, sign, rest = word.partition("=")
        if sign and name and rest and "/" not in name and not Path(word).exists():
            path = Path(rest)
        else:
            path = Path(word)
            name = name_of_silo(path)
        rows = rows_at(path)
        if not rows and not path.is_dir():
            raise InputError(f"{path} must be a file that exists, got none there; give one file per silo")
        if name in named:
            raise InputError(
                f"silos must have different names, got {name!r} for {named[name]} and {path}; "
                "write NAME=PATH to name them yourself"
            )
        twin = next((seen[each] for each in rows if each in seen), None)
        if twin is not None:
            raise InputError(
                f"each silo must have rows of its own, got {path} for both {twin!r} and {name!r}; "
                "give every file once"
            )
        seen |= dict.fromkeys(rows, name)
        named[name] = path
    return named


_PART = re.compile(r"(?:part|chunk|shard|slice|split|batch|block)[-_.]?\d|\d+\.", re.IGNORECASE)
"""How writers call the parts of one table: part-00000, chunk_3, 0001."""


def _tell_parts(named: Mapping[str, Path]) -> None:
    """Say of files that look like the parts of one table that each is a silo of its own here."""
    parts = [path for path in named.values() if path.is_file() and _PART.match(path.name)]
    folder = parts[0].parent if parts else Path()
    if len(parts) > 1 and len(parts) == len(named) and all(p.parent == folder for p in parts):
        note(
            f"{parts[0].name}, {parts[1].name}{', ...' if len(parts) > 2 else ''} look like parts of one "
            f"table, and each is a silo of its own here; if they are one silo's, give its folder "
            f"({folder.resolve().name}={folder}) or the pattern in quotes"
        )


def _tell_unnamed(files: list[str]) -> None:
    """Say of files whose columns have no names that they are named, not chosen."""
    if files:
        have = "has no column names, so they are" if len(files) == 1 else "have no column names: they are"
        note(f"{', '.join(files)} {have} named by position, in the order of --columns")


def _ledger_in(folder: Path | None, silo: str) -> Path:
    if folder is None or Path(silo).name != silo:
        raise InputError(
            f"every silo must have a ledger or none, got none for {silo!r}; add "
            f"--ledger '{silo}=PATH', or give all of them in a folder with --ledgers"
        )
    return folder / f"{silo}.ledger"
