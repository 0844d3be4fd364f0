"""A silo put together from its own file: what it refuses, agrees to and charges, and its vault."""

import copy
import logging
import math
import os
import shlex
import shutil
import sqlite3
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import structs
from studies import (
    COLUMNS,
    EXACT,
    KEYS,
    RUN,
    files_of,
    kit_of,
    question,
    secure_tables,
    silo_rows,
    write_rows,
    write_silo,
    write_study,
)

from federations import ASK_MOMENT
from fedpower.cli import main
from fedpower.exceptions import BudgetError, FedpowerError, InputError, LedgerError
from fedpower.federation import inbox as inbox_module
from fedpower.federation import vault as vault_module
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.inbox import Inbox, check_decisions, message_to_sign
from fedpower.federation.isolation import available, separation
from fedpower.federation.silo_file import Data, open_silo, read_silo
from fedpower.federation.study_file import StudyFile
from fedpower.federation.vault import Vault, VaultStatus, node_settings, open_vault, run_silo
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.messages import (
    AskMoment,
    AskQuery,
    AskSteps,
    Enrol,
    Enrolment,
    MomentPart,
    Propose,
    QueryAnswer,
    Refusal,
    Standing,
    decode,
    encode,
    read_only,
)
from fedpower.protocol.receiving import most_question_bytes
from fedpower.protocol.secure import Identity, is_signed
from fedpower.protocol.silo import NOT_YOURS, ExactReleases
from fedpower.protocol.study import worst_epsilon

NORTH = 'silo = "north"\n'
DATA = '[data]\npath = "rows.csv"\n'
LEDGER = '[ledger]\npath = "north.ledger"\n'
SIGNED = f'signed_by = ["{KEYS["south"].public}"]'
WRONG = (
    (DATA, "must have 'silo', got none"),
    (NORTH, "must have 'data', got none"),
    (f"{NORTH}[data]\npath = 3", "path in .* must be text in quotes"),
    (f'{NORTH}{DATA}version = "\\u001b[2J"', "letters, digits or"),
    (f'{NORTH}{DATA}extra_columns = "keep"', "one of 'refuse', 'drop', got 'keep'"),
    (f'{NORTH}{DATA}password = "x"', "got 'password'; did you mean 'password_"),
    (f'{NORTH}{DATA}[ledger]\npath="l"\nepsilon = 1', "or neither, got one"),
    (f"{NORTH}{DATA}{LEDGER}[approve]\n{SIGNED}\nepsilon = nan", "above 0, got nan"),
    (f"{NORTH}{DATA}{LEDGER}[approve]\n{SIGNED}", "must have study, .* or both epsilon and signed_by"),
    (f"{NORTH}{DATA}{LEDGER}[approve]\nepsilon = 1.0", "who can propose must not choose what is approved"),
    (
        f'{NORTH}{DATA}{LEDGER}[approve]\nstudy = "{12 * "0"}"',
        "study in .* must be 64 digits, got '000000000000'",
    ),
    (
        f"{NORTH}{DATA}{LEDGER}[approve]\nepsilon = 1\nuntil = 3",
        "until in .* must be a date, got a whole number",
    ),
    (
        f"{NORTH}{DATA}[columns]\nrename = {{a = 1}}",
        "rename in .* must be a table whose values are text in quo",
    ),
    (
        f"{NORTH}{DATA}{LEDGER}[approve]\nsigned_by = [1]",
        "signed_by in .* must be a list whose entries are text",
    ),
    (
        f'{NORTH}[data]\nquery = "SELECT 1"\ndatabase = "sqlite:///a"\nseparator = ";"',
        "must be a path or a query, got separator with query",
    ),
    (f'{NORTH}{DATA}separator = "ab"', r"\[data\] of .*: separator must be"),
    (f'{NORTH}{DATA}encoding = "none"', r"\[data\] of .*: encoding must be the name of a text encoding"),
    ("silo north", "must be TOML, got something else"),
)


def test_a_wrong_file_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "silo.toml"
    with pytest.raises(InputError, match="the silo file must exist, got no file at"):
        read_silo(path)
    for text, sentence in WRONG:
        path.write_text(text)
        with pytest.raises(InputError, match=sentence) as refused:
            read_silo(path)
        assert "\n" not in str(refused.value)


def objections(folder: Path, rules: str, study: StudyFile, delta: float = 1e-6) -> list[str]:
    """Return what speaks against a study that south has signed, under rules that ask for it."""
    rules = rules if rules.startswith("study") else f"{SIGNED}\n{rules}"
    own = write_silo(folder, more=f"[approve]\n{rules}")
    return list(own.objections(study, (KEYS["south"].public,), delta))


