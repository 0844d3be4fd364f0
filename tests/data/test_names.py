"""Names that steer a terminal or turn text around are refused wherever names enter."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from fedpower import FedPCA
from fedpower.errors import FedpowerError, InputError, ProtocolError, is_showable
from fedpower.protocol import Coordinator, Study
from fedpower.rows.opening import open_source

BAD = ["\x1b[2Jage", "a\nb", "\x7f", "safe\u202egnp", "\ufeffage", "zero\u200bwidth", "a\x00b", "\x85"]
ROWS = np.random.default_rng(0).standard_normal((20, 2))


def test_what_people_call_columns_can_be_shown() -> None:
    names = ["age", "Körpergröße (cm)", "体重", "naïve B", "a\N{NO-BREAK SPACE}b", "µg/l", "émission – CO₂"]
    assert all(map(is_showable, names))
    assert not any(map(is_showable, BAD))


@pytest.mark.parametrize("bad", BAD)
def test_columns_of_tables_and_of_python_are_refused(bad: str, tmp_path: Path) -> None:
    table = pd.DataFrame(ROWS, columns=["x", bad])
    pyarrow.parquet.write_table(pa.table({"x": ROWS[:, 0], bad: ROWS[:, 1]}), tmp_path / "t.parquet")
    uses = [
        lambda: open_source(table).n_features,
        lambda: open_source(tmp_path / "t.parquet").n_features,
        lambda: open_source(ROWS, columns=["x", bad]),
        lambda: FedPCA(1, epsilon=float("inf")).fit(table),
        lambda: FedPCA(1, epsilon=float("inf")).fit_silos([table]),
        lambda: Study(columns=("x", bad), n_features=2, iteration_rank=1),
    ]
    for use in uses:
        with pytest.raises(InputError, match="control characters") as reported:
            use()
        assert str(reported.value).isprintable()


@pytest.mark.parametrize("bad", BAD)
def test_silos_are_refused(bad: str) -> None:
    with pytest.raises(FedpowerError, match="control characters"):
        FedPCA(1, epsilon=float("inf")).fit_silos({bad: ROWS})
    with pytest.raises(FedpowerError, match="control characters"):
        FedPCA(1, epsilon=float("inf")).fit(ROWS, groups=[bad] * 10 + ["b"] * 10)
    terms = Study(columns=None, n_features=2, iteration_rank=1)
    with pytest.raises(ProtocolError, match="control characters"):
        Coordinator(iter(()), [bad], study=terms, run="r")  # type: ignore[arg-type]
