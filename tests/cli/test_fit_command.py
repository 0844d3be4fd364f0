"""`fedpower fit` gives what FedPCA gives, says what it promises, keeps ledgers and writes code books."""

import json
import shlex
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hospitals import COLUMNS, EXACT, PRIVATE, SIZES, all_rows, make_ledgers, parts, run, succeed

from budgets import spent
from fedpower import CodeBook, FedPCA, PowerMethod, load
from fedpower.files import LEAST_ROOM

FILES = ("north.csv", "south.parquet", "east.csv")


def n_charged() -> list[int]:
    return [spent(Path(f"{name}.ledger")).n_releases for name in SIZES]


def test_files_give_what_the_estimator_gives(here):
    said = succeed("fit", *FILES, *EXACT, "-o", "out", "--json")
    reported = json.loads(said.stdout)
    assert (reported["result"], np.shape(reported["components"])) == ("out", (2, 5))
    assert not reported["privacy"]["private"]
    assert "NOT PRIVATE" in said.stderr
    assert shlex.join(reported["command"]).startswith("fedpower fit north.csv south.parquet")
    model = FedPCA(2, epsilon=float("inf"), random_state=1).fit_silos(parts())
    result = load("out")
    np.testing.assert_allclose(result.components, model.components_, atol=1e-12)
    np.testing.assert_allclose(result.explained_variance, model.explained_variance_, rtol=1e-12)
    assert result.feature_names == COLUMNS
    said = succeed("fit", "everybody.csv", "--groups", "site", *EXACT, "-o", "groups")
    other = load("groups")
    np.testing.assert_allclose(result.components, other.components, atol=1e-10)
    assert {silo["name"]: silo["rows"] for silo in other.run["silos"]} == SIZES
    assert "NOT PRIVATE" in said.stdout
    assert "3 silos, 150 rows, 5 columns." in said.stdout
    assert said.stderr == ""
    said = succeed("show", "groups", "--verbose").stdout
    assert "east (40 rows), north (60 rows), south (50 rows)" in said


def test_arrays_without_names_and_names_given_on_the_line(here):
    succeed("fit", "a=north.npy", "b=east.npy", *EXACT, "-o", "out")
    assert [silo["name"] for silo in load("out").run["silos"]] == ["a", "b"]
    assert load("out").feature_names is None
    named = ("--columns", ",".join(COLUMNS))
    said = succeed("fit", "north.npy", "south.parquet", *named, *EXACT, "-o", "named")
    (reported,) = [line for line in said.stderr.splitlines() if "in this order" in line]
    assert "north.npy" in reported
    assert load("named").feature_names == COLUMNS


def test_columns_are_chosen_and_left_out_and_a_fraction_chooses_the_components(here):
    succeed("fit", *FILES, "--columns", "bmi,age", "--epsilon", "inf", "-k", 1, "-o", "chosen")
    assert load("chosen").feature_names == ("bmi", "age")
    less = shlex.split("--drop hdl --extra-columns drop --epsilon inf -k 0.6 --columns age,sbp,dbp -o less")
    succeed("fit", "north.csv", "everybody.csv", *less)
    assert load("less").feature_names == ("age", "sbp", "dbp")
    assert load("less").explained_variance_ratio.sum() > 0.6


def test_columns_that_are_not_used_are_named_with_the_reason(here):
    words = shlex.split("--drop hdl --extra-columns drop --epsilon inf -k 1 -o less")
    said = succeed("fit", "north.csv", "everybody.csv", *words)
    unused = load("less").run["unused"]
    assert unused == {"site": "not in north", "hdl": "--drop"}
    assert "Not used: site (not in north) and hdl (--drop)." in said.stdout
    assert "Not used: site (not in north) and hdl (--drop)." in Path("less/report.html").read_text("utf-8")


def test_options_reach_the_estimator(here):
    options = shlex.split(
        "--schedule decaying --local-steps 3 --n-steps 7 --tol 0 --alignment sign --reference broadcast "
        "--iteration-rank 4 --no-center --jobs 2 --max-rounds 50 --min-silos 3"
    )
    succeed("fit", *FILES, *EXACT, *options, "-o", "out")
    paper = {"schedule": "decaying", "local_steps": 3, "alignment": "sign", "reference": "broadcast"}
    solver = PowerMethod(iteration_rank=4, n_steps=7, tol=0.0, **paper)
    model = FedPCA(2, epsilon=float("inf"), center=False, solver=solver, random_state=1).fit_silos(parts())
    result = load("out")
    np.testing.assert_allclose(result.components, model.components_, atol=1e-12)
    assert result.run["parameters"]["local_steps"] == 3
    assert [row["step"] for row in result.run["rounds"]] == [r["step"] for r in model.history_]
    succeed("fit", *FILES, *EXACT, "--schedule", "2,4,5", "-o", "steps")
    assert load("steps").run["parameters"]["schedule"] == [2, 4, 5]