def test_standing_rules_approve_what_meets_all_of_them(tmp_path):
    study = write_study(tmp_path, rounds={"min_silos": 2})
    far = f"{date.today() + timedelta(days=2)}"
    own = ", ".join(f'"{name}"' for name in COLUMNS)
    for rules in (
        "epsilon = 1.0",
        f'study = "{study.digest}"',
        f"epsilon = 1.0\nmin_silos = 2\ncolumns = [{own}]\nuntil = {far}",
    ):
        assert objections(tmp_path, rules, study) == []
    exact = write_study(tmp_path, privacy=EXACT)
    assert objections(tmp_path, "epsilon = inf", exact) == []
    for rules, given, sentence in (
        ("epsilon = 0.9", study, "it can spend epsilon 1 at delta 1e-06, and the rules allow 0.9"),
        ("epsilon = 1.0\nmin_silos = 3", study, "it goes on with 2 silos, and the rules need 3"),
        ("epsilon = 5.0", exact, "it can spend epsilon inf at delta 1e-06, and the rules allow 5"),
        ('epsilon = 1.0\ncolumns = ["age", "bmi"]', study, "the rules have no column 'sbp'"),
        ("epsilon = 1.0\nuntil = 2020-01-01", study, "the rules ended on 2020-01-01"),
    ):
        assert objections(tmp_path, rules, given) == [sentence]
    unsigned = write_silo(tmp_path, more=f"[approve]\n{SIGNED}\nepsilon = 1.0").objections(study, (), 1e-6)
    assert list(unsigned) == ["it is not signed by all that the rules name"]
    assert list(write_silo(tmp_path).objections(study, (), 1e-6)) == ["there are no standing rules"]


def test_standing_rules_compare_prices_at_the_ledger_s_delta(tmp_path):
    """A large delta of the study would make a large loss look like a small epsilon."""
    study = write_study(tmp_path, privacy={"epsilon": 0.01, "delta": 0.1})
    (problem,) = objections(tmp_path, "epsilon = 0.5", study)
    assert problem.startswith("it can spend epsilon 1.118 at delta 1e-06")
    assert objections(tmp_path, "epsilon = 0.5", study, delta=0.1) == []


def test_standing_rules_count_the_column_of_persons_as_one_of_the_study_s(tmp_path):
    study = write_study(tmp_path, rows={"unit": "patient"})
    own = ", ".join(f'"{name}"' for name in COLUMNS)
    assert objections(tmp_path, f"epsilon = 1.0\ncolumns = [{own}]", study) == [
        "the rules have no column 'patient'"
    ]
    assert objections(tmp_path, f'epsilon = 1.0\ncolumns = [{own}, "patient"]', study) == []


def test_a_column_that_a_silo_drops_does_not_identify_persons_either(tmp_path):
    study = write_study(tmp_path, rows={"unit": "hiv"})
    write_silo(tmp_path)
    write_rows(tmp_path / "north.csv", np.ones((9, 6)), (*COLUMNS, "hiv"))
    change_own_file(tmp_path, "[data]", '[data]\ndrop = ["hiv"]')
    assert_refused_untouched(study, tmp_path, r"must not drop the column of persons, got 'hiv'")


def test_a_rule_for_one_study_takes_its_whole_hash(tmp_path):
    """Two studies that share 12 digits, one of them harmless, were found with 48 million hashes."""
    study = write_study(tmp_path)
    digest = study.digest
    for place in (0, 11, 12, 63):
        other = digest[:place] + ("1" if digest[place] != "1" else "2") + digest[place + 1 :]
        assert objections(tmp_path, f'study = "{other}"', study) == [
            "it is another study than that of the rules"
        ]
    for shortened in (digest[:12], digest[:63], digest + "0", digest.upper(), f" {digest}", ""):
        with pytest.raises(InputError, match="must be 64 digits"):
            objections(tmp_path, f'study = "{shortened}"', study)
    with pytest.raises(InputError, match=r"signed_by in \[approve\] of .* must be 64 digits, got '9f2c'"):
        read_silo(write_silo(tmp_path, more='[approve]\nepsilon = 1.0\nsigned_by = ["9f2c"]').path)


def test_standing_rules_count_what_all_attempts_at_a_secure_sum_can_spend(tmp_path):
    """At epsilon=1 three attempts cost 1.81, as a ledger counts them: a rule for 1 is too little."""

    def study(**privacy: Any) -> StudyFile:
        return write_study(tmp_path, **secure_tables(tmp_path, **privacy))

    (problem,) = objections(tmp_path, "epsilon = 1.0", study())
    assert problem.startswith("it can spend epsilon 1.81")
    assert objections(tmp_path, "epsilon = 1.0", study(attempts=1)) == []
    assert objections(tmp_path, "epsilon = 1.82", study()) == []
    terms, _, _ = study().terms()
    budget = terms.budget
    with Ledger.in_memory(100.0, terms.delta) as ledger:
        for attempt in range(terms.attempts):
            ledger.release(
                key=f"{attempt}",
                purpose="an attempt",
                study="this",
                mu=budget.total_mu,
                slack_delta=budget.slack_delta,
                study_mu=budget.total_mu * math.sqrt(terms.attempts),
                payload=lambda: b"",
            )
        spent = ledger.spent("this")
        assert spent.n_releases == terms.attempts
        assert spent == ledger.spent()
        assert worst_epsilon(terms) == pytest.approx(spent.epsilon, rel=1e-9)


