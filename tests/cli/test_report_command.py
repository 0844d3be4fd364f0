"""`fedpower show` prints a result, and opens its page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hospitals import EXACT, PRIVATE, SIZES, succeed

from fedpower.report import read_result

FILES = ("north.csv", "south.parquet", "east.csv")
COMMAND = (sys.executable, "-c", "from fedpower.cli import main; main()")


def test_fit_names_the_report_it_wrote(here: Path):
    said = succeed("fit", *FILES, *EXACT, "-o", "out")
    assert said.stdout.splitlines()[-1].startswith(f"Result: out (open {Path('out/report.html')};")
    reported = Path("out/report.html").read_text(encoding="utf-8")
    assert "2 components of 150 rows held by 3 silos" in reported
    assert "south.parquet" in reported  # where silos' rows are is on the record of a fit


def test_the_same_folder_gives_the_same_page(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    said = succeed("fit", *FILES, *PRIVATE, "-o", "out")
    page = Path("out/report.html")
    before = page.read_bytes()
    assert succeed("show", "out").stdout.splitlines()[0] == said.stdout.splitlines()[0]
    page.unlink()
    succeed("show", "out", "--open")
    assert page.read_bytes() == before
    Path("out").rename("elsewhere")
    succeed("show", "elsewhere", "--open")
    assert Path("elsewhere/report.html").read_bytes() == before


def test_ledgers_of_a_fit_are_on_its_record_and_in_its_report(here: Path):
    for name in SIZES:
        succeed("ledger", "create", f"l/{name}.ledger", "--epsilon", 2, "--delta", 1e-6)
    succeed("fit", *FILES, *PRIVATE, "--ledgers", "l", "-o", "out")
    for silo in read_result("out").run["silos"]:
        budget = silo["budget"]
        assert budget["spent"] == pytest.approx(1.0)
        assert (budget["cap"], budget["delta"]) == (2.0, 1e-6)
        assert 1.0 < budget["left"] < 2.0  # epsilons do not add up
        assert 0 < budget["used"] < 0.5
    assert "Budgets after this fit" in Path("out/report.html").read_text(encoding="utf-8")
    succeed("fit", *FILES, *PRIVATE, "-o", "without")
    assert not any("budget" in silo for silo in read_result("without").run["silos"])


@pytest.mark.programs
def test_the_page_is_opened_in_the_browser_that_there_is(here: Path):
    succeed("fit", *FILES, *EXACT, "-o", "out")
    browser = here / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o755)
    subprocess.run(
        [*COMMAND, "show", "out", "--open"], check=True, env={**os.environ, "BROWSER": f"{browser} %s"}
    )
    assert (here / "opened").read_text().strip() == (here / "out" / "report.html").as_uri()


@pytest.mark.programs
def test_without_a_browser_it_says_so(here: Path):
    succeed("fit", *FILES, *EXACT, "-o", "out")
    kept = {key: value for key, value in os.environ.items() if "DISPLAY" not in key}
    kept.pop("BROWSER", None)
    said = subprocess.run(
        [*COMMAND, "show", "out", "--open"],
        check=True,
        capture_output=True,
        text=True,
        env={**kept, "PATH": str(here / "nothing")},
    )
    assert "no browser could be started" in said.stderr
