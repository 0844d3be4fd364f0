"""A ledger under kill -9, under other processes, and under readers who may not write.

Children are forked and open the ledger file for themselves; none uses its parent's connection.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from ledgers import KILLED, SECRET, ask, die, killed_at_commit, run

from fedpower.errors import BudgetError, LedgerError
from fedpower.privacy.accounting import mu_of
from fedpower.privacy.ledger import Ledger

NOBODY = 65534


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())  # which others may enter
    folder.chmod(0o755)
    with Ledger.create(folder / "north.ledger", epsilon=1.0, delta=1e-6, silo="north") as ledger:
        ask(ledger, "before", b"first")
    yield folder / "north.ledger"
    shutil.rmtree(folder)


def keys_in(path: Path) -> list[str]:
    with Ledger.open(path) as ledger:
        return [entry.key for entry in ledger.entries()]


@pytest.mark.parametrize("point", ["BEGIN", "SELECT seq", "payload", "INSERT", "COMMIT"])
def test_killed_before_the_commit_nothing_is_charged_and_nothing_is_kept(path, point):
    def body() -> None:
        ledger = Ledger.open(path)
        ledger._db.set_trace_callback(  # called before each statement is run
            lambda sql: die() if sql.startswith(point) else None
        )
        ask(ledger, "new", lambda: die() if point == "payload" else SECRET)

    assert run(body) == [KILLED]
    assert keys_in(path) == ["before"]
    with Ledger.open(path) as ledger:
        assert ask(ledger, "before", die) == b"first"
        assert ask(ledger, "new", b"fresh") == b"fresh"


def test_creation_that_is_killed_leaves_nothing_that_opens(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpower.privacy.ledger.Ledger._append", lambda *_: die())
    assert run(lambda: Ledger.create(tmp_path / "new.db", epsilon=1, delta=1e-6)) == [KILLED]
    with pytest.raises(LedgerError, match="is empty; if `fedpower ledger create` was interrupted"):
        Ledger.open(tmp_path / "new.db")


def test_processes_that_race_for_one_key_get_one_charge_and_the_same_bytes(path, tmp_path):
    def body(number: int) -> None:
        with Ledger.open(path) as ledger:
            sent = [ask(ledger, f"{key}", lambda: os.urandom(16), mu=0.01) for key in range(8)]
        (tmp_path / f"sent {number}").write_bytes(b"".join(sent))

    assert run(*(partial(body, number) for number in range(3))) == [0] * 3
    assert len({(tmp_path / f"sent {number}").read_bytes() for number in range(3)}) == 1
    assert len(keys_in(path)) == 1 + 8


def test_processes_that_race_to_overspend_get_exactly_what_fits(path):
    mu, n_fit = mu_of(1.0, 1e-6) / 5**0.5, 5

    def body(number: int) -> None:
        with Ledger.open(path) as ledger:
            for step in range(4):
                with suppress(BudgetError):
                    ask(ledger, f"{number} {step}", b"", mu=mu)

    with Ledger.open(path) as ledger:
        ledger.set_cap(ledger.what_if(1.0).epsilon, 1e-6)  # for what is in it already, and five more
    assert run(*(partial(body, number) for number in range(3))) == [0] * 3
    with Ledger.open(path) as ledger:
        assert ledger.spent().n_releases == 1 + n_fit
        assert ledger.spent().left == pytest.approx(0.0, abs=1e-9)


def test_a_connection_that_was_forked_is_refused_and_left_alone(path):
    def body(ledger: Ledger) -> None:
        ledger.close()
        try:
            ask(ledger, "child", die)
        except LedgerError as refusal:
            os._exit(0 if "open the ledger again" in str(refusal) else 1)

    with Ledger.open(path) as ledger:
        assert run(lambda: body(ledger)) == [0]
        assert ask(ledger, "parent", b"fine") == b"fine"


# --- looking: nothing is written, no permission to write is needed, nothing is released -----------------


def held_beside(path: Path) -> list[str]:
    return [file.name for file in path.parent.iterdir()]


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

    (ended,) = run(child)
    path.parent.chmod(0o755)
    return ended


def test_a_look_tells_what_an_opened_ledger_tells_and_releases_nothing(path):
    with Ledger.open(path) as opened, Ledger.open(path, read_only=True) as looked:
        assert looked.statement() == opened.statement()
        assert looked.what_if(0.5) == opened.what_if(0.5)
        assert looked.owner.silo == "north"
        with opened._transaction():  # no look waits for a writer that is not committing
            assert looked.spent().n_releases == 1
        for change in (lambda: ask(looked, "new"), lambda: looked.set_cap(2, 1e-6, reason="more")):
            with pytest.raises(LedgerError, match="writable but is not"):
                change()
    assert held_beside(path) == [path.name]
    assert keys_in(path) == ["before"]


def test_a_reader_who_may_not_write_can_look_and_cannot_open(path):
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


@pytest.mark.parametrize("looks", [True, False])
def test_a_change_that_was_cut_off_is_never_read_as_if_it_were_made(path, looks):
    """Killed with a spilled journal: a reader waits for the owner, who puts the file back."""
    assert run(lambda: killed_at_commit(Ledger.open(path), "new", SECRET * 50_000)) == [KILLED]
    journal = Path(f"{path}-journal").stat()
    assert journal.st_size > 0
    assert journal.st_mode & 0o777 == 0o600

    def body() -> None:
        with pytest.raises(LedgerError, match="must be at rest"):
            Ledger.open(path, read_only=True)

    assert as_a_reader(path, body) == 0
    path.chmod(0o600)
    if os.getuid() == 0:
        os.chown(path, 0, 0)
    with Ledger.open(path, read_only=looks) as ledger:
        assert [entry.key for entry in ledger.entries()] == ["before"]
    assert held_beside(path) == [path.name]
