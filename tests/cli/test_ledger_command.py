"""`fedpower ledger` makes, shows and changes a ledger."""

import json
import stat
from pathlib import Path

import pytest
from hospitals import PRIVATE, run, succeed

from fedpower.privacy import Ledger

CAP = ("--epsilon", 2, "--delta", 1e-6)


@pytest.fixture
def ledger(here: Path) -> Path:
    succeed("ledger", "create", "safe/north.ledger", *CAP)
    return here / "safe" / "north.ledger"


@pytest.fixture
def used(ledger: Path) -> Path:
    succeed("fit", "north.csv", *PRIVATE, "--ledgers", "safe", "-o", "out")
    return ledger


def test_a_new_ledger_is_private_and_named_after_its_file(ledger: Path):
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
    with Ledger.open(ledger) as opened:
        assert opened.owner.silo == "north"
    succeed("ledger", "create", "other.db", *CAP)
    with Ledger.open("other.db") as opened:
        assert opened.owner.silo is None
    succeed("ledger", "create", "third.db", *CAP, "--silo", "west")
    with Ledger.open("third.db") as opened:
        assert opened.owner.silo == "west"


def test_show_needs_no_name(used: Path):
    said = succeed("ledger", "show", used)
    assert said.stdout == succeed("ledger", "show", used).stdout
    assert "silo 'north'" in said.stdout
    assert "moment" in said.stdout
    assert "spent 1, left 1.67" in said.stdout
    assert "28% of the cap is used (releases cost less together" in said.stdout


def test_nothing_spent_is_said(ledger: Path):
    said = succeed("ledger", "show", ledger)
    assert "Nothing has been released yet" in said.stdout
    assert "0% of the cap" in said.stdout


@pytest.mark.parametrize(("epsilon", "answer"), [(1, "would be allowed"), (1.9, "would be refused")])
def test_what_if_says_whether_it_fits_and_charges_nothing(used: Path, epsilon: float, answer: str):
    assert answer in succeed("ledger", "show", used, "--what-if", epsilon).stdout
    with Ledger.open(used) as opened:
        assert opened.spent().n_releases == 1


def test_json_is_the_ledgers_statement(used: Path):
    with Ledger.open(used) as opened:
        statement = opened.statement()
    assert json.loads(succeed("ledger", "show", "--json", used).stdout) == statement
    reported = json.loads(succeed("ledger", "show", used, "--json", "--what-if", 1).stdout)
    assert reported.pop("what_if")["fits"] is True
    assert reported == statement


def test_a_ledger_that_may_only_be_read_is_shown_and_nothing_is_made_beside_it(used: Path):
    shown = succeed("ledger", "show", used).stdout
    used.chmod(0o400)
    used.parent.chmod(0o500)
    try:
        assert succeed("ledger", "show", used).stdout == shown
        assert run("ledger", "set-cap", used, *CAP, "--reason", "more").exit_code == 2
    finally:
        used.parent.chmod(0o700)
    assert [path.name for path in used.parent.iterdir()] == [used.name]


def test_a_cap_is_changed_on_record(used: Path):
    succeed("ledger", "set-cap", used, "--epsilon", 3, "--delta", 1e-6, "--reason", "second study")
    said = succeed("ledger", "show", used)
    assert "second study" in said.stdout
    assert "Cap epsilon=3" in said.stdout
    succeed("ledger", "set-cap", used, "--epsilon", 0.5, "--delta", 1e-6, "--reason", "too much")
    assert "100% of the cap" in succeed("ledger", "show", used).stdout
