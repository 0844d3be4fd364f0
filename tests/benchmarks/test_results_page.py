"""The results page: equal to what the files say, and every sentence computed from them."""

import json
from pathlib import Path

from benchmarks.results_page import claims, figures, on_claims, render

DOCS = Path(__file__).parents[2] / "docs"

CLAIM = {
    "id": "larger-p",
    "whose": "paper",
    "sentence": "larger p | fewer rounds",
    "where": "§5",
    "figure": "3",
    "threshold": "at most 0.95",
    "holds": False,
    "explanation": "It does not hold: the ratio is 1.02.",
}


def test_documents_match_the_recorded_results() -> None:
    assert render(check=True) == []


def test_pictures_on_the_page_are_there() -> None:
    for line in (DOCS / "results.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("!["):
            assert (DOCS / line.rpartition("(")[2].rstrip(")")).exists()


def test_claims_and_figures_appear_where_they_were_reproduced(tmp_path: Path) -> None:
    assert "make reproduce" in claims(tmp_path)
    assert figures(tmp_path) == ""
    (tmp_path / "claims.json").write_text(json.dumps({"claims": [CLAIM]}))
    (tmp_path / "captions.json").write_text(json.dumps({"figure3": "Error falls."}))
    assert on_claims([CLAIM])[0] == "Of 1 claims of the paper that were put to the test, 0 hold."
    assert "larger p \\| fewer rounds" in claims(tmp_path)
    assert figures(tmp_path) == f"![figure3]({tmp_path.name}/figure3.svg)\n\n*Error falls.*"
