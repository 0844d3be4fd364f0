"""Secure sums on the command line: identities in files, a fit, a plan, and refusals in one sentence."""

import json
import stat
from pathlib import Path

from hospitals import PRIVATE, SIZES, succeed

from fedpower.report import read_result

FILES = ("north.csv", "south.parquet", "east.csv")
SECURE = (*PRIVATE, "--aggregation", "secure")


def test_an_identity_is_made_once_and_shown(here: Path):
    made = succeed("node", "key", "north.pem").stdout.strip()
    assert len(made) == 64
    assert int(made, 16) > 0
    assert stat.S_IMODE(Path("north.pem").stat().st_mode) == 0o600
    assert succeed("node", "key", "north.pem").stdout.strip() == made


def test_a_fit_with_a_secure_sum_tells_what_it_promises(here: Path):
    said = succeed("fit", *FILES, *SECURE, "--verbose", "-o", "out")
    assert "the coordinator together with 1 silo of the 3" in said.stdout
    assert "rehearsal" in said.stdout
    record = read_result("out").run
    assert [each["kind"] for each in record["rounds"]] == ["open-session", "moment"]
    assert record["study"]["terms"]["aggregation"] == "secure"
    assert len(record["privacy"]["protections"]) == 3
    assert record["privacy"]["notes"]


def test_identities_from_files_are_those_of_the_study(here: Path):
    shown = {}
    words = []
    for name in SIZES:
        shown[name] = succeed("node", "key", f"{name}.pem").stdout.strip()
        words += ["--identity", f"{name}={name}.pem"]
    succeed("fit", *FILES, *SECURE, *words, "-o", "out")
    listed = read_result("out").run["study"]["terms"]["identities"]
    assert dict(listed) == shown


def test_a_plan_marks_the_secure_sum_where_it_is_asked_for(here: Path):
    facts = ("--n-features", 20, "--rows", "5x4000", "-k", 2, "--epsilon", 1, "--json")
    ways = json.loads(succeed("plan", *facts, "--aggregation", "secure").stdout)["candidates"]
    (chosen,) = [way for way in ways if way["chosen"]]
    assert chosen["aggregation"] == "secure"
    plain = json.loads(succeed("plan", *facts).stdout)["candidates"]
    assert {way["aggregation"] for way in plain} == {"plain", "secure"}
    assert [way["aggregation"] for way in plain if way["chosen"]] == ["plain"]
