"""What a ledger charges, what it keeps and what it refuses, in one process."""

import json
import math
import os
import re
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from ledgers import DELTA, EPSILON, SECRET, ask

from fedpower.exceptions import BudgetError, InputError, LedgerError
from fedpower.privacy import ledger as module
from fedpower.privacy.accounting import epsilon_of, mu_of
from fedpower.privacy.ledger import DataVersion, Ledger


def never() -> bytes:
    pytest.fail("a payload was made for a release that must not happen")


@pytest.mark.parametrize("n_steps", [1, 30])
def test_equal_steps_of_one_calibration_spend_exactly_the_cap_and_leave_nothing(ledger, n_steps):
    for step in range(n_steps):
        ask(ledger, f"step {step}", mu=mu_of(EPSILON, DELTA) / math.sqrt(n_steps))
    assert ledger.spent().epsilon == pytest.approx(EPSILON, rel=1e-8)
    assert ledger.spent().left == 0.0
    with pytest.raises(BudgetError):
        ask(ledger, "one more", never, mu=1e-3)


def test_a_refusal_is_one_sentence_that_says_what_is_left_which_fits_exactly(ledger):
    ask(ledger, mu=mu_of(0.8, DELTA))
    left = ledger.spent().left
    with pytest.raises(BudgetError) as refusal:
        ask(ledger, "too much", never, mu=mu_of(0.9, DELTA))
    found = re.fullmatch(
        r"this release needs epsilon=0\.9 but silo 'north' has (\S+) left at delta=1e-06; "
        r"use epsilon<=(\S+), leave 'north' out or have its operator raise the cap",
        str(refusal.value),
    )
    assert found
    assert found[1] == found[2]
    assert left * 0.99 <= float(found[1]) <= left
    assert ledger.spent().n_releases == 1
    forecast = ledger.what_if(left)
    assert (forecast.fits, forecast.left) == (True, 0.0)
    assert forecast.epsilon == pytest.approx(EPSILON, rel=1e-8)
    assert not ledger.what_if(left * 1.0001).fits
    ask(ledger, "as advised", mu=mu_of(float(found[2]), DELTA))


def test_a_key_used_for_another_question_is_refused(ledger):
    ask(ledger)
    for other in ({"purpose": "mean"}, {"study": "t"}, {"mu": 0.2}):
        with pytest.raises(LedgerError, match="a key must name one release") as refusal:
            ask(ledger, payload=never, **other)
        assert SECRET.decode() not in str(refusal.value)
    assert ledger.spent().n_releases == 1


@pytest.mark.parametrize(
    ("terms", "error", "sentence"),
    [
        *[({"mu": mu}, InputError, "mu must be positive and finite") for mu in (math.inf, math.nan, 0.0, -1)],
        *[({"mu": mu}, BudgetError, r"has 0.9\d* left|has 1 left") for mu in (1e6, 1e200)],
        *[({"key": key}, InputError, "key must be print") for key in ("", "two\nlines", "\ud800", "nul\0")],
    ],
)
def test_a_release_that_cannot_be_accounted_for_is_refused(ledger, terms, error, sentence):
    with pytest.raises(error, match=sentence):
        ask(ledger, payload=never, **terms)


@pytest.mark.parametrize(("epsilon", "delta"), [(math.inf, 1e-6), (0, 1e-6), (1, 0), (1, 1)])
def test_a_cap_that_guarantees_nothing_is_refused(tmp_path, epsilon, delta):
    with pytest.raises(InputError):
        Ledger.create(tmp_path / "x.db", epsilon=epsilon, delta=delta)
    assert not (tmp_path / "x.db").exists()
    with pytest.raises(InputError):
        Ledger.in_memory(epsilon, delta)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_payload_that_raises_charges_nothing_and_may_be_asked_again(ledger, error):
    def fails() -> bytes:
        raise error

    with pytest.raises(error):
        ask(ledger, payload=fails)
    assert ledger.spent().n_releases == 0
    assert ask(ledger) == SECRET


