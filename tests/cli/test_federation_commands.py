"""`fedpower study` and `node`: the file of a study, and what happens before anybody is contacted."""

import importlib.util
import json
import re
import shlex
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from hospitals import COLUMNS, run, succeed
from studies import files_of, kit_of

from fedpower import CodeBook
from fedpower.cli import node
from fedpower.federation import vault
from fedpower.federation.study_file import read_study
from fedpower.privacy.ledger import DataVersion, Ledger, columns_digest
from layers import planted, write_layer, write_nodes

STUDY = ("--name", "heart", "--silos", "north,south,east", "--columns-of", "north.csv", "-k", 2)
PRIVATE_STUDY = (*STUDY, "--epsilon", 1, "--row-norm", 10)


def write_study(*more: object) -> Path:
    succeed("study", "init", "study.toml", *PRIVATE_STUDY, *more)
    return Path("study.toml")


def kit_for(party: str) -> None:
    kit_of(read_study(Path("study.toml")), party, Path("kits"))


def silo_file(name: str = "north", *, cap: float = 2.0, more: str = "") -> Path:
    """Write a silo's own file, and make its ledger anew."""
    path = Path(f"{name}.toml")
    path.write_text(
        f'silo = "{name}"\n[data]\npath = "{name}.csv"\n[ledger]\npath = "{name}.ledger"\n'
        f"epsilon = {cap}\ndelta = 1e-5\n{more}"
    )
    Path(f"{name}.ledger").unlink(missing_ok=True)
    succeed("ledger", "create", f"{name}.ledger", "--epsilon", cap, "--delta", 1e-5)
    return path


IDENTITY = '[identity]\npath = "north.pem"\n'


def keys() -> list[str]:
    names = ("north", "south", "east")
    return [f"--identity={name}={succeed('node', 'key', f'{name}.pem').stdout.strip()}" for name in names]


def test_exact_secure_sums_are_refused_when_a_study_is_written_and_when_it_is_read(here):
    listed = keys()
    said = run("study", "init", "s.toml", *STUDY, "--epsilon", "inf", *listed)
    assert (said.exit_code, said.stdout) == (2, "")
    assert "must have a finite epsilon, got --epsilon inf; without noise, secure sums" in said.stderr
    assert not (here / "s.toml").exists()
    path = write_study(*listed)
    path.write_text(path.read_text().replace("epsilon = 1.0", "epsilon = inf"))
    said = run("study", "check", path)
    assert (said.exit_code, said.stdout) == (2, "")
    assert "aggregation = 'secure' must have a finite epsilon, got epsilon = inf" in said.stderr


def test_init_writes_a_study_of_every_parameter_that_check_finds_in_order(here):
    rounds = ("--min-silos", 2, "--deadline", 30, "--grace", 5, "--host", "a.example.org")
    solver = ("--solver", "krylov", "--noise", "step", "--seed", 7, "--weights", "noise")
    path = write_study(*rounds, *solver, "--no-standardize", "--no-center")
    study = read_study(path)
    assert (study.columns, study.silos) == (COLUMNS, ("north", "south", "east"))
    assert (study.min_silos, study.deadline, study.grace) == (2, 30.0, 5.0)
    assert (study.host, study.port) == ("a.example.org", 8002)
    given = study.options
    assert (given.solver.name, given.noise.kind, given.random_state) == ("krylov", "step", 7)
    assert (given.aggregation.weights, given.centers, study.terms()[0].center) == ("noise", False, False)
    assert succeed("study", "check", path).stdout == f"{path} is valid: study heart, hash {study.digest}.\n"
    reported = json.loads(succeed("study", "check", path, "--json").stdout)
    assert reported == {"study": str(path), "name": "heart", "hash": study.digest}


