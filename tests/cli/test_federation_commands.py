"""`fedpower study` and `node`: the file of a study, and what happens before anybody is contacted."""

import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from hospitals import COLUMNS, run, succeed
from studies import files_of, kit_of

from fedpower import CodeBook
from fedpower.cli import node
from fedpower.federation.inbox import Inbox, proposal_in
from fedpower.federation.silo_file import read_silo
from fedpower.federation.study_file import read_parties, read_study
from fedpower.privacy.ledger import DataVersion, Decision, Ledger, columns_digest
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
        f'epsilon = {cap}\ndelta = 1e-5\n[identity]\npath = "{name}.pem"\n{more}'
    )
    succeed("node", "key", f"{name}.pem")
    Path(f"{name}.ledger").unlink(missing_ok=True)
    succeed("ledger", "create", f"{name}.ledger", "--epsilon", cap, "--delta", 1e-5)
    return path


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
        Path("moved.toml").write_text(text.replace("8002", "9002"))
        Path("runner.toml").write_text(text.replace('"east"]', '"runner"]'))
        Path("host.toml").write_text(text.replace('"localhost"', '"north"'))
        Path("rules.toml").write_text(f'{own}[approve]\nstudy = "00"\n')
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


APPROVE = ("node", "approve", "kits/north", "study.toml", "--silo-file", "north.toml")


def facts() -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(succeed(*APPROVE, "--json").stdout)
    return shown


def arrives() -> None:
    """Put the study into north's inbox, as its vault does."""
    own = read_silo(Path("north.toml"))
    with own.open_ledger() as ledger:
        Inbox(read_parties(Path("study.toml")), own, ledger).add(proposal_in(Path("study.toml")))


def change_study(*changes: tuple[str, str]) -> None:
    path = Path("study.toml")
    text = path.read_text()
    for before, after in changes:
        text = re.sub(before, after, text)
    path.write_text(text)


def decisions(ledger: str = "north.ledger") -> list[Decision]:
    with Ledger.open(ledger, read_only=True) as opened:
        return opened.decisions()


def test_the_operator_sees_on_one_screen_what_leaves_and_at_what_price_before_it_is_decided(place):
    said = run(*APPROVE, input="n\n")
    assert said.exit_code == 0
    digest = read_study(Path("study.toml")).digest
    for shown in ("Study heart, proposed to north", digest, "north, south, east", "one row",
                  "60 rows, north.csv, version 1", "What leaves north, with noise unless marked exact\n",
                  "; sees all that leaves a silo",
                  "  covariance, mean row and trace", "100.0%", "what one row holds by at most 2.8 times",
                  "spent after it", "Approve? To refuse it, add --refuse REASON to the command. [y/N]",
                  "Nothing is decided."):  # fmt: skip
        assert shown in said.stdout
    assert (len(said.stdout.splitlines()), max(map(len, said.stdout.splitlines()))) < (45, 81)
    shown = facts()
    assert (shown["study"], shown["name"], shown["approved"]) == (digest, "heart", None)
    assert (shown["rows"], shown["columns"], shown["signed_by"]) == (60, list(COLUMNS), [])
    priced = ("cap", "spent_before", "affordable")
    assert [shown[name] for name in priced] == [2.0, 0.0, True]
    assert shown["epsilon_of_this_study"] == pytest.approx(1.0, abs=1e-6)
    assert shown["spent_after"] < 1.0, "at the larger delta of the cap"
    assert "advice" not in shown
    assert decisions() == []
    assert list(Path().glob("north.inbox/*")) == [], "a file that was only read is not an arrival"
    silo_file(cap=0.5)
    assert "spent after it" in run(*APPROVE, "--yes").stdout
    refused = run(*APPROVE, "--json", "--yes")
    assert (refused.exit_code, decisions()) == (2, [])
    assert "the ledger cannot pay for this study; until that is solved" in refused.stderr


