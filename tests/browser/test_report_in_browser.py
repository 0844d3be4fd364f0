"""The report in a real browser: it loads nothing, can be read by everybody, and obeys the keyboard."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from window import Browser

from fedpower.report.record import REPORT
from fedpower.report.result import read_result
from sample_results import HOSTILE, sample
from sample_results import KINDS as SAMPLES

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of a result of each kind; made only where a browser will see it."""
    base = tmp_path_factory.mktemp("results")
    made = {kind: sample(base, kind) for kind in SAMPLES}
    read_result(made["federated"]).report(made["federated"] / REPORT)
    return {kind: folder / REPORT for kind, folder in made.items()}


KINDS = ("private", "drowned", "secure", "exact", "krylov", "sampled", "one", "wide", "hostile", "scored",
         "federated")  # fmt: skip
SCHEMES = ("light", "dark")
PHONE = 360
MEASURES = (Path(__file__).parent / "measures.js").read_text(encoding="utf-8")


_COMPONENTS = (
    "window.box = document.querySelector('#components .scroll');box.scrollIntoView({ behavior: 'instant' });"
)


def measure(browser: Browser, expression: str, *arguments: Any) -> Any:
    return browser.ask(f"{MEASURES}\n{expression}", *arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (1000, "light")])
def test_nothing_is_asked_for_but_the_page_nothing_is_complained_of_and_nothing_sticks_out(
    browser, pages, kind, width, scheme
):
    browser.open(pages[kind], width=width, scheme=scheme)
    assert browser.requests() == [pages[kind].as_uri()]
    assert browser.complaints() == []
    assert "held by" in browser.ask("return document.querySelector('h1').textContent")
    assert browser.ask("return document.title").endswith("– fedpower")
    assert measure(browser, "openAll(); return stickingOut()") == []
    wide, window = browser.ask("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window == width


def test_the_policy_stops_what_is_not_the_page_s_own(browser, pages):
    browser.open(pages["private"])
    browser.ask(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s); const i = new Image(); i.src = 'https://example.org/x.png';"
        "document.body.append(i); document.body.setAttribute('style', 'color: red')"
    )
    assert browser.ask("return window.ran") is None
    assert browser.ask("return getComputedStyle(document.body).color") != "rgb(255, 0, 0)"
    assert len([each for each in browser.complaints() if "Content Security Policy" in each]) >= 3


def test_names_that_look_like_code_are_text(browser, pages):
    browser.open(pages["hostile"])
    shown = browser.ask("return [...document.querySelectorAll('bdi')].map(e => e.textContent)")
    assert set(HOSTILE) <= set(shown)
    assert browser.ask("return document.querySelectorAll('img').length") == 0
    heights = browser.ask(
        "return [...document.querySelectorAll('.rows li')].map(e => e.getBoundingClientRect().height)"
    )
    assert {height for height in heights if height} == {28}


def test_on_a_phone_verdicts_are_seen_and_a_shade_tells_of_columns_beyond(browser, pages):
    browser.open(pages["private"], width=PHONE)
    seen, beyond = browser.ask(
        f"{_COMPONENTS} const right = Math.max(...[...box.querySelectorAll('.verdict')].map("
        "  (each) => each.getBoundingClientRect().right));"
        "return [right <= innerWidth, box.scrollWidth - box.clientWidth]"
    )
    assert seen
    assert beyond > 0
    assert _shades(browser) == (False, True)
    browser.ask("box.scrollLeft = 1e6")
    assert _shades(browser) == (True, False)
    browser.open(pages["private"], width=1000)
    browser.ask(_COMPONENTS)
    assert _shades(browser) == (False, False)


def _shades(browser: Browser) -> tuple[bool, bool]:
    """Return whether the left and the right edge of the box are darker than the page."""
    shown = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("L")
    left, top, right = browser.ask(
        "const at = box.getBoundingClientRect(); return [at.left, at.top, at.right]"
    )
    edges = [shown.getpixel((round(x), round(top) + 3)) for x in (left + 1, right - 2)]
    return edges[0] < 240, edges[1] < 240


