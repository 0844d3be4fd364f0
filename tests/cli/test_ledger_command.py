"""`fedpower ledger` makes, shows and changes a ledger."""

import json
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from hospitals import PRIVATE, run, succeed

from fedpower.federation.events import EventLog
from fedpower.privacy import Ledger
from fedpower.sums.survey import STAGES

CAP = ("--epsilon", 2, "--delta", 1e-6)


@pytest.fixture
def used(here: Path) -> Path:
    succeed("ledger", "create", "safe/north.ledger", *CAP)
    said = succeed("ledger", "show", "safe/north.ledger").stdout
    assert said == "Spent ε = 0.00 of 2.00; the next fit may use up to 2.\n"
    succeed("fit", "north.csv", *PRIVATE, "--ledger", "safe", "-o", "out")
    return here / "safe" / "north.ledger"


@pytest.mark.parametrize(
    ("words", "owner"), [(["north.ledger"], "north"), (["o.db"], None), (["o.db", "--silo", "west"], "west")]
)
def test_a_new_ledger_is_private_and_named_after_its_file(here, words, owner):
    made = json.loads(succeed("ledger", "create", *words, *CAP, "--json").stdout)
    assert (made["ledger"], made["silo"], made["cap"]) == (words[0], owner, {"epsilon": 2, "delta": 1e-6})
    assert stat.S_IMODE(Path(words[0]).stat().st_mode) == 0o600
    with Ledger.open(words[0]) as opened:
        assert opened.owner.silo == owner


def test_what_is_shown_is_the_ledgers_statement_and_charges_nothing(used):
    said = succeed("ledger", "show", used).stdout
    assert said.startswith("Spent ε = 1.00 of 2.00; the next fit may use up to 1.67.\n")
    assert "covariance" in said
    assert "would be refused" in succeed("ledger", "show", used, "--what-if", 1.9).stdout
    assert "is allowed and would leave" in succeed("ledger", "show", used, "--what-if", 1).stdout
    with Ledger.open(used) as opened:
        statement = opened.statement()
        assert opened.spent().n_releases == 1
    assert json.loads(succeed("ledger", "show", "--json", used).stdout) == statement
    reported = json.loads(succeed("ledger", "show", used, "--json", "--what-if", 1).stdout)
    assert reported.pop("what_if")["fits"] is True
    assert reported == statement


def test_releases_are_called_by_what_they_measure_and_keep_their_names_in_json(here):
    succeed("ledger", "create", "north.ledger", *CAP)
    succeed("fit", "north.csv", "-k", 2, "--epsilon", 1, "--ledger", "north.ledger", "-o", "out")
    said = succeed("ledger", "show", "north.ledger").stdout
    for name in ("rough column ranges", "narrow column ranges", "means and spreads", "row lengths"):
        assert name in said
    entries = json.loads(succeed("ledger", "show", "north.ledger", "--json").stdout)["entries"]
    assert [entry["purpose"] for entry in entries] == [*STAGES, "covariance"]


def test_a_ledger_that_may_only_be_read_is_shown_and_nothing_is_made_beside_it(used):
    shown = succeed("ledger", "show", used).stdout
    used.chmod(0o400)
    used.parent.chmod(0o500)
    try:
        assert succeed("ledger", "show", used).stdout == shown
        assert run("ledger", "set-cap", used, *CAP, "--reason", "more").exit_code == 2
    finally:
        used.parent.chmod(0o700)
    assert [path.name for path in used.parent.iterdir()] == [used.name]


def test_a_cap_is_changed_on_record(used):
    words = ("ledger", "set-cap", used, "--delta", 1e-6)
    assert (
        "is now ε = 3, δ = 1e-6. The next fit may use up to"
        in succeed(*words, "--epsilon", 3, "--reason", "a study").stdout
    )
    said = succeed("ledger", "show", used).stdout
    assert "a study" in said
    assert "Spent ε = 1.00 of 3.00" in said
    changed = json.loads(succeed(*words, "--epsilon", 0.5, "--reason", "too much", "--json").stdout)
    assert changed["cap"]["epsilon"] == 0.5
    assert changed["cap_changes"][-1]["reason"] == "too much"
    assert "nothing is left" in succeed("ledger", "show", used).stdout


def test_a_ledger_and_its_log_are_verified_and_only_read(used):
    said = succeed("ledger", "verify", used).stdout
    assert said.startswith(f"{used} is intact, and has no log yet\n")
    folder = used.parent / "north.log"
    with Ledger.open(used) as opened:
        EventLog(folder, opened).add("started")
    before = {path: path.read_bytes() for path in [used, *folder.iterdir()]}
    assert succeed("ledger", "verify", used).stdout.startswith(f"{used} and its log are intact\n")
    record = json.loads(succeed("ledger", "verify", used, "--json").stdout)
    assert record["log"] == str(folder)
    assert (record["first_line"], record["last_line"]) == (1, record["entries"] + 1)
    assert record["entries_without_line"] == 0
    assert {path: path.read_bytes() for path in before} == before
    elsewhere = folder.rename(used.parent / "archive")
    assert "its file was removed" in run("ledger", "verify", used).stderr
    assert json.loads(succeed("ledger", "verify", used, "--log", elsewhere, "--json").stdout)["files"] == 1


@pytest.mark.parametrize("what", ["line", "release"])
def test_what_was_changed_is_one_sentence_and_status_2(used, what):
    folder = used.parent / "north.log"
    with Ledger.open(used) as opened:
        EventLog(folder, opened).add("started")
    (file,) = folder.iterdir()
    if what == "line":
        file.write_bytes(file.read_bytes().replace(b"created", b"changed"))
    else:
        with closing(sqlite3.connect(used)) as db, db:
            db.execute("DROP TRIGGER no_update")
            db.execute("UPDATE entry SET payload = x'00'")
    said = run("ledger", "verify", used, "--json")
    (sentence,) = said.stderr.splitlines()
    assert (said.exit_code, said.stdout) == (2, "")
    assert ("line 1 in" if what == "line" else "must be as it was first sent but has changed") in sentence