def test_a_decision_is_recorded_and_the_last_one_holds(place):
    interrupted = run(*APPROVE, input="")
    assert (interrupted.exit_code, decisions()) == (130, [])
    assert "Error: interrupted, so nothing was decided" in interrupted.stderr
    assert "Approved: signed, and stored in the ledger." in run(*APPROVE, input="y\n").stdout
    assert facts()["approved"] is True
    assert "It is approved.\n" in succeed(*APPROVE).stdout
    assert "No study waits" in succeed(*APPROVE[:3], *APPROVE[4:]).stdout
    said = succeed(*APPROVE[:3], "heart", *APPROVE[4:], "--refuse", "not this year", "--json").stdout
    assert json.loads(said)["approved"] is False
    assert [(one.approved, one.reason, one.by) for one in decisions()] == [
        (True, "", "operator"),
        (False, "not this year", "operator"),
    ]
    checked = succeed("ledger", "verify", "north.ledger").stdout
    assert "north.log" in checked
    for more, sentence in (
        (("--yes", "--refuse", "x"), "must not be given together"),
        (("--refuse", "a\nb"), "must be one line"),
        (("--refuse", ""), "must be one line of 1 to 300 letters"),
    ):
        refused = run(*APPROVE, *more)
        assert (refused.exit_code, len(decisions())) == (2, 2)
        assert sentence in refused.stderr
    listed = succeed("ledger", "show", "north.ledger").stdout.splitlines()[-2:]
    assert [re.sub(r" on .* UTC", "", line) for line in listed] == [
        f"Study heart ({decisions()[0].study[:12]}) approved",
        f"Study heart ({decisions()[0].study[:12]}) refused: not this year",
    ]
    assert re.search(r"decided +refused on .* UTC: not this year", run(*APPROVE, input="\n").stdout)


def test_a_ledger_of_rows_and_persons_is_about_rows_and_the_operator_is_told(place):
    lines = Path("north.csv").read_text().splitlines()
    Path("persons.csv").write_text("\n".join(f"{line},{n or 'nr'}" for n, line in enumerate(lines)))
    fit = ("fit", "north=persons.csv", "-k", 2, "--epsilon", 0.5, "--row-norm", 10, "-o", "out", "--force")
    for way, about in ("--unit", "person"), ("--drop", "row"):
        succeed(*fit, way, "nr", "--ledger", "north=north.ledger", "--data-version", about)
        assert f"The ledger is about one {about} of" in succeed("ledger", "show", "north.ledger").stdout
    shown = facts()["advice"]
    assert shown == [
        "with this study, the ledger is about one row of this silo, replace-one neighbours, because only "
        "some of its releases protect persons"
    ]


def test_an_approved_study_without_privacy_is_named_as_such_in_the_ledger(place):
    change_study(("epsilon = 1.0", "epsilon = inf"), ("row_norm = .*", ""))
    assert "Exact sums can show single values" in run(*APPROVE, input="y\n").stdout
    said = succeed("ledger", "show", "north.ledger").stdout
    assert re.search(r"^Study heart \(.*\) approved as a study that is not private on ", said, re.M)


def test_products_of_one_study_are_one_line_of_the_ledger(place):
    fit = ("--noise", "step", "--n-steps", 3, "--no-standardize", "-k", 2, "--epsilon", 1, "--row-norm", 10)
    succeed("fit", "north.csv", *fit, "--ledger", "north.ledger", "-o", "out", "-q")
    said = succeed("ledger", "show", "north.ledger").stdout
    assert re.search(r"^ +2–4  product +\S+  0\.75 +0\.87  ", said, re.M), said


def test_ctrl_c_at_the_question_decides_nothing(place):
    command = [sys.executable, "-m", "fedpower", *APPROVE]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as asking:
        assert asking.stdout is not None, "it is a pipe"
        printed = b""
        while b"[y/N]" not in printed:
            printed += os.read(asking.stdout.fileno(), 4096)
        asking.send_signal(signal.SIGINT)
        said = asking.communicate(timeout=20)[1]
    assert (asking.returncode, said) == (130, b"Error: interrupted, so nothing was decided\n")
    assert decisions() == []


