"""The audit log of a silo: what it tells, that no change goes unnoticed, and that kill -9 loses nothing."""

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from sqlite3 import connect

import msgspec
import pytest
from ledgers import KILLED, ask, die, fork, run

from fedpower.exceptions import LedgerError
from fedpower.federation import events
from fedpower.federation.events import EventLog, log_folder, verify
from fedpower.privacy.ledger import Ledger, LogHead, _seal_of


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=1.0, delta=1e-6, silo="north").close()
    return path


@pytest.fixture
def folder(path) -> Path:
    """A log of twelve lines, of which 1, 2, 6 and 10 are about entries of the ledger."""
    with Ledger.open(path) as ledger:
        log = EventLog(log_folder(path), ledger)
        for round in range(4):
            log.add("asked", study="s", run="r", round=round)
            ask(ledger, f"{round // 2}")
            log.add("sent", study="s", run="r", round=round, bytes=40)
    return log_folder(path)


def add(path: Path, event: str, **facts) -> None:
    with Ledger.open(path) as ledger:
        EventLog(log_folder(path), ledger).add(event, **facts)


def check(path: Path, folder: Path | None = None):
    with Ledger.open(path, read_only=True) as ledger:
        return verify(folder or log_folder(path), ledger)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def lines_in(folder: Path) -> list[dict]:
    return [json.loads(line) for file in files_in(folder) for line in file.read_bytes().splitlines()]


def refused(path: Path, match: str) -> None:
    with pytest.raises(LedgerError, match=match) as refusal:
        check(path)
    assert "\n" not in str(refusal.value)


# --- what it tells ----------------------------------------------------------------------------------


def test_each_event_is_one_line_and_each_entry_of_the_ledger_exactly_one(path, folder):
    lines = lines_in(folder)
    assert [line["seq"] for line in lines] == list(range(1, 13))
    assert [line["event"] for line in lines] == [
        *("cap", "owner", "asked", "charged", "sent", "asked", "sent"),
        *("asked", "charged", "sent", "asked", "sent"),
    ]
    with Ledger.open(path, read_only=True) as ledger:
        recorded = ledger.sealed()
    told = [line["entry"] for line in lines if line["entry"]]
    assert told == [{"number": number, "seal": seal} for number, seal, _ in recorded]
    charge, sent = lines[3], lines[4]
    assert charge["facts"] == {"key": "0", "purpose": "covariance", "mu": 0.1, "slack_delta": 0.0}
    assert (charge["study"], sent["study"], sent["run"], sent["round"]) == ("s", "s", "r", 0)
    assert sent["facts"] == {"bytes": 40}


