"""A silo that is lost on the way: whose rows are in the result, and who is named as missing."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from studies import SIZES, write_silo, write_study
from test_checkpoint import KEYS, RUN, secure_silos_of

from fedpower.errors import RefusedError
from fedpower.federation.coordinator_node import CoordinatorNode
from fedpower.federation.silo_node import SiloNode, open_silo
from fedpower.federation.study_file import StudyFile
from fedpower.protocol.driving import Answers
from fedpower.report.result import read_result

PREPARED: dict[str, Any] = {"rows": {"row_norm": None}}
STEPS = {"privacy": {"noise": "step"}, "solver": {"solver": "fedpower", "n_steps": 3}}
EXACT = {"epsilon": float("inf"), "delta": None}
MODES: dict[str, tuple[dict[str, Any], str]] = {
    "moment": ({}, "moment"),
    "prepared": (PREPARED, "prepared-moment"),
    "exact": ({"privacy": EXACT, "rows": {"row_norm": None}}, "moment"),
    "krylov": ({"privacy": EXACT, "rows": {"row_norm": None}, "solver": {"solver": "krylov"}}, "steps"),
    "power": (
        {"privacy": EXACT, "rows": {"row_norm": None}, "solver": {"solver": "fedpower", "n_steps": 3}},
        "steps",
    ),
    "drift": (
        {
            "privacy": EXACT,
            "rows": {"row_norm": None},
            "solver": {"solver": "fedpower", "n_steps": 3, "drift_correction": True},
        },
        "steps",
    ),
    "steps": (STEPS, "steps"),
    "clipped": ({"privacy": {"noise": "clipped"}}, "noised-sum"),
}
"""By name: a study's settings, and the kind of the rounds from which its result comes."""


def drive(node: CoordinatorNode, silos: Mapping[str, Answers], lost: str, before: Collection[str]) -> None:
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


def opened(stack: ExitStack, study: StudyFile, folder: Path) -> dict[str, SiloNode]:
    return {
        name: stack.enter_context(open_silo(study, write_silo(folder, name, cap=5.0))) for name in study.silos
    }


def asked(nodes: Mapping[str, SiloNode]) -> dict[str, Answers]:
    return {name: node.silo for name, node in nodes.items()}


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_a_silo_lost_before_its_moment_are_not_counted_and_it_is_named(
    mode: str, tmp_path: Path
) -> None:
    settings, kind = MODES[mode]
    rounds = {"deadline": 60.0, "min_silos": 2}
    study = write_study(tmp_path, **settings, rounds=rounds)
    with ExitStack() as stack:
        silos = opened(stack, study, tmp_path)
        node = CoordinatorNode(study, run="a-run", checkpoint=tmp_path / "rounds.journal")
        drive(node, asked(silos), lost="south", before=[kind])
        node.write_result(tmp_path / "result")
    found = read_result(tmp_path / "result")
    assert found.silo_sizes == {"north": SIZES["north"], "east": SIZES["east"]}
    assert found.n_samples == SIZES["north"] + SIZES["east"]
    assert found.absent == ("south",)
    assert found.run["absent"] == ["south"]
    said = f"2 components of {found.n_samples} rows held by 2 silos, without south"
    assert found.headline == said
    assert "rows, without south" in repr(found)
    assert f"<h1>{said}</h1>" in (tmp_path / "result" / "report.html").read_text()


def test_a_secure_sum_counts_those_of_its_roll(tmp_path: Path) -> None:
    for name, key in KEYS.items():
        key.save(tmp_path / f"{name}.pem")
    study = write_study(
        tmp_path,
        privacy={"aggregation": "secure"},
        identities={name: key.public for name, key in KEYS.items()},
        rounds={"deadline": 60.0, "min_silos": 2},
    )
    with secure_silos_of(study, tmp_path) as silos:
        node = CoordinatorNode(study, run=RUN, checkpoint=tmp_path / "rounds.journal")
        drive(node, silos.silos, lost="south", before=["masked-moment"])
    assert node.result.silo_sizes == {"north": SIZES["north"], "east": SIZES["east"]}
    assert node.result.absent == ("south",)


def test_other_questions_after_a_complete_run_are_refused_and_not_charged(tmp_path: Path) -> None:
    study = write_study(tmp_path, **PREPARED, rounds={"deadline": 60.0, "min_silos": 2})
    with ExitStack() as stack:
        silos = opened(stack, study, tmp_path)
        first = CoordinatorNode(study, run="first", checkpoint=tmp_path / "first.journal")
        drive(first, asked(silos), lost="", before=[])
        spent = [each.ledger.spent() for each in silos.values()]
        again = CoordinatorNode(study, run="again", checkpoint=tmp_path / "again.journal")
        with pytest.raises(RefusedError, match="ask the same questions again, which is free"):
            drive(again, asked(silos), lost="south", before=["enrol"])
        assert [each.ledger.spent() for each in silos.values()] == spent


def test_a_moment_asked_for_again_while_a_silo_is_away_comes_from_the_ledgers(tmp_path: Path) -> None:
    study = write_study(tmp_path, rounds={"deadline": 60.0, "min_silos": 2})
    with ExitStack() as stack:
        silos = opened(stack, study, tmp_path)
        first = CoordinatorNode(study, run="first", checkpoint=tmp_path / "first.journal")
        drive(first, asked(silos), lost="", before=[])
        spent = [each.ledger.spent() for each in silos.values()]
        again = CoordinatorNode(study, run="again", checkpoint=tmp_path / "again.journal")
        drive(again, asked(silos), lost="south", before=["enrol"])
        assert [each.ledger.spent() for each in silos.values()] == spent
    assert not first.result.absent
    assert again.result.absent == ("south",)
