"""A ledger's file: which are opened, and what it is under kill -9, other processes and readers."""

import hashlib
import json
import os
import resource
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest
from ledgers import KILLED, SECRET, ask, die, fork, killed_at_commit, run

from fedpower.exceptions import BudgetError, LedgerError
from fedpower.privacy.accounting import mu_of
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


def test_a_ledger_is_one_private_synced_file_whatever_the_umask_and_opens_again(tmp_path, monkeypatch):
    path = tmp_path / "x.db"
    before = os.umask(0o277)
    try:
        Ledger.create(path, epsilon=1, delta=1e-6, silo="north").close()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    for _ in range(2):
        with Ledger.open(path) as ledger:
            assert ask(ledger, "b", SECRET) == SECRET
            assert (ledger.owner.silo, ledger.spent().n_releases) == ("north", 1)
            assert ledger._query("PRAGMA synchronous") == [(3,)]
            assert ledger._query("PRAGMA journal_mode") == [("delete",)]
    monkeypatch.setattr("fedpower.privacy.ledger._SCHEMA", ["CREATE NONSENSE"])
    with pytest.raises(LedgerError):
        Ledger.create(tmp_path / "y.db", epsilon=1, delta=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == ["x.db"]


def test_creating_never_overwrites(path, tmp_path):
    before = path.read_bytes()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    for taken in (path, link, tmp_path):
        with pytest.raises(LedgerError, match="a new ledger must be a new file"):
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
        *((lambda path, text=text: path.write_bytes(text) and None, "damaged or not a ledger")
          for text in (b"not a database", b"x" * 8192)),
        *((lambda path, share=share: os.truncate(path, int(path.stat().st_size * share)), "damaged or not")
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
        with pytest.raises(LedgerError, match="release 'b' must be as it was first sent"):
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
        (read_only, "must stay in place and be writable"),
        (moved, "must stay in place and be writable"),
        (replaced, "must stay in place and be writable"),
        (busy, "another process uses it"),
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


# --- other processes: children are forked and open the file for themselves ------------------------------


NOBODY = 65534


@pytest.fixture
def shared() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())  # which others may enter
    folder.chmod(0o755)
    with Ledger.create(folder / "north.ledger", epsilon=1.0, delta=1e-6, silo="north") as ledger:
        ask(ledger, "before", b"first")
    yield folder / "north.ledger"
    shutil.rmtree(folder)


def keys_in(path: Path) -> list[str]:
    with Ledger.open(path) as ledger:
        return [entry.key for entry in ledger.entries()]


@pytest.mark.parametrize("point", ["BEGIN", "PRAGMA data_version", "payload", "INSERT", "COMMIT"])
def test_killed_before_the_commit_nothing_is_charged_and_nothing_is_kept(shared, point):
    def body() -> None:
        ledger = Ledger.open(shared)
        ledger._db.set_trace_callback(  # called before each statement is run
            lambda sql: die() if sql.startswith(point) else None
        )
        ask(ledger, "new", lambda: die() if point == "payload" else SECRET)

    assert run(body) == [KILLED]
    assert keys_in(shared) == ["before"]
    with Ledger.open(shared) as ledger:
        assert ask(ledger, "before", die) == b"first"
        assert ask(ledger, "new", b"fresh") == b"fresh"


@pytest.mark.slow
def test_killed_at_any_moment_all_that_left_is_charged_and_comes_again(shared, tmp_path):
    log = tmp_path / "left.jsonl"

    def body() -> None:
        with Ledger.open(shared) as ledger, log.open("a") as left:
            for step in range(ledger.spent().n_releases, 10_000):
                sent = ask(ledger, f"{step}", lambda: os.urandom(20_000), mu=1e-3)
                left.write(json.dumps([f"{step}", hashlib.sha256(sent).hexdigest()]) + "\n")
                left.flush()

    for trial in range(12):
        child = fork.Process(target=body)
        child.start()
        time.sleep(0.05 + 0.0137 * trial)
        child.kill()
        child.join()
        left = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        charged = set(keys_in(shared)) - {"before"}
        assert {key for key, _ in left} <= charged
        assert len(charged) <= len(left) + trial + 1
        with Ledger.open(shared) as ledger:
            for key, digest in left[-5:]:
                assert hashlib.sha256(ask(ledger, key, die, mu=1e-3)).hexdigest() == digest
    assert left


def test_creation_that_is_killed_leaves_nothing_that_opens(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpower.privacy.ledger.Ledger._append", lambda *_: die())
    assert run(lambda: Ledger.create(tmp_path / "new.db", epsilon=1, delta=1e-6)) == [KILLED]
    with pytest.raises(LedgerError, match="is empty; if `fedpower ledger create` was interrupted"):
        Ledger.open(tmp_path / "new.db")


def test_processes_that_race_for_one_key_get_one_charge_and_the_same_bytes(shared, tmp_path):
    def body(number: int) -> None:
        with Ledger.open(shared) as ledger:
            sent = [ask(ledger, f"{key}", lambda: os.urandom(16), mu=0.01) for key in range(8)]
        (tmp_path / f"sent {number}").write_bytes(b"".join(sent))

    assert run(*(partial(body, number) for number in range(3))) == [0] * 3
    assert len({(tmp_path / f"sent {number}").read_bytes() for number in range(3)}) == 1
    assert len(keys_in(shared)) == 1 + 8


def test_what_others_add_or_change_is_seen_by_a_ledger_that_is_open(shared):
    with Ledger.open(shared) as one, Ledger.open(shared) as other:
        ask(one, "mine")
        assert ask(other, "theirs") == ask(one, "theirs", die) == SECRET
        assert one.spent() == other.spent() != Ledger.in_memory(1.0, 1e-6).spent()
        tamper(shared, EDITS[0].replace("4", "3"))
        with pytest.raises(LedgerError, match="is damaged"):
            ask(one, "more", die)


def test_processes_that_race_to_overspend_get_exactly_what_fits(shared):
    mu, n_fit = mu_of(1.0, 1e-6) / 5**0.5, 5

    def body(number: int) -> None:
        with Ledger.open(shared) as ledger:
            for step in range(4):
                with suppress(BudgetError):
                    ask(ledger, f"{number} {step}", b"", mu=mu)

    with Ledger.open(shared) as ledger:
        ledger.set_cap(ledger.what_if(1.0).epsilon, 1e-6)  # for what is in it already, and five more
    assert run(*(partial(body, number) for number in range(3))) == [0] * 3
    with Ledger.open(shared) as ledger:
        assert ledger.spent().n_releases == 1 + n_fit
        assert ledger.spent().left == pytest.approx(0.0, abs=1e-9)


def test_a_connection_that_was_forked_is_refused_and_left_alone(shared):
    def body(ledger: Ledger) -> None:
        ledger.close()
        try:
            ask(ledger, "child", die)
        except LedgerError as refusal:
            os._exit(0 if "open it again" in str(refusal) else 1)

    with Ledger.open(shared) as ledger:
        assert run(lambda: body(ledger)) == [0]
        assert ask(ledger, "parent", b"fine") == b"fine"


# --- looking: nothing is written, no permission to write is needed, nothing is released -----------------


def held_beside(path: Path) -> list[str]:
    return [file.name for file in path.parent.iterdir()]


def as_a_reader(shared: Path, body: Callable[[], None]) -> int | None:
    shared.chmod(0o400)
    if os.getuid() == 0:  # root may write everything, so the owner is somebody else
        os.chown(shared, NOBODY, NOBODY)
    shared.parent.chmod(0o555)

    def child() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        body()

    (ended,) = run(child)
    shared.parent.chmod(0o755)
    return ended


def test_a_look_tells_what_an_opened_ledger_tells_and_releases_nothing(shared):
    with Ledger.open(shared) as opened, Ledger.open(shared, read_only=True) as looked:
        assert looked.statement() == opened.statement()
        assert looked.what_if(0.5) == opened.what_if(0.5)
        assert looked.owner.silo == "north"
        with opened._transaction():  # no look waits for a writer that is not committing
            assert looked.spent().n_releases == 1
        for change in (lambda: ask(looked, "new"), lambda: looked.set_cap(2, 1e-6, reason="more")):
            with pytest.raises(LedgerError, match="must stay in place"):
                change()
    assert held_beside(shared) == [shared.name]
    assert keys_in(shared) == ["before"]


def test_a_reader_who_may_not_write_can_look_and_cannot_open(shared):
    def body() -> None:
        with Ledger.open(shared, read_only=True) as ledger:
            assert held_beside(shared) == [shared.name]
            assert ledger.spent().n_releases == 1
        with pytest.raises(LedgerError, match="must be writable"):
            Ledger.open(shared)

    before = shared.read_bytes()
    assert as_a_reader(shared, body) == 0
    assert held_beside(shared) == [shared.name]
    assert shared.read_bytes() == before


@pytest.mark.parametrize("looks", [True, False])
def test_a_change_that_was_cut_off_is_never_read_as_if_it_were_made(shared, looks):
    """Killed with a spilled journal: a reader waits for the owner, who puts the file back."""
    assert run(lambda: killed_at_commit(Ledger.open(shared), "new", SECRET * 50_000)) == [KILLED]
    journal = Path(f"{shared}-journal").stat()
    assert journal.st_size > 0
    assert journal.st_mode & 0o777 == 0o600

    def body() -> None:
        with pytest.raises(LedgerError, match="must be complete"):
            Ledger.open(shared, read_only=True)

    assert as_a_reader(shared, body) == 0
    shared.chmod(0o600)
    if os.getuid() == 0:
        os.chown(shared, 0, 0)
    with Ledger.open(shared, read_only=looks) as ledger:
        assert [entry.key for entry in ledger.entries()] == ["before"]
    assert held_beside(shared) == [shared.name]
