"""`fedpower show`, `transform` and `export`: what is printed, written and compared, whole or not at all."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hospitals import COLUMNS, EXACT, PRIVATE, PROGRAM, parts, run, succeed, table_of
from row_forms import write_h5ad

from fedpower import FedPCA, load

FILES = ("north.csv", "south.parquet", "east.csv")
IDS = [f"p,{number}" for number in range(40)]


def reported(*words: object) -> dict:
    return json.loads(succeed(*words, "--json").stdout)


def test_a_folder_gives_the_lines_and_the_page_of_its_fit(here, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    said = succeed("fit", *FILES, *PRIVATE, "-o", "out").stdout
    assert f"Report: {Path('out/report.html')}" in said.splitlines()
    page = Path("out/report.html")
    before = page.read_bytes()
    assert "2 components of 150 rows held by 3 silos" in before.decode()
    assert "south.parquet" in before.decode()  # where silos' rows are is on the record of a fit
    assert succeed("show", "out").stdout == said
    assert reported("show", "out")["feature_names"] == list(COLUMNS)
    page.unlink()
    succeed("show", "out", "--open")
    assert page.read_bytes() == before
    Path("out").rename("elsewhere")
    succeed("show", "elsewhere", "--open")
    assert Path("elsewhere/report.html").read_bytes() == before


@pytest.mark.programs
def test_the_page_is_opened_in_the_browser_that_there_is(here):
    browser = here / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o755)
    words = [*PROGRAM, "show", "model", "--open"]
    subprocess.run(words, check=True, env={**os.environ, "BROWSER": f"{browser} %s"})
    assert (here / "opened").read_text().strip() == (here / "model" / "report.html").as_uri()
    kept = {key: value for key, value in os.environ.items() if "DISPLAY" not in key and key != "BROWSER"}
    nowhere = {**kept, "PATH": str(here / "nothing")}
    said = subprocess.run(words, check=True, capture_output=True, text=True, env=nowhere)
    assert "no browser started" in said.stderr


@pytest.mark.parametrize(
    ("turned", "tilted", "angles"), [(0, 30, [0, 30]), (40, 0, [0, 0]), (40, 10, [0, 10]), (40, 30, [0, 30])]
)
def test_a_known_angle_is_found_and_turns_within_a_plane_are_pointed_out(turned, tilted, angles, here):
    turn, tilt = np.radians(turned), np.radians(tilted)
    first, second = np.eye(4)[:, :2], np.zeros((4, 2))
    second[0] = np.cos(turn), -np.sin(turn)
    second[1] = np.sin(turn) * np.cos(tilt), np.cos(turn) * np.cos(tilt)
    second[2] = np.sin(turn) * np.sin(tilt), np.cos(turn) * np.sin(tilt)
    np.savez("truth.npz", basis=first)
    np.savez("found.npz", components=3 * second.T)
    np.save("found.npy", second)
    for other in ("found.npz", "found.npy"):
        found = reported("show", "truth.npz", "--against", other)
        np.testing.assert_allclose(found["angles_degrees"], angles, atol=1e-5)
        assert found["sin_theta"] == pytest.approx(np.sin(tilt), abs=1e-7)
        np.testing.assert_allclose(found["component_cosines"], np.abs(np.diag(second)))
    said = succeed("show", "truth.npz", "--against", "found.npz").stdout
    assert f"is {tilted:g}° (" in said or tilted == 0
    assert ("trust the angles" in said) == (turned > 0 and tilted < 15)


def test_a_result_is_compared_with_one_of_other_order_and_of_fewer_columns(here):
    backwards = ("--columns", ",".join(COLUMNS[::-1]))
    succeed("fit", "north.csv", "south.parquet", *EXACT, *backwards, "-o", "reversed")
    assert reported("show", "model", "--against", "reversed")["sin_theta"] < 1e-7
    np.savez("truth.npz", basis=load("model").components[:1].T)
    found = reported("show", "model", "--against", "truth.npz")
    assert (found["n_components"], found["sin_theta"] < 1e-7) == ([2, 1], True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--drop", "hdl"), "column 'hdl' in one of them only"),
        (("--no-standardize",), "correlations in one and covariances in the other"),
        ((), "5 and 9 columns"),
    ],
)
def test_results_of_different_questions_are_not_compared(here, words, reason):
    np.save("other.npy", np.eye(9)[:, :2])
    if words:
        succeed("fit", "north.csv", *EXACT, *words, "-o", "other")
    said = run("show", "model", "--against", "other" if words else "other.npy")
    assert said.exit_code == 2
    assert reason in said.stderr


@pytest.fixture
def scores(here: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The estimator's scores of the east; commands read 7 rows at a time."""
    monkeypatch.setattr("fedpower.report.result.block_rows", lambda *_, **__: 7)
    held = parts()
    model = FedPCA(2, epsilon=float("inf"), random_state=1)
    return model.fit_silos({name: held[name] for name in ("north", "south")}).transform(held["east"])


def with_ids(path: str, ids: list) -> None:
    """Write the east's rows with a column of ids in the middle, and one of text that is nothing."""
    labelled = pl.from_arrow(table_of(parts()["east"], COLUMNS[::-1]))
    labelled = labelled.insert_column(2, pl.Series("patient_id", ids)).with_columns(ward=pl.lit("a b"))
    labelled.write_csv(path) if path.endswith(".csv") else labelled.write_parquet(path)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
