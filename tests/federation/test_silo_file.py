"""A silo's own file: its refusals, what it agrees to, and its ledger."""

import math
import shlex
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from studies import write_silo, write_study

from fedpower.cli import main
from fedpower.cli.failures import in_options
from fedpower.errors import FedpowerError, InputError, LedgerError, ProtocolError
from fedpower.federation.silo_file import read_silo
from fedpower.federation.study_file import StudyFile
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.secure import Identity
from fedpower.protocol.study import budget_of, worst_epsilon
from fedpower.rows.sql import QuerySource

DATA = '[data]\npath = "rows.csv"\n'
WRONG = {
    "no silo": (DATA, "must have 'silo', got none; add it"),
    "silo of another type": (f"silo = 3\n{DATA}", "silo in .* must be text in quotes, got a whole number"),
    "no data": ('silo = "north"', "must have 'data', got none; add it"),
    "no path": ('silo = "north"\n[data]\n', "must have 'path', got none; add it"),
    "path of another type": ('silo = "north"\n[data]\npath = 3', "path in .* must be text in quotes"),
    "version as number": (f'silo = "north"\n{DATA}version = 2', "version in .* must be text in quotes"),
    "version of escapes": (f'silo = "north"\n{DATA}version = "\\u001b[2J"', "letters, digits or"),
    "nameless data": (f'silo = "north"\n{DATA}name = ""', "name in .* must be 1 to 64 letters"),
    "drop as text": (f'silo = "north"\n{DATA}drop = "id"', "drop in .* must be a list, got text"),
    "drop of numbers": (f'silo = "north"\n{DATA}drop = [1]', "drop in .* a list whose entries are text"),
    "extra columns": (f'silo = "north"\n{DATA}extra_columns = "keep"', "one of 'refuse', 'drop', got 'keep'"),
    "unknown key": (f'silo = "north"\n{DATA}password = "x"', "got 'password'; did you mean 'password_"),
    "unknown table": (f'silo = "north"\n{DATA}[noise]\n', "must have known keys only, got 'noise'"),
    "table that is none": ('silo = "north"\ndata = "rows.csv"', "data in .* must be a table"),
    "ledger without path": (f'silo = "north"\n{DATA}[ledger]\nepsilon = 1', "must have 'path', got none"),
    "cap as text": (f'silo = "north"\n{DATA}[ledger]\npath="l"\nepsilon = "1"', "must be a number"),
    "half a cap": (f'silo = "north"\n{DATA}[ledger]\npath="l"\nepsilon = 1', "together, got eps"),
    "agrees to nan": (f'silo = "north"\n{DATA}[agrees]\nepsilon = nan', "above 0, got nan"),
    "agrees to nothing": (f'silo = "north"\n{DATA}[agrees]\ndelta = 0.0', "above 0, got 0"),
    "half a silo": (f'silo = "north"\n{DATA}[agrees]\nmin_silos = 1.5', "must be a whole number"),
    "separator as number": (f'silo = "north"\n{DATA}separator = 1', "separator in .* must be text"),
    "rename as list": (f'silo = "north"\n{DATA}[columns]\nrename = ["a"]', "rename in .* a table"),
    "unknown unit": (f'silo = "north"\n{DATA}[columns]\nunits = 1', "'units'; its keys are rename, factors"),
    "separator of a query": (
        'silo = "north"\n[data]\nquery = "SELECT 1"\ndatabase = "sqlite:///a"\nseparator = ";"',
        "must be a path or a query, got separator with query",
    ),
    "no toml": ("silo north", "must be TOML, got something else"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_file_is_refused_in_one_sentence(fault: str, tmp_path: Path) -> None:
    text, sentence = WRONG[fault]
    path = tmp_path / "silo.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence) as refused:
        read_silo(path)
    assert "\n" not in str(refused.value)
    assert ";" in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the silo file must exist, got no file at"):
        read_silo(tmp_path / "silo.toml")


def agreed(more: str, tmp_path: Path) -> None:
    silo = write_silo(tmp_path, more=f"[agrees]\n{more}")
    silo.check_agreed(write_study(tmp_path, rounds={"min_silos": 2}))


@pytest.mark.parametrize(
    "terms", ["", "epsilon = 1", "epsilon = 1.0\ndelta = 1e-6", "epsilon = inf", "min_silos = 2"]
)
def test_what_was_agreed_to_is_accepted(terms: str, tmp_path: Path) -> None:
    agreed(terms, tmp_path)


@pytest.mark.parametrize("place", [0, 11, 12, 63])
def test_a_study_is_agreed_to_by_its_whole_hash(place: int, tmp_path: Path) -> None:
    digest = write_study(tmp_path, rounds={"min_silos": 2}).digest
    agreed(f'study = "{digest}"', tmp_path)
    other = digest[:place] + ("1" if digest[place] != "1" else "2") + digest[place + 1 :]
    reported = f"agreed to the study {other}, got the study {digest}; read it"
    with pytest.raises(ProtocolError, match=reported):
        agreed(f'study = "{other}"', tmp_path)


@pytest.mark.parametrize(
    "shortened",
    [
        lambda digest: digest[:12],
        lambda digest: digest[:63],
        lambda digest: digest + "0",
        lambda digest: digest.upper(),
        lambda digest: f" {digest}",
        lambda digest: "",
    ],
)
def test_less_or_other_than_the_whole_hash_is_refused_with_what_to_paste(
    shortened: Callable[[str], str], tmp_path: Path
) -> None:
    """Two studies that share 12 digits, one of them harmless, were found with 48 million hashes."""
    digest = write_study(tmp_path, rounds={"min_silos": 2}).digest
    with pytest.raises(ProtocolError, match="must be all 64 digits of its hash") as refused:
        agreed(f'study = "{shortened(digest)}"', tmp_path)
    assert f'paste study = "{digest}"' in str(refused.value)
    assert "\n" not in str(refused.value)


def secure_study(tmp_path: Path, **privacy: Any) -> StudyFile:
    keys = {name: Identity.new().public for name in ("north", "south", "east")}
    return write_study(tmp_path, privacy={"aggregation": "secure", **privacy}, identities=keys)


def test_what_is_agreed_to_is_what_all_attempts_at_a_secure_sum_can_spend(tmp_path: Path) -> None:
    """At epsilon=1 three attempts cost 1.81: an agreement to 1 does not cover them."""
    silo = write_silo(tmp_path, more="[agrees]\nepsilon = 1.0")
    with pytest.raises(ProtocolError) as refused:
        silo.check_agreed(secure_study(tmp_path))
    reported = str(refused.value)
    assert "agrees to epsilon=1 at most, got a study that can spend 1.81" in reported
    assert "in 3 attempts at a secure sum of 1 each" in reported
    advised = float(reported.split("epsilon<=")[1].split(maxsplit=1)[0])
    silo.check_agreed(secure_study(tmp_path, epsilon=advised))
    with pytest.raises(ProtocolError, match="can spend"):
        silo.check_agreed(secure_study(tmp_path, epsilon=advised * 1.01))
    silo.check_agreed(secure_study(tmp_path, attempts=1))
    write_silo(tmp_path, more="[agrees]\nepsilon = 1.82").check_agreed(secure_study(tmp_path))


def test_no_more_can_be_spent_than_was_agreed_to(tmp_path: Path) -> None:
    """The worst case is what a ledger says after every attempt that it lets out."""
    study = secure_study(tmp_path)
    terms, _, _ = study.terms()
    budget = budget_of(terms)
    assert budget is not None
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
        spent = ledger.spent_on("this")
        assert spent.n_releases == terms.attempts
        assert spent == ledger.spent()
        assert worst_epsilon(terms) == pytest.approx(spent.epsilon, rel=1e-9)
        assert ledger.spent_on("another").n_releases == 0


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ("epsilon = 0.9", "agrees to epsilon=0.9 at most, got a study with epsilon=1; change"),
        ("delta = 1e-7", "agrees to delta=1e-07 at most, got a study with delta=1e-06; change"),
        ("min_silos = 3", "takes part with at least 3 silos, got a study that continues with 2; ch"),
    ],
)
def test_what_was_not_agreed_to_is_refused(terms: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        agreed(terms, tmp_path)


def test_an_exact_study_needs_an_epsilon_of_infinity(tmp_path: Path) -> None:
    study = write_study(tmp_path, privacy={"epsilon": math.inf, "delta": None})
    silo = write_silo(tmp_path, more="[agrees]\nepsilon = 5.0")
    with pytest.raises(ProtocolError, match="epsilon=5 at most, got a study with epsilon=inf"):
        silo.check_agreed(study)


def test_a_silo_that_the_study_does_not_name_is_refused(tmp_path: Path) -> None:
    silo = write_silo(tmp_path)
    study = write_study(tmp_path, silos={"names": ["south", "east"]})
    with pytest.raises(ProtocolError, match=r"'north' must be named .*, got the silos south, east"):
        silo.check_agreed(study)


@pytest.mark.parametrize("cap", [2.0, None])
def test_a_missing_ledger_is_refused_and_never_made(cap: float | None, tmp_path: Path) -> None:
    """A disk that was not mounted must not begin a second account of the same rows."""
    silo = write_silo(tmp_path, cap=cap)
    (tmp_path / "north.ledger").unlink(missing_ok=True)
    with pytest.raises(LedgerError, match=r"'north' must have its ledger, got none at .*; put it b"):
        silo.open_ledger()
    assert not (tmp_path / "north.ledger").exists()


def test_the_sentence_about_a_missing_ledger_names_a_command_that_makes_it(tmp_path: Path) -> None:
    silo = write_silo(tmp_path, more="[agrees]\nepsilon = 1.0")
    silo.path.write_text(silo.path.read_text().replace("[data]", '[data]\nname = "heart"'))
    (tmp_path / "north.ledger").unlink()
    named = read_silo(silo.path)
    with pytest.raises(LedgerError) as refused:
        named.open_ledger()
    command = str(refused.value).partition("`fedpower ")[2].rstrip("`")
    assert CliRunner().invoke(main, shlex.split(command)).exit_code == 0
    with named.open_ledger() as made:
        assert (made.silo, made.data_set, made.cap) == ("north", "heart", (2.0, 1e-5))


def test_opening_a_ledger_changes_nothing_of_it(tmp_path: Path) -> None:
    silo = write_silo(tmp_path)
    before = (tmp_path / "north.ledger").read_bytes()
    with silo.open_ledger() as opened:
        assert opened.cap == (2.0, 1e-5)
    assert (tmp_path / "north.ledger").read_bytes() == before


@pytest.mark.parametrize("name", [None, "lungs"])
def test_a_ledger_of_another_data_set_is_refused(name: str | None, tmp_path: Path) -> None:
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=2.0, delta=1e-5, silo="north", data_set="heart").close()
    silo = write_silo(tmp_path)
    if name is not None:
        silo.path.write_text(silo.path.read_text().replace("[data]", f'[data]\nname = "{name}"'))
    with pytest.raises(InputError, match=r"got that of data set 'heart'; give each its own"):
        read_silo(silo.path).open_ledger()


