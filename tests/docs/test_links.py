"""Links between Markdown files lead somewhere, as a forge shows them."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pages import PAGES, ROOT

FILES = [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"]


@cache
def _tokens(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))


def _links(path: Path) -> list[str]:
    return [
        str(child.attrs.get("href") or child.attrs.get("src"))
        for token in _tokens(path)
        for child in token.children or ()
        if child.type in ("link_open", "image")
    ]


def _anchors(path: Path) -> set[str]:
    """Return the anchors a forge gives a page's headings: lower case, words joined by dashes."""
    tokens = _tokens(path)
    headings = [
        tokens[place + 1].content for place, token in enumerate(tokens) if token.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", FILES)
def test_every_link_of_a_page_leads_somewhere(name):
    page = ROOT / name
    for link in _links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name}: {link}"
        if anchor:
            assert anchor in _anchors(target), f"{name}: {link}"


def test_every_page_is_reached_from_the_first_one():
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        ahead += [(page.parent / unquote(link).partition("#")[0]).resolve() for link in _links(page)]
    made_for_the_site = {name for name in PAGES if name.startswith("docs/project/")}
    decisions = {name for name in PAGES if name.startswith("docs/decisions/")}  # linked as a folder
    reached = {str(page.relative_to(ROOT)) for page in seen}
    assert set(PAGES) - reached <= made_for_the_site | decisions


def test_every_module_that_a_page_names_is_there():
    known = [
        str(path.relative_to(ROOT))
        for top in ("src", "tests", "benchmarks", "paper", "examples", "scripts")
        for path in (ROOT / top).rglob("*.py")
    ]
    for name in PAGES:
        for module in re.findall(r"`((?:\w+/)+\w+\.py)\b", (ROOT / name).read_text(encoding="utf-8")):
            assert any(f"/{path}".endswith(f"/{module}") for path in known), f"{name}: {module}"