def test_show_fills_in_what_was_left_out_and_force_replaces_a_study(here):
    study = read_study(write_study())
    facts = json.loads(succeed("study", "show", "study.toml", "--json").stdout)
    assert facts["hash"] == study.digest
    assert (facts["noise"], facts["solver"], facts["min_silos"]) == ("covariance", "upload", 3)
    assert (facts["epsilon"], facts["delta"], facts["grace"]) == (1.0, 1e-6, None)
    assert (facts["coordinator"], facts["center"]) == ("localhost:8002", True)
    assert study.options.centers is study.terms()[0].center is True
    shown = succeed("study", "show", "study.toml").stdout
    assert shown.endswith(f'\n[agrees]\nstudy = "{study.digest}"\n')
    assert facts["why_this_solver"].split()[0] in shown
    assert run("study", "init", "study.toml", *PRIVATE_STUDY, "-k", 3).exit_code == 2
    assert read_study(Path("study.toml")).digest == study.digest
    succeed("study", "init", "study.toml", *PRIVATE_STUDY, "-k", 3, "--force")
    assert read_study(Path("study.toml")).options.n_components == 3


def test_public_centres_and_scales_go_into_the_study_from_files(here):
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


def test_a_study_may_agree_on_no_bound_or_on_a_code_book(here):
    common = ("study", "init", "--name", "heart", "--silos", "north,south", "--columns-of",
              "north.csv", "-k", 1, "--epsilon", 1)  # fmt: skip
    succeed(*common)
    study = read_study(here / "study.toml")
    assert study.treatment is None
    assert json.loads(succeed("study", "show", "study.toml", "--json").stdout)["prepared_privately"]
    succeed("fit", "--prepare-only", "north.csv", "--epsilon", 4, "-o", "book.toml")
    succeed(*common, "--codebook", "book.toml", "--force")
    again = read_study(here / "study.toml")
    assert again.treatment == CodeBook.load("book.toml").treatment
    assert again.options.standardize