def test_another_cap_than_the_ledger_s_is_refused(tmp_path: Path) -> None:
    write_silo(tmp_path)
    with pytest.raises(InputError, match=r"got epsilon=3 where .* has 2; change the file, or the"):
        write_silo(tmp_path, cap=3.0).open_ledger()


def test_someone_else_s_ledger_is_refused(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "north.ledger", epsilon=2.0, delta=1e-5, silo="south").close()
    with pytest.raises(InputError, match="must belong to silo 'north', got that of 'south'; give"):
        write_silo(tmp_path).open_ledger()


def test_a_private_study_without_a_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "silo.toml"
    path.write_text(f'silo = "north"\n{DATA}')
    with pytest.raises(InputError, match=r"charged to a ledger, got no \[ledger\] in .*; add its"):
        read_silo(path).open_ledger()


def test_where_the_rows_are_is_not_shown_by_accident(tmp_path: Path) -> None:
    """A place may hold credentials; neither the file's words nor a refusal repeat it."""
    path = tmp_path / "silo.toml"
    path.write_text('silo = "north"\n[data]\npath = "user:hunter2@rows.csv"\n')
    silo = read_silo(path)
    assert "hunter2" not in repr(silo)
    assert "hunter2" not in str(silo)
    study = write_study(tmp_path, silos={"names": ["south"]})
    with pytest.raises(FedpowerError) as refused:
        silo.check_agreed(study)
    assert "hunter2" not in str(refused.value)