def test_public_centre_and_scale_come_from_files(here):
    center, scale = np.arange(5.0), np.arange(1.0, 6.0)
    lines = [f"{name},{value}" for name, value in zip(COLUMNS, scale, strict=True)]
    Path("scale.csv").write_text("\n".join(["name,value", *lines[::-1]]))
    np.save("center.npy", center)
    succeed("fit", *FILES, *EXACT, "--center-file", "center.npy", "--scale-file", "scale.csv", "-o", "out")
    model = FedPCA(2, epsilon=float("inf"), codebook=CodeBook(offset=center, scale=scale), random_state=1)
    model.fit_silos(parts())
    np.testing.assert_allclose(load("out").components, model.components_, atol=1e-12)
    assert np.allclose(load("out").transform(all_rows()), model.transform(all_rows()))


def test_force_replaces_a_result_and_nothing_else(here):
    words = ("fit", *FILES, "-k", 1, "--epsilon", "inf", "-o", "model")
    assert run(*words).exit_code == 2
    assert load("model").n_components == 2
    succeed(*words, "--force")
    assert load("model").n_components == 1
    Path("model/thesis.tex").write_text("years of work")
    said = run(*words, "--force")
    assert (said.exit_code, "thesis.tex" in said.stderr) == (2, True)
    assert Path("model/thesis.tex").read_text() == "years of work"


def test_a_warning_is_one_line(here):
    words = ("--max-rounds", 1, "--iteration-rank", 2, "--no-center", "--solver", "fedpower")
    (line,) = succeed("fit", *FILES, *EXACT, *words, "-o", "out").stderr.splitlines()
    assert line.startswith("Warning: ")
    assert "--max-rounds" in line


@pytest.mark.devices
def test_a_device_changes_nothing_but_where_it_is_computed(here):
    succeed("fit", *FILES[:2], *EXACT, "--device", "cpu", "-o", "device")
    one, other = load("model"), load("device")
    np.testing.assert_allclose(one.components, other.components, atol=1e-10)
    said = run("fit", *FILES, *EXACT, "--device", "abacus", "-o", "none")
    assert said.exit_code == 2
    assert "device must be one that PyTorch has here" in said.stderr


@pytest.mark.parametrize("how", [("--drop", ""), ("--columns", ",".join(COLUMNS))])
def test_the_nameless_index_that_pandas_writes_is_left_out(here, how):
    heading, *rows = Path("north.csv").read_text().splitlines()
    numbered = [f"{place},{row}" for place, row in enumerate(rows)]
    Path("index.csv").write_text("\n".join([f",{heading}", *numbered]) + "\n")
    succeed("fit", "index.csv", "south.parquet", *how, *EXACT, "-o", "out")
    found = load("out")
    assert found.feature_names == COLUMNS
    np.testing.assert_array_equal(found.components, load("model").components)
    assert (
        succeed("transform", "out", "index.csv").stdout == succeed("transform", "model", "north.csv").stdout
    )


def test_ledgers_are_charged_once_for_the_same_question_and_are_on_its_record(here):
    make_ledgers()
    succeed("fit", *FILES, *PRIVATE, "--ledger", ".", "-o", "out")
    succeed("fit", *FILES, *PRIVATE, "--ledger", ".", "-o", "again")
    np.testing.assert_array_equal(load("out").components, load("again").components)
    assert n_charged() == [1, 1, 1]
    epsilons = [spent(Path(f"{name}.ledger")).epsilon for name in SIZES]
    assert epsilons == pytest.approx([1.0] * 3)
    for silo in load("out").run["silos"]:
        budget = silo["budget"]
        assert budget["spent"] == pytest.approx(1.0)
        assert (budget["cap"], budget["delta"]) == (2.0, 1e-6)
        assert 1.0 < budget["left"] < 2.0  # epsilons do not add up
        assert 0 < budget["used"] < 0.5
    assert "Budgets after this fit" in Path("out/report.html").read_text(encoding="utf-8")
    assert not any("budget" in silo for silo in load("model").run["silos"])