def test_the_log_is_private_and_beside_its_ledger(path, folder):
    assert folder == path.with_name("north.log")
    assert log_folder(path.with_name("o.db")).name == "o.db.log"
    assert [file.name for file in files_in(folder)] == ["events-000001.jsonl"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert files_in(folder)[0].stat().st_mode & 0o777 == 0o600


def test_a_sound_log_is_found_sound_and_only_read(path, folder):
    before = {file: file.read_bytes() for file in [path, *files_in(folder)]}
    found = check(path)
    assert (found.first_line, found.last_line, found.files, found.entries_without_line) == (1, 12, 1, 0)
    with Ledger.open(path) as ledger:
        assert found.hash_of_last_line == ledger.log_head.digest
    assert {file: file.read_bytes() for file in before} == before


def test_a_ledger_that_was_used_before_there_was_a_log_gets_lines_for_all_it_has(path):
    with Ledger.open(path) as ledger:
        for key in "abc":
            ask(ledger, key)
    assert check(path) is None
    add(path, "started")
    assert [line["event"] for line in lines_in(log_folder(path))] == [
        "cap", "owner", *["charged"] * 3, "started",
    ]  # fmt: skip
    with Ledger.open(path) as ledger:
        ledger.set_cap(2.0, 1e-6, reason="more")
    assert check(path).entries_without_line == 1
    add(path, "stopped")
    assert check(path).entries_without_line == 0


# --- what is noticed --------------------------------------------------------------------------------


def edited(edit: Callable[[list[bytes]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (file,) = files_in(folder)
        lines = file.read_bytes().splitlines(keepends=True)
        edit(lines)
        file.write_bytes(b"".join(lines))

    return spoil


def swap(lines: list[bytes]) -> None:
    lines[4], lines[5] = lines[5], lines[4]


def replace(lines: list[bytes], number: int, old: bytes, new: bytes) -> None:
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        *((partial(replace, number=number, old=b'"seq"', new=b' "seq"'), f"line {number} .* was changed")
          for number in range(1, 13)),
        (partial(replace, number=4, old=b"0.1", new=b"0.2"), "line 4 .* was changed"),
        (partial(replace, number=4, old=b"covariance", new=b"\xff\xfe"), "line 4 .* was changed"),
        (partial(replace, number=12, old=b"\n", new=b""), "line 12 .* was changed"),
        (partial(replace, number=7, old=b"\n", new=b"\n\n"), "line 7 .* was changed"),
        (lambda lines: lines.pop(0), "must begin with line 1 but begins with line 2"),
        (lambda lines: lines.pop(5), "line 6 .* but line 5 is in its place"),
        (lambda lines: lines.pop(), "line 12 .* but line 11 is in its place"),
        (lambda lines: lines.clear(), "must begin with line 1 but begins with line 13"),
        (swap, "line 6 .* but line 5 is in its place"),
        (lambda lines: lines.insert(5, lines[4]), "line 4 .* but line 5 is in its place"),
        (lambda lines: lines.insert(0, lines[0]), "line 0 .* but line 1 is in its place"),
        (lambda lines: lines.append(lines[11].replace(b":12", b":13")), "line 12 .* but line 13"),
        (lambda lines: lines.append(b"{}"), "line 12 .* was changed"),
    ],
)  # fmt: skip
def test_a_line_that_was_removed_changed_moved_or_added_is_found(path, folder, edit, sentence):
    edited(edit)(folder)
    refused(path, sentence)


def test_a_flipped_bit_anywhere_is_found(path, folder):
    (file,) = files_in(folder)
    whole = file.read_bytes()
    for position in range(0, len(whole), 41):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        refused(path, "line")
    file.write_bytes(whole)
    check(path)


def test_a_log_that_is_gone_or_of_another_ledger_is_found(path, folder, tmp_path):
    other = tmp_path / "south.ledger"
    Ledger.create(other, epsilon=1.0, delta=1e-6, silo="south").close()
    shutil.copytree(folder, log_folder(other))
    refused(other, "which has no record of it")
    with pytest.raises(LedgerError, match="older copy"):
        add(other, "started")
    shutil.rmtree(folder)
    refused(path, "line 12 of the log must be in .* but its file was removed")
    shutil.copytree(log_folder(other), folder)
    check(path)


def forge(path: Path, *statements: str) -> None:
    """Change a ledger and seal it again, as somebody could who has its file."""
    with closing(connect(path)) as db, db:
        for change in ("update", "delete"):
            db.execute(f"DROP TRIGGER no_{change}")
        for statement in statements:
            db.execute(statement)
        seal = ""
        for number, body in db.execute("SELECT seq, body FROM entry ORDER BY seq").fetchall():
            seal = _seal_of(seal, body)
            db.execute("UPDATE entry SET seal = ? WHERE seq = ?", (seal, number))


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE entry SET body = replace(body, '0.1', '0.01') WHERE seq = 3", "line 9 .* entry 4 .* is not"),
        ("UPDATE entry SET body = replace(body, '0.1', '0.01') WHERE seq = 4", "line 9 .* entry 4 .* is not"),
        ("DELETE FROM entry WHERE seq = 4", "must have 4 entries, as its log does, but has 3"),
        ("DELETE FROM log", "which has no record of it"),
        ("DROP TABLE log", "damaged"),
        ("UPDATE log SET head = 'x'", "damaged"),
    ],
)
def test_a_ledger_that_was_changed_and_sealed_again_does_not_fit_its_log(path, folder, statement, sentence):
    forge(path, statement)
    refused(path, sentence)


def test_an_entry_with_two_lines_is_found_though_every_hash_fits(path, folder, monkeypatch):
    with Ledger.open(path) as ledger:
        ask(ledger, "more")
        recorded = ledger.sealed(after=3)
        monkeypatch.setattr(ledger, "sealed", lambda after: recorded[:1])
        EventLog(folder, ledger).add("sent")
    refused(path, "line 13 .* must be about entry 5")


def test_an_entry_without_a_line_is_found_though_every_hash_fits(path, monkeypatch):
    with Ledger.open(path) as ledger:
        monkeypatch.setattr(ledger, "sealed", lambda after: [])
        EventLog(log_folder(path), ledger).add("started")
        ledger.move_log_head(lambda head: msgspec.structs.replace(head, entries=2))
    refused(path, "entry 2 of the ledger must have a line")


def test_an_older_copy_of_the_ledger_is_noticed_before_anything_is_added(path, folder, tmp_path):
    shutil.copy(path, tmp_path / "copy")
    add(path, "started")
    shutil.copy(tmp_path / "copy", path)
    refused(path, "line 12 .* but line 13 is in its place")
    with pytest.raises(
        LedgerError, match=r"line 12, .* but goes on: the ledger is an older copy, or somebody"
    ):
        add(path, "started")


