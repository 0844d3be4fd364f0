"""The page on JSON output documents the keys that commands print."""

import json
import re
from pathlib import Path
from typing import Any

from hospitals import PRIVATE, make_ledgers, succeed

PAGE = Path(__file__).parents[2] / "docs" / "user" / "json.md"
FILES = ("north.csv", "south.parquet", "east.csv")
COMMANDS = {
    "fit, show": ["show out"],
    "show --against": ["show out --against out"],
    "plan": ["plan north.csv east.csv -k 2 --epsilon 1 --gap 0.05 --ledger l"],
    "ledger show": ["ledger show l/north.ledger"],
    "ledger verify": ["ledger verify l/north.ledger"],
    "analyze": ["analyze factor out -k 1", "analyze correlate out", "analyze regress out --target hdl"],
    "inspect": ["inspect north.csv"],
}


def documented() -> dict[str, set[str]]:
    """Return by section the keys in its table; a.b is a key of what a holds."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    rows = {text.splitlines()[0]: re.findall(r"^\| (`.*)$", text, re.MULTILINE) for text in sections}
    return {name: {key for row in table for key in _keys(row)} for name, table in rows.items()}


def _keys(row: str) -> set[str]:
    first, rest = row.split(" | ", 1)
    dotted = re.findall(r"`([a-z_]+\.[a-z_.]+)`", rest)
    return {*re.findall(r"`(\w+)`", first), *dotted}


def holds(content: Any, key: str) -> bool:
    for name in key.split("."):
        content = content[0] if isinstance(content, list) else content
        if name not in content:
            return False
        content = content[name]
    return True


def test_documented_keys_are_those_that_are_printed(here):
    make_ledgers("l")
    said = succeed("fit", *FILES, *PRIVATE, "--no-standardize", "--ledger", "l", "-o", "out", "--json")
    keys = documented()
    assert json.loads(said.stdout).keys() == json.loads(succeed("show", "out", "--json").stdout).keys()
    assert keys.keys() == COMMANDS.keys()
    for section, commands in COMMANDS.items():
        for command in commands:
            printed = json.loads(succeed(*command.split(), "--json").stdout)
            assert not [key for key in keys[section] if not holds(printed, key)], command
            top = {key for key in keys[section] if "." not in key}
            assert section == "analyze" or printed.keys() == top, command
