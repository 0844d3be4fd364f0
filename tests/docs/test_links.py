"""Links lead somewhere, and pages that list what the code or another file holds list all of it."""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pages import PAGES, ROOT

import fedpower
from fedpower import CodeBook, FedPCA, analysis
from fedpower.report.result import FILES
from problems import spiked_rows

LINKING = [
    *PAGES,
    "examples/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks/README.md",
]


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


@pytest.mark.parametrize("name", LINKING)
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
    unreached = set(PAGES) - {str(page.relative_to(ROOT)) for page in seen}
    included = {f"docs/contributor/{name}.md" for name in ("benchmarks", "changelog", "contributing")}
    listed = {name for name in unreached if name.startswith("docs/contributor/decisions/")}
    assert unreached <= included | listed


def test_a_decision_fits_on_one_page():
    for page in (ROOT / "docs" / "contributor" / "decisions").glob("*.md"):
        assert len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8"))) <= 300, page.name


def test_every_module_that_a_page_names_is_there():
    known = [
        str(path.relative_to(ROOT))
        for top in ("src", "tests", "benchmarks", "paper", "examples", "scripts")
        for path in (ROOT / top).rglob("*.py")
    ]
    for name in PAGES:
        for module in re.findall(r"`((?:\w+/)+\w+\.py)\b", (ROOT / name).read_text(encoding="utf-8")):
            assert any(f"/{path}".endswith(f"/{module}") for path in known), f"{name}: {module}"


FOLDER = (ROOT / "docs" / "user" / "result-folder.md").read_text(encoding="utf-8")
BIBLIOGRAPHY = (ROOT / "docs" / "references.bib").read_text(encoding="utf-8")


def test_every_file_array_and_key_of_a_result_is_explained(tmp_path):
    model = FedPCA(2, codebook=CodeBook(row_norm=1.0, offset=np.zeros(6), scale=np.ones(6)))
    rows, written = spiked_rows(200, 6), tmp_path / "result"
    model.fit_silos([rows[:100], rows[100:]]).save(written)
    named = set(re.findall(r"`([\w.]+)`", FOLDER))
    assert {path.name for path in written.iterdir()} <= {*FILES, "covariance.npz"} <= named
    with np.load(written / "components.npz") as stored:
        assert set(stored.files) <= named
    record = json.loads((written / "run.json").read_text())
    nested = (record["privacy"], *record["privacy"]["protections"], *record["silos"], *record["rounds"])
    for table in (record, record["solver"], *nested):
        assert set(table) <= named


def test_every_exported_object_has_a_page_in_the_reference():
    api = (ROOT / "docs" / "reference" / "api.rst").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   ~(fedpower\.[\w.]+)$", api, flags=re.MULTILINE))
    exported = {f"fedpower.{name}" for name in fedpower.__all__ if name != "__version__"}
    assert exported | {f"fedpower.analysis.{name}" for name in analysis.__all__} <= listed


@pytest.mark.parametrize("page", PAGES)
def test_every_work_that_a_page_cites_is_in_the_bibliography(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    cited = re.findall(r"[\[;] ?(FP|LocalPower|[A-Z][A-Za-z]*\d\d)(?=[\] ;])", text)
    assert set(cited) <= set(re.findall(r"^@\w+\{(\w+),", BIBLIOGRAPHY, flags=re.MULTILINE))