def test_an_older_copy_is_noticed_also_where_only_the_newest_file_of_the_log_is_left(
    path, tmp_path, monkeypatch
):
    monkeypatch.setattr(events, "MOST_BYTES", 700)
    for number in range(12):
        if number == 6:
            shutil.copy(path, tmp_path / "copy")
        add(path, "asked", number=number)
    for file in files_in(log_folder(path))[:-1]:
        file.unlink()
    shutil.copy(tmp_path / "copy", path)
    before = files_in(log_folder(path))
    with pytest.raises(LedgerError, match="put back the newest ledger, and never go on with an older one"):
        add(path, "started")
    assert files_in(log_folder(path)) == before


def test_a_ledger_that_lost_entries_is_noticed_before_anything_is_added(path, folder):
    with connect(path) as database:
        database.execute("DROP TRIGGER no_delete")
        database.execute("DELETE FROM entry WHERE seq = 4")
    with pytest.raises(LedgerError, match="must have 4 entries, as its log does, but has 3"):
        add(path, "started")


# --- files ------------------------------------------------------------------------------------------


@pytest.fixture
def rotated(path, monkeypatch) -> Path:
    monkeypatch.setattr(events, "MOST_BYTES", 700)
    for number in range(12):
        add(path, "asked", number=number)
    return log_folder(path)


def test_a_file_ends_when_it_is_full_and_the_chain_goes_on_in_the_next(path, rotated):
    files = files_in(rotated)
    assert len(files) > 3
    for file in files:
        first = json.loads(file.read_bytes().splitlines()[0])["seq"]
        assert file.name == f"events-{first:06}.jsonl"
    assert check(path).files == len(files)
    assert [line["seq"] for line in lines_in(rotated)] == list(range(1, 15))


def test_old_files_may_be_kept_elsewhere_but_a_gap_is_found(path, rotated, tmp_path):
    first, second, *later = files_in(rotated)
    archive = tmp_path / "archive"
    shutil.copytree(rotated, archive)
    first.unlink()
    assert check(path).first_line == int(second.stem[-6:])
    assert check(path, archive).first_line == 1
    lines = second.read_bytes().splitlines(keepends=True)
    second.write_bytes(b"".join(lines[1:]))
    refused(path, rf"must begin with line {int(second.stem[-6:])} ")
    shutil.copy(archive / first.name, first)
    second.unlink()
    refused(path, rf"line {int(later[0].stem[-6:]) - 1} .* but line {int(second.stem[-6:]) - 1} ")


def test_where_the_log_was_damaged_the_operator_moves_its_files_away_and_it_goes_on(path, folder):
    (file,) = files_in(folder)
    os.truncate(file, 1000)
    before = file.read_bytes()
    with pytest.raises(LedgerError, match="move the files of the log to a safe place"):
        add(path, "started")
    assert file.read_bytes() == before
    file.unlink()
    add(path, "started")
    assert [file.name for file in files_in(folder)] == ["events-000013.jsonl"]
    assert check(path).first_line == 13
    gone, _ = lines_in(folder)
    assert (gone["event"], gone["facts"]) == ("file of the log was gone", {"file": "events-000001.jsonl"})


def test_a_folder_that_cannot_be_written_is_one_sentence(path, tmp_path):
    with (
        Ledger.open(path) as ledger,
        pytest.raises(LedgerError, match="must be a folder that can be written"),
    ):
        EventLog(path, ledger).add("started")
    assert check(path) is None


# --- several processes, and kill -9 -----------------------------------------------------------------


def test_processes_that_write_at_once_make_one_chain(path, monkeypatch):
    monkeypatch.setattr(events, "MOST_BYTES", 4000)

    def body(name: int) -> None:
        with Ledger.open(path) as ledger:
            log = EventLog(log_folder(path), ledger)
            for step in range(8):
                ask(ledger, f"{name} {step}", mu=0.01)
                log.add("sent", name=name, step=step)

    assert run(*(partial(body, name) for name in range(3))) == [0] * 3
    found = check(path)
    assert (found.first_line, found.last_line, found.entries_without_line) == (1, 2 + 2 * 24, 0)
    sent = [line["facts"] for line in lines_in(log_folder(path)) if line["event"] == "sent"]
    for name in range(3):
        assert [it["step"] for it in sent if it["name"] == name] == list(range(8))


def test_a_line_is_added_without_reading_the_log_or_all_of_the_ledger(path, folder, monkeypatch):
    statements: list[str] = []
    with Ledger.open(path) as ledger:
        log = EventLog(folder, ledger)
        add(path, "renewed")  # by another process
        ledger._db.set_trace_callback(statements.append)
        monkeypatch.setattr(Path, "read_bytes", die)
        log.add("started")
    assert [sql for sql in statements if "FROM entry" in sql] == [
        "SELECT max(seq) FROM entry",
        "SELECT seq, seal, body FROM entry WHERE seq > 4 ORDER BY seq",
    ]