@pytest.fixture(scope="module")
def consortium(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study, kits of its parties, north's own file and ledger, and all that can be wrong with them."""
    folder = shutil.copytree(hospitals, tmp_path_factory.mktemp("consortium"), dirs_exist_ok=True)
    with chdir(folder):
        write_study()
        for party in ("coordinator", "runner", "north", "south"):
            kit_for(party)
        for silo in ("south", "west", "north"):
            silo_file(silo)
        text, own = Path("study.toml").read_text(), Path("north.toml").read_text()
        Path("other.toml").write_text(text.replace("epsilon = 1.0", "epsilon = 0.5"))
        Path("runner.toml").write_text(text.replace('"east"]', '"runner"]'))
        Path("host.toml").write_text(text.replace('"localhost"', '"north"'))
        Path("agrees.toml").write_text(f'{own}[agrees]\nstudy = "{"0" * 64}"\n')
        own_ledgers(own)
        for path in ("occupied/thesis.tex", "elsewhere/study.toml"):
            Path(path).parent.mkdir()
            Path(path).write_text(text)
    return folder


@pytest.fixture
def place(consortium: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(consortium, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


APPROVE = ("node", "approve", "kits/north", "north.toml")


def facts() -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(succeed(*APPROVE, "--json").stdout)
    return shown


def change_study(*changes: tuple[str, str]) -> None:
    kit = Path("kits/north/study.toml")
    text = kit.read_text()
    for before, after in changes:
        text = re.sub(before, after, text)
    kit.write_text(text)


def test_approval_shows_what_would_leave_and_touches_nothing(place):
    before = files_of(place)
    said = succeed(*APPROVE).stdout
    assert "What would leave north" in said
    assert "the covariance, the mean row and the trace, noised once" in said
    assert "Nobody was contacted and nothing was charged." in said
    digest = read_study(Path("study.toml")).digest
    assert f'[agrees]\nstudy = "{digest}"' in said
    shown = facts()
    assert shown["study"] == digest
    assert (shown["rows"], shown["columns"]) == (60, 5)
    assert (shown["ledger_cap"], shown["ledger_spent"], shown["affordable"]) == ("2", "0", True)
    assert float(shown["epsilon_of_this_study"]) == pytest.approx(1.0, abs=1e-6)
    assert "advice" not in shown
    assert files_of(place) == before
    silo_file(cap=0.5)
    assert facts()["affordable"] is False


def test_approval_advises_an_operator_whose_rows_are_mostly_clipped(place):
    change_study(("row_norm = .*", "row_norm = 0.1"))
    shown = facts()
    assert shown["rows_clipped_by_the_bound"] == shown["rows"]
    assert shown["advice"].startswith(f"{shown['rows']} of {shown['rows']} rows (100.0%) exceed")


STEP = "products of d×"
PREPARED = (
    "counts of cells and of rows by their size, then the covariance, the mean row and the trace, each noised "
    "once"
)
CENTRED = ("center = true", "standardize = false\ncenter = true")
UNCENTRED = ("center = true", "standardize = false\ncenter = false")


@pytest.mark.parametrize(
    ("changes", "leaves", "without_mean"),
    [
        ([("row_norm = .*\n", "")], PREPARED, False),
        (
            [("epsilon = 1.0\ndelta = 1e-06", "epsilon = inf")],
            "exact numbers: this study is NOT private",
            True,
        ),
        ([UNCENTRED], "the covariance and its trace, noised once", True),
        ([(r"\[privacy\]\n", '[privacy]\nnoise = "step"\n'), CENTRED], STEP, False),
        ([(r"\[privacy\]\n", '[privacy]\nnoise = "paper"\n'), UNCENTRED], STEP, True),
    ],
    ids=["prepared", "exact", "uncentred", "step", "paper"],
)
def test_what_leaves_is_said(place, changes, leaves, without_mean):
    change_study(*changes)
    shown = facts()
    assert shown["leaves"] == leaves or leaves is STEP
    assert ("mean row" not in shown["leaves"]) is without_mean
    if leaves is STEP:
        steps = read_study(Path("kits/north/study.toml")).terms()[0].n_steps
        assert f"{steps} {STEP}" in shown["leaves"]
        assert "with the trace" in shown["leaves"]
        assert shown["leaves_without_noise"] == "the number of rows"


@pytest.mark.parametrize("secure", [False, True])
def test_approval_of_a_network_speaks_of_nodes_and_edges(here, secure):
    write_nodes(Path("nodes.txt"), 20)
    write_layer(Path("north.csv"), planted(20)[0])
    network = ("--network", "edge", "--nodes", "nodes.txt", "--edge-weight", 40)
    words = ("--name", "layers", "--silos", "north,south,east", "-k", 2, "--epsilon", 1)
    succeed("study", "init", "study.toml", *words, *network, *(keys() if secure else ()))
    kit_for("north")
    silo_file(more=IDENTITY if secure else "")
    shown = facts()
    assert (shown["networks"], shown["nodes"], shown["edges_capped_at_the_maximum"]) == (1, 20, 0)
    assert shown["advice"].startswith("no edge weighs more than 0.025 of edge_weight")
    assert shown["leaves"].startswith("the adjacency and its trace")
    noise = shown["noise_std_of_an_edge_in_units_of_edge_weight"]
    assert noise == ("of the sum, by the networks in the session" if secure else "4.22")
    assert re.search(r"(?<![a-z])(row|column)s?(?![a-z])", json.dumps(shown)) is None


def test_approval_of_a_secure_sum_speaks_of_a_share_under_masks(here):
    write_study(*keys())
    kit_for("north")
    silo_file(more=IDENTITY)
    shown = facts()
    assert "under masks, with this silo's share of the noise" in shown["leaves"]
    assert shown["noise_std_for_rows_of_norm_1"] == "of the sum, by the rows in the session"
    assert float(shown["epsilon_of_one_attempt"]) == pytest.approx(1.0, abs=1e-6)
    assert (shown["attempts_at_most"], shown["attempts_charged_so_far"]) == (3, 0)
    assert float(shown["epsilon_of_this_study"]) == pytest.approx(1.81, abs=0.01)
    # Nobody is contacted: the kit holds no keys, and the sentence is not about them.
    silo_file(more=f"{IDENTITY}[agrees]\nepsilon = 1.0\n")
    before = files_of(Path())
    for command in ("start", "approve"):
        (sentence,) = run("node", command, *APPROVE[2:]).stderr.splitlines()
        assert "a study that can spend 1.81" in sentence
    assert files_of(Path()) == before


@pytest.mark.parametrize(
    "words", [("node", "start", "kits/north", "north.toml"), ("node", "start", "kits/coordinator")]
)
def test_a_party_that_another_process_started_holds_on_to_it_before_anything_else(place, words, monkeypatch):
    """To read its rows may take minutes, in which its starter may be killed."""

    def end_with_starter() -> None:
        raise LookupError("held")

    monkeypatch.setattr(node, "end_with_starter", end_with_starter)
    monkeypatch.setattr(node, "read_silo", lambda path: pytest.fail("a file was read"))
    assert "LookupError: held" in run(*words, "--traceback").stderr


WRONG = """
node start | Missing argument
node start kits/north | rows.parquet
node start kits/north north.toml --part vault | --part and --socket must be given together
node start kits/north --part runner --socket vault.socket | 'runner' is not one of 'vault', 'node'
node start kits/runner --part node --socket vault.socket | must be the kit of a silo, got that of 'runner'
node start . north.toml | must be a kit
node start kits/north none.toml | none.toml
node start kits/north agrees.toml | agreed to the study 0000
node start kits/north west.toml | the kit of the silo 'west'
node start kits/runner north.toml | must be the kit of the silo 'north', got the kit of 'runner'
node start kits/south north.toml | the kit of the silo 'north', got the kit of 'south'
node start kits/north lost.toml | lost.ledger
node approve kits/north lost.toml | fedpower ledger create
node start kits/north lungs.toml | got the ledger of data set 'heart'; use
node start kits/north changed.toml | version '1' in its ledger, got other data
node start kits/south south.toml | no such file
study run elsewhere/study.toml | must be a kit made by
study run study.toml --kit kits/north | the kit of the runner, got the kit of 'north'
study run other.toml --kit kits/runner | --kit must be of study
study run study.toml -o occupied | occupied
study run study.toml --resume | a run of this study to resume
study run study.toml --local 2 | all 3 silos
study run study.toml --local 3 --data occupied | 'north'
study run study.toml --separator , | --separator must go with --local
study run study.toml --local 3 --drop nr | --drop must go with --data
study status study.toml --kit kits/south | of the runner, got the kit of
node ca-init none.toml -o new | must exist, got no file at
node ca-init study.toml -o occupied | occupied must be new or empty
node ca-init runner.toml -o new | 'runner'
node ca-init host.toml -o new | 'north'
node request study.toml west | got 'west'
node request study.toml north | must be new or empty
node sign occupied study.toml | occupied must be an authority
node renew nowhere study.toml | nowhere must be an authority
node accept occupied study.toml | must hold exactly one request, the signed one, got 0
node status occupied | must be a kit
"""
"""Each a command and a part of its sentence."""


def own_ledgers(text: str) -> None:
    """Write files of north with a ledger that is not there, one of other data, one of other rows."""
    for name in ("lost", "lungs", "changed"):
        Path(f"{name}.toml").write_text(text.replace("north.ledger", f"{name}.ledger"))
    lungs = Path("lungs.toml")
    lungs.write_text(lungs.read_text().replace("[data]", '[data]\nname = "lungs"'))
    cap = {"epsilon": 2.0, "delta": 1e-5, "silo": "north"}
    Ledger.create("lungs.ledger", **cap, data_set="heart").close()
    columns = columns_digest(read_study(Path("study.toml")).columns, 5)
    booked = DataVersion(silo="north", version="1", columns=columns, fingerprint="0" * 64)
    with Ledger.create("changed.ledger", **cap) as ledger:
        ledger.release(key="k", purpose="a test", study="s", mu=0.1, data=booked, payload=lambda: b"noised")


@pytest.mark.parametrize("use", WRONG.strip().splitlines())
def test_a_wrong_use_by_a_party_is_refused_in_one_sentence(consortium, use, monkeypatch):
    monkeypatch.chdir(consortium)
    before = files_of(consortium)
    words, reported = use.split(" | ")
    said = run(*shlex.split(words))
    assert said.exit_code == 2, said.output
    sentence = said.stderr.splitlines()[-1]
    assert sentence.startswith("Error: ")
    assert reported in sentence
    assert "Traceback" not in said.stderr
    assert files_of(consortium) == before


@pytest.mark.parametrize(
    "use",
    [
        "node ca-init study.toml -o new",
        "node start kits/coordinator",
        "node start kits/north north.toml",
        "study run study.toml",
        "study status study.toml",
    ],
)
def test_without_flare_one_sentence_says_what_to_install(consortium, use, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.chdir(consortium)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "nvflare" else found(name, *rest)
    )
    before = files_of(consortium)
    said = run(*use.split())
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr == (
        "Error: a federation of separate processes must have NVIDIA FLARE, got none installed; run "
        "`pip install '.[flare]'` in a copy of the project\n"
    )
    assert files_of(consortium) == before


@pytest.mark.slow
def test_kits_are_made_for_every_party_and_hold_what_theirs_needs(here, monkeypatch):
    """Real keys and certificates, all by one party."""
    write_study()
    digest = read_study(Path("study.toml")).digest
    said = succeed("node", "ca-init", "study.toml", "-o", "kits", "--with-keys").stdout
    assert "For rehearsals only: in a real study every party makes its own key" in said
    folders = {"coordinator", "runner", "north", "south", "east", "authority"}
    assert {path.name for path in Path("kits").iterdir()} == folders
    assert all(f"kits/{name}" in said for name in folders)
    assert not list(Path("kits").rglob("*.sh"))
    assert len({path.read_bytes() for path in Path("kits").rglob("*.key")}) == 6
    template = Path("kits/north/silo.toml").read_text()
    assert digest in template
    Path("kits/north/silo.toml").write_text(
        template.replace("rows.parquet", str(here / "north.csv"))
        .replace("# epsilon = 3.0 ", "epsilon = 3.0 ")
        .replace("# delta = 1e-6", "delta = 1e-6")
    )
    (reported,) = (line for line in template.splitlines() if line.startswith("# fedpower ledger create"))
    with chdir(here / "kits" / "north"):
        succeed(*reported.split()[2:])
    shown = json.loads(succeed("node", "approve", "kits/north", "kits/north/silo.toml", "--json").stdout)
    assert shown["affordable"] is True
    started: list[Any] = []
    monkeypatch.setattr(  # what it would start is looked at in place of being started
        vault, "run_silo", lambda made, settings, own, *, say: started.append(settings.kit) or 0
    )
    said = succeed("node", "start", "kits/north").stdout
    assert "read 60 rows of 5 columns" in said
    Path("north.csv").write_text(Path("north.csv").read_text().replace("1", "x", 1))
    refused = run("node", "start", "kits/north")
    assert refused.exit_code == 2
    assert "the data of silo 'north'" in refused.stderr
    assert started == [str(here / "kits" / "north")]


@pytest.mark.slow
def test_each_party_makes_its_key_and_the_authority_signs_renews_and_shows(here):
    write_study()
    assert "Then: fedpower node sign authority" in succeed("node", "ca-init", "study.toml").stdout
    reported = {}
    for party in ("coordinator", "runner", "north", "south", "east"):
        said = succeed("node", "request", "study.toml", party).stdout.splitlines()
        assert said[0].startswith(f"Request: kits/{party}/{party}.csr. Send it to the authority")
        reported[party] = said[1].removeprefix("fingerprint of the key: ")
    requests = [f"kits/{party}/{party}.csr" for party in reported]
    twice = run("node", "sign", "authority", *requests, requests[0])
    assert twice.exit_code == 2
    assert "got two requests from 'coordinator'" in twice.stderr
    said = succeed("node", "sign", "authority", *requests, "--days", 30).stdout
    for party, digits in reported.items():
        assert f"fingerprint of {party}: {digits}" in said
        assert f"authority/signed/{party}.crt" in said
        whole = succeed("node", "accept", f"kits/{party}", f"authority/signed/{party}.crt")
        assert f"The kit of {party} is complete" in whole.stdout
    succeed("node", "request", "study.toml", "north", "--renew")
    succeed("node", "renew", "authority", "kits/north/north.csr", "--days", 60)
    succeed("node", "accept", "kits/north", "authority/signed/north.crt")
    shown = json.loads(succeed("node", "status", "kits/north", "authority", "--json").stdout)
    left = {each["party"]: each["days_left"] for each in shown}
    assert left == {"authority": 3649, **dict.fromkeys(reported, 29), "north": 59}
    assert shown[0]["fingerprint"] != reported["north"]
    lines = succeed("node", "status", "kits/south").stdout
    assert f"fingerprint of south: {reported['south']}" in lines
    assert not list(Path("authority").rglob("party.key"))
