"""Which files are opened as a ledger, and what the others are told, in one sentence each."""

import os
import resource
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from ledgers import SECRET, ask

from fedpower.errors import LedgerError
from fedpower.privacy.ledger import Ledger


def tamper(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        for name, _ in triggers.fetchall():
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger ?#%.db"
    with Ledger.create(path, epsilon=1.0, delta=1e-6, silo="north") as ledger:
        for key in ("a", "b", "c"):
            ask(ledger, key)
    return path


def refused(path: Path, match: str, *, to_write: bool = False) -> None:
    before = path.read_bytes() if path.is_file() else None
    for read_only in (False,) if to_write else (False, True):
        with pytest.raises(LedgerError, match=match) as refusal:
            Ledger.open(path, read_only=read_only)
        assert "\n" not in str(refusal.value)
        assert SECRET.decode() not in str(refusal.value)
        assert (path.read_bytes() if path.is_file() else None) == before


def test_a_ledger_is_one_private_file_that_opens_again(path):
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    with Ledger.open(path) as ledger:
        assert ledger.owner.silo == "north"
        assert ledger.spent().n_releases == 3
        assert ask(ledger, "b", b"other") == SECRET


def test_a_ledger_is_private_whatever_the_umask_synced_and_keeps_no_second_file(tmp_path, monkeypatch):
    before = os.umask(0o277)
    try:
        Ledger.create(tmp_path / "x.db", epsilon=1, delta=1e-6).close()
    finally:
        os.umask(before)
    with Ledger.open(tmp_path / "x.db") as ledger:
        query = ledger._query
        assert query("PRAGMA synchronous") == [(3,)]
        assert query("PRAGMA journal_mode") == [("delete",)]
    monkeypatch.setattr("fedpower.privacy.ledger._SCHEMA", ["CREATE NONSENSE"])
    with pytest.raises(LedgerError):
        Ledger.create(tmp_path / "y.db", epsilon=1, delta=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == ["x.db"]


def test_creating_never_overwrites(path, tmp_path):
    before = path.read_bytes()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    for taken in (path, link, tmp_path):
        with pytest.raises(LedgerError, match="never overwritten"):
            Ledger.create(taken, epsilon=1, delta=1e-6)
    assert path.read_bytes() == before
    with pytest.raises(LedgerError, match="writable folder"):
        Ledger.create(tmp_path / "no" / "x.db", epsilon=1, delta=1e-6)


EDITS = [
    """UPDATE entry SET body = replace(body, '"mu":0.1', '"mu":0.01') WHERE seq = 4""",
    """UPDATE entry SET body = replace(body, '"epsilon":1.0', '"epsilon":9.0')""",
    "UPDATE entry SET body = replace(body, 'T', 't') WHERE seq = 5",
    "UPDATE entry SET body = replace(body, 'north', 'south')",
    "UPDATE entry SET body = x'00ff' WHERE seq = 5",
    "UPDATE entry SET seq = 9 WHERE seq = 5",
    *(f"DELETE FROM entry WHERE seq = {place}" for place in (1, 2, 3)),
    "DELETE FROM entry",
    "DROP TABLE entry",
]
FOREIGN = "CREATE TABLE patients (name)", "PRAGMA application_id = 7"


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.unlink(), "fedpower ledger create"),
        (lambda path: path.parent, "is a directory"),
        (lambda path: Path("/dev/null"), "not a regular file"),
        (lambda path: path / "below", "must be readable"),
        (lambda path: path.write_bytes(b"") and None, "is empty"),
        *((lambda path, text=text: path.write_bytes(text) and None, "damaged or no ledger")
          for text in (b"not a database", b"x" * 8192)),
        *((lambda path, share=share: os.truncate(path, int(path.stat().st_size * share)), "damaged or no")
          for share in (0.2, 0.5, 0.9)),
        (lambda path: tamper(path, *FOREIGN), "another kind of database"),
        (lambda path: tamper(path, "PRAGMA user_version = 5"), "must have schema 4 but has 5"),
        *((lambda path, edit=edit: tamper(path, edit), "damaged") for edit in EDITS),
    ],
)  # fmt: skip
def test_what_is_no_sound_ledger_is_refused_and_left_as_it_is(path, spoil, sentence):
    refused(spoil(path) or path, sentence)


