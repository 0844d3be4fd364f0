"""`fedpower plan`: a table or JSON from public facts, with nothing charged."""

import json

import numpy as np
import pytest
from hospitals import run, succeed

from fedpower import FedPCA, load
from fedpower.privacy import Ledger

FACTS = ["--n-features", "30", "--rows", "4x5000", "-k", "3", "--epsilon", "1"]


def invoke(*words: str) -> str:
    return succeed("plan", *words).stdout


def test_a_table_tells_every_way_and_the_one_to_be_taken():
    words = (*FACTS, "--no-standardize", "--gap", "0.05")
    first, recommended, *_ = invoke(*words).splitlines()
    assert first.startswith("4 silos, 20,000 rows, 30 columns; ε = 1, δ = ")
    assert recommended.startswith("Recommended: one upload per silo (solver upload), ")
    assert "expected error 4° without clipping, or 2° with --aggregation secure" in recommended
    alike = ("--n-features", "7", "--rows", "3x50000", "-k", "3", "--epsilon", "2", "--gap", "0.05")
    assert "expected error 1° without clipping." in invoke(*alike)
    out = invoke(*words, "--all")
    for word in ("→", "fedpower", "step", "paper", "expected sin θ"):
        assert word in out
    record = json.loads(invoke(*FACTS, "--spectrum", "0.2,0.1,0.08,0.01", "--json"))
    assert record["n_features"] == 30
    assert sum(way["chosen"] for way in record["candidates"]) == 1
    assert all(way["error"] > 0 for way in record["candidates"])
    assert json.loads(invoke(*FACTS[:-1], "inf", "--json"))["epsilon"] == "inf"


def test_a_plan_takes_the_options_that_its_own_sentences_name():
    words = ["--aggregation", "secure", "--colluders", "2", "--min-silos", "3", "--json"]
    ways = json.loads(invoke(*FACTS, *words))["candidates"]
    assert [way["aggregation"] for way in ways if way["chosen"]] == ["secure"]
    assert {way["aggregation"] for way in ways} == {"plain", "secure"}
    steps = invoke(*FACTS, "--no-standardize", "--noise", "step", "--spectrum", "0.2,0.1,0.08,0.01")
    assert "should be more accurate" in steps
    uneven = ["--n-features", "30", "--rows", "20000,1,1,1", "-k", "3", "--epsilon", "1"]
    assert "silo-2 (1 rows), silo-3 (1 rows), silo-4 (1 rows)" in invoke(*uneven)
    assert "(1 rows)" not in invoke(*uneven, "--weights", "noise")


def test_without_knowing_anything_a_plan_tells_what_is_known_and_what_is_missing():
    out = invoke(*FACTS)
    assert "of the budget goes into finding scales and a bound" in out
    assert "give --gap or --spectrum" in out
    assert "finding scales" not in invoke(*FACTS, "--row-norm", "2")
    record = json.loads(invoke(*FACTS, "--json"))
    (way,) = [way for way in record["candidates"] if way["chosen"]]
    assert way["rounds"] == 6
    assert way["bytes_up"] > 0
    assert way["noise_level"] > 0
    assert 0 < record["preparation"] < 0.2


def test_a_guess_is_in_the_units_of_the_rows_where_their_bound_is_given():
    one = json.loads(invoke(*FACTS, "--row-norm", "4", "--gap", "0.8", "--json"))
    other = json.loads(invoke(*FACTS, "--row-norm", "1", "--gap", "0.05", "--json"))
    for left, right in zip(one["candidates"], other["candidates"], strict=True):
        assert left["error"] == pytest.approx(right["error"])
    out = invoke(*FACTS, "--row-norm", "1", "--gap", "0.05", "--error", "0.1")
    assert "A predicted sin θ of 0.1 needs ε = 0.61 with these 20,000 rows" in out


def test_an_earlier_result_tells_silos_columns_and_eigenvalues(tmp_path):
    rows = np.random.default_rng(1).standard_normal((9000, 5))
    rows = rows + 3 * rows[:, :1] + 20  # one strong factor: all columns go together
    model = FedPCA(2, epsilon=4.0).fit_silos({"a": rows[:5000], "b": rows[5000:]})
    place = model.save(tmp_path / "earlier")
    book = model.codebook_.save(tmp_path / "codebook.toml")
    words = ["-k", "2", "--epsilon", "1", "--spectrum", str(place), "--json"]
    record = json.loads(invoke(*words))
    assert record["silos"] == {"a": 5000, "b": 4000}
    assert record["n_features"] == 5
    assert record["preparation"] > 0
    reused = json.loads(invoke(*words, "--codebook", str(book)))
    assert reused["preparation"] == 0
    alone = json.loads(invoke(*words[:4], "--codebook", str(book), "--rows", "99", "--json"))
    assert alone["n_features"] == 5
    assert "6 columns, got 5" in run("plan", *words, "--n-features", "6", "--rows", "50").stderr


def test_a_plan_of_files_has_the_rounds_and_the_share_of_their_fit(tmp_path):
    for name, cells in {"a": "1,NM\n2,3\n", "b": "4,5\n,1\n"}.items():
        (tmp_path / f"{name}.csv").write_text("x,y\n" + cells * 300)
    book = tmp_path / "book.toml"
    book.write_text(
        'format = "fedpower-codebook/2"\n[rules]\nx = { kind = "number", range = [0, 9] }\n'
        'y = { kind = "number", missing_words = ["NM"] }\n'
    )
    words = [*(str(tmp_path / f"{name}.csv") for name in "ab"), "--codebook", str(book), "--epsilon", "2"]
    model = str(tmp_path / "model")
    succeed("fit", *words, "--range", "y=0:9", "-k", "1", "-o", model)
    fit = load(model)
    facts = ["--rows", "600,600", *words[2:]]
    for given in (words, facts):
        record = json.loads(invoke(*given, "--range", "y=0:9", "-k", "1", "--json"))
        (way,) = [way for way in record["candidates"] if way["chosen"]]
        assert way["rounds"] == fit.record.n_rounds == 3
        assert record["preparation"] == pytest.approx(sum(fit.release.study.preparation))


def test_a_ledger_is_asked_and_not_charged(tmp_path):
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=2.0, delta=1e-6).close()
    before = path.read_bytes()
    record = json.loads(invoke(*FACTS, "--ledger", str(path), "--json"))
    (after,) = record["ledgers"].values()
    assert after["fits"]
    assert 0 < after["left"] < 2
    assert path.read_bytes() == before
    assert "too little" in invoke(*FACTS[:-1], "5", "--ledger", str(path))
    for words in (str(tmp_path), f"heart={path}"):
        assert json.loads(invoke(*FACTS, "--ledger", words, "--json"))["ledgers"] == record["ledgers"]


@pytest.mark.parametrize(
    ("spectrum", "sentence", "rank"),
    [
        ("0.3,0.2,0.001", "It would find 2 components for -k auto.", 2),
        ("0.00001", "It would determine no component for -k auto.", 0),
    ],
)
def test_a_plan_tells_how_many_a_spectrum_would_give(spectrum, sentence, rank):
    words = ("--n-features", "8", "--rows", "2x20000", "--epsilon", "1", "-k", "auto", "--spectrum", spectrum)
    ways = json.loads(invoke(*words, "--json"))["candidates"]
    assert {(way["solver"], way["aggregation"]) for way in ways} == {
        ("upload", "plain"),
        ("upload", "secure"),
    }
    assert [way["rank"] for way in ways] == [rank, rank]
    assert sentence in invoke(*words)
    assert "--gap must go with a number of components" in run("plan", *words[:-2], "--gap", "0.1").stderr
