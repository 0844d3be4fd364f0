"""`fedpower fit` and its like over folders, sheets, German text, databases, genotypes and networks."""

import csv
import json
import sqlite3
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from hospitals import COLUMNS, EXACT, PRIVATE, parts, run, succeed
from row_forms import write_sqlite, write_xlsx

from fedpower import load
from fedpower.cli import silos
from genotypes import people, write_bed
from layers import planted, write_layer, write_nodes

ROWS = parts()


def same_axes(one: str, other: str) -> None:
    """Blocks of the same rows may be added up in another order."""
    np.testing.assert_allclose(load(one).components, load(other).components, rtol=0, atol=1e-12)


def frame(name: str) -> pd.DataFrame:
    return pd.DataFrame(ROWS[name], columns=COLUMNS)


def write_parts(name: str) -> None:
    Path(name).mkdir()
    for place, part in enumerate(np.array_split(ROWS[name], 3)):
        pd.DataFrame(part, columns=COLUMNS).to_csv(f"{name}/part-000{place}.csv", index=False)


def test_every_way_to_write_the_same_rows_gives_the_same_fit(here):
    succeed("fit", "north.csv", "south.parquet", "east.csv", *EXACT)
    write_parts("north")
    own = frame("south").rename(columns={"bmi": "koerper"})
    own.assign(koerper=own["koerper"] / 4).to_csv("own.csv", sep=";", decimal=",", index=False)
    Path("south.toml").write_text(
        '[data]\npath = "own.csv"\n[columns]\nrename = {koerper = "bmi"}\nfactors = {bmi = 4}\n'
    )
    write_xlsx(Path("wards.xlsx"), Notes=[["x"]], east=[COLUMNS, *ROWS["east"].tolist()])
    done = succeed("fit", "north", "south.toml", "wards.xlsx#east", *EXACT, "-o", "again", "--verbose")
    same_axes("again", "result")
    assert "Silos: north (60 rows), south (50 rows), east (40 rows)" in " ".join(done.stdout.split())
    succeed("fit", "north/part-*.csv", "south.toml", "wards.xlsx#east", *EXACT, "-o", "pattern")
    same_axes("pattern", "result")


def test_doubtful_columns_are_noted_for_the_operator_and_a_file_is_opened_once(here, monkeypatch):
    frame("north").assign(patient_id=range(60), site=1).to_csv("odd.csv", index=False)
    opened = Mock(wraps=silos.open_source)
    monkeypatch.setattr(silos, "open_source", opened)
    noted = succeed("fit", "odd.csv", "--drop", "site", *EXACT).stderr
    assert "'patient_id' is named like an id and different in every row" in noted
    assert "--drop patient_id" in noted
    assert "site" not in noted
    assert opened.call_count == 2  # once for the names of its columns
    assert "'site' is constant" in succeed("fit", "odd.csv", *EXACT, "-o", "both").stderr


def test_parts_given_as_silos_of_their_own_are_noted(here):
    write_parts("north")
    files = sorted(map(str, Path("north").glob("*.csv")))
    noted = succeed("fit", *files, *EXACT)
    assert "each of part-0000.csv, part-0001.csv, ... is a silo here" in noted.stderr
    assert "if they are parts of one silo, give their folder: north=north" in noted.stderr
    silent = succeed("fit", "north", "east.csv", *EXACT, "-o", "one")
    assert "parts of one silo" not in silent.stderr


def test_what_text_files_leave_in_doubt_is_told_and_columns_are_renamed_where_they_are(here):
    renamed = frame("north").rename(columns={"age": "Alter, Jahre"})
    renamed.to_csv("north.csv", sep=";", decimal=",", index=False, encoding="cp1252")
    words = ("north.csv", "south.parquet", *EXACT, "--rename", "Alter, Jahre=age")
    refused = run("fit", *words)
    assert "separator" in refused.stderr
    succeed("fit", *words, "--separator", ";", "--encoding", "cp1252")
    frame("north").to_csv("plain.csv", index=False)
    succeed("fit", "north=plain.csv", "south.parquet", *EXACT, "-o", "plain")
    same_axes("result", "plain")
    said = succeed("plan", *words[:2], "-k", 2, "--epsilon", 1, "--separator", "semicolon",
                   "--rename", "Alter, Jahre=age", "--json")  # fmt: skip
    assert json.loads(said.stdout)["n_features"] == len(COLUMNS)
    scores = succeed("transform", "plain", "north.csv", "--separator", ";", "--decimal", ",",
                     "--rename", "Alter, Jahre=age").stdout  # fmt: skip
    assert scores == succeed("transform", "plain", "plain.csv").stdout
    succeed("study", "init", "study.toml", "--name", "s", "--silos", "a,b", "-k", 1, "--epsilon", 1,
            "--normalize", "--columns-of", "north.csv", "--separator", ";",
            "--rename", "Alter, Jahre=age")  # fmt: skip
    assert '"age"' in Path("study.toml").read_text()


