"""A look at a ledger writes nothing, needs no permission to write, and releases nothing."""

import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedpower.errors import LedgerError
from fedpower.privacy.ledger import Ledger

fork = multiprocessing.get_context("fork")
NOBODY = 65534


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    with Ledger.create(folder / "n.ledger", epsilon=1.0, delta=1e-6, silo="north") as ledger:
        ask(ledger, "before")
    yield folder / "n.ledger"
    shutil.rmtree(folder)


def held_beside(path: Path) -> list[str]:
    return [each.name for each in path.parent.iterdir()]


def ask(ledger: Ledger, key: str, payload: bytes = b"noised") -> bytes:
    return ledger.release(key=key, purpose="moment", study="s", mu=0.1, payload=lambda: payload)


def as_a_reader(path: Path, body: Callable[[], None]) -> int | None:
    path.chmod(0o400)
    if os.getuid() == 0:  # root may write everything, so the owner is somebody else
        os.chown(path, NOBODY, NOBODY)
    path.parent.chmod(0o555)

    def child() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        body()

    process = fork.Process(target=child)
    process.start()
    process.join(30)
    path.parent.chmod(0o755)
    return process.exitcode


def cut_off_a_change(path: Path) -> None:

    def body() -> None:
        ledger = Ledger.open(path)
        ledger._store.query("PRAGMA cache_size = 1")  # pages reach the file before the commit
        ledger._store._db.set_trace_callback(
            lambda sql: os.kill(os.getpid(), signal.SIGKILL) if sql == "COMMIT" else None
        )
        ask(ledger, "new", b"noised" * 10_000)

    process = fork.Process(target=body)
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert Path(f"{path}-journal").exists()


def test_a_look_tells_what_an_opened_ledger_tells(path: Path):
    with Ledger.open(path) as opened, Ledger.open(path, read_only=True) as looked:
        assert looked.statement() == opened.statement()
        assert looked.what_if(0.5) == opened.what_if(0.5)
        assert looked.silo == "north"


def test_a_reader_who_may_not_write_can_look_and_cannot_open(path: Path):
    def body() -> None:
        with Ledger.open(path, read_only=True) as ledger:
            assert held_beside(path) == [path.name]
            assert ledger.spent().n_releases == 1
        with pytest.raises(LedgerError, match="must be writable"):
            Ledger.open(path)

    before = path.read_bytes()
    assert as_a_reader(path, body) == 0
    assert held_beside(path) == [path.name]
    assert path.read_bytes() == before


def test_a_look_releases_nothing(path: Path):
    with Ledger.open(path, read_only=True) as ledger:
        for change in (lambda: ask(ledger, "new"), lambda: ledger.set_cap(2, 1e-6, reason="more")):
            with pytest.raises(LedgerError, match="writable but is not"):
                change()
        assert held_beside(path) == [path.name]
        assert ledger.spent().n_releases == 1


def test_a_change_that_was_cut_off_is_never_read_as_if_it_were_made(path: Path):
    cut_off_a_change(path)

    def body() -> None:
        with pytest.raises(LedgerError, match="must be at rest"):
            Ledger.open(path, read_only=True)

    assert as_a_reader(path, body) == 0
    path.chmod(0o600)
    if os.getuid() == 0:
        os.chown(path, 0, 0)
    with Ledger.open(path, read_only=True) as ledger:  # the owner's look undoes the change
        assert [entry.key for entry in ledger.entries()] == ["before"]
    assert held_beside(path) == [path.name]


def test_a_look_waits_for_no_writer_that_is_not_committing(path: Path):
    with (
        Ledger.open(path) as writer,
        writer._store.transaction("IMMEDIATE"),
        Ledger.open(path, read_only=True) as ledger,
    ):
        assert ledger.spent().n_releases == 1