def test_what_one_silo_cannot_afford_costs_nobody(here):
    make_ledgers()
    for owner, reason in (("poor", "poor"), ("east", "this release needs epsilon=1 ")):
        succeed("ledger", "create", f"{owner}/l", "--silo", owner, "--epsilon", 0.5, "--delta", 1e-6)
        said = run("fit", *FILES, *PRIVATE, "--ledger", ".", "--ledger", f"east={owner}/l", "-o", "o")
        assert said.exit_code == 2
        assert reason in said.stderr  # the first ledger is not the silo's
        assert not Path("o").exists()
        assert n_charged() == [0, 0, 0]


def test_another_translation_is_refused_before_anybody_is_charged_until_a_version_is_declared(here):
    Path("south.toml").write_text('[data]\npath = "south.parquet"\n[columns.factors]\nbmi = 2.0\n')
    terms = ("-k", 2, "--epsilon", 0.5, "--delta", 1e-6, "--ledger", "ledgers")
    missing = run("fit", *FILES, *terms, "-o", "out")
    assert (
        "got 'ledgers', which does not exist; create ledgers with `fedpower ledger create" in missing.stderr
    )
    make_ledgers("ledgers")
    paths = [Path("ledgers", f"{name}.ledger") for name in SIZES]
    succeed("fit", *FILES, *terms, "-o", "out")
    before = [path.read_bytes() for path in paths]
    files = ["south.toml" if path == "south.parquet" else path for path in FILES]
    for declared, reason in (
        ((), "declare a new version with --data-version south=2"),
        (("--data-version", "south=2"), "for all silos with --data-version 2, or change --epsilon to make"),
    ):
        refused = run("fit", *files, *terms, *declared, "-o", "other")
        assert refused.exit_code == 2
        assert reason in refused.stderr
        assert [path.read_bytes() for path in paths] == before
    succeed("fit", *files, *terms, "--data-version", 2, "-o", "other")


def test_a_study_that_was_begun_and_cannot_be_paid_for_to_its_end_costs_nobody(here):
    make_ledgers(epsilon=1.0)
    terms = ("-k", 2, "--delta", 1e-6, "--ledger", ".")
    succeed("fit", *FILES, *terms, "--epsilon", 0.9, "--prepare-only", "-o", "book.toml")
    begun = n_charged()
    less = ("--epsilon", 0.5, "--delta", 1e-6, "--reason", "board")
    succeed("ledger", "set-cap", "east.ledger", *less)
    refused = run("fit", *FILES, *terms, "--epsilon", 0.9, "-o", "out")
    assert refused.exit_code == 2
    assert "left at delta=1e-06" in refused.stderr
    assert n_charged() == begun


@pytest.mark.parametrize("more", [("-k", 1), ("--prepare-only",), ("--network", "edge", "--nodes", "n.txt")])
def test_a_full_disk_is_found_before_anything_is_charged(here, more, monkeypatch):
    make_ledgers()
    Path("n.txt").write_text("ann\nbob\n")
    if "--network" in more:
        Path("north.csv").write_text("source,target\nann,bob\n")
    asked = ("fit", "north.csv", "--epsilon", 1, "--delta", 1e-6, "--ledger", ".", *more, "-o", "out")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**9, free=10**6))
        found = run(*asked)
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    assert "the disk of out must have 16 MB free, got 1 MB" in said
    assert n_charged() == [0, 0, 0]
    succeed(*asked)