def test_paths_are_taken_from_the_file_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silo = write_silo(tmp_path)
    study = write_study(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert silo.source(study).columns == study.columns


def test_a_silos_own_names_units_and_text_become_the_studys(tmp_path: Path) -> None:
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
    source = read_silo(tmp_path / "silo.toml").source(study)
    assert source.columns == study.columns
    rows = np.vstack([np.asarray(block) for block in source.blocks(9)])
    assert rows.tolist() == [[3, 1, *[3] * len(others)], [5, 3, *[5] * len(others)]]


def test_a_query_is_renamed_and_converted_too(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    first, *others = study.columns
    cells = ", ".join(f"{place}.5 AS {name}" for place, name in enumerate(others, start=1))
    sqlite3.connect(tmp_path / "a.db").close()
    (tmp_path / "silo.toml").write_text(
        'silo = "north"\n[data]\ndatabase = "sqlite:///a.db"\n'
        f'query = "SELECT 7 AS eigen, {cells}"\n'
        f'[columns]\nrename = {{eigen = "{first}"}}\nfactors = {{{first} = 3}}\n'
    )
    source = read_silo(tmp_path / "silo.toml").source(study)
    assert isinstance(source, QuerySource)
    assert np.asarray(next(source.blocks(9)))[0, 0] == 21


def test_a_column_that_the_silo_does_not_have_is_told_with_the_ways_out(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    lines = [study.columns[1:], "1" * len(study.columns[1:])]
    (tmp_path / "few.csv").write_text("\n".join(map(",".join, lines)))
    (tmp_path / "few.toml").write_text('silo = "north"\n[data]\npath = "few.csv"\n')
    silo = read_silo(tmp_path / "few.toml")
    with pytest.raises(InputError) as refused:
        silo.source(study)
    said = in_options(refused.value.args[0], "silo")
    assert f"got a source without '{study.columns[0]}'" in said
    assert "rename the column that holds it (rename in [columns] of the silo file)" in said
    assert "leave it out of the fit by agreeing on a study without it" in said