@pytest.fixture
def ward(here: Path) -> Path:
    (here / "ward").mkdir()
    visits = frame("north").assign(who="x").to_numpy()
    write_sqlite(visits, here / "ward" / "north.db", (*COLUMNS, "who"))
    path = here / "ward" / "north.toml"
    path.write_text(
        '[data]\ndatabase = "sqlite:///north.db"\n'
        f'query = """\nSELECT {", ".join(COLUMNS)}\nFROM visits\n"""\n'
    )
    return path


def test_a_query_gives_what_the_file_gives(ward, here):
    succeed("fit", ward, "south.parquet", *EXACT, "-o", "sql")
    files, sql = (json.loads((here / name / "run.json").read_text()) for name in ("model", "sql"))
    assert sql["silos"][0]["source"] == str(ward)
    assert [silo["rows"] for silo in sql["silos"]] == [silo["rows"] for silo in files["silos"]]
    scores = [succeed("transform", *words).stdout for words in (("sql", ward), ("model", "north.csv"))]
    one, other = (np.loadtxt(text.splitlines(), delimiter=",", skiprows=1) for text in scores)
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    planned = json.loads(succeed("plan", ward, "south.parquet", "-k", 2, "--epsilon", 1, "--json").stdout)
    assert planned["silos"] == {"north": 60, "south": 50}


def test_an_unchanged_table_gets_its_release_again_and_a_changed_one_must_be_declared(ward, here):
    for silo in ("north", "south"):
        succeed("ledger", "create", here / f"{silo}.ledger", "--epsilon", 3, "--delta", 1e-4)

    words = (ward, "south.parquet", *PRIVATE, "--delta", "1e-6", "--ledger", here)

    def fit(output: str, *more: str) -> list[str]:
        succeed("fit", *words, *more, "-o", output)
        reported = json.loads(succeed("ledger", "show", here / "north.ledger", "--json").stdout)
        return [f"{reported['left']}", (here / output / "components.csv").read_text()]

    first = fit("one")
    with sqlite3.connect(ward.parent / "north.db") as connection:
        connection.execute("CREATE TABLE turned AS SELECT * FROM visits ORDER BY bmi DESC")
        connection.execute("DROP TABLE visits")
        connection.execute("ALTER TABLE turned RENAME TO visits")
    assert fit("two") == first
    with sqlite3.connect(ward.parent / "north.db") as connection:
        connection.execute("UPDATE visits SET age = age + 1 WHERE rowid = 1")
    connection.close()
    refused = run("fit", *words, "-o", "three")
    assert refused.exit_code == 2
    assert "'north' must match version '1' in its ledger, got other data" in refused.stderr
    third = fit("three", "--data-version", "north=2")
    assert third[0] != first[0]
    assert third[1] != first[1]


def test_a_private_fit_makes_a_single_pass(ward, here):
    succeed("ledger", "create", here / "north.ledger", "--epsilon", 3, "--delta", 1e-4)
    columns = ", ".join(f"random() / 1e19 AS {name}" for name in COLUMNS)  # other rows in every pass
    ward.write_text(f'[data]\ndatabase = "sqlite:///north.db"\nquery = "SELECT {columns} FROM visits"\n')
    succeed("fit", ward, *PRIVATE, "--delta", "1e-6", "--ledger", here, "-o", "result")


N_VARIANTS = 20
IDS = tuple(f"rs{place}" for place in range(N_VARIANTS))


@pytest.fixture
def beds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    counts, p = people(90, N_VARIANTS, seed=5)
    gaps = counts.copy()
    gaps[::7, 3] = -1
    alleles = [("A", "G")] * N_VARIANTS
    write_bed(tmp_path / "north.bed", gaps[:40], alleles=alleles, ids=IDS)
    write_bed(tmp_path / "south.bed", gaps[40:70], alleles=alleles, ids=IDS, first=40)
    turned = np.where(gaps[70:] < 0, -1, 2 - gaps[70:])
    write_bed(tmp_path / "east.bed", turned, alleles=[("G", "A")] * N_VARIANTS, ids=IDS, first=70)
    lines = [f"1\t{one}\tG\tA\t{q:.6f}\t180" for one, q in zip(IDS, p, strict=True)]
    (tmp_path / "public.afreq").write_text(
        "\n".join(["#CHROM\tID\tREF\tALT\tALT_FREQS\tOBS_CT", *lines[:-2]]) + "\n"
    )
    return tmp_path


