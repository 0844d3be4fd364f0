"""The check that ``make docs`` ends with finds what is wrong with a site."""

import runpy
from pathlib import Path

import pytest
from pages import ROOT

faults = runpy.run_path(str(ROOT / "docs" / "site" / "check.py"))["faults"]


def _site(folder: Path, body: str) -> Path:
    (folder / "other.html").write_text('<h1 id="top">Other</h1>')
    (folder / "style.css").write_text("")
    (folder / "index.html").write_text(f"<html>{body}</html>")
    return folder


@pytest.mark.parametrize(
    "body",
    [
        '<a href="other.html#top">other</a><a href="https://example.org">far</a>',
        '<link rel="stylesheet" href="style.css?v=1"><p id="here"><a href="#here">here</a></p>',
    ],
)
def test_a_sound_site_has_no_faults(body: str, tmp_path: Path) -> None:
    assert faults(_site(tmp_path, body)) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="gone.html">gone</a>', "leads nowhere"),
        ('<img src="gone.svg">', "leads nowhere"),
        ('<a href="other.html#gone">gone</a>', "no such anchor"),
        ('<a href="#gone">gone</a>', "no such anchor"),
        ('<script src="https://cdn.example/x.js"></script>', "from a network"),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', "from a network"),
    ],
)
def test_each_kind_of_fault_is_found(body: str, said: str, tmp_path: Path) -> None:
    (found,) = faults(_site(tmp_path, body))
    assert said in found
