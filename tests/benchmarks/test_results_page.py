"""The results page: equal to what the files say, and every sentence computed from them."""

import json
from pathlib import Path

from benchmarks.results_page import beside_localpower, beside_peers, claims, figures, on_claims, on_real_data
from benchmarks.runner import render

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


def test_sentences_about_real_data_are_computed() -> None:
    shares = {"fedpower": 0.9, "step": 0.5, "paper": 0.1}
    rows = [
        {
            "data": "toy",
            "split": split,
            "epsilon": epsilon,
            "method": method,
            "captured": share - (split == "by label") * (method == "fedpower") * 0.003,
            "error": 0.7 if epsilon < 1 else 0.2,
        }
        for split in ("at random", "by label")
        for epsilon in (0.5, 1.0)
        for method, share in shares.items()
    ]
    first, second, third = on_real_data({"measured": rows})
    assert "captures 0.90 to 0.90" in first
    assert "`step` 0.50 to 0.50, `paper` 0.10 to 0.10" in first
    assert "3.0e-03" in second
    assert "at ε = 0.5 on toy; at ε = 1 on none" in third


def test_sentences_about_peers_are_computed() -> None:
    errors = {"fedpower": 0.3, "Analyze-Gauss": 0.1, "exponential mechanism": 0.6, "OpenDP": 0.8}
    fits = [
        {"data": "toy", "method": name, "epsilon": 1.0, "error": error, "captured": 1 - error}
        for name, error in errors.items()
    ]
    found = {
        "measured": {"fits": fits},
        "settings": {"epsilons": [1.0], "seeds": [0, 1], "limit_s": 30, "limit_clock_s": 60},
    }
    price, pure, opendp, diffprivlib = beside_peers(found)
    assert "3 to 3 times" in price
    assert "on 1 of 1 data sets: toy" in pure
    assert "OpenDP's PCA finished 1 of 2 fits in the 30 core seconds or 60 " in opendp
    assert "toy at ε = 1: 0.20 against fedpower's 0.70" in opendp
    assert diffprivlib.endswith("seconds on the clock it had for a data set.")
    assert "finished 0 of 2 fits" in diffprivlib


def test_the_sentence_about_localpower_is_computed() -> None:
    rows = [
        {"data": "a", "split": "at random", "LocalPower": [0.1, 0.3], "FedPCA(5)": [1e-14, 1e-14]},
        {"data": "b", "split": "by label", "LocalPower": [0.4, 0.4], "FedPCA(5)": [3e-14, 3e-14]},
    ]
    (sentence,) = beside_localpower({"measured": rows})
    assert "is 3.0e-14; the others' largest: LocalPower 4.0e-01." in sentence