FIT = ("fit", "north.bed", "south.bed", "east.bed", "-k", 2, "--variants", "public.afreq")


def test_a_fit_scores_with_ids_outliers_and_plink_s_own_files(beds):
    succeed(*FIT, "--epsilon", "inf", "-o", "out")
    result = load("out")
    assert result.n_features == N_VARIANTS - 2
    assert result.feature_names[0] == "rs0_A"
    succeed("transform", "out", "east.bed", "-o", "scores.csv", "--outliers", 2)
    with Path("scores.csv").open() as stream:
        lines = list(csv.reader(stream))
    assert lines[0] == ["IID", "pc1", "pc2", "outlier"]
    assert [line[0] for line in lines[1:3]] == ["P70", "P71"]
    spread = np.sqrt(result.explained_variance)
    for line in lines[1:]:
        out = bool((np.abs([float(line[1]), float(line[2])]) > 2 * spread).any())
        assert float(line[3]) == out
    succeed("transform", "out", "east.bed", "-o", "again.csv", "--plot", "east.svg")
    assert Path("east.svg").read_text().count("<circle") == 20
    refused = run("transform", "out", "east.bed", "--id-column", "IID")
    assert "whose samples have ids of their own" in " ".join(refused.stderr.split())
    refused = run("transform", "out", "east.bed", "-o", "third.csv", "--plot", "east.png")
    assert "--plot must be an .svg file" in " ".join(refused.stderr.split())
    assert not Path("third.csv").exists()
    succeed("export", "out", "--to", "plink", "--rows", "east.bed", "-o", "east")
    assert Path("east.eigenvec").read_text().splitlines()[1].startswith("P70\t")
    succeed(*FIT, "--epsilon", 5, "--row-norm", 4, "-o", "private")
    assert load("private").privacy.is_private


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*FIT, "--epsilon", "inf", "--columns", "rs1_A"), "--variants must go without --columns"),
        ((*FIT[:-1], "nowhere.txt", "--epsilon", "inf"), "must be a list of variants"),
        ((*FIT[:-2], "--epsilon", "inf"), "give frequencies, or public offsets of 2p"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(beds, words, sentence):
    refused = run(*words, "-o", "out")
    assert refused.exit_code == 2
    assert sentence in " ".join(refused.stderr.split())
    assert not Path("out").exists()


N_NODES = 60
NETWORKS = ("north.csv", "south.npz", "east.tsv", "west.parquet")
EDGES = ("--network", "edge", "--nodes", "nodes.txt")


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_nodes(Path("nodes.txt"), N_NODES)
    for seed, name in enumerate(NETWORKS):
        write_layer(Path(name), planted(N_NODES, seed=seed)[0])
    labels = planted(N_NODES)[1]
    lines = "".join(f"v{node:03d},{label}\n" for node, label in enumerate(labels))
    Path("truth.csv").write_text(f"node,label\n{lines}")
    return tmp_path


FIND = ("analyze", "communities", "result")


def test_exact_communities_are_printed_and_kept(layers):
    said = succeed("fit", *NETWORKS, *EDGES, "--epsilon", "inf").stdout
    assert "fedpower analyze communities result -k K" in said
    assert "NOT PRIVATE" in said
    said = succeed(*FIND, "-k", 2, "--labels", "truth.csv", "-o", "communities").stdout
    assert "Of 60 labelled nodes 100.0% are in the community of their label" in said
    with Path("communities/communities.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["community"] for row in rows if row["node"] < "v030"} == {"1"}
    facts = json.loads(succeed(*FIND, "-k", 3, "--json").stdout)
    assert max(facts["labels"]) == 2
    assert np.shape(facts["embedding"]) == (N_NODES, 3)
    capped = succeed("fit", "north.csv", *EDGES, "--epsilon", "inf", "--edge-weight", 0.5, "-o", "capped")
    assert "edges weigh more than --edge-weight and are capped" in capped.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [("edge",), ("row",), ("edge", "--aggregation", "secure")])
def test_private_communities_say_what_is_protected(layers, words):
    succeed("fit", *NETWORKS, "--nodes", "nodes.txt", "--epsilon", 1, "--network", *words)
    facts = json.loads(succeed(*FIND, "-k", 2, "--labels", "truth.csv", "--json", "-o", "communities").stdout)
    unit = "one row of one silo" if "row" in words else "one edge of one layer of one silo"
    assert facts["privacy"]["unit"] == unit
    assert 0.5 <= facts["agreement"] <= 1
    page = Path("communities/report.html").read_text()
    assert "Nodes by community" in page
    assert ("belief about any one edge can change" in page) == ("row" not in words)
    assert "Columns" not in page
