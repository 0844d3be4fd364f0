"""`fedpower show --against` measures angles between results, array files and permuted columns."""

import json
from pathlib import Path

import numpy as np
import pytest
from hospitals import COLUMNS, EXACT, run, succeed

from fedpower.report import read_result


@pytest.fixture
def out(here: Path) -> Path:
    succeed("fit", "north.csv", "south.parquet", *EXACT, "-o", "out")
    return here / "out"


def reported(one: object, other: object) -> dict:
    return json.loads(succeed("show", one, "--against", other, "--json").stdout)


def test_a_result_is_no_angle_from_itself(out: Path):
    found = reported(out, out)
    np.testing.assert_allclose(found["angles_degrees"], 0, atol=1e-6)
    assert found["sin_theta"] < 1e-8
    np.testing.assert_allclose(found["component_cosines"], 1, atol=1e-12)


def test_a_known_angle_is_found(here: Path):
    angle = np.radians(30)
    first = np.eye(4)[:, :2]
    second = first.copy()
    second[:, 1] = [0, np.cos(angle), np.sin(angle), 0]
    np.savez("truth.npz", basis=first)
    np.savez("found.npz", components=3 * second.T)
    np.save("found.npy", second)
    for other in ("found.npz", "found.npy"):
        found = reported("truth.npz", other)
        np.testing.assert_allclose(found["angles_degrees"], [0, 30], atol=1e-6)
        assert found["sin_theta"] == pytest.approx(0.5)
        np.testing.assert_allclose(found["component_cosines"], [1, np.cos(angle)])
    assert "30 degrees apart" in succeed("show", "truth.npz", "--against", "found.npz").stdout


@pytest.mark.parametrize(
    ("turned", "tilted", "told_of"), [(40, 0, True), (40, 10, True), (0, 10, False), (40, 30, False)]
)
def test_components_that_turned_within_a_plane_that_was_found_are_told_of(
    turned: float, tilted: float, told_of: bool, here: Path
):
    first = np.eye(4)[:, :2]
    turn, tilt = np.radians(turned), np.radians(tilted)
    second = np.array(
        [
            [np.cos(turn), -np.sin(turn)],
            [np.sin(turn) * np.cos(tilt), np.cos(turn) * np.cos(tilt)],
            [np.sin(turn) * np.sin(tilt), np.cos(turn) * np.sin(tilt)],
            [0, 0],
        ]
    )
    np.save("first.npy", first)
    np.save("second.npy", second)
    said = succeed("show", "first.npy", "--against", "second.npy").stdout
    assert f"are {tilted:g} degrees apart" in said or tilted == 0
    assert ("compare the angles" in said) == told_of


def test_columns_in_another_order_make_no_difference(out: Path):
    backwards = ("--columns", ",".join(COLUMNS[::-1]))
    succeed("fit", "north.csv", "south.parquet", *EXACT, *backwards, "-o", "reversed")
    assert reported(out, "reversed")["sin_theta"] < 1e-7


def test_a_result_is_compared_with_a_basis_of_fewer_columns(out: Path):
    np.savez("truth.npz", basis=read_result(out).components[:1].T)
    found = reported(out, "truth.npz")
    assert found["n_components"] == [2, 1]
    assert found["sin_theta"] < 1e-7


def test_different_columns_are_refused(out: Path):
    succeed("fit", "north.csv", "--drop", "hdl", *EXACT, "-o", "less")
    said = run("show", out, "--against", "less")
    assert said.exit_code == 2
    assert "'hdl'" in said.stderr
    np.save("wide.npy", np.eye(9)[:, :2])
    assert "5 and 9 columns" in run("show", out, "--against", "wide.npy").stderr
