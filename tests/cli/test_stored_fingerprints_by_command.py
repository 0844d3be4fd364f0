"""Commands with ledgers refuse data that changed, and no study because of what its rows hold."""

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from hospitals import run, succeed

from fedpower.privacy import Ledger
from fedpower.report.files import LEAST_ROOM
from layers import planted, write_layer, write_nodes
from two_worlds import QUESTIONS, book_of, make_ledger, rules_of, write_world

ASKED = ("-k", 1, "--epsilon", 0.01, "--delta", 1e-6, "--ledgers", ".")
MISSING = QUESTIONS["is any cd4 missing"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_ledger(Path("north.ledger"))
    return tmp_path


def charged() -> int:
    with Ledger.open("north.ledger") as ledger:
        return ledger.spent().n_releases


def words_of(terms: dict[str, Any]) -> list[str]:
    return [word for key, value in terms.items() for word in (f"--{key.replace('_', '-')}", value)]


@pytest.mark.slow
@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_second_study_is_fitted_in_both_worlds(place: Path, asked: str, world: int) -> None:
    question = QUESTIONS[asked]
    write_world(Path("north.csv"), question, world)
    for second, terms in enumerate((question.first, question.second)):
        Path("book.toml").write_text(book_of(rules_of(question, second=bool(second))))
        more = ("--codebook", "book.toml", *words_of(terms), "-o", f"out-{second}")
        succeed("fit", "north.csv", *ASKED, *more)
    succeed("fit", "north.csv", *ASKED, *more[:-1], "again")


@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize("second", [("edge", "--edge-weight", 2), ("row",)])
def test_a_second_study_of_a_network_is_answered_in_both_worlds(
    place: Path, second: tuple[object, ...], world: int
) -> None:
    write_nodes(Path("nodes.txt"), 12)
    Path("north.csv").write_text(f"source,target,weight\nv000,v00{world},1\n")
    asked = (*ASKED, "--nodes", "nodes.txt")
    succeed("fit", "north.csv", *asked, "--network", "edge", "-o", "one")
    succeed("fit", "north.csv", *asked, "--network", *second, "-o", "two")


@pytest.mark.parametrize("world", [0, 1])
def test_a_table_with_missing_cells_is_prepared_and_then_fitted(place: Path, world: int) -> None:
    """The code book that preparation writes has an offset, which stands for them from then on."""
    write_world(Path("north.csv"), MISSING, world)
    rules = rules_of(MISSING, second=False)
    rules["cd4"] = {"kind": "number", "range": [0, 10], "missing": "offset"}
    Path("draft.toml").write_text(book_of(rules))
    asked = ("--epsilon", 1, "--delta", 1e-6, "--ledgers", ".")
    succeed("fit", "--prepare-only", "north.csv", *asked, "--codebook", "draft.toml", "-o", "book.toml")
    succeed("fit", "north.csv", "-k", 1, *asked, "--codebook", "book.toml", "-o", "out")


def test_data_that_changed_are_refused_in_a_sentence(place: Path) -> None:
    Path("book.toml").write_text(book_of(rules_of(MISSING, second=False)))
    write_world(Path("north.csv"), MISSING, 0)
    more = (*ASKED, "--codebook", "book.toml")
    succeed("fit", "north.csv", *more, "-o", "out")
    before = charged()
    write_world(Path("north.csv"), MISSING, 1)
    found = run("fit", "north.csv", *more, "-o", "new")
    assert found.exit_code != 0
    assert "the stored data of silo 'north' must be those that its ledger knows as version '1'" in (
        " ".join(found.stderr.split())
    )
    assert charged() == before


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize("command", [(), ("--prepare-only",), ("--network", "edge", "--nodes", "nodes.txt")])
def test_a_full_disk_is_found_before_anything_is_charged(
    place: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(Path("north.csv"), MISSING, 0)
    Path("book.toml").write_text(book_of(rules_of(MISSING, second=False)))
    asked: tuple[object, ...] = (*ASKED, *command, "-o", "out")
    if "--network" in command:
        write_nodes(Path("nodes.txt"), 12)
        write_layer(Path("north.csv"), planted(12)[0])
    else:
        asked = (*asked, "--codebook", "book.toml")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 10**6))
    found = run("fit", "north.csv", *asked)
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    assert "the disk of out must have 16 MB free for what is written there, got 1 MB" in said
    assert charged() == 0
    monkeypatch.undo()
    monkeypatch.chdir(place)
    succeed("fit", "north.csv", *asked)


def test_many_columns_want_more_room(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 bytes for each pair of columns."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, LEAST_ROOM + 1))
    Path("north.csv").write_text(f"{','.join(f'x{column}' for column in range(50))}\n{'1,' * 49}1\n")
    found = run("fit", "north.csv", *ASKED, "--row-norm", 1, "-o", "out")
    assert "must have 17 MB free" in " ".join(found.stderr.split())
