"""From the words of a command line to silos, their ledgers and public vectors."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.cli.console import note
from fedpower.data import RowSource, match_columns, open_source, split_by_group
from fedpower.data.plink import VariantList
from fedpower.data.source import Extra
from fedpower.errors import InputError

Silos = dict[str, Path | RowSource]


def open_silos(
    files: Sequence[str],
    *,
    groups: str | None = None,
    columns: tuple[str, ...] | None = None,
    drop: tuple[str, ...] = (),
    n_features: int | None = None,
) -> Silos:
    """Return the silos by name: each file one, or each value of the column ``groups`` of one file.

    Parameters
    ----------
    files
        Paths, or NAME=PATH; a path alone gives its name up to the first dot.
    groups
        The column whose values name the silos.
    columns, drop
        The columns to use, and those to leave out. Where columns have no names (``.npy`` and the like)
        ``columns`` names them by position, which is told on stderr.
    n_features
        The number of columns, which svmlight files do not tell.
    """
    named = _named_files(files)
    if groups is None:
        if columns is None and not drop and n_features is None:
            return dict(named)
        opened = {name: open_source(path).columns for name, path in named.items()}
        if columns is not None:
            _tell_unnamed([str(named[name]) for name in opened if opened[name] is None])
        present = {name: set(found or ()) for name, found in opened.items()}
        return {
            name: open_source(
                path,
                columns=columns,
                # a column is dropped where it is; one that is nowhere is refused as a slip
                drop=tuple(
                    word
                    for word in drop
                    if word in present[name] or not any(word in each for each in present.values())
                ),
                extra="drop",
                n_features=n_features,
            )
            for name, path in named.items()
        }
    if len(named) > 1:
        raise InputError(
            f"--groups must go with one file, got {len(named)}; give one file, or leave --groups "
            "out and let each file be a silo"
        )
    return dict(split_by_group(next(iter(named.values())), groups, drop=drop, columns=columns))


def listed_columns(files: Sequence[str], listed: VariantList) -> tuple[str, ...]:
    """Return the columns of a public list of variants, by the first file where it names no alleles."""
    return listed.columns(open_source(next(iter(_named_files(files).values()))))


def find_ledgers(
    silos: Sequence[str], *, folder: Path | None, named: Mapping[str, Path]
) -> dict[str, Path] | None:
    """Return the ledger of every silo; None where none was given at all.

    A silo left without one would release unrecorded, so all must have one or none.
    """
    if folder is None and not named:
        return None
    unknown = [name for name in named if name not in silos]
    if unknown:
        raise InputError(
            f"--ledger must name a silo of this fit, got {unknown[0]!r}; the silos are "
            f"{', '.join(silos)}"
        )
    ledgers = {name: named.get(name) or _ledger_in(folder, name) for name in silos}
    for name, path in ledgers.items():
        if not path.exists():
            raise InputError(
                f"silo {name!r} must have a ledger, got none at {path}; create it with "
                f"`fedpower budget init {path} --epsilon E --delta D`"
            )
    return ledgers


def agreed_columns(silos: Mapping[str, Path | RowSource], extra: Extra) -> tuple[str, ...] | None:
    """Return the columns a fit of these silos has, in order; None where they have no names."""
    return match_columns([open_source(silo) for silo in silos.values()], extra=extra)[0]


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
                    f"{path} must hold lines of name,value, got something else in line {number}; "
                    "correct it"
                ) from None
            if name in values:
                raise InputError(
                    f"{path} must name every column once, got {name!r} twice; take one of the lines out"
                )
            values[name] = value
    return values


def _named_files(files: Sequence[str]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for word in files:
        name, sign, rest = word.partition("=")
        if sign and name and rest and "/" not in name and not Path(word).exists():
            path = Path(rest)
        else:
            path = Path(word)
            name = path.name.split(".")[0]
        if not path.is_file():
            raise InputError(
                f"{path} must be a file that exists, got "
                f"{'a folder' if path.is_dir() else 'none there'}; give one file per silo"
            )
        if name in named:
            raise InputError(
                f"silos must have different names, got {name!r} for {named[name]} and {path}; "
                "write NAME=PATH to name them yourself"
            )
        twin = next((other for other in named if named[other].samefile(path)), None)
        if twin is not None:
            raise InputError(
                f"each silo must have rows of its own, got {path} for both {twin!r} and {name!r}; "
                "give every file once"
            )
        named[name] = path
    return named


def _tell_unnamed(files: list[str]) -> None:
    """Say of files whose columns have no names that they are named, not chosen."""
    if files:
        have = (
            "has no column names, so they are"
            if len(files) == 1
            else "have no column names: they are"
        )
        note(f"{', '.join(files)} {have} named by position, in the order of --columns")


def _ledger_in(folder: Path | None, silo: str) -> Path:
    if folder is None or Path(silo).name != silo:
        raise InputError(
            f"every silo must have a ledger or none, got none for {silo!r}; add "
            f"--ledger '{silo}=PATH', or give all of them in a folder with --ledgers"
        )
    return folder / f"{silo}.ledger"
