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
        found = node.result
        record = node.write_result(tmp_path / "result")
        again = CoordinatorNode(study, run=RUN, checkpoint=path)
    assert found.n_above_noise is not None
    assert found.spectrum is not None
    assert 1 <= found.n_components <= found.n_above_noise
    assert asked != "noise" or found.n_components == found.n_above_noise
    assert found.spectrum.size == 5
    assert json.loads(json.dumps(record))["n_above_noise"] == found.n_above_noise
    assert again.coordinator.done
    assert again.result.n_components == found.n_components