def test_many_columns_want_more_room(here, monkeypatch):
    """8 bytes for each pair of columns."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**12, free=LEAST_ROOM + 1))
    Path("wide.csv").write_text(f"{','.join(f'x{column}' for column in range(50))}\n{'1,' * 49}1\n")
    found = run("fit", "wide.csv", *PRIVATE, "-o", "out")
    assert "must have 17 MB free" in " ".join(found.stderr.split())


def test_what_is_left_is_the_same_in_a_budget_and_in_a_refusal(here):
    succeed("ledger", "create", "north.ledger", "--epsilon", 0.5, "--delta", 1e-6)
    assert "the next fit may use up to 0.5" in succeed("ledger", "show", "north.ledger").stdout
    words = ("-k", 2, "--row-norm", 10, "--ledger", ".", "--delta", 1e-6)
    said = run("fit", "north.csv", *words, "--epsilon", 0.6, "-o", "out")
    assert "silo 'north' has 0.5 left at delta=1e-06; use epsilon<=0.5," in said.stderr
    succeed("fit", "north.csv", *words, "--epsilon", 0.5, "-o", "out")


def test_a_private_fit_warns_of_a_large_delta_and_says_that_nothing_recorded_it(here):
    said = succeed("fit", *FILES, *PRIVATE, "--delta", 0.5, "-o", "large")
    assert "Warning: delta should be below 1/40, as a silo has 40 rows, got 0.5" in said.stderr
    promise = "Privacy: ε = 1, δ = 0.5 per row, against the coordinator and the public. No ledger recorded it"
    assert (promise in said.stdout, "Assumptions:" in said.stdout) == (True, False)
    assert load("large").run["privacy"]["private"]
    assert "delta" not in succeed("fit", "north.csv", *PRIVATE, "--delta", 1e-3, "-o", "out").stderr


def test_as_many_components_are_found_as_are_determined(here):
    rng = np.random.default_rng(0)
    rows = 0.01 * rng.standard_normal((30_000, 8))
    rows[:, :2] += rng.standard_normal((30_000, 2)) * [0.3, 0.2]
    np.save("two.npy", rows)
    np.save("empty.npy", np.zeros((200, 8)))
    words = ("--epsilon", "4", "--row-norm", "1", "--delta", "1e-6", "--no-standardize", "-o")
    said = succeed("fit", "two.npy", *words, "out").stdout
    assert all("°" in line for line in said.splitlines() if line.startswith("  pc"))
    record = load("out").run
    assert (record["n_components"], record["angles"]["determined"]) == (2, [True, True])
    succeed("fit", "two.npy", "-k", "0.6", *words, "half")
    assert load("half").n_components == 1
    said = succeed("fit", "empty.npy", "-k", "auto", *words, "none").stdout
    assert "not determined" in said
    assert "No component is determined: the likely cause is " in said


def test_a_secure_sum_takes_identities_from_files_that_are_made_once(here):
    shown = {name: succeed("node", "key", f"{name}.pem").stdout.strip() for name in SIZES}
    assert succeed("node", "key", "north.pem").stdout.strip() == shown["north"]
    assert (len(shown["north"]), int(shown["north"], 16) > 0) == (64, True)
    assert stat.S_IMODE(Path("north.pem").stat().st_mode) == 0o600
    words = [f"--identity={name}={name}.pem" for name in SIZES]
    said = succeed("fit", *FILES, *PRIVATE, "--aggregation", "secure", *words, "--verbose", "-o", "out")
    assert "The coordinator together with 1 silo of the 3" in said.stdout
    assert "Assumptions:" in said.stdout
    assert "rehearsal" in said.stdout
    record = load("out").run
    assert dict(record["study"]["terms"]["identities"]) == shown
    assert [each["kind"] for each in record["rounds"]] == ["open-session", "covariance"]
    assert record["study"]["terms"]["aggregation"] == "secure"
    assert len(record["privacy"]["protections"]) == 3
    assert record["privacy"]["notes"]


PREPARE = ("fit", "--prepare-only", *FILES, "--epsilon", 4)


def test_a_code_book_is_charged_once_and_used_for_nothing(here):
    make_ledgers(epsilon=9.0)
    terms = ("--epsilon", 4, "--delta", 1e-6, "--ledger", ".")
    said = succeed(*PREPARE, *terms)
    assert "Code book: codebook.toml. It is public" in said.stdout
    assert n_charged() == [5, 5, 5]
    book = CodeBook.load("codebook.toml")
    assert 0 < book.epsilon < 2
    succeed("fit", *FILES, "-k", 2, *terms, "-o", "out")  # of the same terms: it uses the same tallies
    assert n_charged() == [6, 6, 6]
    assert load("out").code_book.treatment == book.treatment
    for k in (2, 3):
        succeed("fit", *FILES, "-k", k, *terms, "--codebook", "codebook.toml", "-o", f"out-{k}")
    assert n_charged() == [7, 7, 7]
    one, other = load("out-2"), load("out-3")
    assert np.array_equal(one.components, other.components[:2])
    assert "found privately, out of the same epsilon" in str(load("out").privacy)
    assert "found privately" not in str(one.privacy)


def test_ranges_are_kept_and_spare_their_part(here):
    said = succeed(*PREPARE, "--range", f"{COLUMNS[0]}=-7:7", "--json", "-o", "b.toml")
    assert "no ledger recorded what this preparation spent" in said.stderr
    told = json.loads(said.stdout)
    assert (told["low"][0], told["high"][0]) == (-7.0, 7.0)
    assert told["found"][0].startswith("range given")
    assert told["found"][1].startswith("range found")
    assert told["codebook"] == "b.toml"


def test_a_code_book_of_a_fit_also_drops_what_the_command_dropped(here):
    succeed("fit", "north.csv", "--epsilon", 1, "--drop", "bmi", "-o", "first")
    succeed("fit", "north.csv", "--epsilon", 1, "--codebook", "first/codebook.toml", "-o", "second")
    assert "bmi" not in (here / "second" / "components.csv").read_text()
