"""A silo that is lost on the way: whose rows are in the result, and who is named as missing."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from studies import EXACT, SIZES, open_silos, secure_tables, write_study

from fedpower.errors import RefusedError
from fedpower.federation.coordinator import StudyRun
from fedpower.protocol.coordinator import Answers
from fedpower.report.result import read_result

PREPARED: dict[str, Any] = {"rows": {"row_norm": None}}
UNBOUNDED: dict[str, Any] = {"privacy": EXACT, **PREPARED}
POWER = {"solver": "fedpower", "n_steps": 3}
MODES: dict[str, tuple[dict[str, Any], str]] = {
    "moment": ({}, "moment"),
    "prepared": (PREPARED, "moment"),
    "krylov": (UNBOUNDED | {"solver": {"solver": "krylov"}}, "steps"),
    "drift": (UNBOUNDED | {"solver": POWER | {"drift_correction": True}}, "steps"),
    "steps": ({"privacy": {"noise": "step"}, "solver": POWER}, "steps"),
    "clipped": ({"privacy": {"noise": "clipped"}}, "product 1"),
    "secure": ({}, "moment"),
}
"""By name: a study's settings, and the kind of the rounds from which its result comes."""


def drive(node: StudyRun, silos: Mapping[str, Answers], lost: str, before: Collection[str]) -> None:
    """Deliver every message; one silo answers nothing from the first round of these kinds on."""
    gone = False
    while not node.coordinator.done:
        current = node.coordinator.history[-1]
        gone = gone or current.kind in before
        for question in node.coordinator.next():
            if not (gone and question.silo == lost):
                node.coordinator.receive(silos[question.silo].answer(question))
        if gone and not node.coordinator.done and node.coordinator.history[-1] is current:
            node.coordinator.deadline()


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_a_silo_lost_before_its_moment_are_not_counted_and_it_is_named(
    mode: str, tmp_path: Path
) -> None:
    settings, kind = MODES[mode]
    if mode == "secure":
        settings = secure_tables(tmp_path)
    study = write_study(tmp_path, **settings, rounds={"min_silos": 2})
    with open_silos(study, tmp_path) as silos:
        node = StudyRun(study, run="a-run", checkpoint=tmp_path / "rounds")
        drive(node, silos.silos, lost="south", before=[kind])
    result = node.result
    if mode == "prepared":
        node.write_result(tmp_path / "result")
        result = read_result(tmp_path / "result")
        assert f"<h1>{result.headline}</h1>" in (tmp_path / "result" / "report.html").read_text()
    assert result.silo_sizes == {"north": SIZES["north"], "east": SIZES["east"]}
    assert result.n_samples == SIZES["north"] + SIZES["east"]
    assert result.record.absent == ["south"]
    assert result.run["absent"] == ["south"]
    assert result.headline == f"2 components of {result.n_samples} rows held by 2 silos, without south"
    assert "rows, without south" in repr(result)


@pytest.mark.parametrize("tables", [PREPARED, {}], ids=["prepared", "moment"])
def test_a_study_asked_again_while_a_silo_is_away_charges_nothing(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    """Other questions are refused; the same ones are answered from the ledgers."""
    study = write_study(tmp_path, **tables, rounds={"min_silos": 2})
    with open_silos(study, tmp_path) as silos:
        first = StudyRun(study, run="first", checkpoint=tmp_path / "first")
        drive(first, silos.silos, lost="", before=[])
        spent = [ledger.spent() for ledger in silos.ledgers.values()]
        again = StudyRun(study, run="again", checkpoint=tmp_path / "again")
        if tables == PREPARED:
            with pytest.raises(RefusedError, match="ask the same questions again"):
                drive(again, silos.silos, lost="south", before=["enrol"])
        else:
            drive(again, silos.silos, lost="south", before=["enrol"])
            assert again.result.record.absent == ["south"]
        assert [ledger.spent() for ledger in silos.ledgers.values()] == spent
    assert not first.result.record.absent