@pytest.mark.parametrize("mode", [0o440, 0o604, 0o660, 0o700])
def test_a_ledger_others_may_read_is_refused(path, mode):
    path.chmod(mode)
    refused(path, f"has mode 0{mode:o}; run `chmod 600")


def test_an_unwritable_ledger_or_folder_is_refused(path, monkeypatch):
    path.chmod(0o400)
    refused(path, "must be writable but is not", to_write=True)
    path.chmod(0o600)
    monkeypatch.setattr(os, "access", lambda where, _: where != path.parent)
    refused(path, "folder of ledger .* must be writable", to_write=True)


def test_a_flipped_byte_anywhere_in_a_row_is_refused_when_read(path):
    whole = path.read_bytes()
    with Ledger.open(path) as ledger:
        spent = ledger.spent()
    start = whole.index(SECRET) - 400
    for position in range(start, whole.index(SECRET) + len(SECRET), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            with Ledger.open(path) as ledger:
                assert {ask(ledger, key) for key in "abc"} == {SECRET}
                assert ledger.spent() == spent
        except LedgerError as refusal:
            assert SECRET.decode() not in str(refusal)  # noqa: PT017


def test_a_changed_payload_is_refused_and_never_noised_again(path):
    tamper(path, "UPDATE entry SET payload = x'00' WHERE seq = 4")
    with Ledger.open(path) as ledger:
        with pytest.raises(LedgerError, match="release 'b' must leave as it was first sent"):
            ask(ledger, "b")
        assert ask(ledger, "a") == SECRET
        assert ledger.spent().n_releases == 3


def test_rows_are_append_only(path):
    with closing(sqlite3.connect(path)) as db:
        for change in ("UPDATE entry SET body = 1", "DELETE FROM entry"):
            with pytest.raises(sqlite3.IntegrityError, match="append only"):
                db.execute(change)
            db.rollback()


def full_disk(path, ledger, undo):
    pages = ledger._query("PRAGMA page_count")[0][0]
    ledger._query(f"PRAGMA max_page_count = {pages + 2}")


def files_no_longer_than(path, ledger, undo):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    undo.callback(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4096, limits[1]))


def read_only(path, ledger, undo):
    ledger._query("PRAGMA query_only = 1")


def moved(path, ledger, undo):
    elsewhere = path.with_name("moved.db")
    path.rename(elsewhere)
    undo.callback(elsewhere.rename, path)


def replaced(path, ledger, undo):
    moved(path, ledger, undo)
    Ledger.create(path, epsilon=1.0, delta=1e-6).close()


def busy(path, ledger, undo):
    ledger._query("PRAGMA busy_timeout = 50")
    undo.enter_context(closing(sqlite3.connect(path))).execute("BEGIN IMMEDIATE")


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (full_disk, r"disk is full.*nothing left the silo"),
        (files_no_longer_than, "nothing left the silo"),
        (read_only, "must stay in place and writable"),
        (moved, "must stay in place and writable"),
        (replaced, "must stay in place and writable"),
        (busy, "another process holds it"),
    ],
)
def test_a_write_that_fails_is_one_sentence_and_nothing_is_charged(path, trouble, sentence):
    with Ledger.open(path) as ledger, ExitStack() as undo:
        trouble(path, ledger, undo)
        with pytest.raises(LedgerError, match=sentence) as refusal:
            ask(ledger, "big", SECRET * 10_000)
        assert SECRET.decode() not in str(refusal.value)
    with pytest.raises(LedgerError, match="was closed; open it again"):
        ask(ledger)
    with Ledger.open(path) as reopened:
        assert reopened.spent().n_releases == 3
        assert ask(reopened, "big", b"later") == b"later"
        assert [entry.key for entry in reopened.entries()] == ["a", "b", "c", "big"]