def test_an_operator_names_one_study_of_those_that_wait(place):
    """A name that another study has too is refused: what was seen is what is approved."""
    arrives()
    first = read_study(Path("study.toml")).digest
    change_study(("epsilon = 1.0", "epsilon = 0.5"))
    arrives()
    second = read_study(Path("study.toml")).digest
    for words, said in (
        ((), "STUDY must be given where several wait, got none of these 2"),
        (("lungs",), "the name or hash of one study in the silo's inbox, got 'lungs'"),
        (("heart",), f"got 'heart', which several have: {second[:12]}, {first[:12]}"),
        (("--yes",), "--yes must go with the file of a study or all 64 digits of its hash"),
        ((first[:12], "--yes"), "--yes must go with the file of a study or all 64 digits of its hash"),
    ):
        refused = run(*APPROVE[:3], *words, *APPROVE[4:])
        assert refused.exit_code == 2
        assert said in refused.stderr
    table = run(*APPROVE[:3], *APPROVE[4:]).stdout
    assert [line.split() for line in table.splitlines()[2:]] == [
        ["heart", second[:12], "0.5"],
        ["heart", first[:12], "1"],
    ]
    assert first in run(*APPROVE[:3], first[:12], *APPROVE[4:], input="n\n").stdout
    succeed(*APPROVE[:3], first, *APPROVE[4:], "--yes")
    assert [one.study for one in decisions()] == [first]


def test_a_study_cannot_take_the_beginning_of_another_s_hash_as_its_name(place):
    agreed = read_study(Path("study.toml")).digest
    change_study(('name = "heart"', f'name = "{agreed[:12]}"'))
    arrives()
    refused = run(*APPROVE[:3], agreed[:12], *APPROVE[4:])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"got '{agreed[:12]}'" in refused.stderr


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"east"]', '"west"]', "must be among those of federation 'heart'"),
        ("epsilon = 1.0", "epsilon = -1", "epsilon must be a number above 0"),
        ("epsilon = 1.0", 'epsilon = "', "the study file other.toml must be TOML"),
    ],
)
def test_a_wrong_study_file_is_blamed_and_does_not_reach_the_inbox(place, before, after, said):
    Path("other.toml").write_text(Path("study.toml").read_text().replace(before, after))
    refused = run(*APPROVE[:3], "other.toml", *APPROVE[4:], "--yes")
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert list(Path().glob("north.inbox/*")) == []


def test_the_screen_has_room_for_rules_and_many_columns(place):
    names = [f"drug{number}" for number in range(100)]
    rules = "".join(f"{name} = {{kind = 'number', missing = 0, indicator = true}}\n" for name in names)
    Path("study.toml").write_text(
        re.sub(
            r"(?ms)^names = \[.*?^row_norm = .*?$",
            f"names = {names}\n[rules]\n{rules}",
            Path("study.toml").read_text(),
            count=1,
        )
    )
    said = run(*APPROVE, input="n\n").stdout
    assert f"{', '.join(names)}: a number, 0 if missing" in re.sub(r"\s+", " ", said)
    assert "Not all names fit" not in said


def test_a_study_that_a_silo_could_not_answer_can_be_refused_but_not_approved(place):
    Path("north.csv").write_text("age\n1\n")
    said = run(*APPROVE, "--yes")
    assert said.exit_code == 2
    assert "until that is solved, you can only refuse it, with --refuse REASON" in said.stderr
    assert decisions() == []
    assert "Refused" in succeed(*APPROVE, "--refuse", "columns are missing").stdout


