"""A browser for all tests of pages, where there is one, and reports of every kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, chromium, missing

from fedpower.report.record import REPORT
from fedpower.report.result import write_report
from sample_results import KINDS, sample


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One headless Chromium for all tests of a process."""
    absent = missing()
    if absent is not None:
        pytest.skip(f"{absent} is not installed: make test-browser installs it")
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="session")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of a result of each kind; made only where a browser will see it."""
    base = tmp_path_factory.mktemp("results")
    made = {kind: sample(base, kind) for kind in KINDS}
    write_report(made["federated"])
    return {kind: folder / REPORT for kind, folder in made.items()}
