"""Finished repetitions are kept whole, and only for the settings and versions they were made with."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedpower.errors import InputError
from paper.curves import Curve, curves_of
from paper.runs import Point, Run
from paper.settings import Settings
from paper.store import Store

SETTINGS = Settings(quick=True, repetitions=2, figures=("silos",))
CURVES = curves_of(SETTINGS)


def made(curve: Curve) -> Run:
    points = (
        Point(round=1, bytes_up=10, error=0.123456789, misalignment=math.nan),
        Point(round=2, bytes_up=20, error=1 / 3, misalignment=0.0),
    )
    return Run(curve=curve, n_rows=7, n_silos=3, points=points)


def test_what_is_saved_is_read_back_to_six_digits(tmp_path: Path) -> None:
    store = Store(tmp_path / "made", SETTINGS)
    assert store.load("I", 0, CURVES) is None
    store.save("I", 0, [made(curve) for curve in CURVES])
    again = Store(tmp_path / "made", SETTINGS).load("I", 0, CURVES)
    assert again is not None
    assert [run.curve for run in again] == CURVES
    assert [point.error for point in again[0].points] == [0.123457, 0.333333]
    assert math.isnan(again[0].points[0].misalignment)
    assert (again[0].n_rows, again[0].n_silos) == (7, 3)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (replace(SETTINGS, seed=1), "seed 0 there and 1 here"),
        (replace(SETTINGS, quick=False), "quick True there and False here"),
        (replace(SETTINGS, figures=("rows",)), r"figures \['silos'\] there and \['rows'\] here"),
    ],
)
def test_a_folder_made_with_other_settings_is_refused(other: Settings, named: str, tmp_path: Path) -> None:
    Store(tmp_path, SETTINGS)
    with pytest.raises(InputError, match=rf"same settings and versions.*{named}.*-o"):
        Store(tmp_path, other)


def test_a_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'thesis\.tex'; name another with -o"):
        Store(tmp_path, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="must be a folder, got a file there"):
        Store(tmp_path / "thesis.tex", SETTINGS)
