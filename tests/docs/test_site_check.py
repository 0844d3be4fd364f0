"""The check that ``make docs`` ends with finds what is wrong with a site."""

import runpy
from pathlib import Path

import pytest
from pages import ROOT

BODIES = {
    '<a href="other.html#top">other</a><a href="https://example.org">far</a>': None,
    '<link rel="stylesheet" href="style.css?v=1"><p id="here"><a href="#here">here</a></p>': None,
    '<a href="gone.html">gone</a>': "leads nowhere",
    '<img src="gone.svg">': "leads nowhere",
    '<a href="other.html#gone">gone</a>': "no such anchor",
    '<a href="#gone">gone</a>': "no such anchor",
    '<script src="https://cdn.example/x.js"></script>': "from a network",
    '<link rel="stylesheet" href="//cdn.example/x.css">': "from a network",
}


@pytest.mark.parametrize("body", BODIES)
def test_each_kind_of_fault_is_found_and_no_other(body: str, tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h1 id="top">Other</h1>')
    (tmp_path / "style.css").touch()
    (tmp_path / "index.html").write_text(f"<html>{body}</html>")
    found = runpy.run_path(str(ROOT / "docs" / "site" / "check.py"))["faults"](tmp_path)
    assert [BODIES[body] in each for each in found] == [True] * (BODIES[body] is not None)
