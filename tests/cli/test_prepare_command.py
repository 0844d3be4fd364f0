"""Preparation, alone and in fits that get nothing but epsilon: what is written, charged and reused."""

import json
from pathlib import Path

import numpy as np
from hospitals import COLUMNS, SIZES, succeed

from fedpower import read_result
from fedpower.privacy import Ledger
from fedpower.report.codebook_file import read_code_book

FILES = ("north.csv", "south.parquet", "east.csv")


def releases(silo: str) -> int:
    with Ledger.open(f"{silo}.ledger") as ledger:
        return ledger.spent().n_releases


def make_ledgers(epsilon: float) -> None:
    for name in SIZES:
        succeed("ledger", "create", f"{name}.ledger", "--epsilon", epsilon, "--delta", 1e-6)


def test_a_fit_is_told_nothing_but_epsilon(here: Path):
    said = succeed("fit", *FILES, "-k", 2, "--epsilon", 8, "--verbose", "-o", "out")
    assert "NOT PRIVATE" not in said.stdout
    assert "found privately, out of the same epsilon" in said.stdout
    found = read_result("out")
    assert found.code_book is not None
    assert found.code_book.columns == COLUMNS
    assert read_code_book("out/codebook.toml").treatment == found.code_book.treatment


def test_a_code_book_is_charged_once_and_used_for_nothing(here: Path):
    make_ledgers(9.0)
    said = succeed("fit", "--prepare-only", *FILES, "--epsilon", 4, "--delta", 1e-6, "--ledgers", ".")
    assert "wrote codebook.toml: it is public" in said.stdout
    assert {releases(name) for name in SIZES} == {5}
    book = read_code_book("codebook.toml")
    assert 0 < book.epsilon < 2
    for k in (2, 3):
        words = ("--epsilon", 4, "--delta", 1e-6, "--codebook", "codebook.toml", "--ledgers", ".")
        succeed("fit", *FILES, "-k", k, *words, "-o", f"out-{k}")
    assert {releases(name) for name in SIZES} == {6}
    one, other = read_result("out-2"), read_result("out-3")
    assert np.array_equal(one.components, other.components[:2])
    assert "found privately" not in str(one.privacy)


def test_a_fit_of_the_same_terms_uses_the_tallies_that_were_charged(here: Path):
    make_ledgers(4.0)
    succeed("fit", "--prepare-only", *FILES, "--epsilon", 4, "--delta", 1e-6, "--ledgers", ".")
    words = ("--epsilon", 4, "--delta", 1e-6, "--ledgers", ".", "-o", "out")
    succeed("fit", *FILES, "-k", 2, *words)
    assert {releases(name) for name in SIZES} == {6}
    assert read_result("out").code_book.treatment == read_code_book("codebook.toml").treatment


def test_ranges_are_kept_and_spare_their_part(here: Path):
    said = succeed(
        "fit",
        "--prepare-only",
        *FILES,
        "--epsilon",
        4,
        "--range",
        f"{COLUMNS[0]}=-7:7",
        "--json",
        "-o",
        "b.toml",
    )
    told = json.loads(said.stdout)
    assert (told["low"][0], told["high"][0]) == (-7.0, 7.0)
    assert told["found"][0].startswith("range given")
    assert told["found"][1].startswith("range found")
    assert told["codebook"] == "b.toml"
