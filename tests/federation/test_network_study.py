"""A study of networks: silos of a federation release adjacencies, and communities follow."""

import math
from pathlib import Path

import numpy as np
import pytest
from studies import run_study, secure_tables, write_silo, write_study

from fedpower import FedCommunities, read_moment
from fedpower.analyses import Communities
from fedpower.errors import InputError
from fedpower.federation.silo_file import open_silo
from fedpower.federation.study_file import StudyFile
from layers import names_of, planted, write_layer

D = 40
ROWS = {"network": "edge", "row_norm": None, "center": None}
SILOS = ("north", "south", "east")
LAYERS = {name: planted(D, seed=seed)[0] for seed, name in enumerate(SILOS)}


def study_of(folder: Path, **tables: object) -> StudyFile:
    tables = {"privacy": {"epsilon": 1.0}, "rows": ROWS, **tables}
    return write_study(folder, columns={"names": list(names_of(D))}, **tables)


def run_layers(study: StudyFile, folder: Path) -> None:
    run_study(study, folder, write=lambda path, name: write_layer(path, LAYERS[name]))


@pytest.mark.slow
def test_an_exact_study_gives_what_one_machine_gives(tmp_path: Path):
    study = study_of(tmp_path, privacy={"epsilon": math.inf, "delta": None})
    run_layers(study, tmp_path)
    found = Communities(2).fit(read_moment(tmp_path / "result"))
    here = FedCommunities(2, nodes=names_of(D), epsilon=math.inf).fit_silos(list(LAYERS.values()))
    assert np.allclose(found.eigenvalues_, here.eigenvalues_, rtol=0, atol=1e-12)
    assert np.array_equal(found.labels_, here.labels_)


@pytest.mark.slow
def test_a_private_study_is_charged_by_edge_and_keeps_what_was_released(tmp_path: Path):
    study = study_of(tmp_path)
    run_layers(study, tmp_path)
    moment = read_moment(tmp_path / "result")
    assert moment.privacy.unit == "one edge of one layer of one silo"
    assert moment.record.clipping is None  # no row is shortened
    assert Communities(2).fit(moment).labels_.shape == (D,)


@pytest.mark.slow
def test_a_study_with_secure_sums_has_the_noise_of_one(tmp_path: Path):
    run_layers(study_of(tmp_path, **secure_tables(tmp_path)), tmp_path)
    moment = read_moment(tmp_path / "result")
    apart = moment.pooled.moment - sum(LAYERS.values()) / 3
    # 780 normal numbers: their mean square is off by 25% with a chance of 10⁻⁶ at most.
    found = np.mean(apart[np.tril_indices(D, -1)] ** 2)
    assert abs(found / (moment.noise_std**2 / 2) - 1) < 0.25
    plain = FedCommunities(2, delta=1e-6).fit_silos(list(LAYERS.values())).moment_
    assert moment.noise_std < plain.noise_std


def test_what_is_protected_is_agreed_on(tmp_path: Path):
    tables = write_study(tmp_path).digest
    assert write_study(tmp_path, rows={"network": None}).digest == tables
    edge, row = (
        study_of(tmp_path, rows={**ROWS, "network": unit, "normalize": unit == "row"}).digest
        for unit in ("edge", "row")
    )
    capped = study_of(tmp_path, rows={**ROWS, "edge_weight": 2.0}).digest
    assert len({tables, edge, row, capped}) == 4


def test_a_silo_with_an_edge_to_somebody_else_does_not_start(tmp_path: Path):
    study = study_of(tmp_path)
    own = write_silo(tmp_path, "north", cap=1.5)
    (tmp_path / "north.csv").write_text("source,target\nv000,nobody\n")
    with pytest.raises(InputError, match="another name in row 1"), open_silo(study, own):
        pass
