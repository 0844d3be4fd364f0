"""A ledger knows rows by the version that their operator declares, and holds that version to its rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedpower.errors import InputError, LedgerError
from fedpower.privacy import Ledger
from fedpower.privacy.ledger import DataVersion

FIRST = DataVersion(silo="north", version="1", columns="a, b", fingerprint="0" * 64)
OTHER_ROWS = replace(FIRST, fingerprint="f" * 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "north.ledger"
    Ledger.create(made, epsilon=8.0, delta=1e-6).close()
    return made


def ask(ledger: Ledger, data: DataVersion, content: bytes = b"noised") -> bytes:
    return ledger.release(
        key=f"{data.name}/{data.columns}", purpose="a test", study=data.name, mu=0.1, data=data,
        payload=lambda: content,
    )  # fmt: skip


def test_the_same_version_is_the_same_release_and_another_a_new_charge(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert ask(ledger, FIRST) == ask(ledger, FIRST, b"fresh noise") == b"noised"
        assert ledger.spent().n_releases == 1
        assert ask(ledger, replace(OTHER_ROWS, version="2"), b"other rows") == b"other rows"
        assert ledger.spent().n_releases == 2
        assert ledger.statement()["data_versions"] == ["1", "2"]


def test_other_rows_of_a_version_that_was_booked_are_refused_and_say_what_to_do(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ask(ledger, FIRST)
    before = path.read_bytes()
    with Ledger.open(path) as ledger:
        for refuse in (ledger.check_rows, lambda data: ask(ledger, data)):
            with pytest.raises(LedgerError, match="knows as version '1', got others; declare a new"):
                refuse(OTHER_ROWS)
    assert path.read_bytes() == before


def test_rows_that_change_while_a_silo_is_open_are_refused_by_the_release_itself(path: Path) -> None:
    with Ledger.open(path) as one, Ledger.open(path) as two:
        one.check_rows(FIRST)
        two.check_rows(OTHER_ROWS)
        ask(one, FIRST)
        with pytest.raises(LedgerError, match="got others"):
            two.release(key="k", purpose="p", study="s", mu=0.1, data=OTHER_ROWS, payload=lambda: b"")
        assert two.spent().n_releases == 1


def test_until_something_was_released_a_version_is_nobody_s_and_other_columns_are_other_questions(
    path: Path,
) -> None:
    with Ledger.open(path) as ledger:
        ledger.check_rows(OTHER_ROWS)
        ask(ledger, FIRST)
        assert ask(ledger, replace(OTHER_ROWS, columns="a, b, c"), b"wider") == b"wider"


def test_a_ledger_belongs_to_the_first_silo_and_data_set_that_release(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert (ledger.owner.silo, ledger.owner.data_set) == (None, None)
        ask(ledger, FIRST)
        assert (ledger.owner.silo, ledger.owner.data_set) == ("north", None)
        named = replace(FIRST, data_set="heart")
        assert ask(ledger, named, b"fresh noise") == b"noised"
        assert (ledger.owner.silo, ledger.owner.data_set) == ("north", "heart")
        for stranger in (replace(named, silo="south"), FIRST, replace(named, data_set="lungs")):
            with pytest.raises(InputError, match="must belong to"):
                ask(ledger, stranger)
    with Ledger.open(path, read_only=True) as seen:
        assert (seen.owner.silo, seen.owner.data_set) == ("north", "heart")


def test_a_version_is_short_plain_text() -> None:
    for version in ("", " ", "a b", "-1", "\x1b[2J", "é", "x" * 65, 1, None):
        with pytest.raises(InputError, match="must be 1 to 64 letters, digits or"):
            replace(FIRST, version=version)


def test_the_fingerprint_is_in_no_statement_and_no_key(path: Path) -> None:
    reported = replace(FIRST, fingerprint="abcdef" * 10)
    with Ledger.open(path) as ledger:
        ask(ledger, reported)
        assert "abcdef" not in f"{ledger.statement()} {reported!r}"
