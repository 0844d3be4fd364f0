"""Folders that hold arrays beside a JSON record: how results and moments are opened."""

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.errors import InputError

UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, TypeError)
"""What a damaged or foreign file may raise on being read; refusals are among these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a kind of folder holds, and how sentences about it speak."""

    what: str
    command: str
    arrays: str
    record: str
    format: str

    def opened(self, place: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays and the record of a folder; anything else is refused in one sentence."""
        wanted = f"{place} must be a folder that `fedpower {self.command}` wrote, got"
        if not place.is_dir():
            got = "a file" if place.exists() else "nothing there"
            raise InputError(f"{wanted} {got}; check the path")
        absent = [name for name in (self.arrays, self.record) if not (place / name).is_file()]
        if absent:
            raise InputError(f"{wanted} one without {absent[0]}; check the path")
        try:
            record = json.loads((place / self.record).read_text(encoding="utf-8"))
            found = record["format"]
        except UNREADABLE:
            raise self.damaged(place, self.record) from None
        if found != self.format:
            raise InputError(
                f"{place} must be {self.what} of format {self.format!r}, got {found!r}; read it with the "
                "fedpower that wrote it"
            )
        try:
            with np.load(place / self.arrays, allow_pickle=False) as stored:
                return {key: stored[key] for key in stored.files}, record
        except UNREADABLE:
            raise self.damaged(place, self.arrays) from None

    def damaged(self, place: Path, name: str) -> InputError:
        """Return the error for a file that is not as it was written."""
        return InputError(
            f"{place / name} must be as `fedpower {self.command}` wrote it, got a damaged or foreign "
            f"file; {self.command} again or bring back the folder"
        )