def test_a_study_is_signed_by_those_who_vouch_for_it(place):
    signed = succeed("study", "sign", "study.toml", "north.pem").stdout
    succeed("node", "key", "other.pem")
    succeed("study", "sign", "study.toml", "other.pem")
    keys = [succeed("node", "key", path).stdout.strip() for path in ("north.pem", "other.pem")]
    assert keys[0] in signed
    assert sorted(facts()["signed_by"]) == sorted(keys)
    change_study(("epsilon = 1.0", "epsilon = 0.5"))
    assert facts()["signed_by"] == [], "signatures are of one study"


def test_approval_of_persons_counts_them_and_names_the_column_of_ids(place):
    head, *rows = Path("north.csv").read_text().splitlines()
    numbered = [f"{line},p{place // 2}" for place, line in enumerate(rows)]
    Path("north.csv").write_text("\n".join([f"{head},patient", *numbered]))
    change_study((r"\[rows\]\n", '[rows]\nunit = "patient"\n'))
    said = run(*APPROVE, input="n\n").stdout
    for shown in ("what one person holds in all rows, by column 'patient'", "30 persons with 60 rows, ",
                  "number of persons, exact", "about what one person holds in all rows by at"):  # fmt: skip
        assert shown in re.sub(r"\s+", " ", said)


def test_approval_advises_an_operator_whose_rows_are_mostly_clipped(place):
    change_study(("row_norm = .*", "row_norm = 0.1"))
    shown = facts()
    assert shown["rows_clipped_by_the_bound"] == shown["rows"]
    assert shown["advice"][0].startswith(f"{shown['rows']} of {shown['rows']} rows (100.0%) exceed")


STEP = "product of 5 × "
COUNTS = [f"counts of cells by size: {which}column ranges" for which in ("rough ", "", "narrow ")]
MOMENT = "covariance, mean row and trace"
CENTRED = ("center = true", "standardize = false\ncenter = true")
UNCENTRED = ("center = true", "standardize = false\ncenter = false")


@pytest.mark.parametrize(
    ("changes", "leaves"),
    [
        ([("row_norm = .*\n", "")], [*COUNTS, "sums of cells: means and spreads", MOMENT]),
        (
            [("epsilon = 1.0\ndelta = 1e-06", "epsilon = inf")],
            ["sums over your rows, as the coordinator asks"],
        ),
        ([UNCENTRED], ["covariance and its trace"]),
        ([(r"\[privacy\]\n", '[privacy]\nnoise = "step"\n'), CENTRED], [STEP, "mean row"]),
        ([(r"\[privacy\]\n", '[privacy]\nnoise = "paper"\n'), UNCENTRED], [STEP]),
    ],
    ids=["prepared", "exact", "uncentred", "step", "paper"],
)
def test_what_leaves_is_said(place, changes, leaves):
    change_study(*changes)
    asked = facts()
    shown, is_exact = asked["leaves"], "inf" in str(changes)
    assert asked["protects"].startswith("nobody" if is_exact else "what one row holds, not what a person")
    assert asked["sent"] == ("exact, without noise" if is_exact else "with noise unless marked exact")
    said = [one["what"] for one in shown]
    assert said[0] == "number of rows, exact"
    for what in leaves:
        assert any(one.startswith(what) for one in said)
    assert any("mean row" in one for one in said) is any("mean row" in what for what in leaves)
    shares = [one["share"] for one in shown if one["share"] is not None]
    whole = 0.0 if is_exact else 1.0
    assert math.fsum(shares) == pytest.approx(whole) or 'noise = "paper"' in str(changes)
    if leaves[0] is STEP:
        steps = read_study(Path("study.toml")).terms()[0].n_steps
        (product,) = (one for one in shown if one["what"].startswith(STEP))
        assert product["times"] == steps
        assert "with the trace" in product["what"]


