"""A silo of a federation starts for a second study whatever its rows hold, and not for changed data."""

from pathlib import Path
from typing import Any

import pytest
from studies import content_with
from test_silo_node import question

from fedpower.errors import LedgerError
from fedpower.federation.silo_file import SiloFile, open_silo, read_silo
from fedpower.federation.study_file import StudyFile, read_study, to_toml
from fedpower.protocol.messages import AskMoment, PackedMoment
from two_worlds import QUESTIONS, Question, make_ledger, rules_of, write_world

FEATURES = ["stage", "cd4", "day", "age"]


def study_of(folder: Path, rules: dict[str, Any], rows: dict[str, Any]) -> StudyFile:
    path = folder / "study.toml"
    names = ["north"]
    content = content_with(
        columns={"names": FEATURES},
        rules=rules,
        rows={"row_norm": 3.0, **rows},
        components={"n_components": 1},
        privacy={"epsilon": 0.01},
        silos={"names": names},
    )
    path.write_text(to_toml(content), encoding="utf-8")
    return read_study(path)


def silo_of(folder: Path) -> SiloFile:
    path = folder / "north.toml"
    path.write_text(
        'silo = "north"\n[data]\npath = "north.csv"\nextra_columns = "drop"\n'
        '[ledger]\npath = "north.ledger"\n'
    )
    return read_silo(path)


def answer(folder: Path, asked: Question, *, second: bool) -> None:
    """Start the silo for a study and let it release its moment."""
    study = study_of(folder, rules_of(asked, second=second), asked.second if second else asked.first)
    with open_silo(study, silo_of(folder)) as node:
        assert isinstance(node.silo.answer(question(study, AskMoment())).body, PackedMoment)


@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_silo_starts_for_a_second_study_in_both_worlds(tmp_path: Path, asked: str, world: int) -> None:
    write_world(tmp_path / "north.csv", QUESTIONS[asked], world)
    make_ledger(tmp_path / "north.ledger")
    for second in (False, True):
        answer(tmp_path, QUESTIONS[asked], second=second)


def test_a_silo_does_not_start_for_data_that_changed(tmp_path: Path) -> None:
    asked = QUESTIONS["is any cd4 missing"]
    write_world(tmp_path / "north.csv", asked, 0)
    make_ledger(tmp_path / "north.ledger")
    answer(tmp_path, asked, second=False)
    write_world(tmp_path / "north.csv", asked, 1)
    with pytest.raises(LedgerError, match="the stored data of silo 'north' must be those"):
        answer(tmp_path, asked, second=False)
