"""Every wrong use is one sentence and status 2; nothing is written and nothing is charged."""

from pathlib import Path

import numpy as np
import pytest
from hospitals import EXACT, PRIVATE, run, succeed

NORTH = ("fit", "north.csv", "-o", "new")
WRONG = {
    "no such command": ("fitt",),
    "no files": ("fit",),
    "no rank": ("fit", "north.csv", "--epsilon", "inf", "-o", "new"),
    "no epsilon": ("fit", "north.csv", "-k", 2, "-o", "new"),
    "unknown option": (*NORTH, *EXACT, "--sead", 1),
    "epsilon zero": (*NORTH, "-k", 2, "--epsilon", 0, "--normalize"),
    "epsilon nan": (*NORTH, "-k", 2, "--epsilon", "nan", "--normalize"),
    "epsilon text": (*NORTH, "-k", 2, "--epsilon", "small", "--normalize"),
    "epsilon too large": (*NORTH, "-k", 2, "--epsilon", 100, "--normalize"),
    "no bound": (*NORTH, "-k", 2, "--epsilon", 1),
    "two bounds": (*NORTH, "-k", 2, "--epsilon", 1, "--row-norm", 1, "--normalize"),
    "negative bound": (*NORTH, "-k", 2, "--epsilon", 1, "--row-norm=-1"),
    "delta of one": (*NORTH, *PRIVATE, "--delta", 1),
    "rank zero": (*NORTH, "-k", 0, "--epsilon", "inf"),
    "rank too large": (*NORTH, "-k", 6, "--epsilon", "inf"),
    "rank one and a half": (*NORTH, "-k", 1.5, "--epsilon", "inf"),
    "private fraction": (*NORTH, "-k", 0.9, "--epsilon", 1, "--normalize"),
    "iteration rank": (*NORTH, *EXACT, "--iteration-rank", 99),
    "schedule": (*NORTH, *EXACT, "--schedule", "sometimes"),
    "schedule at zero": (*NORTH, *EXACT, "--schedule", "0,2"),
    "alignment": (*NORTH, *EXACT, "--alignment", "by-eye"),
    "local steps": (*NORTH, *EXACT, "--local-steps", 0),
    "tolerance": (*NORTH, *EXACT, "--tol", 2),
    "min silos": (*NORTH, *EXACT, "--min-silos", 2),
    "deadline": (*NORTH, *EXACT, "--deadline", 0),
    "negative seed": (*NORTH, *EXACT, "--seed", -1),
    "missing file": ("fit", "nowhere.csv", *EXACT, "-o", "new"),
    "a folder as file": ("fit", ".", *EXACT, "-o", "new"),
    "unknown ending": ("fit", "notes.txt", *EXACT, "-o", "new"),
    "missing value": ("fit", "holes.csv", *EXACT, "-o", "new"),
    "text column": ("fit", "everybody.csv", *EXACT, "-o", "new"),
    "other columns": ("fit", "north.csv", "everybody.csv", *EXACT, "-o", "new"),
    "names and none": ("fit", "north.csv", "east.npy", *EXACT, "-o", "new"),
    "the same name twice": ("fit", "east.csv", "east.npy", *EXACT, "-o", "new"),
    "the same file twice": ("fit", "a=east.csv", "b=east.csv", *EXACT, "-o", "new"),
    "groups of two files": ("fit", "north.csv", "east.csv", "--groups", "age", *EXACT, "-o", "new"),
    "groups by nothing": ("fit", "everybody.csv", "--groups", "ward", *EXACT, "-o", "new"),
    "unknown column": (*NORTH, *EXACT, "--columns", "age,shoe"),
    "empty columns": (*NORTH, *EXACT, "--columns", ","),
    "unknown drop": (*NORTH, *EXACT, "--drop", "shoe"),
    "scale of some": (*NORTH, *EXACT, "--scale-file", "scale.csv"),
    "scale of too few": (*NORTH, *EXACT, "--scale-file", "three.npy"),
    "scale missing": (*NORTH, *EXACT, "--scale-file", "nowhere.csv"),
    "centre twice": (*NORTH, *EXACT, "--no-center", "--center-file", "three.npy"),
    "occupied folder": ("fit", "north.csv", *EXACT, "-o", "occupied"),
    "forced on others' files": ("fit", "north.csv", *EXACT, "-o", "occupied", "--force"),
    "a file as folder": ("fit", "north.csv", *EXACT, "-o", "north.csv"),
    "inf on a ledger": (*NORTH, *EXACT, "--ledgers", "."),
    "no ledger there": ("fit", "east.csv", *PRIVATE, "--ledgers", ".", "-o", "new"),
    "another's ledger": ("fit", "east.csv", *PRIVATE, "--ledger", "east=north.ledger", "-o", "new"),
    "a stranger's ledger": (*NORTH, *PRIVATE, "--ledger", "west=north.ledger"),
    "ledger not named": (*NORTH, *PRIVATE, "--ledger", "north.ledger"),
    "ledger for some": ("fit", "north.csv", "east.csv", *PRIVATE, "--ledger", "north=north.ledger",
                        "-o", "new"),
    "over the cap": (*NORTH, "-k", 2, "--epsilon", 3, "--normalize", "--ledgers", "."),
    "data as ledger": (*NORTH, *PRIVATE, "--ledger", "north=secret.csv"),
    "transform without model": ("transform", "nowhere", "north.csv"),
    "transform with a foreign folder": ("transform", "occupied", "north.csv"),
    "compare with nothing": ("compare", "nowhere", "nowhere"),
    "compare with data": ("compare", "north.csv", "north.csv"),
    "compare with other arrays": ("compare", "other.npz", "other.npz"),
    "compare dependent directions": ("compare", "ones.npy", "ones.npy"),
    "budget of nothing": ("budget", "nowhere.ledger"),
    "budget without ledger": ("budget",),
    "budget of data": ("budget", "secret.csv"),
    "budget of a negative": ("budget", "north.ledger", "--what-if=-1"),
    "init without delta": ("budget", "init", "new.ledger", "--epsilon", 1),
    "init again": ("budget", "init", "north.ledger", "--epsilon", 9, "--delta", 1e-6),
    "init without bound": ("budget", "init", "new/x.ledger", "--epsilon", "inf", "--delta", 1e-6),
    "cap without reason": ("budget", "cap", "north.ledger", "--epsilon", 9, "--delta", 1e-6),
    "cap for a blank": ("budget", "cap", "north.ledger", "--epsilon", 9, "--delta", 1e-6,
                        "--reason", " "),
}  # fmt: skip


@pytest.fixture
def place(here: Path) -> Path:
    succeed("budget", "init", "north.ledger", "--epsilon", 2, "--delta", 1e-6)
    (here / "notes.txt").write_text("notes")
    (here / "scale.csv").write_text("age,1\n")
    (here / "secret.csv").write_text("a,b\n1,2\n")
    (here / "secret.csv").chmod(0o600)
    (here / "occupied").mkdir()
    (here / "occupied" / "thesis.tex").write_text("years of work")
    np.save(here / "three.npy", np.ones(3))
    np.save(here / "ones.npy", np.ones((4, 2)))
    np.savez(here / "other.npz", weights=np.ones(3))
    return here


@pytest.mark.parametrize("use", WRONG)
def test_a_wrong_use_is_refused_in_one_sentence(place: Path, use: str):
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    folders = {path for path in place.rglob("*") if path.is_dir()}
    said = run(*WRONG[use])
    assert said.exit_code == 2, said.output
    assert said.stdout == ""
    (sentence,) = said.stderr.splitlines()
    assert sentence.startswith("Error: ")
    assert len(sentence) > 30
    assert "Traceback" not in sentence
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert {path for path in place.rglob("*") if path.is_dir()} == folders
