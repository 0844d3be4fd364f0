"""Outputs that appear whole or not at all: written next to their place and renamed at the end."""

import csv
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpower.exceptions import InputError

LEAST_ROOM = 16 * 10**6  # bytes that suffice for any output besides its matrices
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that spreadsheets run


@contextmanager
def new_folder(folder: Path, *, known: Collection[str], force: bool = False) -> Iterator[Path]:
    """Give an empty folder that takes the place of ``folder`` when the block ends well."""
    _check_place(folder, known, force)
    with staged(folder, folder=True) as staging:
        require_room(folder)
        yield staging
        _check_place(folder, known, force)


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Give a path to write to that takes the place of ``path`` when the block ends well."""
    if path.is_dir():
        raise InputError(f"{path} must name a file, got a folder")
    if path.exists() and not force:
        raise InputError(f"{path} must not exist yet, got a file there; name another file or pass force=True")
    with staged(path) as staging:
        require_room(path)
        yield staging


def require_room(place: Path, n_features: int = 0) -> None:
    """Refuse a place whose disk has no room for components as text and a covariance, and `LEAST_ROOM`."""
    folder = next(folder for folder in place.absolute().parents if folder.exists())
    needed = LEAST_ROOM + 2**12 * n_features + 8 * n_features**2
    free = shutil.disk_usage(folder).free
    if free < needed:
        must = f"{-(-needed // 10**6)} MB free"
        raise InputError(f"the disk of {place} must have {must}, got {free // 10**6} MB")


def write_whole(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file that appears whole or not at all, and is on disk when this returns."""
    with staged(path) as staging, staging.open("wb") as file:
        if private:
            staging.chmod(0o600)
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the new name may be lost with the power
    finally:
        os.close(folder)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table as text that reads back to the same numbers, and that no spreadsheet runs."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(map(as_text, header))
        writer.writerows(map(as_text, row) for row in rows)


def as_text(cell: Any) -> Any:
    """Return a cell that no spreadsheet runs: text that begins as formulas do gets an apostrophe first."""
    if not isinstance(cell, str) or not cell.lstrip("'").startswith(_FORMULAS):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


@contextmanager
def staged(place: Path, *, folder: bool = False) -> Iterator[Path]:
    """Give a new file or folder next to ``place`` that takes its place at the end, or vanishes."""
    target = place.resolve() if folder else place.absolute()
    staging, earlier = (target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp") for _ in range(2))
    with _writable(place):
        if folder:
            target.parent.mkdir(parents=True, exist_ok=True)
            staging.mkdir()
        else:
            staging.touch()
    try:
        yield staging
        with _writable(place):
            if target.is_dir() and any(target.iterdir()):
                target.rename(earlier)
                try:
                    staging.rename(target)
                except BaseException:
                    earlier.rename(target)
                    raise
                shutil.rmtree(earlier, ignore_errors=True)
            else:
                staging.replace(target)
    finally:
        if folder:
            shutil.rmtree(staging, ignore_errors=True)
        else:
            staging.unlink(missing_ok=True)


@contextmanager
def _writable(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        got = f"none ({error.strerror}); name another place"
        raise InputError(f"{place} must be in a folder that can be written, got {got}") from error


def _check_place(folder: Path, known: Collection[str], force: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} must be a folder, got a file there; name another place")
    held = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in held if name not in known]
    if held and not force:
        hint = "" if foreign else ", or pass force=True to replace that result"
        raise InputError(f"{folder} must be new or empty, got one with {held[0]!r}; name another place{hint}")
    if foreign:
        got = f"got {foreign[0]!r} in it; name another place"
        raise InputError(f"{folder} must hold an earlier result and nothing else to be replaced, {got}")
