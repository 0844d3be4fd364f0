"""Genotypes on the command line: a list of variants, scores with sample ids, outliers, .eigenvec."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hospitals import run, succeed

from fedpower.report import read_result
from genotypes import people, write_bed

D = 20
IDS = tuple(f"rs{place}" for place in range(D))


@pytest.fixture
def beds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    counts, p = people(90, D, seed=5)
    gaps = counts.copy()
    gaps[::7, 3] = -1
    alleles = [("A", "G")] * D
    write_bed(tmp_path / "north.bed", gaps[:40], alleles=alleles, ids=IDS)
    write_bed(tmp_path / "south.bed", gaps[40:70], alleles=alleles, ids=IDS, first=40)
    turned = np.where(gaps[70:] < 0, -1, 2 - gaps[70:])
    write_bed(tmp_path / "east.bed", turned, alleles=[("G", "A")] * D, ids=IDS, first=70)
    lines = [f"1\t{one}\tG\tA\t{q:.6f}\t180" for one, q in zip(IDS, p, strict=True)]
    (tmp_path / "public.afreq").write_text(
        "\n".join(["#CHROM\tID\tREF\tALT\tALT_FREQS\tOBS_CT", *lines[:-2]]) + "\n"
    )
    return tmp_path


FIT = ("fit", "north.bed", "south.bed", "east.bed", "-k", 2, "--variants", "public.afreq")
EXACT = ("--epsilon", "inf")


def test_a_fit_scores_with_ids_outliers_and_plink_s_own_files(beds: Path):
    succeed(*FIT, *EXACT, "-o", "out")
    result = read_result("out")
    assert result.n_features == D - 2
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
    assert read_result("private").privacy.is_private


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*FIT, *EXACT, "--columns", "rs1_A"), "--variants must go without --columns"),
        ((*FIT[:-1], "nowhere.txt", *EXACT), "must be a list of variants"),
        ((*FIT[:-2], *EXACT), "give frequencies, or public offsets of 2p"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(beds: Path, words, sentence):
    refused = run(*words, "-o", "out")
    assert refused.exit_code == 2
    assert sentence in " ".join(refused.stderr.split())
    assert not Path("out").exists()
