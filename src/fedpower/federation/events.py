"""The audit log of a silo: one JSON line per event, in a folder beside its ledger.

Each line has the hash of the line before, and the ledger keeps the hash of the last one. So no line can be
removed, changed, added or moved unnoticed.
"""

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from fedpower.exceptions import LedgerError
from fedpower.privacy.ledger import Ledger, LogHead, jsonable

logger = logging.getLogger(__name__)

MOST_BYTES = 10 * 10**6
"""A file that is as long as this is not continued."""

_NAME = re.compile(r"events-(\d+)\.jsonl")
_FACTS = {
    "release": ("key", "purpose", "mu", "slack_delta"),
    "cap": ("epsilon", "delta", "reason"),
    "version": ("name", "columns"),
    "owner": ("silo", "data_set", "for_experiments"),
    "decision": ("name", "reason", "by", "epsilon", "delta", "data_version"),
}
"""By kind of entry what its line tells, which is nothing that depends on rows."""

_OF_ENTRIES = ("time", "event", "study", "facts", "entry")
"""What of a line about an entry must be as the entry has it."""


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    time: datetime
    """When it happened: for an entry of the ledger, when that was made."""
    event: str
    study: str = ""
    run: str = ""
    round: int | None = None
    facts: dict[str, Any] = {}
    entry: dict[str, Any] | None = None
    """Number and seal of the entry of the ledger that it is about."""
    previous: str
    """SHA-256 of the line before, with its line feed."""


def log_folder(ledger: Path) -> Path:
    """Return where the log of a ledger is: north.log for north.ledger."""
    place = ledger.resolve()
    return place.with_name(f"{place.name.removesuffix('.ledger')}.log")


class EventLog:
    """Adds to the log of a ledger; several processes may do so at once.

    Every entry of the ledger gets exactly one line: what is added comes after lines about all entries that
    have none yet, as when a process was killed after a charge.
    """

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._folder = folder
        self._ledger = ledger

    def add(
        self, event: str = "", *, study: str = "", run: str = "", round: int | None = None, **facts: Any
    ) -> None:
        """Write what happened, or without an event only lines of new entries; it is on disk on return.

        The ledger records the new lines before they are in their file, and once more after that. So when a
        process is killed at any moment, the next one knows which lines to write again.
        """
        about = {"study": study, "run": run, "round": round, "facts": facts}
        told = [{"time": datetime.now(UTC), "event": event, **about}] if event else []
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self._folder, fcntl.LOCK_EX) as folder:
                self._write(self._ledger.move_log_head(lambda head: self._longer(head, told)))
                os.fsync(folder)  # else a new file may be lost with the power
                self._ledger.move_log_head(lambda head: replace(head, unwritten=b""))
        except OSError as error:
            must = f"the log {self._folder} must be a folder that can be written"
            raise LedgerError(f"{must} but is not ({error.strerror})") from None

    @property
    def is_sound(self) -> bool:
        """Whether the end of the log is as its ledger says, without reading the rest."""
        try:
            self._check_end(self._ledger.log_head)
        except (LedgerError, OSError):
            return False
        return True

    def _check_end(self, head: LogHead) -> None:
        """Refuse a log that does not end where its ledger says, and a ledger with fewer entries."""
        _check_entries(head.entries, self._ledger.n_entries)
        path = _file(self._folder, head.file)
        size = path.stat().st_size if path.exists() else 0
        if size > head.size or max(_first_lines(self._folder), default=0) > head.file:
            must = f"{self._folder} must end at line {head.lines}, as its ledger says, but goes on"
            why = "the ledger is an older copy, or somebody added lines"
            hint = "put back the newest ledger, and never go on with an older one"
            raise LedgerError(f"{must}: {why}; {hint}")
        if path.exists() and size < head.start:
            hint = "see `fedpower ledger verify`, and move the files of the log to a safe place to go on"
            raise LedgerError(f"{path} must end where its ledger says but does not; {hint}")

    def _longer(self, head: LogHead, told: list[dict[str, Any]]) -> LogHead:
        """Return the head with lines about new entries of the ledger, and about an event."""
        self._check_end(head)
        path = _file(self._folder, head.file)
        is_gone = head.start > 0 and not path.exists()
        if is_gone or head.start >= MOST_BYTES:  # the next line begins another file
            first = head.lines + 1 - head.unwritten.count(b"\n")
            head = replace(head, file=first, size=len(head.unwritten))
        if is_gone:
            logger.warning("the audit log goes on, but its file %s is gone", path)
            gone: dict[str, Any] = {"event": "file of the log was gone", "facts": {"file": path.name}}
            told = [{"time": datetime.now(UTC), **gone}, *told]
        fresh = self._ledger.sealed(after=head.entries)
        lines, digest, seq = [head.unwritten], head.digest, head.lines
        happened = [*(_about(*entry) for entry in fresh), *told]
        for seq, given in enumerate(happened, start=head.lines + 1):
            lines.append(msgspec.json.encode(_Line(seq=seq, previous=digest, **given)) + b"\n")
            digest = hashlib.sha256(lines[-1]).hexdigest()
        text = b"".join(lines)
        return LogHead(
            lines=seq,
            digest=digest,
            entries=head.entries + len(fresh),
            file=head.file,
            size=head.start + len(text),
            unwritten=text,
        )

    def _write(self, head: LogHead) -> None:
        path = _file(self._folder, head.file)
        path.touch(mode=0o600)
        with path.open("r+b") as file:
            file.truncate(head.start)  # what was half-written
            file.seek(head.start)
            file.write(head.unwritten)
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class Checked:
    """A log in which nothing is wrong."""

    first_line: int
    last_line: int
    hash_of_last_line: str
    files: int
    entries_without_line: int
    """Entries of the ledger of which the next event writes a line."""