@pytest.mark.parametrize("kind", ["private", "drowned", "exact", "krylov", "sampled", "hostile"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_and_marks_stand_out_from_what_is_behind_them(browser, pages, kind, scheme):
    browser.open(pages[kind], scheme=scheme)
    texts = measure(browser, "openAll(); return textContrasts()")
    marks = measure(browser, "return markContrasts()")
    assert len(texts) > 100
    assert len(marks) > 20
    assert [each for each in texts if each[0] < 4.5] == []
    assert [each for each in marks if each[0] < 3] == []


@pytest.mark.parametrize("kind", ["private", "sampled"])
def test_tab_reaches_every_control_in_the_order_of_the_page_and_shows_where_it_is(browser, pages, kind):
    browser.open(pages[kind])
    count = measure(browser, "window.all = controls(); return all.length")
    assert count > 20
    reached = []
    for _ in range(count):
        browser.press(Keys.TAB)
        place, ring = measure(
            browser, "const e = document.activeElement; return [all.indexOf(e), outline(e)]"
        )
        reached.append(place)
        assert ring >= 2
    assert reached == list(range(count))


def focus_sorting(browser: Browser, table: str, place: int) -> None:
    measure(
        browser,
        f"openAll(); window.sorted = document.querySelector('{table} table');"
        f"sorted.tHead.rows[0].cells[{place}].querySelector('button').focus()",
    )


def test_enter_sorts_a_table_and_enter_again_turns_it_around_with_empty_cells_last(browser, pages):
    browser.open(pages["private"])
    focus_sorting(browser, "#loadings", 1)
    states, columns = [], []
    for key in (None, Keys.ENTER, Keys.ENTER, Keys.SPACE):
        if key:
            browser.press(key)
        states.append(browser.ask("return [...sorted.tHead.rows[0].cells].map(c => c.ariaSort)"))
        columns.append([float(x) for x in measure(browser, "return column(sorted, 1)")])
    assert [state[1] for state in states] == ["none", "ascending", "descending", "ascending"]
    assert all(state[0] == state[2] == "none" for state in states)
    assert columns[0] == sorted(columns[0], key=abs, reverse=True)
    assert columns[1] == columns[3] == sorted(columns[0])
    assert columns[2] == columns[1][::-1] != columns[0]
    browser.open(pages["krylov"])
    focus_sorting(browser, "#rounds", 6)
    for turn in (1, -1):
        browser.press(Keys.ENTER)
        shown = measure(browser, "return column(sorted, 6)")
        known = [float(each) for each in shown if each]
        assert len(known) > 3
        assert known == sorted(known)[::turn]
        assert shown[len(known) :] == [""] * (len(shown) - len(known)) != []


@pytest.mark.parametrize("kind", ["private", "sampled", "exact"])
def test_everything_has_a_name_for_those_who_hear_the_page(browser, pages, kind):
    browser.open(pages[kind])
    measure(browser, "openAll()")
    tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named: dict[str, list[str]] = {}
    for node in tree:
        if not node.get("ignored"):
            named.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    roles = ("image", "button", "link", "table", "region", "navigation", "columnheader", "heading")
    for role in roles:
        assert named[role], role
        assert all(name.strip() for name in named[role]), role
    assert len(named["image"]) == browser.ask("return document.querySelectorAll('svg[role]').length")


def test_without_scripts_the_page_is_complete_and_has_no_dead_buttons(browser, pages):
    browser.open(pages["private"])
    headings = [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, "h2")]
    buttons = len(browser.driver.find_elements(By.CSS_SELECTOR, "th button"))
    rows = len(browser.driver.find_elements(By.TAG_NAME, "tr"))
    browser.open(pages["private"], scripts=False)
    source = browser.driver.page_source
    assert buttons > 0
    assert "<button" not in source
    assert source.count("<tr") == rows
    assert all(heading in source for heading in headings)


@pytest.mark.parametrize("kind", ["private", "krylov", "hostile"])
def test_on_paper_pictures_and_words_are_all_there(browser, pages, kind):
    browser.open(pages[kind], scheme="dark")
    browser.prefer("dark", medium="print")
    hidden, paper, unseen = measure(
        browser,
        "return [seen(document.querySelector('nav')), behind(document.querySelector('main')),"
        "[...document.querySelectorAll('svg[role], figcaption, #privacy table, #columns table')]"
        ".filter(e => !seen(e)).length]",
    )
    assert not hidden
    assert paper[:3] == [255, 255, 255]
    assert unseen == 0
    made = browser.printed()
    assert made.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", made)) >= 3
    assert len(made) > 50_000
