"""From the words of a command line to silos, their ledgers and public vectors."""

import csv
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.cli.console import note
from fedpower.cli.options import READING, TEXT, reading_of
from fedpower.errors import InputError
from fedpower.options import Options
from fedpower.rows.inspecting import doubtful
from fedpower.rows.networks import NetworkSource, open_network, require_same_nodes
from fedpower.rows.opening import (
    Reading,
    existing,
    is_text,
    name_of_silo,
    open_source,
    rows_at,
    split_by_group,
)
from fedpower.rows.ruled import ruled
from fedpower.rows.source import RowSource
from fedpower.rows.tables import TableSource
from fedpower.rows.units import by_unit

Silos = dict[str, Path | RowSource]


def open_silos(given: Mapping[str, Any], *, columns: tuple[str, ...] | None = None) -> Silos:
    """Return the silos by name: each file one, or each value of the column --groups of one file."""
    named = named_files(given["files"])
    columns, drop, groups = columns or given["columns"], given["drop"], given.get("groups")
    reading: Reading = {name: given[name] for name in READING.split()}  # type: ignore[assignment]
    if groups is not None:
        if len(named) > 1:
            raise InputError(f"--groups must go with one file, got {len(named)}")
        path = next(iter(named.values()))
        return dict(split_by_group(path, groups, drop=drop, columns=columns, **reading))
    _note_parts(named)
    n_features = given.get("n_features")
    if columns is None and not drop and n_features is None and not any(reading.values()):
        return dict(named)
    ways = _ways(named, reading)
    opened = _opened(named, ways)
    unnamed = [str(named[name]) for name in opened if opened[name] is None]
    if columns is not None and unnamed:
        note(f"columns without names in {', '.join(unnamed)} are named in the order of --columns")
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
    known = {column for have in columns.values() for column in have or ()}
    return tuple(word for word in words if word in (columns[name] or ()) or word not in known)


def own_tables(named: Mapping[str, Path], given: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return for each silo the tables of its own file about reading, from the options of a command."""
    ways = _ways(named, {name: given[name] for name in READING.split()})  # type: ignore[arg-type]
    opened = _opened(named, ways)
    tables = {}
    for name, way in ways.items():
        data = {key: way.get(key) for key in TEXT.split()}
        data |= {"drop": list(_where_they_are(given["drop"], name, opened))}
        data |= {"extra_columns": given["extra_columns"]}
        both: dict[str, dict[str, Any]] = {"data": data, "columns": {"rename": way.get("rename")}}
        kept = {table: {key: value for key, value in keys.items() if value} for table, keys in both.items()}
        tables[name] = {table: keys for table, keys in kept.items() if keys}
    return tables


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


def require_charge(given: Mapping[str, Any]) -> None:
    """Refuse ledgers for exact numbers, which nothing is charged for."""
    if math.isinf(given["epsilon"]) and given["ledgers"]:
        raise InputError("--ledgers must go with a finite epsilon, got --epsilon inf, which charges nothing")


def find_ledgers(silos: Sequence[str], given: Mapping[str, Any]) -> dict[str, Path] | None:
    """Return the ledger of every silo, from folders and NAME=PATH; None where none was given at all."""
    if not given["ledgers"]:
        return None
    ledgers: dict[str, Path] = {}
    named: dict[str, Path] = {}
    for word in given["ledgers"]:
        name, _, path = word.partition("=")
        if Path(word).is_dir():
            ledgers |= {silo: Path(word) / f"{silo}.ledger" for silo in silos if Path(silo).name == silo}
        elif name not in silos or name in named or not path:
            known = ", ".join(silos)
            raise InputError(
                f"--ledgers must be a folder, or NAME=PATH once for each of {known}, got {word!r}"
            )
        else:
            named[name] = Path(path)
    ledgers |= named
    for name in silos:
        if name not in ledgers:
            raise InputError(f"every silo must have a ledger or none, got none for {name!r}; see --ledgers")
        if not ledgers[name].exists():
            raise InputError(
                f"silo {name!r} must have a ledger, got none at {ledgers[name]}; create it with "
                f"`fedpower ledger create {ledgers[name]} --epsilon E --delta D`"
            )
    return ledgers


def open_networks(given: Mapping[str, Any]) -> dict[str, NetworkSource]:
    """Return the silos' networks by name."""
    nodes = None if given["nodes"] is None else read_nodes(given["nodes"])
    unit = {"unit": given["network"], "nodes": nodes, "edge_weight": given["edge_weight"]}
    networks = {
        name: open_network(path, **unit, **(reading_of(given) if is_text(path) else {}))
        for name, path in named_files(given["files"]).items()
    }
    require_same_nodes(networks.values())
    return networks


def read_nodes(path: Path) -> list[str]:
    """Return the names of nodes, the first cell of every line of a text file."""
    with existing(path).open(newline="", encoding="utf-8-sig") as stream:
        names = [row[0].strip() for row in csv.reader(stream) if row]
    if names and names[0].lower() in ("node", "nodes", "name", "id"):
        names = names[1:]
    if not names:
        raise InputError(f"{path} must name every node, one per line, got none")
    return names


def read_vector(path: Path, columns: tuple[str, ...] | None) -> NDArray[np.float64]:
    """Return public numbers, one per column, from a ``.npy`` or a CSV of name,value lines."""
    existing(path)
    if path.suffix.lower() == ".npy":
        try:
            loaded: Any = np.load(path, allow_pickle=False)
            return np.asarray(loaded, dtype=np.float64)
        except (ValueError, OSError, EOFError):
            raise InputError(f"{path} must contain an array of numbers, got something else") from None
    if columns is None:
        raise InputError(f"{path} must be a .npy file, since the silos' columns have no names; see --columns")
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
                    f"{path} must have lines of name,value, got something else in line {number}"
                ) from None
            if name in values:
                raise InputError(f"{path} must name every column once, got {name!r} twice")
            values[name] = value
    missing = [column for column in columns if column not in values]
    unknown = [name for name in values if name not in columns]
    if missing or unknown:
        got = f"none for {missing[0]!r}" if missing else f"one for {unknown[0]!r}, which is no column"
        raise InputError(f"{path} must give a number for every column and no other, got {got}")
    return np.array([values[column] for column in columns])


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
            existing(path)
        if name in named:
            raise InputError(
                f"silos must have different names, got {name!r} for {named[name]} and {path}; "
                "write NAME=PATH to name them"
            )
        twin = next((seen[row] for row in rows if row in seen), None)
        if twin is not None:
            raise InputError(f"silos must have rows of their own, got {path} for both {twin!r} and {name!r}")
        seen |= dict.fromkeys(rows, name)
        named[name] = path
    return named


_PART = re.compile(r"(?:part|chunk|shard|slice|split|batch|block)[-_.]?\d|\d+\.", re.IGNORECASE)
"""How writers call the parts of one table: part-00000, chunk_3, 0001."""


def _note_parts(named: Mapping[str, Path]) -> None:
    """Report files that look like the parts of one table: here each is a silo."""
    parts = [path for path in named.values() if path.is_file() and _PART.match(path.name)]
    folder = parts[0].parent if parts else Path()
    if len(parts) > 1 and len(parts) == len(named) and all(part.parent == folder for part in parts):
        note(
            f"{parts[0].name}, {parts[1].name}{', ...' if len(parts) > 2 else ''} look like parts of one "
            f"table, and each is a silo here; if they are one silo's, give the folder "
            f"({folder.resolve().name}={folder}) or the pattern in quotes"
        )
