"""The page about federations names every key, and commands and tests that there are."""

import re
from pathlib import Path

import pytest

from fedpower.cli import COMMANDS
from fedpower.federation import silo_file, study_file

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
UNITS = sorted((ROOT / "examples" / "federation").glob("*.service"))


@pytest.mark.parametrize("table", study_file.TABLES)
def test_every_key_of_a_study_is_explained(table: str) -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith(f"| `[{table}]")]
    for key in study_file.TABLES[table].__struct_fields__:
        assert any(re.search(rf"\b{key}\b", row) for row in rows), (table, key)


@pytest.mark.parametrize("table", ["data", "columns", "ledger", "agrees", "identity"])
def test_every_key_of_a_silo_is_explained(table: str) -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith(f"| `[{table}]")]
    for key in getattr(
        silo_file, table.title() if table == "data" else f"_{table.title()}"
    ).__struct_fields__:
        assert any(re.search(rf"\b{key}\b", row) for row in rows), (table, key)


@pytest.mark.parametrize("page", [ROOT / "docs" / "federation.md", *UNITS], ids=lambda path: path.name)
def test_every_command_is_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:`|\$ |bin/)fedpower ([a-z]+)", text)
    assert named
    assert set(named) <= set(COMMANDS)


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert named
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
