"""Rows that are watched: every block is told, and a pass ends at the next one once it was stopped."""

from pathlib import Path

import numpy as np
import pytest

from fedpower.engines.embedded import read_silos
from fedpower.protocol import Study
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source
from fedpower.rows.source import Stopped, Watch
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import LocalMoment, local_moment
from problems import Array


def moment_of(rows: Array, watch: Watch, steps: int) -> LocalMoment:
    return local_moment(open_source(rows), rank=1, steps=steps, watch=watch)


@pytest.mark.parametrize(("kind", "steps"), [("product", 1), ("moment", 1000)])
def test_every_row_of_every_pass_is_told(kind: str, steps: int) -> None:
    seen: list[int] = []
    rows = np.random.default_rng(0).standard_normal((300, 400))
    moment = moment_of(rows, Watch(seen.append), steps)
    assert moment.choice.kind == kind
    moment.prepare()
    assert sum(seen) == 300
    moment.product(np.eye(400)[:, :1])
    passes = 2 if kind == "product" else 1
    assert sum(seen) == passes * 300
    fingerprint(moment.source, moment.watch)
    assert sum(seen) == (passes + 1) * 300


def test_a_stopped_pass_ends_and_no_handler_of_errors_takes_it_for_one() -> None:
    moment = moment_of(np.ones((10, 3)), Watch(), 5)
    moment.watch.stop()
    with pytest.raises(Stopped):
        moment.prepare()
    assert not issubclass(Stopped, Exception)
    other = moment_of(np.ones((10, 3)), Watch(), 5)  # a watch of its own
    other.prepare()


def test_ctrl_c_in_one_silo_s_reading_stops_the_others(tmp_path: Path) -> None:
    """The first block raises as a signal would; the other silo's pass is far from its end then."""
    shape = (50_000_000, 20)
    with (tmp_path / "long.npy").open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 8 * shape[0] * shape[1])
    seen = {"short": 0, "long": 0}

    def on_rows(silo: str, count: int, total: int | None) -> None:
        seen[silo] += count
        if silo == "short":
            raise KeyboardInterrupt

    sources = {"short": open_source(np.ones((5, 20))), "long": open_source(tmp_path / "long.npy")}
    study = Study(columns=None, n_features=20, iteration_rank=1)
    with pytest.raises(KeyboardInterrupt):
        read_silos(study, sources, RowTreatment(), steps=50, n_jobs=2, on_rows=on_rows)
    assert seen["long"] < shape[0] / 2
