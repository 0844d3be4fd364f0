"""Tables in memory: what is no number is refused in our words, and numbers are given by name."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fedpower import CodeBook, FedPCA
from fedpower.errors import InputError

CELL = "Meier, 4711"
ROWS = np.random.default_rng(3).normal(size=(60, 3)) * [3, 2, 1] + [5, 0, 1]
FRAME = pd.DataFrame(ROWS, columns=["age", "bmi", "sbp"])
DAY = dt.date(2024, 2, 29)
EXACT = float("inf")


def with_column(cells: Any) -> pd.DataFrame:
    return FRAME.assign(extra=cells)


REFUSED: dict[str, tuple[Any, str]] = {
    "text": (with_column(CELL), "column 'extra' of X must hold numbers, got type String at row 1"),
    "text late": (with_column([1.0] * 59 + [CELL]), "'extra' of X must hold numbers, got text at row 60"),
    "text that looks like a number": (with_column("1"), "'extra' of X must hold numbers, got type String"),
    "categories": (with_column(pd.Categorical([CELL] * 60)), "got type Categorical at row 1"),
    "times": (with_column(pd.Timestamp(DAY)), "must hold numbers, got dates or times at row 1"),
    "dates": (with_column(DAY), "must hold numbers, got text at row 1"),
    "durations": (with_column(pd.Timedelta(3, "h")), "must hold numbers, got dates or times at row 1"),
    "Polars text": (pl.DataFrame({"a": [1.0, 2.0], "b": [CELL] * 2}), "column 'b' of X must hold numbers"),
    "Arrow text": (pa.table({"a": [1.0, 2.0], "b": [CELL] * 2}), "got type String at row 1"),
    "an array of text": (np.array([["1", CELL]] * 3), "column 1 of X must hold numbers, got text"),
    "an array of objects": (np.array([[1, CELL]] * 3, dtype=object), "column 2 of X must hold numbers"),
    "an array of days": (np.array([[DAY, DAY]] * 3, dtype="M8[D]"), "column 1 of X must hold numbers, got"),
    "a list": ([[1.0, CELL], [2.0, CELL]], "column 2 of X must hold numbers, got text at row 1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_text_and_dates_are_refused_in_our_own_sentence(kind: str) -> None:
    data, sentence = REFUSED[kind]
    with pytest.raises(InputError) as caught:
        FedPCA(1, epsilon=EXACT).fit(data)
    assert sentence in str(caught.value)
    assert CELL not in str(caught.value)
    assert caught.value.__cause__ is None


def test_numbers_in_whatever_table_are_fitted_alike() -> None:
    expected = FedPCA(2, epsilon=EXACT).fit(FRAME).components_
    nullable = FRAME.assign(bmi=FRAME["bmi"].astype("Float64"))
    for table in (FRAME.astype(object), pl.from_pandas(FRAME), pa.Table.from_pandas(FRAME), nullable):
        model = FedPCA(2, epsilon=EXACT).fit(table)
        np.testing.assert_allclose(model.components_, expected)
    with pytest.raises(InputError, match="column 'age' of X must hold numbers, got type String at row 1"):
        model.transform(FRAME.assign(age=CELL))


@pytest.mark.filterwarnings("ignore:no component is determined", "ignore:rows longer than")
def test_the_promise_is_four_lines_and_its_whole_is_in_the_folder(tmp_path: Path) -> None:
    model = FedPCA(1, epsilon=1.0, codebook=CodeBook(row_norm=9.0), aggregation="secure")
    said = model.fit_silos([FRAME + place for place in range(3)]).privacy_.brief
    assert len(said.splitlines()) == 4
    for row in model.privacy_.protections:
        assert f"{row.observer}: epsilon={row.epsilon:.4g}" in said
    whole = (model.save(tmp_path / "r") / "privacy.txt").read_text()
    assert whole == f"{model.privacy_}\n"
    assert len(whole.splitlines()) > 4
    promise = FedPCA(1, epsilon=EXACT).fit(FRAME).privacy_
    assert promise.brief == str(promise)  # none, in full