@pytest.mark.parametrize("secure", [False, True])
def test_approval_of_a_network_speaks_of_nodes_and_edges(here, secure):
    write_nodes(Path("nodes.txt"), 20)
    write_layer(Path("north.csv"), planted(20)[0])
    network = ("--network", "edge", "--nodes", "nodes.txt", "--edge-weight", 40)
    words = ("--name", "layers", "--silos", "north,south,east", "-k", 2, "--epsilon", 1)
    succeed("study", "init", "study.toml", *words, *network, *(keys() if secure else ()))
    kit_for("north")
    silo_file()
    shown = facts()
    assert (shown["networks"], shown["edges_capped_at_the_maximum"]) == (1, 0)
    assert shown["protects"] == "one edge of the network, present or absent"
    assert shown["advice"][0].startswith("no edge weighs more than 0.025 of edge_weight")
    assert any(one["what"].startswith("adjacency and its trace") for one in shown["leaves"])
    assert re.search(r"(?<![a-z])(row|column)s?(?![a-z])", json.dumps(shown)) is None


def test_approval_of_a_secure_sum_speaks_of_masks_and_of_all_attempts(here):
    write_study(*keys())
    kit_for("north")
    silo_file()
    shown = facts()
    assert shown["sent"] == "in 3 attempts together, with noise and under masks unless marked exact"
    assert shown["epsilon_of_one_attempt"] == pytest.approx(1.0, abs=1e-6)
    assert (shown["attempts_at_most"], shown["attempts_charged_so_far"]) == (3, 0)
    assert shown["epsilon_of_this_study"] == pytest.approx(1.81, abs=0.01)
    assert shown["spent_after"] == pytest.approx(1.6, abs=0.1)
    assert re.search(r"if all 3 attempts are needed +1\.8\d\d\n", run(*APPROVE, input="n\n").stdout)


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
node start kits/north --health 8003 | must be HOST:PORT, such as 127.0.0.1:8003
node start kits/north --part vault --socket v --health localhost:1 | the vault has no network
node start kits/north --part runner --socket vault.socket | 'runner' is not one of 'vault', 'node'
node start kits/runner --part node --socket vault.socket | must be the kit of a silo, got that of 'runner'
node start . north.toml | must be a kit
node start kits/runner | must be the kit of a silo or the coordinator, got the runner's
node start kits/north none.toml | none.toml
node start kits/north rules.toml | study in [approve] of
node start kits/north west.toml | the kit of the silo 'west'
node start kits/runner north.toml | must be the kit of the silo 'north', got the kit of 'runner'
node start kits/south north.toml | the kit of the silo 'north', got the kit of 'south'
node start kits/north lost.toml | lost.ledger
node approve kits/north study.toml --silo-file lost.toml | fedpower ledger create
node approve kits/north elsewhere --silo-file north.toml | STUDY must be a file, or the name or hash of one
node approve kits/south study.toml --silo-file north.toml | kit of the silo 'north', got the kit of 'south'
study sign study.toml none.pem | none.pem
node start kits/north lungs.toml | got the ledger of data set 'heart'; use
node start kits/south south.toml | path in [data] of
study run elsewhere/study.toml | must be a kit made by
study run study.toml --kit kits/north | the kit of the runner, got the kit of 'north'
study run moved.toml --kit kits/runner | must be localhost:8002, as in the kits, got localhost:9002
study run study.toml -o occupied | occupied
study run study.toml --resume | a run of this study to resume
study run study.toml --local 2 | all 3 silos
study run study.toml --local 3 --resume | --resume must not go with --local
study run study.toml --local 3 --data occupied | 'north'
study run study.toml --separator , | --separator must go with --local
study run study.toml --local 3 --drop nr | --drop must go with --data
study status study.toml --kit kits/south | of the runner, got the kit of
study status study.toml --kit kits/runner --port 8005 | --port must go with --serve
study status study.toml --kit kits/runner --serve --json | --serve and --json must not be given together
study status study.toml --kit kits/runner --serve --port 99999 | 99999
node ca-init none.toml -o new | must exist, got no file at
node ca-init study.toml -o occupied | occupied must be new or empty
node ca-init runner.toml -o new | 'runner'
node ca-init host.toml -o new | 'north'
node request study.toml west | got 'west'
node request study.toml north | got a folder with files; name another with -o, or add --renew for another key
node sign occupied study.toml | occupied must be an authority
node renew nowhere study.toml | nowhere must be an authority
node revoke nowhere north | nowhere must be an authority
node accept kits/north none.crl | must be a certificate signed by
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
    said = succeed("node", "ca-init", "study.toml", "-o", "kits", "--with-keys").stdout
    assert "For rehearsals only: otherwise every party makes its own key" in said
    folders = {"coordinator", "runner", "north", "south", "east", "authority"}
    assert {path.name for path in Path("kits").iterdir()} == folders
    assert all(f"kits/{name}" in said for name in folders)
    assert not list(Path("kits").rglob("*.sh"))
    assert len({path.read_bytes() for path in Path("kits").rglob("*.key")}) == 6
    template = Path("kits/north/silo.toml").read_text()
    Path("kits/north/silo.toml").write_text(
        template.replace("rows.parquet", str(here / "north.csv"))
        .replace("# epsilon = 3.0 ", "epsilon = 3.0 ")
        .replace("# delta = 1e-6", "delta = 1e-6", 1)
    )
    (reported,) = (line for line in template.splitlines() if line.startswith("# fedpower ledger create"))
    with chdir(here / "kits" / "north"):
        succeed(*reported.split()[2:])
    shown = json.loads(succeed("node", "approve", "kits/north", "study.toml", "--json").stdout)
    assert shown["affordable"] is True
    assert "No study" not in succeed("node", "approve", "kits/north", "study.toml", "--yes").stdout
    succeed("node", "revoke", "kits/authority", "north")
    warned = "the certificate of north is revoked; request another"
    assert warned in succeed("node", "status", "kits/authority").stdout
    started: list[Any] = []
    monkeypatch.setattr(  # what it would start is looked at in place of being started
        node, "run_silo", lambda made, settings, own, *, say: started.append(settings.kit) or 0
    )
    said = succeed("node", "start", "kits/north").stdout
    assert "silo north of federation heart" in said
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
    ledger = ("kits/north/north.ledger", "--silo", "north", "--epsilon", 3, "--delta", "1e-6")
    succeed("ledger", "create", *ledger)
    succeed("node", "request", "study.toml", "north", "--renew")
    succeed("node", "renew", "authority", "kits/north/north.csr", "--days", 60)
    succeed("node", "accept", "kits/north", "authority/signed/north.crt")
    succeed("ledger", "verify", "kits/north/north.ledger")
    (log,) = Path("kits/north/north.log").iterdir()
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "renewed"
    shown = json.loads(succeed("node", "status", "kits/north", "authority", "--json").stdout)
    left = {each["party"]: each["days_left"] for each in shown}
    assert left == {"authority": 3649, **dict.fromkeys(reported, 29), "north": 59}
    assert shown[0]["fingerprint"] != reported["north"]
    warned = {each["party"] for each in shown if each["warning"] is not None}
    assert warned == set(reported) - {"north"}
    lines = succeed("node", "status", "kits/south").stdout
    assert f"fingerprint of south: {reported['south']}" in lines
    assert re.search(
        r"Warning: the certificate of south ends on [0-9-]{10}, in 29 days; request another", lines
    )
    assert "authority/revoked.crl" in succeed("node", "revoke", "authority", "south").stdout
    said = succeed("node", "accept", "kits/south", "authority/revoked.crl").stdout
    assert said == "The kit has list 1, of 1 revoked certificates.\n"
    assert "Warning: the certificate of south is revoked; " in succeed("node", "status", "kits/south").stdout
    assert not list(Path("authority").rglob("party.key"))
