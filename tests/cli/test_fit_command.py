"""`fedpower fit` gives what FedPCA gives, says what it promises, and keeps ledgers."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from hospitals import COLUMNS, EXACT, PRIVATE, SIZES, all_rows, parts, run, succeed

from fedpower import CodeBook, FedPCA, PowerMethod
from fedpower.privacy import Ledger
from fedpower.report import read_result

FILES = ("north.csv", "south.parquet", "east.csv")


def make_ledgers(folder: Path, epsilon: float = 2.0) -> None:
    for name in SIZES:
        succeed("ledger", "create", folder / f"{name}.ledger", "--epsilon", epsilon, "--delta", 1e-6)


def test_files_give_what_the_estimator_gives(here: Path):
    said = succeed("fit", *FILES, *EXACT, "-o", "out")
    model = FedPCA(2, epsilon=float("inf"), random_state=1).fit_silos(parts())
    result = read_result("out")
    np.testing.assert_allclose(result.components, model.components_, atol=1e-12)
    np.testing.assert_allclose(result.explained_variance, model.explained_variance_, rtol=1e-12)
    assert result.feature_names == COLUMNS
    assert "NOT PRIVATE" in said.stdout
    assert "north (60 rows), south (50 rows), east (40 rows)" in said.stdout
    assert said.stderr == ""


def test_groups_in_one_file_are_the_same_silos(here: Path):
    succeed("fit", *FILES, *EXACT, "-o", "files")
    succeed("fit", "everybody.csv", "--groups", "site", *EXACT, "-o", "groups")
    one, other = read_result("files"), read_result("groups")
    np.testing.assert_allclose(one.components, other.components, atol=1e-10)
    assert {s["name"]: s["rows"] for s in other.run["silos"]} == SIZES


def test_arrays_without_names_and_names_given_on_the_line(here: Path):
    succeed("fit", "a=north.npy", "b=east.npy", *EXACT, "-o", "out")
    assert [silo["name"] for silo in read_result("out").run["silos"]] == ["a", "b"]
    assert read_result("out").feature_names is None
    named = ("--columns", ",".join(COLUMNS))
    said = succeed("fit", "north.npy", "south.parquet", *named, *EXACT, "-o", "named")
    (reported,) = [line for line in said.stderr.splitlines() if "in the order of --columns" in line]
    assert "north.npy" in reported
    assert read_result("named").feature_names == COLUMNS


def test_columns_choose_and_drop_leaves_out(here: Path):
    succeed("fit", *FILES, "--columns", "bmi,age", "--epsilon", "inf", "-k", 1, "-o", "chosen")
    assert read_result("chosen").feature_names == ("bmi", "age")
    succeed("fit", "north.csv", "everybody.csv", "--drop", "hdl", "--extra-columns", "drop",
            "--epsilon", "inf", "-k", 1, "--columns", "age,sbp,dbp", "-o", "less")  # fmt: skip
    assert read_result("less").feature_names == ("age", "sbp", "dbp")


def test_a_fraction_of_variance_chooses_the_components(here: Path):
    succeed("fit", *FILES, "-k", "0.9", "--epsilon", "inf", "-o", "out")
    assert read_result("out").explained_variance_ratio.sum() > 0.9


def test_options_reach_the_estimator(here: Path):
    options = shlex.split(
        "--schedule decaying --local-steps 3 --n-steps 7 --tol 0 --alignment sign --reference broadcast "
        "--iteration-rank 4 --no-center --jobs 2 --max-rounds 50 --min-silos 3"
    )
    succeed("fit", *FILES, *EXACT, *options, "-o", "out")
    paper = {"schedule": "decaying", "local_steps": 3, "alignment": "sign", "reference": "broadcast"}
    solver = PowerMethod(iteration_rank=4, n_steps=7, tol=0.0, **paper)
    model = FedPCA(2, epsilon=float("inf"), center=False, solver=solver, random_state=1).fit_silos(parts())
    result = read_result("out")
    np.testing.assert_allclose(result.components, model.components_, atol=1e-12)
    assert result.run["parameters"]["local_steps"] == 3
    assert [row["step"] for row in result.run["rounds"]] == [r["step"] for r in model.history_]
    succeed("fit", *FILES, *EXACT, "--schedule", "2,4,5", "-o", "steps")
    assert read_result("steps").run["parameters"]["schedule"] == [2, 4, 5]


def test_public_centre_and_scale_come_from_files(here: Path):
    center, scale = np.arange(5.0), np.arange(1.0, 6.0)
    lines = [f"{name},{value}" for name, value in zip(COLUMNS, scale, strict=True)]
    Path("scale.csv").write_text("\n".join(["name,value", *lines[::-1]]))
    np.save("center.npy", center)
    succeed("fit", *FILES, *EXACT, "--center-file", "center.npy", "--scale-file", "scale.csv",
            "-o", "out")  # fmt: skip
    model = FedPCA(2, epsilon=float("inf"), codebook=CodeBook(offset=center, scale=scale), random_state=1)
    model.fit_silos(parts())
    np.testing.assert_allclose(read_result("out").components, model.components_, atol=1e-12)
    assert np.allclose(read_result("out").transform(all_rows()), model.transform(all_rows()))


def test_json_is_one_object_and_alone_on_stdout(here: Path):
    said = succeed("fit", *FILES, *EXACT, "-o", "out", "--json")
    reported = json.loads(said.stdout)
    assert reported["result"] == "out"
    assert np.shape(reported["components"]) == (2, 5)
    assert not reported["privacy"]["private"]
    assert "NOT PRIVATE" in said.stderr
    assert shlex.join(reported["command"]).startswith("fedpower fit north.csv south.parquet")


def test_a_private_fit_prints_its_statement_and_says_that_nothing_recorded_it(here: Path):
    said = succeed("fit", *FILES, *PRIVATE, "-o", "out")
    assert "Private: one row of one silo" in said.stdout
    assert "no ledger was given" in said.stderr
    assert read_result("out").run["privacy"]["private"]


def test_ledgers_are_charged_once_for_the_same_question(here: Path):
    make_ledgers(here / "ledgers")
    succeed("fit", *FILES, *PRIVATE, "--ledgers", "ledgers", "-o", "out")
    succeed("fit", *FILES, *PRIVATE, "--ledgers", "ledgers", "-o", "again")
    np.testing.assert_array_equal(read_result("out").components, read_result("again").components)
    for name in SIZES:
        with Ledger.open(here / "ledgers" / f"{name}.ledger") as ledger:
            assert ledger.spent().n_releases == 1
            assert ledger.spent().epsilon == pytest.approx(1.0)


def test_what_one_silo_cannot_afford_costs_nobody(here: Path):
    make_ledgers(here / "ledgers")
    succeed("ledger", "create", "poor.ledger", "--epsilon", 0.5, "--delta", 1e-6)
    Path("poor.ledger").rename("small")
    said = run("fit", *FILES, *PRIVATE, "--ledgers", "ledgers", "--ledgers", "east=small", "-o", "o")
    assert said.exit_code == 2
    assert "poor" in said.stderr  # the ledger's own name does not fit the silo
    succeed("ledger", "create", "tight", "--epsilon", 0.5, "--delta", 1e-6)
    said = run("fit", *FILES, *PRIVATE, "--ledgers", "ledgers", "--ledgers", "east=tight", "-o", "o")
    assert said.exit_code == 2
    assert "this release would spend epsilon=1 " in said.stderr
    assert not Path("o").exists()
    for name in SIZES:
        with Ledger.open(here / "ledgers" / f"{name}.ledger") as ledger:
            assert ledger.spent().n_releases == 0


def test_force_replaces_a_result_and_nothing_else(here: Path):
    succeed("fit", *FILES, *EXACT, "-o", "out")
    assert run("fit", *FILES, "-k", 1, "--epsilon", "inf", "-o", "out").exit_code == 2
    assert read_result("out").n_components == 2
    succeed("fit", *FILES, "-k", 1, "--epsilon", "inf", "-o", "out", "--force")
    assert read_result("out").n_components == 1
    Path("out/thesis.tex").write_text("years of work")
    said = run("fit", *FILES, *EXACT, "-o", "out", "--force")
    assert said.exit_code == 2
    assert "thesis.tex" in said.stderr
    assert Path("out/thesis.tex").read_text() == "years of work"


def test_a_warning_is_one_line(here: Path):
    words = ("--max-rounds", 1, "--iteration-rank", 2, "--no-center", "--solver", "fedpower")
    said = succeed("fit", *FILES, *EXACT, *words, "-o", "out")
    (line,) = said.stderr.splitlines()
    assert line.startswith("Warning: ")
    assert "--max-rounds" in line


@pytest.mark.devices
def test_a_device_changes_nothing_but_where_it_is_computed(here: Path):
    succeed("fit", *FILES, *EXACT, "-o", "plain")
    succeed("fit", *FILES, *EXACT, "--device", "cpu", "-o", "device")
    one, other = read_result("plain"), read_result("device")
    np.testing.assert_allclose(one.components, other.components, atol=1e-10)
    said = run("fit", *FILES, *EXACT, "--device", "abacus", "-o", "none")
    assert said.exit_code == 2
    assert "device must be one that PyTorch has here" in said.stderr


@pytest.mark.parametrize("how", [("--drop", ""), ("--columns", ",".join(COLUMNS))])
def test_the_nameless_index_that_pandas_writes_is_left_out(here: Path, how: tuple[str, str]):
    succeed("fit", "north.csv", *EXACT, "-o", "plain")
    heading, *rows = Path("north.csv").read_text().splitlines()
    numbered = [f"{place},{row}" for place, row in enumerate(rows)]
    Path("index.csv").write_text("\n".join([f",{heading}", *numbered]) + "\n")
    succeed("fit", "index.csv", *how, *EXACT, "-o", "out")
    plain, found = read_result("plain"), read_result("out")
    assert found.feature_names == COLUMNS
    np.testing.assert_array_equal(found.components, plain.components)
    scores = succeed("transform", "out", "index.csv").stdout
    assert scores == succeed("transform", "plain", "north.csv").stdout


def test_no_component_of_an_exact_fit_is_called_noise(here: Path):
    np.save("constant.npy", np.full((30, 3), 2.0))
    said = succeed("fit", "constant.npy", *EXACT, "-o", "out")
    assert "pc1" in said.stdout
    assert "noise" not in said.stdout


def test_a_delta_at_which_a_row_may_be_given_away_is_warned_of(here: Path):
    said = succeed("fit", "north.csv", *PRIVATE, "--delta", 0.5, "-o", "large")
    assert "Warning: delta should be below 1/rows of every silo, got 0.5 where one has 60 rows" in (
        said.stderr
    )
    assert "delta" not in succeed("fit", "north.csv", *PRIVATE, "--delta", 1e-3, "-o", "out").stderr


def test_what_is_left_is_the_same_in_a_budget_and_in_a_refusal(here: Path):
    succeed("ledger", "create", "north.ledger", "--epsilon", 0.5, "--delta", 1e-6)
    assert "left 0.5 for one further fit" in succeed("ledger", "show", "north.ledger").stdout
    words = ("-k", 2, "--row-norm", 10, "--ledgers", ".", "--delta", 1e-6)
    said = run("fit", "north.csv", *words, "--epsilon", 0.6, "-o", "out")
    assert "silo 'north' has 0.5 left at delta=1e-06; ask for epsilon<=0.5," in said.stderr
    succeed("fit", "north.csv", *words, "--epsilon", 0.5, "-o", "out")
