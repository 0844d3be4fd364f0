"""`fedpower communities` reads networks of every form, and keeps what it released."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hospitals import run, succeed

from layers import planted, write_layer, write_nodes

D = 60
FILES = ("north.csv", "south.npz", "east.graphml", "west.parquet")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_nodes(Path("nodes.txt"), D)
    for seed, name in enumerate(FILES):
        write_layer(Path(name), planted(D, seed=seed)[0])
    labels = planted(D)[1]
    lines = "".join(f"v{node:03d},{label}\n" for node, label in enumerate(labels))
    Path("truth.csv").write_text(f"node,label\n{lines}")
    return tmp_path


ASKED = ("-k", 2, "--nodes", "nodes.txt", "--labels", "truth.csv")


def test_exact_communities_are_printed_kept_and_derived_again(place: Path):
    said = succeed("communities", *FILES, *ASKED, "--epsilon", "inf").stdout
    assert "Of 60 labelled nodes 100.0% are in the community of their label" in said
    assert "NOT PRIVATE" in said
    with Path("communities/communities.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["community"] for row in rows if row["node"] < "v030"} == {"1"}
    told = json.loads(succeed("analyze", "communities", "communities", "-k", 3, "--json").stdout)
    assert max(told["labels"]) == 2
    assert np.shape(told["embedding"]) == (D, 3)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--unit", "row"), ("--aggregation", "secure")])
def test_private_communities_say_what_is_protected(place: Path, words: tuple[str, ...]):
    told = json.loads(succeed("communities", *FILES, *ASKED, "--epsilon", 1, *words, "--json").stdout)
    unit = "one row of one silo" if "row" in words else "one edge of one layer of one silo"
    assert told["privacy"]["unit"] == unit
    assert 0.5 <= told["agreement"] <= 1
    page = Path("communities/report.html").read_text()
    assert "Nodes by community" in page
    assert ("a given edge is there" in page) == ("row" not in words)
    assert "Columns" not in page


def test_a_ledger_of_what_is_not_private_is_refused(place: Path):
    found = run("communities", "north.csv", *ASKED, "--epsilon", "inf", "--ledgers", ".")
    assert found.exit_code == 2
    assert "finite epsilon" in found.stderr
    assert not Path("communities").exists()


@pytest.mark.parametrize(
    ("most", "said"),
    [
        ("0.5", "edges weigh more than --edge-weight and are capped at it"),
        ("1e9", "no edge weighs more than 1e-09 of --edge-weight, for which noise is made"),
    ],
)
def test_a_maximum_that_hardly_fits_is_told_the_operator(place: Path, most: str, said: str):
    words = ("north.csv", *ASKED, "--epsilon", "inf", "--edge-weight", most, "--quiet")
    found = succeed("communities", *words)
    assert said in found.stderr
    assert "for your eyes, kept nowhere" in found.stderr
    assert "Warning" not in found.stderr


def test_edges_that_are_capped_are_counted_for_the_operator(place: Path):
    Path("heavy.csv").write_text("source,target,weight\nv000,v001,9\nv001,v002,1\nv002,v003,2\nv003,v004,3\n")
    words = ("heavy.csv", *ASKED, "--epsilon", "inf", "--edge-weight", 5, "--quiet")
    told = "edges heavier than --edge-weight were capped: 1 in heavy (25.0%)"
    assert told in succeed("communities", *words).stderr
