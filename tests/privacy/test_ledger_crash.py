"""A ledger under kill -9 and under other processes.

Children are forked and open the ledger file for themselves; none uses its parent's connection.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpower.errors import BudgetError, LedgerError
from fedpower.privacy.accounting import mu_of
from fedpower.privacy.ledger import Ledger

fork = multiprocessing.get_context("fork")
KILLED = -signal.SIGKILL
SECRET = b"secret-noised-bytes" * 500


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(*bodies: Callable[[], None]) -> list[int | None]:
    children = [fork.Process(target=body) for body in bodies]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    return [child.exitcode for child in children]


def ask(ledger: Ledger, key: str, payload: Callable[[], bytes], mu: float = 0.1) -> bytes:
    return ledger.release(key=key, purpose="moment", study="s", mu=mu, payload=payload)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.create(path, epsilon=1.0, delta=1e-6) as ledger:
        ask(ledger, "before", lambda: b"first")
    return path


@pytest.mark.parametrize("point", ["BEGIN", "SELECT", "payload", "INSERT", "COMMIT"])
def test_killed_before_the_commit_nothing_is_charged_and_nothing_is_kept(path, point):
    def body() -> None:
        ledger = Ledger.open(path)
        ledger._store._db.set_trace_callback(  # called before each statement is run
            lambda sql: die() if sql.startswith(point) and "SELECT 1" not in sql else None
        )
        ask(ledger, "new", lambda: die() if point == "payload" else SECRET)

    assert run(body) == [KILLED]
    with Ledger.open(path) as ledger:
        assert [entry.key for entry in ledger.entries()] == ["before"]
        assert ask(ledger, "before", die) == b"first"
        assert ask(ledger, "new", lambda: b"fresh") == b"fresh"


def test_killed_with_a_spilled_journal_the_file_is_put_back(path):
    def body() -> None:
        ledger = Ledger.open(path)
        ledger._store.query("PRAGMA cache_size = 1")  # pages reach the file before the commit
        ledger._store._db.set_trace_callback(lambda sql: die() if sql == "COMMIT" else None)
        ask(ledger, "new", lambda: SECRET * 100)

    assert run(body) == [KILLED]
    journal = Path(f"{path}-journal").stat()
    assert journal.st_size > 0
    assert journal.st_mode & 0o777 == 0o600
    with Ledger.open(path) as ledger:
        assert [entry.key for entry in ledger.entries()] == ["before"]
    assert not Path(f"{path}-journal").exists()


def test_killed_right_after_the_commit_the_same_bytes_come_again(path):
    def body() -> None:
        ledger = Ledger.open(path)
        ask(ledger, "new", lambda: SECRET)
        die()

    assert run(body) == [KILLED]
    with Ledger.open(path) as ledger:
        assert ask(ledger, "new", die) == SECRET
        assert ledger.spent().n_releases == 2


@pytest.mark.slow
def test_killed_at_any_moment_all_that_left_is_charged_and_comes_again(path, tmp_path):
    log = tmp_path / "left.jsonl"

    def body() -> None:
        with Ledger.open(path) as ledger, log.open("a") as left:
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
        with Ledger.open(path) as ledger:
            left = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            charged = {key for (key,) in ledger._store.query("SELECT key FROM release")} - {"before"}
            assert {key for key, _ in left} <= charged
            assert len(charged) <= len(left) + trial + 1
            for key, digest in left[-5:]:
                assert hashlib.sha256(ask(ledger, key, die, 1e-3)).hexdigest() == digest
    assert left


def test_creation_that_is_killed_leaves_nothing_that_opens(tmp_path, monkeypatch):
    path = tmp_path / "new.db"

    def body() -> None:
        monkeypatch.setattr("fedpower.privacy.ledger_store.Store._initialise", lambda *_, **__: die())
        Ledger.create(path, epsilon=1, delta=1e-6)

    assert run(body) == [KILLED]
    with pytest.raises(LedgerError, match="is empty; if `fedpower ledger create` was interrupted"):
        Ledger.open(path)


def test_processes_that_race_for_one_key_get_one_charge_and_the_same_bytes(path, tmp_path):
    def racer(number: int) -> Callable[[], None]:
        def body() -> None:
            with Ledger.open(path) as ledger:
                sent = [ask(ledger, f"{key}", lambda: os.urandom(16), 0.01) for key in range(8)]
            (tmp_path / f"sent {number}").write_bytes(b"".join(sent))

        return body

    assert run(*(racer(number) for number in range(4))) == [0] * 4
    assert len({(tmp_path / f"sent {number}").read_bytes() for number in range(4)}) == 1
    with Ledger.open(path) as ledger:
        assert ledger.spent().n_releases == 1 + 8


def test_processes_that_race_to_overspend_get_exactly_what_fits(tmp_path):
    path, n_fit = tmp_path / "race.db", 5
    mu = mu_of(1.0, 1e-6) / n_fit**0.5
    Ledger.create(path, epsilon=1.0, delta=1e-6).close()

    def racer(number: int) -> Callable[[], None]:
        def body() -> None:
            with Ledger.open(path) as ledger:
                for step in range(4):
                    try:
                        ask(ledger, f"{number} {step}", lambda: b"", mu)
                    except BudgetError:
                        continue

        return body

    assert run(*(racer(number) for number in range(3))) == [0] * 3
    with Ledger.open(path) as ledger:
        assert ledger.spent().n_releases == n_fit
        assert ledger.spent().epsilon <= 1 + 1e-9


def test_a_connection_that_was_forked_is_refused_and_left_alone(path):
    def body(ledger: Ledger) -> None:
        ledger.close()
        try:
            ask(ledger, "child", die)
        except LedgerError as refusal:
            os._exit(0 if "open the ledger again" in str(refusal) else 1)

    with Ledger.open(path) as ledger:
        assert run(lambda: body(ledger)) == [0]
        assert ask(ledger, "parent", lambda: b"fine") == b"fine"
