"""A study whose number of components is found: the coordinator's result, and a run taken up again."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from studies import write_silo, write_study
from test_checkpoint import RUN, Counted

from fedpower.federation.coordinator_node import CoordinatorNode
from fedpower.federation.silo_node import open_silo


@pytest.mark.parametrize("asked", ["noise", 0.3])
def test_the_coordinator_finds_as_many_as_stand_above_the_noise(
    tmp_path: Path, asked: str | float
) -> None:
    """The first direction stands ten times the noise's spread above it: missed with chance below 1e-6."""
    study = write_study(
        tmp_path, components={"n_components": asked}, privacy={"epsilon": 50.0}, rows={"row_norm": 8.0}
    )  # fmt: skip
    path = tmp_path / "runs" / RUN / "rounds.journal"
    with ExitStack() as stack:
        silos = Counted(
            {
                name: stack.enter_context(open_silo(study, write_silo(tmp_path, name, cap=60.0)))
                for name in study.silos
            }
        )
        node = CoordinatorNode(study, run=RUN, checkpoint=path)
        silos.finish(node)
        model = node.fitted()
        record = node.write_result(tmp_path / "result")
        again = CoordinatorNode(study, run=RUN, checkpoint=path)
    assert 1 <= model.n_components_ <= model.n_above_noise_
    assert asked != "noise" or model.n_components_ == model.n_above_noise_
    assert model.spectrum_.size == 5
    assert json.loads(json.dumps(record))["n_above_noise"] == model.n_above_noise_
    assert again.coordinator.done
    assert again.fitted().n_components_ == model.n_components_