def test_every_format_holds_the_estimators_scores(scores, ending):
    words = ("transform", "model", "east.csv", "-o", f"scores.{ending}")
    assert reported(*words) == {"file": f"scores.{ending}", "rows": 40, "scores": ["pc1", "pc2"]}
    if ending == "npy":
        found = np.load("scores.npy")
    else:
        table = pl.read_csv("scores.csv") if ending == "csv" else pl.read_parquet("scores.parquet")
        assert table.columns == ["pc1", "pc2"]
        found = table.to_numpy()
    np.testing.assert_allclose(found, scores, atol=1e-12)
    assert run(*words).exit_code == 2
    succeed(*words, "--force")


def test_columns_are_matched_by_name_and_others_left_out(scores):
    with_ids("ids.csv", IDS)
    by_name = succeed("transform", "model", "ids.csv").stdout
    assert by_name == succeed("transform", "model", "east.csv").stdout
    lines = succeed("transform", "model", "east.npy").stdout.splitlines()
    assert lines[0] == "pc1,pc2"
    found = np.array([[float(cell) for cell in line.split(",")] for line in lines[1:]])
    np.testing.assert_allclose(found, scores, atol=1e-12)


@pytest.mark.parametrize(
    ("words", "at_fault"),
    [(("holes.csv",), "bmi"), (("east.csv", "--plot", "east.svg"), "east.svg"),
     (("east.csv", "--plot", "nowhere/east.svg"), "nowhere/east.svg")],
)  # fmt: skip
def test_a_failure_half_way_leaves_no_file(scores, words, at_fault):
    Path("east.svg").write_text("an earlier one")
    before = sorted(Path().iterdir())
    said = run("transform", "model", *words, "-o", "scores.csv")
    assert (said.exit_code, at_fault in said.stderr) == (2, True)
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("given", ["ids.csv", "ids.parquet"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_id_column_comes_first_and_is_no_feature(scores, given, ending):
    with_ids(given, IDS)
    succeed("transform", "model", given, "--id-column", "patient_id", "-o", f"scores.{ending}")
    found = (pl.read_csv if ending == "csv" else pl.read_parquet)(f"scores.{ending}")
    assert found.columns == ["patient_id", "pc1", "pc2"]
    assert found["patient_id"].to_list() == IDS
    np.testing.assert_allclose(found["pc2"], scores[:, 1], atol=1e-12)


def test_ids_keep_their_type_and_stand_next_to_columns_without_names(scores):
    with_ids("ids.parquet", list(range(40)))
    succeed("transform", "model", "ids.parquet", "--id-column", "patient_id", "-o", "s.parquet")
    assert pl.read_parquet("s.parquet")["patient_id"].to_list() == list(range(40))
    lines = succeed("transform", "model", "ids.parquet", "--id-column", "patient_id").stdout.splitlines()
    assert (lines[0], lines[40][:3]) == ("patient_id,pc1,pc2", "39,")
    succeed("fit", "north.npy", *EXACT, "-o", "nameless")
    pl.read_csv("east.csv").insert_column(0, pl.Series("patient_id", IDS)).write_csv("ids.csv")
    succeed("transform", "nameless", "ids.csv", "--id-column", "patient_id", "-o", "scores.csv")
    plain = succeed("transform", "nameless", "east.npy").stdout.splitlines()
    found = pl.read_csv("scores.csv")
    np.testing.assert_allclose(found["pc1"], [float(line.split(",")[0]) for line in plain[1:]])


TABLE, PLINK = "5 features by 2 components", ("--rows", "ids.csv", "--id-column", "patient_id")
CELLS = "40 cells with 2 scores each, components and variances"


@pytest.mark.parametrize(
    ("kind", "words", "files"),
    [
        ("csv", (), {"new": TABLE}),
        ("parquet", (), {"new": TABLE}),
        ("onnx", (), {"new": "a graph from rows of 5 columns to 2 scores"}),
        ("plink", PLINK, {"new.eigenvec": "40 samples", "new.eigenval": "eigenvalues"}),
        ("anndata", ("--rows", "cells.h5ad"), {"new": CELLS}),
    ],
)
def test_every_format_is_written_and_named(here, kind, words, files):
    """What is in the files is tested where they are written."""
    with_ids("ids.csv", [f"p{number}" for number in range(40)])
    write_h5ad(parts()["east"], here / "cells.h5ad", COLUMNS)
    command = ("export", "model", "--to", kind, *words, "-o", "new")
    assert reported(*command) == {"to": kind, "files": files}
    assert all(Path(name).stat().st_size for name in files)
    said = succeed(*command, "--force")
    assert (said.stdout, next(iter(files.values())) in said.stderr) == ("", True)
    if kind == "plink":
        assert "numbered from 1" in succeed(*command[:-4], "-o", "numbered").stderr


@pytest.mark.programs
@pytest.mark.parametrize("words", [("transform", "model", "many.csv"), ("ledger", "show", "many.ledger")])
def test_a_reader_who_has_enough_ends_the_command_quietly(here, words):
    """The pipe is closed before a word is written: nothing depends on who is faster."""
    rows = Path("north.csv").read_text().splitlines(keepends=True)
    Path("many.csv").write_text(rows[0] + "".join(rows[1:]) * 100)
    succeed("ledger", "create", "many.ledger", "--epsilon", 2, "--delta", 1e-6)
    pipe = subprocess.PIPE
    with subprocess.Popen([*PROGRAM, *words], stdout=pipe, stderr=pipe) as command:
        assert command.stdout is not None
        command.stdout.close()
        assert command.stderr is not None
        assert command.stderr.read() == b""
        assert command.wait() == 141
