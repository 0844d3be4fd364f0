"""A study whose number of components is found: the coordinator's result, and a run taken up again."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from studies import write_silo, write_study
from test_checkpoint import RUN, Counted

from fedpower.federation.coordinator import StudyRun
from fedpower.federation.silo_file import open_silo
from fedpower.protocol.solvers.angles import DETERMINED


@pytest.mark.parametrize("asked", ["auto", 0.3])
def test_the_coordinator_finds_as_many_as_are_determined(tmp_path: Path, asked: str | float) -> None:
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
        node = StudyRun(study, run=RUN, checkpoint=path)
        silos.finish(node)
        found = node.result
        record = node.write_result(tmp_path / "result")
        again = StudyRun(study, run=RUN, checkpoint=path)
    assert found.spectrum is not None
    assert found.determined[0]
    assert asked != "auto" or found.subspace_angles[-1] <= DETERMINED
    assert found.spectrum.size == 5
    assert json.loads(json.dumps(record))["angles"]["determined"] == found.determined
    assert again.coordinator.done
    assert again.result.n_components == found.n_components