def verify(folder: Path, ledger: Ledger) -> Checked | None:
    """Check a log from its last line to its first, and against its ledger; None where there is no log yet.

    The ledger has the hash of the last line, which has that of the line before, and so on. The operator may
    have moved the oldest files elsewhere, so the first line need not be line 1.
    """
    with _locked(folder, fcntl.LOCK_SH) if folder.exists() else nullcontext():
        head, entries = ledger.log_head, ledger.sealed()
        files = set(_first_lines(folder)) | ({head.file} if head.unwritten else set())
        seq, digest, n_told = head.lines, head.digest, head.entries
        if files and seq == 0:
            must = f"the log in {folder} must be that of the ledger, which has no record of it"
            raise LedgerError(f"{must}; move it to a safe place if it is of a ledger that was lost")
        _check_entries(n_told, len(entries))
        if not files and seq > 0:
            raise LedgerError(f"line {seq} of the log must be in {folder} but its file was removed")
        for first in sorted(files, reverse=True):
            path = _file(folder, first)
            for text in reversed(_lines(path, head if first == head.file else LogHead())):
                line = _checked(text, path, seq, digest)
                if line.entry is not None:
                    told = {name: getattr(line, name) for name in _OF_ENTRIES}
                    if n_told == 0 or told != _about(*entries[n_told - 1], line.facts):
                        must = f"line {seq} in {path} must be about entry {n_told} of the ledger but is not"
                        raise LedgerError(f"{must}; the ledger was changed after it")
                    n_told -= 1
                seq, digest = seq - 1, line.previous
            if seq != first - 1:
                raise LedgerError(f"{path} must begin with line {first} but begins with line {seq + 1}")
    if seq == 0 and n_told > 0:
        raise LedgerError(f"entry {n_told} of the ledger must have a line in {folder} but has none")
    n_waiting = len(entries) - head.entries
    return Checked(seq + 1, head.lines, head.digest, len(files), n_waiting) if head.lines else None


def _check_entries(told: int, held: int) -> None:
    if held < told:
        must = f"the ledger must have {told} entries, as its log does, but has {held}"
        raise LedgerError(f"{must}; put back the newest ledger, and never go on with an older one")


def _first_lines(folder: Path) -> list[int]:
    """Return with which lines the files of a log begin."""
    return [int(name[1]) for path in folder.glob("*") if (name := _NAME.fullmatch(path.name))]


def _lines(path: Path, head: LogHead) -> list[bytes]:
    """Return the lines of a file, whose end may be in the ledger alone."""
    text = path.read_bytes() if path.exists() else b""
    n_written = max(0, len(text) - head.start)
    return (text + head.unwritten[n_written:]).splitlines(keepends=True)


def _checked(text: bytes, path: Path, seq: int, digest: str) -> _Line:
    """Return the line with a hash; refuse another one in its place."""
    try:
        line = msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        line = None
    if line is not None and hashlib.sha256(text).hexdigest() == digest:
        return line
    got = "was changed"
    if line is not None and line.seq != seq:
        got = f"line {line.seq} is in its place, so a line was removed, added or moved"
        if line.seq > seq:
            got += ", or the ledger is an older copy: put back the newest, and never go on with an older one"
    raise LedgerError(f"line {seq} in {path} must be as it was written but {got}")


def _about(number: int, seal: str, entry: Any, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return what the line about an entry of the ledger tells, with some facts or those of its kind."""
    record = jsonable(entry)
    kind = record["kind"]
    names = _FACTS.get(kind, ()) if names is None else names
    decided = "approved" if record.get("approved") else "refused"
    return {
        "time": entry.time,
        "event": {"release": "charged", "decision": decided}.get(kind, kind),
        "study": record.get("study", ""),
        "facts": {name: record.get(name) for name in names},
        "entry": {"number": number, "seal": seal},
    }


def _file(folder: Path, first: int) -> Path:
    """Return the file that begins with a line."""
    return folder / f"events-{first:06}.jsonl"


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[int]:
    """Hold the log: alone to write, together with others to read."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, kind)
        yield handle
    finally:
        os.close(handle)
