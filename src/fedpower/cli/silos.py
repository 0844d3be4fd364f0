"""From the words of a command line to silos, their ledgers and public vectors."""

import csv
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.cli.console import note
from fedpower.cli.options import TEXT, read_number, reading_of
from fedpower.estimator.fitting import require_distinct
from fedpower.exceptions import InputError
from fedpower.report.text import and_more
from fedpower.rows.inspecting import doubtful
from fedpower.rows.networks import NetworkSource, open_network
from fedpower.rows.opening import existing, is_text, name_of_silo, open_source, read_pairs, split_by_group
from fedpower.rows.source import RowSource
from fedpower.values import public_vector


def open_silos(given: Mapping[str, Any], *, columns: tuple[str, ...] | None = None) -> dict[str, RowSource]:
    """Return the silos by name: each file one, or each value of the column --groups of one file."""
    named = named_files(given["files"])
    columns, groups, n_features = columns or given["columns"], given.get("groups"), given.get("n_features")
    if groups is not None:
        if len(named) > 1:
            raise InputError(f"--groups must go with one file, got {len(named)}")
        path, reading = next(iter(named.values())), reading_of(given, "rename")
        return split_by_group(path, groups, drop=given["drop"], columns=columns, **reading)
    _note_parts(named)
    ways = _ways(named, given)
    sources = {name: open_source(path, n_features=n_features, **ways[name]) for name, path in named.items()}
    if columns is None:
        return sources
    if unnamed := [source.name for source in sources.values() if source.columns is None]:
        note(f"--columns names the columns of {', '.join(unnamed)} in this order")
    return {name: open_source(source, columns=columns, extra="drop") for name, source in sources.items()}


def _ways(named: Mapping[str, Path], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return how each file is read: text as it is written, columns renamed and dropped where they are.

    What applies to none of the files is left to all of them to refuse.
    """
    texts = {name for name, path in named.items() if is_text(path)} or set(named)
    ways: dict[str, dict[str, Any]] = {name: {} for name in named}
    for name in texts:
        ways[name] = {key: given[key] for key in TEXT.split()}
    for key, kind in {"rename": dict, "drop": list}.items():
        words = given[key] or {}
        have = {name: open_source(path, **ways[name]).columns or () for name, path in named.items() if words}
        known = set(chain.from_iterable(have.values()))
        for name, columns in have.items():
            here = [word for word in words if word in columns or word not in known]
            ways[name][key] = {old: words[old] for old in here} if kind is dict else tuple(here)
    return ways


def own_tables(named: Mapping[str, Path], given: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return for each silo the tables of its own file about reading, from the options of a command."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for name, way in _ways(named, given).items():
        data = {key: value for key, value in way.items() if value and key != "rename"}
        data |= {"extra_columns": given["extra_columns"]} if given["extra_columns"] else {}
        tables[name] = {"data": data} if data else {}
        tables[name] |= {"columns": {"rename": way["rename"]}} if way.get("rename") else {}
    return tables


def note_doubts(sources: Mapping[str, RowSource]) -> None:
    """Report columns that may not be measurements, before anything is spent."""
    doubts = {column: why for source in sources.values() for column, why in doubtful(source)}
    if doubts:
        reasons = and_more([f"{column!r} {why}" for column, why in doubts.items()])
        drop = " ".join(f"--drop {shlex.quote(column)}" for column in doubts)
        note(f"{'; '.join(reasons)}; to leave such columns out, add {drop}")


def find_ledgers(silos: Sequence[str], given: Mapping[str, Any]) -> dict[str, Path] | None:
    """Return the ledger of every silo, from folders and NAME=PATH; None where none was given at all."""
    if not given["ledgers"]:
        return None
    ledgers = named_ledgers(given["ledgers"], silos)
    for name in silos:
        path = ledgers.get(name)
        if path is None:
            raise InputError(f"every silo must have a ledger or none, got none for {name!r}; see --ledger")
        if not path.exists():
            create = f"create it with `fedpower ledger create {path} --epsilon E --delta D`"
            raise InputError(f"silo {name!r} must have a ledger, got none at {path}; {create}")
    return ledgers


def named_ledgers(words: Iterable[str], silos: Sequence[str] | None = None) -> dict[str, Path]:
    """Return ledgers by silo: NAME=PATH or a SILO.ledger is one, and a folder has one for each silo.

    Where ``silos`` are not known, a folder gives all of its ledgers.
    """
    ledgers: dict[str, Path] = {}
    named: dict[str, Path] = {}
    for word in words:
        place, (name, sign, rest) = Path(word), word.partition("=")
        if place.is_dir():
            found = [each.stem for each in sorted(place.glob("*.ledger"))] if silos is None else silos
            ledgers |= {silo: place / f"{silo}.ledger" for silo in found if Path(silo).name == silo}
            continue
        name, path = (name, rest) if sign else (place.stem, word)
        if not path or name in named or (silos is not None and name not in silos):
            each = "" if silos is None else f" for each of {', '.join(silos)}"
            home = place.parent if place.suffix == ".ledger" else place
            create = f"`fedpower ledger create {home / 'SILO'}.ledger --epsilon E --delta D`"
            hint = "" if sign or place.exists() else f", which does not exist; create ledgers with {create}"
            raise InputError(f"--ledger must be a folder, or NAME=PATH once{each}, got {word!r}{hint}")
        named[name] = Path(path)
    return ledgers | named


def open_networks(given: Mapping[str, Any]) -> dict[str, NetworkSource]:
    """Return the silos' networks by name."""
    nodes = None if given["nodes"] is None else read_nodes(given["nodes"])
    unit = {"unit": given["network"], "nodes": nodes, "edge_weight": given["edge_weight"]}
    return {
        name: open_network(path, **unit, **(reading_of(given) if is_text(path) else {}))
        for name, path in named_files(given["files"]).items()
    }


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
    try:
        if path.suffix.lower() == ".npy":
            return public_vector(str(path), np.load(existing(path), allow_pickle=False))
        numbers = {name: read_number(text) for name, text in read_pairs(path).items()}
    except InputError:
        raise
    except (ValueError, OSError, EOFError):
        raise InputError(f"{path} must have numbers, got something else") from None
    return public_vector(str(path), numbers, columns=columns)


def named_files(files: Sequence[str]) -> dict[str, Path]:
    """Return the silos' files by name: NAME=PATH, or a path, which gives its name."""
    named: list[tuple[str, Path]] = []
    for word in files:
        name, _, rest = word.partition("=")
        is_named = name and rest and "/" not in name and not Path(word).exists()
        named.append((name, Path(rest)) if is_named else (name_of_silo(Path(word)), Path(word)))
    require_distinct(named)
    return dict(named)


_PART = re.compile(r"(?:part|chunk|shard|slice|split|batch|block)[-_.]?\d|\d+\.", re.IGNORECASE)
"""How writers call the parts of one table: part-00000, chunk_3, 0001."""


def _note_parts(named: Mapping[str, Path]) -> None:
    """Report files that look like the parts of one table: here each is a silo."""
    parts = [path for path in named.values() if path.is_file() and _PART.match(path.name)]
    folder = parts[0].parent if parts else Path()
    if len(parts) > 1 and len(parts) == len(named) and all(part.parent == folder for part in parts):
        note(
            f"each of {parts[0].name}, {parts[1].name}{', ...' if len(parts) > 2 else ''} is a silo here; "
            f"if they are parts of one silo, give their folder: {folder.resolve().name}={folder}"
        )
