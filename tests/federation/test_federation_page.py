"""The page about federations names every key, and the examples hold what their comments say."""

import configparser
import re
from pathlib import Path

import pytest

from fedpower.cli import COMMANDS
from fedpower.federation import silo_file, study_file

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples" / "federation"


@pytest.mark.parametrize("table", study_file.TABLES)
def test_every_key_of_a_study_is_explained(table: str) -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith(f"| `[{table}]")]
    for key in study_file.TABLES[table]:
        assert any(re.search(rf"\b{key}\b", row) for row in rows), (table, key)


@pytest.mark.parametrize("keys", ["data", "query", "ledger", "agrees"])
def test_every_key_of_a_silo_is_explained(keys: str) -> None:
    table = "data" if keys == "query" else keys
    rows = [row for row in PAGE.splitlines() if row.startswith(f"| `[{table}]")]
    for key in getattr(silo_file, keys.upper()):
        assert any(re.search(rf"\b{key}\b", row) for row in rows), (table, key)


@pytest.mark.parametrize("page", ["docs/federation.md", *(f"examples/federation/{each}" for each in (
    "Containerfile", "fedpower-silo.service", "fedpower-coordinator.service"))])  # fmt: skip
def test_every_command_is_one(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"(?:`|\$ |bin/)fedpower ([a-z]+)", text)
    if page.endswith("Containerfile"):
        named = re.findall(r"^#.*\bfedpower (coordinator|silo|run) ", text, flags=re.MULTILINE)
    assert named
    assert set(named) <= set(COMMANDS)


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert named
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("name", ["silo", "coordinator"])
def test_a_unit_is_hardened_and_stops_as_fedpower_wants_to_be_stopped(name: str) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(EXAMPLES / f"fedpower-{name}.service")
    service = dict(unit["Service"])
    assert service["ExecStart"].split()[1] == name
    assert service["KillMode"] == "mixed"
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "ProtectKernelModules"):
        assert service[key] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["User"] != "root"
    assert service["CapabilityBoundingSet"] == ""
