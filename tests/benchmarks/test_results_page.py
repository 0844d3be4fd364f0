"""The results page: equal to what the files say, and every sentence computed from them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import results_page
from benchmarks.results_page import DOCS, REPRODUCTION, beside_localpower, beside_peers, on_real_data, page

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


def test_the_page_is_what_the_committed_files_give() -> None:
    assert (DOCS / "results.md").read_text(encoding="utf-8") == page(REPRODUCTION)


@pytest.mark.parametrize("module", ["benchmarks.results_page", "benchmarks.render"])
def test_checking_finds_the_committed_pages_up_to_date(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--check"],
        cwd=DOCS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_page_that_is_out_of_date_is_found_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "results.md"
    old.write_text("old")
    monkeypatch.setattr(results_page, "DOCS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["results_page", "--check"])
    with pytest.raises(SystemExit, match="run make docs-results"):
        results_page.main()
    assert old.read_text() == "old"


def test_pictures_on_the_page_are_there() -> None:
    for line in (DOCS / "results.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("!["):
            assert (DOCS / line.rpartition("(")[2].rstrip(")")).exists()


def test_claims_and_figures_appear_where_they_were_reproduced(tmp_path: Path) -> None:
    bare = page(tmp_path)
    assert "larger-p" not in bare
    assert "## Figures" not in bare
    (tmp_path / "claims.json").write_text(json.dumps({"claims": [CLAIM]}))
    (tmp_path / "captions.json").write_text(json.dumps({"figure3": "Error falls."}))
    full = page(tmp_path)
    assert "Of 1 claims of the paper that were put to the test, 0 hold." in full
    assert "larger p \\| fewer rounds" in full
    assert f"![figure3]({tmp_path.name}/figure3.svg)\n\n*Error falls.*" in full


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
