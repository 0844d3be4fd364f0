"""The page of a study's status in a real browser: it updates itself, over a scripted coordinator."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from statuses import HOSTILE, ScriptedSession, closed_round, open_round, run_state, standings
from studies import write_study
from test_report_in_browser import PHONE, measure
from window import Browser

from fedpower.federation.status_page import StatusPage, served
from sample_results import sample

pytestmark = pytest.mark.browser


class Shown:
    """A page that is open in a browser, and the session behind it."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.study = browser, write_study(folder)
        self.session = ScriptedSession(sample(folder, "private"))
        self.page = StatusPage(self.study, lambda: None)
        self.address = ""

    def set(self, **state: Any) -> None:
        """Let the coordinator report a run, and the page ask for it."""
        self.session.run = run_state(self.study, **state)
        self.update()

    def update(self) -> None:
        self.page.update(self.session)  # type: ignore[arg-type]

    def text(self, selector: str = "main") -> str:
        text: str = self.browser.ask(f"return document.querySelector('{selector}').innerText")
        return text

    def waits_for(self, words: str) -> None:
        ends = time.monotonic() + 10
        while words not in self.text():
            assert time.monotonic() < ends, f"{words!r} is not in {self.text()!r}"
            time.sleep(0.05)


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Shown]:
    made = Shown(browser, tmp_path)
    with served(made.page, 0, tmp_path) as made.address:
        yield made
        browser.open("about:blank")  # before the page asks a server that is gone


def test_the_page_follows_a_study_from_approval_over_rounds_to_its_report(shown):
    shown.update()
    shown.browser.open(shown.address)
    shown.waits_for("No run of this study is in progress.")
    assert "Last rounds" not in shown.text()
    waiting = standings(south=("waiting", ""), east=("absent", ""))
    shown.set(approved=False, standings=waiting)
    shown.waits_for("The study waits for east to connect and south to approve.")
    shown.set(rounds=[closed_round(0, "east")], open=open_round(1, "north"), waiting_for=["south", "east"])
    shown.waits_for("The study is approved, and rounds are in progress.")
    rows = shown.browser.ask(
        "return [...document.querySelectorAll('#silos tr')].map(row => [...row.cells].map(c => c.innerText))"
    )
    assert rows == [
        ["Silo", "Connected", "Approval", "This round"],
        ["north", "yes", "approved", "answered"],
        ["south", "yes", "approved", "waiting"],
        ["east", "no", "approved", "waiting"],
    ]
    assert "48 s" in shown.text("#summary")
    assert "Last rounds" in shown.text()
    assert "Open the report" not in shown.text()
    shown.set(rounds=[closed_round(0, "east"), closed_round(1)], done=True, reason=None)
    shown.waits_for("Open the report of the result")
    assert shown.browser.ask("return document.title") == "The run is complete. – heart-2026"
    asked = {address for address in shown.browser.requests() if not address.startswith("data:")}
    assert asked == {f"{shown.address}/", f"{shown.address}/status.json"}
    shown.browser.ask("document.querySelector('#report a').click()")
    shown.waits_for("Provenance")
    assert shown.browser.complaints() == []


def test_the_page_says_that_the_coordinator_is_away_and_goes_on_when_it_is_back(shown):
    shown.session.away = True
    shown.update()
    shown.browser.open(shown.address)
    shown.waits_for("The coordinator does not answer.")
    assert "Silos of" not in shown.text()
    shown.session.away = False
    shown.set()
    shown.waits_for("rounds are in progress")
    assert "does not answer" not in shown.text()
    assert shown.browser.complaints() == []


def test_what_others_name_is_text_and_what_is_the_same_is_not_written_again(shown):
    decided = standings(south=("refused", HOSTILE))
    shown.set(done=False, reason=HOSTILE, standings=decided)
    shown.browser.open(shown.address)
    shown.waits_for("The run ended without a result: <img src=x")
    assert shown.browser.ask("return document.querySelectorAll('img').length") == 0
    shown.browser.ask("window.row = document.querySelector('#silos tbody tr')")
    shown.set(done=False, reason="another", standings=decided)
    shown.waits_for("The run ended without a result: another.")
    assert shown.browser.ask("return row.isConnected")
    assert shown.browser.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, 1280])
def test_everything_can_be_read_fits_and_has_a_name(shown, scheme, width):
    states: list[dict[str, Any]] = [
        {"approved": False, "standings": standings(south=("waiting", ""))},
        {"rounds": [closed_round(0, "east")], "open": open_round(1), "waiting_for": ["east"]},
        {"done": False, "reason": HOSTILE},
        {"done": True, "reason": None},
    ]
    for place, state in enumerate(states):
        shown.set(**state)
        shown.browser.open(shown.address, width=width, scheme=scheme)
        shown.waits_for("north")
        contrasts = measure(shown.browser, "return textContrasts()")
        assert len(contrasts) > 10
        assert [each for each in contrasts if each[0] < 4.5] == []
        assert measure(shown.browser, "return stickingOut()") == []
        assert shown.browser.ask("return document.documentElement.scrollWidth") <= width
        names = named(shown.browser)
        assert all(
            names[role] and all(names[role]) for role in ("table", "region", "columnheader", "heading")
        )
        assert len(names["status"]) == 1
        assert ("link" in names) == (place == 3)


def named(browser: Browser) -> dict[str, list[str]]:
    """Return the names of what is heard of a page, by role."""
    names: dict[str, list[str]] = {}
    for node in browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]:
        if not node.get("ignored"):
            names.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", "").strip())
    return names