def test_a_payload_may_read_its_ledger_but_not_release_from_it(ledger):
    with pytest.raises(LedgerError, match="from inside a payload"):
        ask(ledger, payload=lambda: ask(ledger, "inner"))
    seen = []
    ask(ledger, payload=lambda: seen.append(ledger.spent().n_releases) or b"")
    assert seen == [0]


def test_slack_is_taken_off_the_delta(ledger):
    ask(ledger, mu=0.1, slack_delta=4e-7)
    ask(ledger, "again", mu=0.1, slack_delta=-0.0)
    assert ledger.spent().epsilon == epsilon_of(math.hypot(0.1, 0.1), DELTA - 4e-7)
    with pytest.raises(BudgetError, match="has 0 left"):
        ask(ledger, "all of it", never, slack_delta=6e-7)


def test_lowering_the_cap_leaves_nothing_and_raising_it_is_on_record(ledger):
    ask(ledger, mu=mu_of(0.8, DELTA))
    ledger.set_cap(0.5, DELTA, reason="board decision 12")
    assert (ledger.spent().left, ledger.spent().share_used) == (0.0, 1.0)
    assert ask(ledger, mu=mu_of(0.8, DELTA), payload=never) == SECRET
    with pytest.raises(BudgetError, match="has 0 left at delta=1e-06; leave 'north' out"):
        ask(ledger, "new", never)
    ledger.set_cap(2.0, DELTA)
    ask(ledger, "new")
    caps = [(cap.epsilon, cap.delta, cap.reason) for cap in ledger.caps()]
    assert caps == [(1, DELTA, "created"), (0.5, DELTA, "board decision 12"), (2, DELTA, "")]


def test_entries_are_ordered_by_number_when_the_clock_goes_back(ledger, monkeypatch):
    times = [datetime(year, 1, 1, tzinfo=UTC) for year in (2031, 2029)]
    left = iter(times)
    monkeypatch.setattr(module, "datetime", SimpleNamespace(now=lambda zone: next(left)))
    ask(ledger, "first")
    ask(ledger, "second", mu=0.2)
    monkeypatch.undo()
    assert [made.time for made in ledger.entries()] == times
    first, second = ledger.statement()["entries"]
    assert (first["seq"], first["key"], second["seq"], second["key"]) == (1, "first", 2, "second")
    assert (first["epsilon"], second["epsilon"]) == (epsilon_of(0.1, DELTA), epsilon_of(0.2, DELTA))
    assert second["total_epsilon"] == ledger.spent().epsilon == epsilon_of(math.hypot(0.1, 0.2), DELTA)


def test_a_statement_is_json_without_payloads(ledger):
    ask(ledger, slack_delta=1e-8)
    ledger.set_cap(1.0, 1e-7)
    statement = ledger.statement()
    text = json.dumps(statement, allow_nan=False)
    assert SECRET.decode() not in text
    assert SECRET.hex() not in text
    assert statement["silo"] == "north"
    assert statement["cap"] == {"epsilon": 1.0, "delta": 1e-7}
    assert statement["left"] == ledger.spent().left
    assert statement["spent"]["epsilon"] == ledger.spent().epsilon
    assert [entry["key"] for entry in statement["entries"]] == ["k"]
    before = statement["seal"]
    ledger.set_cap(1.0, 1e-9)  # below the slack
    assert (ledger.spent().epsilon, ledger.spent().left) == (math.inf, 0.0)
    after = json.loads(json.dumps(ledger.statement(), allow_nan=False))
    assert after["spent"]["epsilon"] is None
    assert after["seal"]["seq"] == before["seq"] + 1
    assert after["seal"]["sha256"] != before["sha256"]


FIRST = DataVersion(silo="north", version="1", columns="a, b", fingerprint="abcdef" * 10)
OTHER_ROWS = replace(FIRST, fingerprint="f" * 60)


def ask_for(ledger, data, payload=SECRET):
    return ask(ledger, f"{data.name}/{data.columns}", payload, data=data, study=data.name)