@pytest.mark.parametrize("cap", [2.0, None])
def test_a_missing_ledger_is_refused_and_never_made(cap, tmp_path):
    """A disk that was not mounted must not begin a second account of the same rows."""
    silo = write_silo(tmp_path, cap=cap)
    (tmp_path / "north.ledger").unlink(missing_ok=True)
    refusal = pytest.raises(LedgerError, match=r"'north' must have its ledger, got none at")
    with refusal as refused, silo.open_ledger():
        pass
    assert not (tmp_path / "north.ledger").exists()
    if cap is not None:
        command = str(refused.value).partition("`fedpower ")[2].rstrip("`")
        assert CliRunner().invoke(main, shlex.split(command)).exit_code == 0
        with silo.open_ledger() as made:
            assert (made.owner.silo, made.spent().cap, made.spent().delta) == ("north", 2.0, 1e-5)


def test_a_silo_s_own_names_units_and_text_become_the_study_s(tmp_path, monkeypatch):
    study = write_study(tmp_path)
    first, second, *others = study.columns
    heading = ";".join(["Größe", second, *others, "id"])
    (tmp_path / "own.csv").write_text(
        f"{heading}\n1,5;2;{';'.join('3' * len(others))};A-1\n2,5;4;{';'.join('5' * len(others))};A-2\n",
        encoding="cp1252",
    )
    (tmp_path / "silo.toml").write_text(
        'silo = "north"\n[data]\npath = "own.csv"\nencoding = "cp1252"\ndrop = ["nr"]\n'
        f'[columns]\nrename = {{"Größe" = "{first}", id = "nr"}}\n'
        f"[columns.factors]\n{first} = 2\n[columns.offsets]\n{second} = -1\n",
        encoding="utf-8",
    )
    silo = read_silo(tmp_path / "silo.toml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # paths are taken from the file's folder
    source = silo.source(study)
    assert source.columns == study.columns
    rows = np.vstack([np.asarray(block) for block in source.blocks(9)])
    assert rows.tolist() == [[3, 1, *[3] * len(others)], [5, 3, *[5] * len(others)]]


def test_a_query_is_renamed_and_converted_too_and_where_rows_are_is_not_shown(tmp_path):
    first, *others = COLUMNS
    cells = ", ".join(f"{place} AS {name}" for place, name in enumerate(others))
    sqlite3.connect(tmp_path / "hunter2.db").close()
    (tmp_path / "silo.toml").write_text(
        f'silo = "north"\n[data]\ndatabase = "sqlite:///hunter2.db"\nquery = "SELECT 7 AS eigen, {cells}"\n'
        f'[columns]\nrename = {{eigen = "{first}"}}\nfactors = {{{first} = 3}}\n'
    )
    silo = read_silo(tmp_path / "silo.toml")
    assert "hunter2" not in repr(silo)
    assert np.asarray(next(silo.source(write_study(tmp_path)).blocks(9))).tolist() == [[21, 0, 1, 2, 3]]


def n_charged(node: Any) -> int:
    return node.releases.ledger.spent().n_releases


def change_own_file(folder: Path, old: str, new: str) -> None:
    path = folder / "north.toml"
    path.write_text(path.read_text().replace(old, new))


def change_rows(folder: Path, rows: Any, columns: tuple[str, ...] = COLUMNS) -> None:
    write_rows(folder / "north.csv", rows, columns)


def change_ledger(folder: Path, **owner: str) -> None:
    (folder / "north.ledger").unlink()
    if owner:
        Ledger.create(folder / "north.ledger", epsilon=2.0, delta=1e-5, **owner).close()


def moved_cell(change: float) -> Any:
    rows = silo_rows("north").copy()
    rows[5, 1] += change
    return rows


SPOILS: dict[str, Callable[[Path], Any]] = {
    "not named": lambda folder: change_own_file(folder, 'silo = "north"', 'silo = "west"'),
    "no rows": lambda folder: (folder / "north.csv").unlink(),
    "holes": lambda folder: change_rows(folder, moved_cell(np.nan)),
    "other columns": lambda folder: change_rows(folder, silo_rows("north"), (*COLUMNS[:4], "shoe size")),
    "more columns": lambda folder: change_rows(folder, np.ones((60, 6)), (*COLUMNS, "id")),
    "another's ledger": lambda folder: change_ledger(folder, silo="south"),
    "no ledger": change_ledger,
    "another cap": lambda folder: write_silo(folder, cap=9.0),
    "a damaged ledger": lambda folder: (folder / "north.ledger").write_bytes(b"not a database!!"),
}


def assert_refused_untouched(study: StudyFile, folder: Path, sentence: str | None = None) -> None:
    """Assert that the silo does not open, in one sentence and with no file changed."""
    before = files_of(folder)
    with (
        pytest.raises(FedpowerError, match=sentence) as refused,
        open_silo(study, read_silo(folder / "north.toml")),
    ):
        pytest.fail("the silo was opened")
    assert "\n" not in str(refused.value)
    assert files_of(folder) == before


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_is_refused_is_refused_before_anything_is_charged(spoil, tmp_path):
    study = write_study(tmp_path)
    write_silo(tmp_path)
    SPOILS[spoil](tmp_path)
    assert_refused_untouched(study, tmp_path)


def test_opening_changes_no_file_and_charges_nothing_and_answering_charges_once(tmp_path):
    study, silo = write_study(tmp_path), write_silo(tmp_path)
    sent: list[Any] = []
    for _ in range(2):
        before = files_of(tmp_path)
        with open_silo(study, silo) as node:
            node.releases.check_affordable()
            assert node.releases.rows.n_rows == 60
            assert n_charged(node) == len(sent)
        assert files_of(tmp_path) == before
        with open_silo(study, silo) as node:
            sent.append(node.answer(question(study)).body)
            assert n_charged(node) == 1
    assert isinstance(sent[0], QueryAnswer)
    np.testing.assert_array_equal(sent[0].words, sent[1].words)


def test_an_exact_study_opens_no_ledger_and_answers_for_the_rows_that_were_checked(tmp_path):
    study = write_study(tmp_path, privacy=EXACT)
    silo = write_silo(tmp_path, cap=None)
    with open_silo(study, silo) as node:
        assert isinstance(node.releases, ExactReleases)
        expected = node.answer(question(study, AskMoment(label="covariance"))).body
    with open_silo(study, silo) as node:
        write_rows(tmp_path / "north.csv", silo_rows("south"))
        again = node.answer(question(study, AskMoment(label="covariance"))).body
    assert isinstance(expected, MomentPart)
    np.testing.assert_array_equal(again.values, expected.values)


NOISES: dict[str, Any] = {"covariance": ASK_MOMENT, "step": AskMoment(label="mean")}
"""By noise of a study: a question that is charged."""


@pytest.mark.parametrize("noise", NOISES)
def test_nobody_is_charged_for_a_study_that_one_silo_cannot_pay(noise, tmp_path):
    """The poor one is asked last, and still before any other is charged."""
    study = write_study(tmp_path, privacy={"noise": noise})
    nodes = {name: open_silo(study, write_silo(tmp_path, name)) for name in ("north", "south")}
    poor = open_silo(study, write_silo(tmp_path, "east", cap=0.5))
    with nodes["north"] as north, nodes["south"] as south, poor as east:
        run = StudyRun(study, run=RUN, checkpoint=tmp_path / "rounds")
        silos = {node.name: node for node in (north, south, east)}
        with pytest.raises(BudgetError):
            east.releases.check_affordable()
        answers = [silos[asked.silo].answer(asked) for asked in run.coordinator.next()]
        for answer in answers[:-1]:
            run.coordinator.receive(answer)
        with pytest.raises(FedpowerError, match=r"silo 'east' refused: .* has 0\.5 left"):
            run.coordinator.receive(answers[-1])
        assert isinstance(north.answer(question(study, Enrol())).body, Enrolment)
        assert all(n_charged(node) == 0 for node in silos.values())


@pytest.mark.parametrize("noise", NOISES)
def test_changed_rows_stop_a_silo_and_a_new_version_of_them_is_public_and_charged(noise, tmp_path):
    """A new version is charged whether or not the rows changed."""
    study = write_study(tmp_path, privacy={"noise": noise})
    with open_silo(study, write_silo(tmp_path)) as node:
        assert not isinstance(node.answer(question(study, NOISES[noise])).body, Refusal)
    change_rows(tmp_path, moved_cell(1e-12))
    assert_refused_untouched(study, tmp_path, r"got other data; declare a new version with version in \[data")
    if noise == "step":
        change_rows(tmp_path, silo_rows("north"))
    change_own_file(tmp_path, "[data]", '[data]\nversion = "2026-03"')
    with open_silo(study, read_silo(tmp_path / "north.toml")) as node:
        reported = node.answer(question(study, Enrol())).body
        assert reported == Enrolment(n_rows=60, n_features=5, data_version="2026-03")
        assert not isinstance(node.answer(question(study, NOISES[noise])).body, Refusal)
        assert n_charged(node) == 2


# --- its vault: a study waits for approval; its questions are answered, anything else gets nothing ---


@pytest.fixture
def study(tmp_path: Path) -> StudyFile:
    return write_study(tmp_path)


@pytest.fixture
def vault(study: StudyFile, tmp_path: Path) -> Iterator[Vault]:
    """Give a vault to which the study was proposed; nothing is decided."""
    with open_vault(study.federation, write_silo(tmp_path)) as made:
        assert standing(made, study) == "waiting"
        yield made


def standing(vault: Vault, study: StudyFile, **signatures: str) -> str:
    """Return where a study stands once it was proposed."""
    body = Propose(content=study.content, signatures=signatures)
    said = decode(vault.answer(encode(question(study, body)))).body
    assert isinstance(said, Standing)
    return said.state if not said.reason else f"{said.state}: {said.reason}"


def charged(vault: Vault) -> int:
    return vault._ledger.spent().n_releases


@contextmanager
def served(vault: Vault) -> Iterator[Connection]:
    here, there = Pipe()
    thread = threading.Thread(target=vault.serve, args=(here,))
    thread.start()
    with there:
        yield there
    thread.join(30)
    assert not thread.is_alive()
    assert here.closed, "the vault leaves a connection open"


def asked(node: Connection, content: bytes) -> bytes:
    node.send_bytes(content)
    assert node.poll(30)
    return node.recv_bytes()


def read_study_with(study: StudyFile, port: int | None = None, **parameters: float) -> StudyFile:
    """Return the study with another port or other parameters."""
    content = copy.deepcopy(study.content)
    content["coordinator"]["port"] = port or study.port
    content["privacy"] |= parameters
    with tempfile.TemporaryDirectory() as folder:
        return write_study(Path(folder), **content)


def test_nothing_is_answered_before_the_operator_approves_and_after_a_refusal(vault, study):
    """No message can approve; the decision is signed, in the ledger, and for one version of the rows."""
    ask = encode(question(study))
    forged = question(study, Standing(state="approved"))
    for content in (ask, encode(question(study, Enrol())), encode(forged)):
        body = decode(vault.answer(content)).body
        assert body == Refusal(
            reason="a study must be approved by this silo's operator before it is answered"
        )
    assert standing(vault, study) == "waiting"
    assert vault.status.n_waiting == 1
    assert (charged(vault), vault._silo) == (0, None), "no row was read"
    made = vault.inbox.decide(study, approved=True)
    assert is_signed(bytes.fromhex(KEYS["north"].public), bytes.fromhex(made.signature), made.signed)
    assert made in vault._ledger.decisions()
    check_decisions(vault._ledger)
    assert standing(vault, study) == "approved"
    assert isinstance(decode(vault.answer(ask)).body, QueryAnswer)
    assert (charged(vault), vault.status.n_waiting) == (1, 0)
    vault.inbox.decide(study, approved=False, reason="the ethics board asks for more time")
    assert standing(vault, study) == "refused: the ethics board asks for more time"
    assert isinstance(decode(vault.answer(ask)).body, Refusal)
    vault._ledger.decide(structs.replace(made, name="another"))
    with pytest.raises(LedgerError, match="the decision about study 'another' must be signed with its key"):
        check_decisions(vault._ledger)


def test_an_approval_outlives_the_process_and_not_the_version_of_the_rows(study, tmp_path):
    ask = encode(question(study))
    with open_vault(study.federation, write_silo(tmp_path)) as vault:
        assert standing(vault, study) == "waiting"
        vault.inbox.decide(study, approved=True)
        with (
            pytest.raises(InputError, match="silo 'north' must run once, got one that already runs"),
            open_vault(study.federation, read_silo(tmp_path / "north.toml")),
        ):
            pytest.fail("two vaults of one silo")
    with open_vault(study.federation, read_silo(tmp_path / "north.toml")) as again:
        assert isinstance(decode(again.answer(ask)).body, QueryAnswer), "without another proposal"
    change_own_file(tmp_path, "[data]", '[data]\nversion = "2"')
    with open_vault(study.federation, read_silo(tmp_path / "north.toml")) as again:
        assert isinstance(decode(again.answer(ask)).body, Refusal)
        assert standing(again, study) == "waiting"


def test_a_standing_rule_approves_and_says_so_in_the_ledger(study, tmp_path):
    signer = Identity.new()
    rules = f'[approve]\nepsilon = 1.0\nsigned_by = ["{signer.public}"]'
    with open_vault(study.federation, write_silo(tmp_path, more=rules)) as vault:
        false = signer.sign(b"fedpower study of something else").hex()
        for signatures in ({}, {signer.public: false}, {signer.public: "no hex"}, {"no key": false}):
            assert standing(vault, study, **signatures) == "waiting"
        signed = {signer.public: signer.sign(message_to_sign(study)).hex()}
        assert standing(vault, study, **signed).startswith("approved")
        (decision,) = vault._ledger.decisions()
        assert (decision.by, decision.study, decision.epsilon) == ("rule", study.digest, 1.0)


def test_rows_that_do_not_fit_a_study_look_like_a_study_that_waits_and_stop_all_rules(
    study, tmp_path, caplog
):
    """Else rules that fit some rows and not others would answer questions about rows, at no cost."""
    more = f"[approve]\nepsilon = 1.0\n{SIGNED}"

    def asked(vault: Vault, epsilon: float) -> str:
        given = read_study_with(study, epsilon=epsilon)
        signer = KEYS["south"]
        return standing(vault, given, **{signer.public: signer.sign(message_to_sign(given)).hex()})

    with open_vault(study.federation, write_silo(tmp_path, more=more)) as vault:
        assert asked(vault, 0.5).startswith("approved")
        good = silo_rows("north")
        change_rows(tmp_path, moved_cell(np.nan))
        with caplog.at_level(logging.ERROR):
            assert asked(vault, 0.25) == "waiting"
        assert "no rule approves any study until you decide about heart-2026" in caplog.text
        change_rows(tmp_path, good)
        assert asked(vault, 0.25) == "waiting"
        assert asked(vault, 0.75) == "waiting", "no other study is approved either"
        why = next(vault.inbox.objections(read_study_with(study, epsilon=0.75), ()))
        assert why.startswith("they wait until you decide about study heart-2026")
        vault.inbox.decide(read_study_with(study, epsilon=0.25), approved=False, reason="a gap in our rows")
        assert asked(vault, 0.75).startswith("approved")
        assert asked(vault, 0.25).startswith("refused")


@pytest.mark.parametrize("asks", [True, False])
def test_rows_that_no_longer_fit_a_study_that_rules_approved_before_stop_the_rules_too(
    study, tmp_path, caplog, asks
):
    """A process that was killed while it read rows leaves the approval behind."""
    with open_vault(
        study.federation, write_silo(tmp_path, more=f"[approve]\nepsilon = 1.0\n{SIGNED}")
    ) as vault:
        signer = KEYS["south"]
        signed = {signer.public: signer.sign(message_to_sign(study)).hex()}
        vault.inbox.add(Propose(content=study.content, signatures=signed))
        made = vault.inbox.by_rule(study)
        assert made is not None, "the rules approve it"
        change_rows(tmp_path, moved_cell(np.nan))
        if asks:
            refusal = decode(vault.answer(encode(question(study)))).body
            assert isinstance(refusal, Refusal)
            assert refusal.reason.startswith("a study must be approved by this silo's operator")
        else:
            assert standing(vault, study, **signed) == "waiting"
        assert vault._ledger.decisions()[-1].stops_rules
        assert standing(vault, study, **signed) == "waiting"
        assert charged(vault) == 0


def test_a_signed_study_of_other_silos_is_no_matter_of_this_one(vault, tmp_path):
    with tempfile.TemporaryDirectory() as folder:
        others = write_study(Path(folder), silos={"names": ["south", "east"]}, rounds={"min_silos": 2})
    said = standing(vault, others)
    assert said.startswith("unable"), said
    assert vault._ledger.decisions() == []
    assert vault.status.n_waiting == 1


def test_a_key_has_one_spelling_and_what_rules_name_is_not_crowded_out(study, tmp_path):
    trusted = KEYS["south"]
    content = message_to_sign(study)
    with open_vault(
        study.federation, write_silo(tmp_path, more=f"[approve]\nepsilon = 0.1\n{SIGNED}")
    ) as vault:
        others = {made.public: made.sign(content).hex() for made in (Identity.new() for _ in range(100))}
        spelled = {trusted.public.upper(): trusted.sign(content).hex(), f"{trusted.public} ": "00"}
        assert standing(vault, study, **spelled) == "waiting"
        assert vault.inbox.signatures(study) == {}
        assert standing(vault, study, **others) == "waiting"
        assert standing(vault, study, **{trusted.public: trusted.sign(content).hex()}) == "waiting"
        held = vault.inbox.signatures(study)
        assert (len(held), trusted.public in held) == (100, True)


def test_nobody_can_fill_the_log_with_refusals_and_arrivals(vault, study, monkeypatch):
    proposals = [Propose(content=study.content), Propose(content={})]
    before = vault._ledger.log_head.lines
    for number in range(30):
        vault.answer(encode(question(study, study="0" * 64)))
        vault.answer(encode(question(study, proposals[number % 2])))
    assert vault._ledger.log_head.lines <= before + 2
    asked = question(study, AskQuery(index=0, label="a" * 257))
    assert vault.answer(encode(asked)) == b"", "a label has an end"
    vault._arrivals.extend([time.monotonic()] * 100)
    said = standing(vault, read_study_with(study, epsilon=0.25))
    assert said == "unable: at most 100 studies must arrive in an hour, got one more"


def test_what_is_no_study_of_this_federation_is_not_kept_and_an_inbox_has_an_end(vault, study, monkeypatch):
    steering: list[dict[str, Any]] = [{"\x1b[2J": "number"}, {"age": {"missing_words": ["NA\x1b[2J"]}}]
    for content in ({}, {"name": "a study"}, *(study.content | {"rules": rules} for rules in steering)):
        body = decode(vault.answer(encode(question(study, Propose(content=content))))).body
        assert body == Standing(state="unable", reason=NOT_YOURS)
    other = read_study_with(study, port=9)
    assert standing(vault, other).startswith("unable")
    with tempfile.TemporaryDirectory() as folder:
        strangers = write_study(Path(folder), silos={"names": ["north", "west"]}, rounds={"deadline": 9.0})
    assert standing(vault, strangers).startswith("unable")
    assert vault.inbox.study(study.digest).port == study.port
    assert {path.stem for path in vault.inbox.folder.glob("*.study")} == {study.digest}
    monkeypatch.setattr(inbox_module, "MOST_WAITING", 1)
    monkeypatch.setattr(inbox_module, "_MOST_DECIDED", 1)
    assert standing(vault, read_study_with(study, epsilon=0.25)) == "waiting"
    assert [one.options.epsilon for one in vault.inbox.waiting()] == [0.25]
    assert standing(vault, study) == "waiting"
    assert [one.options.epsilon for one in vault.inbox.waiting()] == [1.0], "the oldest made room"
    for epsilon in (0.5, 0.75):
        decided = read_study_with(study, epsilon=epsilon)
        assert standing(vault, decided) == "waiting"
        vault.inbox.decide(decided, approved=False, reason="not this year")
    assert standing(vault, study) == "waiting"
    assert len(list(vault.inbox.folder.glob("*.study"))) == 2


@pytest.mark.parametrize("epsilon", [1e-300, 1e9])
def test_a_study_without_a_price_does_not_reach_the_inbox(vault, study, epsilon):
    content = copy.deepcopy(study.content)
    content["privacy"]["epsilon"] = epsilon
    answer = decode(vault.answer(encode(question(study, Propose(content=content)))))
    assert answer.body == Standing(state="unable", reason=NOT_YOURS)
    assert vault.status.n_waiting == 1


def test_a_study_keeps_the_signatures_that_it_had_when_it_is_proposed_without_them(vault, study):
    signer = Identity.new()
    signed = {signer.public: signer.sign(message_to_sign(study)).hex()}
    assert standing(vault, study, **signed) == "waiting"
    assert standing(vault, study) == "waiting"
    assert vault.inbox.signatures(study) == signed


def test_a_decision_counts_only_with_this_silo_s_signature(vault, study):
    """Who can write the ledger, but has not the key, can add a decision and not make it count."""
    vault.inbox.decide(study, approved=False, reason="not this year")
    forger, (made,) = Identity.new(), vault._ledger.decisions()
    forged = structs.replace(made, approved=True, reason="", key=forger.public)
    for signature in (forger.sign(forged.signed).hex(), "00", made.signature):
        vault._ledger.decide(structs.replace(forged, signature=signature))
        assert standing(vault, study) == "refused: not this year"
    assert isinstance(decode(vault.answer(encode(question(study)))).body, Refusal)


def test_questions_that_are_not_approved_do_not_fill_the_log(vault, study):
    before = vault._ledger.log_head.lines
    for place in range(9):
        vault.answer(encode(question(study, Enrol(), run=f"{place}")))
    assert vault._ledger.log_head.lines == before + 1
    long = question(study, Enrol(), run="r" * 10_000)
    assert vault.answer(encode(long)) == b""
    assert vault._ledger.log_head.lines == before + 1


def test_rows_that_cannot_be_read_are_for_the_operator_alone(vault, study, tmp_path, caplog):
    vault.inbox.decide(study, approved=True)
    change_rows(tmp_path, np.ones((5, 5)), (*COLUMNS[:4], "shoe size"))
    with caplog.at_level(logging.ERROR):
        assert standing(vault, study) == f"unable: {NOT_YOURS}"
    assert "'hdl'" in caplog.text


def test_a_question_is_answered_as_the_silo_does_and_what_is_none_gets_an_empty_answer(vault, study, caplog):
    vault.inbox.decide(study, approved=True)
    content = encode(question(study))
    turned = bytes([*content[:40], content[40] ^ 1, *content[41:]])
    spoilt = [content[:-1], turned, content + content, bytes(100), b"GET / HTTP/1.1\r\n\r\n"]
    with caplog.at_level(logging.ERROR), served(vault) as stream:
        for other in spoilt:
            assert asked(stream, other) == b""
        assert charged(vault) == 0
        answer = asked(stream, content)
        status = msgspec.json.decode(asked(stream, b""), type=VaultStatus)
    spent, left = status.epsilon_spent, status.epsilon_left
    assert status == VaultStatus(silo="north", epsilon_spent=spent, epsilon_left=left, n_waiting=0, round=0)
    assert 0 < status.epsilon_left < 2
    assert caplog.text.count("refused a message that is not a question") == len(spoilt)
    assert vault._silo is not None
    assert answer == encode(vault._silo.answer(question(study)))
    assert isinstance(decode(answer).body, QueryAnswer)
    assert charged(vault) == 1


def test_a_question_that_is_not_for_this_silo_is_refused_logged_and_charged_nothing(vault, study, caplog):
    """Nor does an answer say anything about rows that cannot be read."""
    vault.inbox.decide(study, approved=True)
    changes: list[dict[str, object]] = [
        {"study": "0" * 64},
        {"silo": "south"},
        {"body": Enrolment(n_rows=1, n_features=1)},
        {"body": Refusal(reason="no")},
        {"body": AskSteps(basis=read_only(np.full((5, 2), 9.0)), n_local_steps=1)},
    ]
    with caplog.at_level(logging.WARNING):
        for change in changes:
            answer = decode(vault.answer(encode(question(study, **change))))
            assert isinstance(answer.body, Refusal)
            assert answer.silo == "north"
        assert charged(vault) == 0
        vault._silo.releases.ledger.close()
        answer = decode(vault.answer(encode(question(study))))
    assert answer.body == Refusal(reason=NOT_YOURS)
    assert caplog.text.count("refused round 0") == len(changes) + 1


def test_a_question_that_is_too_large_or_cut_off_is_charged_nothing(vault, study, caplog, monkeypatch):
    vault.inbox.decide(study, approved=True)
    most = most_question_bytes(study.terms()[0])
    large = question(study, AskQuery(index=0, label="covariance", public=bytes(most)))
    assert "no longer than those of its study" in decode(vault.answer(encode(large))).body.reason
    monkeypatch.setattr(vault_module, "MOST_BYTES", most)
    with caplog.at_level(logging.ERROR), served(vault) as stream:
        os.write(stream.fileno(), struct.pack("!i", most + 1))  # refused before the rest is read
        with pytest.raises(EOFError):
            stream.recv_bytes()
    assert "the connection to the node ended: bad message length" in caplog.text
    with served(vault) as stream:
        assert asked(stream, bytes(most)) == b"", "the largest that is read"
    for content in (b"", b"\0\0\0", struct.pack("!i", 100) + b"half"):
        with served(vault) as stream:
            os.write(stream.fileno(), content)
    assert charged(vault) == 0


def test_a_node_gets_what_it_needs_and_nothing_of_the_vault_s(study, tmp_path, monkeypatch):
    settings = node_settings(kit_of(study, "north", tmp_path / "kits"), vault=7)
    assert settings.confined == available()
    start = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(vault_module, "start_process", start)
    monkeypatch.setenv("CLINIC_DB_PASSWORD", "secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("https_proxy", "http://proxy")
    with pytest.raises(InterruptedError):
        run_silo(Mock(), settings, write_silo(tmp_path), say=print)
    _, environment = start.call_args.args
    assert "secret" not in environment.values()
    assert environment["https_proxy"] == "http://proxy"
    assert not {"HOME", "USER"} & set(environment)
    uids = ((1001, "separate users"), (1000, "NOT SEPARATE"), (0, "NOT SEPARATE"))
    assert all(separation(uid, 1000).startswith(words) for uid, words in uids)


def test_a_second_vault_does_not_take_the_socket_of_the_first(tmp_path):
    place = tmp_path / "vault.sock"
    first = vault_module._listener(place)
    first.listen(1)
    with pytest.raises(InputError, match="got another that already listens"):
        vault_module._listener(place)
    assert place.is_socket()
    first.close()
    vault_module._listener(place).close()  # one that nobody listens at any more is replaced
    (tmp_path / "rows.csv").touch()
    for other in ("rows.csv", "x" * 120):
        with pytest.raises(InputError, match="name a new file with --socket"):
            vault_module._listener(tmp_path / other)


def test_parts_that_are_links_to_files_elsewhere_are_secrets_too(tmp_path):
    own, elsewhere = write_silo(tmp_path), tmp_path / "elsewhere.csv"
    elsewhere.touch()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part1.csv").symlink_to(elsewhere)
    assert elsewhere in structs.replace(own, data=Data(path="parts")).secrets()


def test_a_vault_survives_what_it_did_not_foresee(vault, study, caplog):
    """A study that a later version cannot read, an inbox that another user made unreadable."""
    vault.inbox.decide(study, approved=True)
    for name in (64 * "0", 64 * "1"):
        shutil.copy(vault.inbox.folder / f"{study.digest}.study", vault.inbox.folder / f"{name}.study")
    (vault.inbox.folder / f"{64 * '0'}.study").write_bytes(b"of an earlier version")
    assert vault.inbox.waiting()[0].digest == study.digest, "what is damaged is not shown"
    (vault.inbox.folder / "version").write_text("0.1")
    Inbox(study.federation, vault._own, vault._ledger)
    assert vault.status.n_waiting == 0
    place = vault.inbox.folder / f"{study.digest}.study"
    place.unlink()
    place.mkdir()
    with caplog.at_level(logging.ERROR):
        assert isinstance(decode(vault.answer(encode(question(study)))).body, Refusal)
    assert charged(vault) == 0
