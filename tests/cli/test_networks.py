"""`fedpower fit --network` reads networks of every form; `analyze communities` finds communities."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hospitals import succeed

from layers import planted, write_layer, write_nodes

D = 60
FILES = ("north.csv", "south.npz", "east.graphml", "west.parquet")
EDGES = ("--network", "edge", "--nodes", "nodes.txt")


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


FIND = ("analyze", "communities", "result")


def test_exact_communities_are_printed_and_kept(place: Path):
    said = succeed("fit", *FILES, *EDGES, "--epsilon", "inf").stdout
    assert "`fedpower analyze communities result -k K`" in said
    assert "NOT PRIVATE" in said
    said = succeed(*FIND, "-k", 2, "--labels", "truth.csv", "-o", "communities").stdout
    assert "Of 60 labelled nodes 100.0% are in the community of their label" in said
    with Path("communities/communities.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["community"] for row in rows if row["node"] < "v030"} == {"1"}
    facts = json.loads(succeed(*FIND, "-k", 3, "--json").stdout)
    assert max(facts["labels"]) == 2
    assert np.shape(facts["embedding"]) == (D, 3)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("edge",), ("row",), ("edge", "--aggregation", "secure")])
def test_private_communities_say_what_is_protected(place: Path, words: tuple[str, ...]):
    succeed("fit", *FILES, "--nodes", "nodes.txt", "--epsilon", 1, "--network", *words)
    facts = json.loads(succeed(*FIND, "-k", 2, "--labels", "truth.csv", "--json", "-o", "communities").stdout)
    unit = "one row of one silo" if "row" in words else "one edge of one layer of one silo"
    assert facts["privacy"]["unit"] == unit
    assert 0.5 <= facts["agreement"] <= 1
    page = Path("communities/report.html").read_text()
    assert "Nodes by community" in page
    assert ("a given edge is there" in page) == ("row" not in words)
    assert "Columns" not in page


HEAVY = "source,target,weight\nv000,v001,9\nv001,v002,1\nv002,v003,2\nv003,v004,3\n"


@pytest.mark.parametrize(
    ("file", "most", "said"),
    [
        ("north.csv", 0.5, "edges weigh more than --edge-weight and are capped at it"),
        ("north.csv", "1e9", "no edge weighs more than 1e-09 of --edge-weight, for which noise is made"),
        ("heavy.csv", 5, "edges heavier than --edge-weight were capped: 1 in heavy (25.0%)"),
    ],
)
def test_what_a_maximum_does_to_edges_is_for_the_operator(place: Path, file: str, most: object, said: str):
    Path("heavy.csv").write_text(HEAVY)
    found = succeed("fit", file, *EDGES, "--epsilon", "inf", "--edge-weight", most)
    assert said in found.stderr
    assert "for your eyes, kept nowhere" in found.stderr
    assert "Warning" not in found.stderr