def test_a_version_is_held_to_its_rows_and_another_is_a_new_charge(ledger):
    ledger.check_rows(OTHER_ROWS)  # until something was released it is nobody's
    assert ask_for(ledger, FIRST) == ask_for(ledger, FIRST, never) == SECRET
    for refuse in (ledger.check_rows, lambda data: ask_for(ledger, data, never)):
        with pytest.raises(
            LedgerError, match="match version '1' in its ledger, got other data; declare a new"
        ):
            refuse(OTHER_ROWS)
    assert ledger.spent().n_releases == 1
    assert ask_for(ledger, replace(OTHER_ROWS, version="2"), b"other rows") == b"other rows"
    assert ask_for(ledger, replace(OTHER_ROWS, columns="a, b, c"), b"wider") == b"wider"
    assert ledger.statement()["data_versions"] == ["1", "2"]
    assert "abcdef" not in f"{ledger.statement()} {FIRST!r}"


def test_a_ledger_belongs_to_the_first_silo_and_data_set_that_release():
    with Ledger.in_memory(EPSILON, DELTA) as ledger:
        assert (ledger.owner.silo, ledger.owner.data_set) == (None, None)
        ask_for(ledger, FIRST)
        assert (ledger.owner.silo, ledger.owner.data_set) == ("north", None)
        named = replace(FIRST, data_set="heart")
        assert ask_for(ledger, named, never) == SECRET
        assert (ledger.owner.silo, ledger.owner.data_set) == ("north", "heart")
        for stranger in (replace(named, silo="south"), FIRST, replace(named, data_set="lungs")):
            with pytest.raises(InputError, match="must belong to"):
                ask_for(ledger, stranger)


@pytest.mark.parametrize("version", ["", " ", "a b", "-1", "\x1b[2J", "é", "x" * 65, 1, None])
def test_a_version_is_short_plain_text(version):
    with pytest.raises(InputError, match="must be 1 to 64 letters, digits or"):
        replace(FIRST, version=version)


class AnyHistory(RuleBasedStateMachine):
    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "ledger.db"
        self.ledger = Ledger.create(self.path, epsilon=EPSILON, delta=DELTA)
        self.highest = EPSILON
        self.sent: dict[str, tuple[float, bytes]] = {}

    @rule(target=keys, number=st.integers(0, 20))
    def name(self, number):
        return f"key {number}"

    @rule(key=keys, mu=st.floats(1e-4, 1.0), fails=st.booleans())
    def ask(self, key, mu, fails):
        def payload() -> bytes:
            if fails:
                raise OSError
            return os.urandom(8)

        if key in self.sent:
            mu, kept = self.sent[key]
            assert ask(self.ledger, key, never, mu=mu) == kept
            return
        try:
            self.sent[key] = mu, ask(self.ledger, key, payload, mu=mu)
        except (BudgetError, OSError) as refusal:
            assert key not in [entry.key for entry in self.ledger.entries()]
            advised = re.search("epsilon<=([^,]+)", str(refusal))
            if advised:
                mu = mu_of(float(advised[1]), DELTA)
                self.sent[key] = mu, ask(self.ledger, key, mu=mu)

    @rule(epsilon=st.sampled_from([0.1, 0.5, 1.0, 1.5]))
    def set_cap(self, epsilon):
        self.ledger.set_cap(epsilon, DELTA)
        self.highest = max(self.highest, epsilon)

    @rule()
    def restart(self):
        self.ledger.close()
        self.ledger = Ledger.open(self.path)

    @invariant()
    def what_left_is_what_was_charged_and_never_above_the_highest_cap(self):
        spent = self.ledger.spent()
        assert spent.n_releases == len(self.sent)
        assert spent.mu == pytest.approx(math.hypot(*(mu for mu, _ in self.sent.values())))
        assert spent.epsilon <= self.highest * (1 + 1e-9)

    def teardown(self):
        self.ledger.close()
        self.folder.cleanup()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=6, stateful_step_count=15)