def killed_at(path: Path, moment: int) -> bool:
    """Charge and add a line in a process that dies at its n-th step on the disk; return whether it did."""

    def body() -> None:
        steps = iter(range(moment, -1, -1))

        def step(*_: object) -> None:
            if next(steps, 0) == 0:
                die()

        with Ledger.open(path) as ledger:
            log = EventLog(log_folder(path), ledger)
            log._write = lambda head: (step(), EventLog._write(log, head), step())  # type: ignore[method-assign]
            ledger._db.set_trace_callback(step)
            ask(ledger, f"{moment}", mu=1e-3)
            log.add("sent", number=moment)
            os._exit(0)

    (ended,) = run(body)
    assert ended in (0, KILLED)
    return ended == KILLED


def test_killed_at_any_step_the_log_is_sound_and_the_next_line_completes_it(path, folder):
    moment = 0
    while killed_at(path, moment):
        before = check(path)
        assert before.entries_without_line <= 1
        add(path, "started", number=moment)
        assert check(path).entries_without_line == 0
        moment += 1
    assert moment > 12
    lines = lines_in(folder)
    charged = [line["facts"]["key"] for line in lines if line["event"] == "charged"]
    with Ledger.open(path) as ledger:
        assert charged == [entry.key for entry in ledger.entries()]
    sent = [line["facts"]["number"] for line in lines[12:] if line["event"] == "sent"]
    assert len(set(sent)) == len(sent)
    assert lines[-1]["facts"] == {"number": moment}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_half_written_end_is_sound_and_is_completed(path, folder, share, is_new, monkeypatch):
    monkeypatch.setattr(events, "MOST_BYTES", 1 if is_new else 10**6)
    ended = []
    with Ledger.open(path) as ledger:
        ask(ledger, "new")
        log = EventLog(folder, ledger)
        monkeypatch.setattr(
            log, "_write", lambda head: (EventLog._write(log, head), ended.append(head), 1 / 0)
        )
        with pytest.raises(ZeroDivisionError):
            log.add("sent")
    head: LogHead = ended[0]
    file = files_in(folder)[-1]
    os.truncate(file, head.start + int(share * len(head.unwritten)))
    assert check(path).last_line == 14
    if is_new and not share:
        file.unlink()
        assert check(path).last_line == 14
    add(path, "started")
    assert [line["event"] for line in lines_in(folder)][11:] == ["sent", "charged", "sent", "started"]
    assert check(path).last_line == 15
    os.truncate(file, 10)
    refused(path, "line")


def test_a_file_that_was_emptied_is_noticed_before_another_line(path, folder):
    with Ledger.open(path) as ledger:
        log = EventLog(folder, ledger)
        log.add("started")
        assert log.is_sound
        os.truncate(files_in(folder)[-1], 0)
        assert not log.is_sound
        with pytest.raises(LedgerError, match="must end where its ledger says but does not"):
            log.add("stopped")


@pytest.mark.slow
def test_killed_again_and_again_no_line_that_was_added_is_lost_and_no_charge_has_two(path, tmp_path):
    acknowledged = tmp_path / "added"

    def body(name: str) -> None:
        with Ledger.open(path) as ledger, acknowledged.open("a") as added:
            log = EventLog(log_folder(path), ledger)
            for step in range(10_000):
                if name == "vault":
                    ask(ledger, f"{os.getpid()} {step}", mu=1e-4)
                log.add("sent", name=f"{name} {os.getpid()} {step}")
                added.write(f"{name} {os.getpid()} {step}\n")
                added.flush()

    with Ledger.open(path) as ledger:
        ask(ledger, "first", mu=1e-4)  # which imports what the children need
    for trial in range(15):
        children = [fork.Process(target=body, args=(name,)) for name in ("vault", "approve")]
        for child in children:
            child.start()
        time.sleep(0.2 + 0.0137 * trial)
        for child in children:
            child.kill()
            child.join()
        check(path)
    add(path, "stopped")
    found, lines = check(path), lines_in(log_folder(path))
    assert (found.first_line, found.last_line, found.entries_without_line) == (1, len(lines), 0)
    sent = [line["facts"]["name"] for line in lines if line["event"] == "sent"]
    assert len(set(sent)) == len(sent)
    assert set(acknowledged.read_text().splitlines()) <= set(sent)
    with Ledger.open(path) as ledger:
        charged = [line["facts"]["key"] for line in lines if line["event"] == "charged"]
        assert charged == [entry.key for entry in ledger.entries()]
    assert min(len(charged), len([name for name in sent if name.startswith("approve")])) > 15
