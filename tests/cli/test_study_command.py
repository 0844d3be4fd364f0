"""`fedpower study`: the file is written, looked over and shown."""

import json
import math
from pathlib import Path

import pytest
from consortium import PRIVATE_STUDY, STUDY, write_study
from hospitals import COLUMNS, run, succeed

from fedpower.federation.study_file import read_study
from fedpower.protocol.secure import Identity
from fedpower.report.codebook_file import read_code_book


def test_exact_secure_sums_are_refused_when_a_study_is_written_and_when_it_is_read(here: Path) -> None:
    names = ("north", "south", "east")
    keys = [f"--identity={name}={Identity.new().public}" for name in names]
    said = run("study", "init", "s.toml", *STUDY, "--epsilon", "inf", *keys)
    assert (said.exit_code, said.stdout) == (2, "")
    assert "must have a finite epsilon, got epsilon=inf; exact sums under masks" in said.stderr
    assert not (here / "s.toml").exists()
    path = write_study(*keys)
    path.write_text(path.read_text().replace("epsilon = 1.0", "epsilon = inf"))
    said = run("study", "check", path)
    assert (said.exit_code, said.stdout) == (2, "")
    assert "aggregation='secure' must have a finite epsilon, got epsilon=inf" in said.stderr


def test_init_writes_a_study_of_every_parameter_that_check_finds_in_order(here: Path) -> None:
    rounds = ("--min-silos", 2, "--deadline", 30, "--grace", 5, "--host", "a.example.org")
    solver = ("--solver", "krylov", "--noise", "step", "--seed", 7, "--weights", "noise", "--no-standardize")
    path = write_study(*rounds, *solver)
    study = read_study(path)
    assert (study.columns, study.silos) == (COLUMNS, ("north", "south", "east"))
    assert (study.min_silos, study.deadline, study.grace) == (2, 30.0, 5.0)
    assert (study.host, study.port) == ("a.example.org", 8002)
    given = study.options
    assert (given.solver.name, given.noise.kind, given.random_state) == ("krylov", "step", 7)
    assert given.aggregation.weights == "noise"
    assert succeed("study", "check", path).stdout == f"{path} is in order: study heart, {study.digest}\n"
    reported = json.loads(succeed("study", "check", path, "--json").stdout)
    assert reported == {"study": str(path), "name": "heart", "hash": study.digest}


@pytest.mark.parametrize(("words", "centred"), [((), True), (("--no-center",), False)])
def test_init_centres_unless_told_not_to_as_a_fit_does(
    here: Path, words: tuple[str, ...], centred: bool
) -> None:
    study = read_study(write_study(*words))
    assert study.options.centers is centred
    assert study.terms()[0].center is centred


def test_init_replaces_a_file_only_by_force(here: Path) -> None:
    path = write_study()
    before = path.read_bytes()
    said = run("study", "init", path, *PRIVATE_STUDY, "-k", 3)
    assert said.exit_code == 2
    assert path.read_bytes() == before
    succeed("study", "init", path, *PRIVATE_STUDY, "-k", 3, "--force")
    assert read_study(path).options.n_components == 3


def test_show_fills_in_what_was_left_out(here: Path) -> None:
    study = read_study(write_study())
    facts = json.loads(succeed("study", "show", "study.toml", "--json").stdout)
    assert facts["hash"] == study.digest
    assert (facts["noise"], facts["solver"], facts["min_silos"]) == ("moment", "moment", 3)
    assert (facts["epsilon"], facts["delta"], facts["grace"]) == (1.0, 1e-6, None)
    assert facts["coordinator"] == "localhost:8002"
    shown = succeed("study", "show", "study.toml").stdout
    assert shown.endswith(f'\n[agrees]\nstudy = "{study.digest}"\n')
    assert facts["why_this_solver"].split()[0] in shown


def test_an_exact_study_has_no_delta(here: Path) -> None:
    succeed("study", "init", "study.toml", *STUDY, "--epsilon", "inf", "-k", "auto")
    study = read_study(Path("study.toml"))
    assert (math.isinf(study.options.epsilon), study.options.delta) == (True, None)
    facts = json.loads(succeed("study", "show", "study.toml", "--json").stdout)
    assert (facts["noise"], facts["n_components"], facts["solver"]) == ("none", "auto", "moment")


def test_public_centres_and_scales_go_into_the_study_from_files(here: Path):
    (here / "usual.csv").write_text("b,20\na,10\n")
    (here / "units.csv").write_text("a,2\nb,4\n")
    common = ("study", "init", "--name", "heart", "--silos", "north,south", "--columns", "a,b",
              "-k", 1, "--epsilon", 1, "--row-norm", 4)  # fmt: skip
    succeed(*common, "--center-file", "usual.csv", "--scale-file", "units.csv")
    found = read_study(here / "study.toml").options
    assert found.public.offset == [10, 20]
    assert found.centers
    assert found.public.scale == [2, 4]
    succeed(*common, "--scale-file", "units.csv", "--force")
    assert read_study(here / "study.toml").options.center is True


def test_a_study_may_agree_on_no_bound_or_on_a_code_book(here: Path):
    common = ("study", "init", "--name", "heart", "--silos", "north,south", "--columns-of",
              "north.csv", "-k", 1, "--epsilon", 1)  # fmt: skip
    succeed(*common)
    study = read_study(here / "study.toml")
    assert study.treatment is None
    assert json.loads(succeed("study", "show", "study.toml", "--json").stdout)["prepared_privately"]
    succeed("fit", "--prepare-only", "north.csv", "--epsilon", 4, "-o", "book.toml")
    succeed(*common, "--codebook", "book.toml", "--force")
    again = read_study(here / "study.toml")
    assert again.treatment == read_code_book("book.toml").treatment
    assert again.options.standardize
