"""A study that keeps its moment leaves it in the result, for every party and at no further cost."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from studies import write_silo, write_study
from test_checkpoint import KEYS, RUN, Counted, secure_silos_of

from fedpower import FedPCA, read_moment
from fedpower.federation.coordinator_node import CoordinatorNode
from fedpower.federation.silo_node import open_silo


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_moment_of_a_study_is_in_its_result_and_gives_the_same_numbers(tmp_path: Path):
    study = write_study(tmp_path, components={"keep_moment": True}, privacy={"epsilon": 1.0})
    with ExitStack() as stack:
        silos = Counted(
            {
                name: stack.enter_context(open_silo(study, write_silo(tmp_path, name, cap=1.5)))
                for name in study.silos
            }
        )
        node = CoordinatorNode(study, run=RUN, checkpoint=tmp_path / "rounds.journal")
        silos.finish(node)
        found = node.result
        node.write_result(tmp_path / "result")
    moment = read_moment(tmp_path / "result")
    model = FedPCA(study.parameters.n_components).fit_moment(moment)
    assert np.array_equal(model.components_, found.components)
    assert moment.record["federation"]["agreement"] == study.digest


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_moment_of_a_study_with_secure_sums_is_in_its_result(tmp_path: Path):
    for name, key in KEYS.items():
        key.save(tmp_path / f"{name}.pem")
    study = write_study(
        tmp_path,
        components={"keep_moment": True},
        privacy={"epsilon": 1.0, "aggregation": "secure"},
        identities={name: key.public for name, key in KEYS.items()},
    )
    with secure_silos_of(study, tmp_path) as silos:
        node = CoordinatorNode(study, run=RUN, checkpoint=tmp_path / "rounds.journal")
        silos.finish(node)
        node.write_result(tmp_path / "result")
    model = FedPCA(study.parameters.n_components).fit_moment(tmp_path / "result")
    assert np.array_equal(model.components_, node.result.components)


def test_keeping_the_moment_is_agreed_on(tmp_path: Path):
    left_alone = write_study(tmp_path)
    assert write_study(tmp_path, components={"keep_moment": False}).digest == left_alone.digest
    assert write_study(tmp_path, components={"keep_moment": True}).digest != left_alone.digest
