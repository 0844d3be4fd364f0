"""The status of a study: its facts, the same in words, and the server of the page that shows them."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ground import WAIT_S, Ground, wait_for
from ground import running as running_ground
from statuses import HOSTILE, ScriptedSession, closed_round, open_round, run_state, standings
from studies import RUN, kit_of, write_study

from fedpower.cli import main
from fedpower.exceptions import InputError
from fedpower.federation import runner as running
from fedpower.federation.status_page import StatusPage, served
from fedpower.federation.study_file import COORDINATOR, PAGE, RUNNER, STATUS, StudyFile
from fedpower.federation.study_status import in_words, study_facts
from fedpower.report.page import hashed
from fedpower.report.result import read_result
from sample_results import sample

NOBODY = {"connect": [], "approve": [], "answer": []}
FEW = {"east": ("absent", ""), "south": ("waiting", "")}
REFUSED = standings(south=("refused", HOSTILE))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFile:
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("results"), "private")


def facts_of(study: StudyFile, run: dict[str, Any] | None, **status: Any) -> dict[str, Any]:
    return study_facts(study, {"connected": ["north", "south"], "run": run, "result": False, **status}, RUN)


@pytest.mark.parametrize(
    ("state", "waiting", "level", "sentence"),
    [
        (None, {}, "", "No run of this study is in progress."),
        ({"study": "0" * 64}, {}, "", "No run of this study is in progress."),
        (
            {"approved": False, "standings": standings(**FEW)},
            {"connect": ["east"], "approve": ["south"]},
            "care",
            "The study waits for east to connect and south to approve.",
        ),
        (
            {"approved": False, "standings": standings(north=("asked", ""))},
            {"answer": ["north"]},
            "care",
            "The study waits for north to answer.",
        ),
        ({"approved": False}, {}, "care", "The study is about to begin."),
        (
            {"open": open_round(0, "north"), "waiting_for": ["south", "east"]},
            {"connect": ["east"], "answer": ["south"]},
            "",
            "The study is approved, and rounds are in progress.",
        ),
        ({"done": True, "reason": None}, {}, "good", "The run is complete."),
        (
            {"done": False, "reason": HOSTILE, "approved": False, "standings": standings(**FEW)},
            {},
            "bad",
            f"The run ended without a result: {HOSTILE}.",
        ),
    ],
)
def test_the_status_says_how_far_the_study_is_and_who_must_do_what(study, state, waiting, level, sentence):
    facts = facts_of(study, None if state is None else run_state(study) | state)
    words = in_words(facts)
    assert facts["waiting"] == NOBODY | waiting
    assert (words["level"], words["sentence"]) == (level, sentence)
    assert json.loads(json.dumps(facts)) is not None


def test_of_each_silo_the_status_says_what_it_decided_and_answered(study):
    run = run_state(
        study, rounds=[closed_round(0)], open=open_round(1, "north", south="no budget"), waiting_for=["east"]
    )
    headings, rows = in_words(facts_of(study, run | {"standings": REFUSED}))["silos"]
    assert headings == ["silo", "connected", "approval", "this round"]
    assert rows == [
        ["north", "yes", "approved", "answered"],
        ["south", "yes", f"refused: {HOSTILE}", "refused"],
        ["east", "no", "approved", "waiting"],
    ]
    between = in_words(facts_of(study, run_state(study, rounds=[closed_round(0, "east")])))
    assert [row[3] for row in between["silos"][1]] == ["answered", "answered", "no answer"]
    assert between["rounds"][1] == [["0", "product 0", "north, south", "east", "1.5 kB"]]


def test_of_an_open_round_the_status_says_how_long_it_is_open_and_what_is_left(study):
    run = run_state(study, rounds=[closed_round(n) for n in range(30)], open=open_round(30))
    words = in_words(facts_of(study, run))
    assert words["summary"] == {
        "run": RUN,
        "rounds completed": "30",
        "open round": "30 (product 30)",
        "open for": "12 s",
        "time left": "48 s",
        "waiting for": "nobody",
    }
    assert [row[0] for row in words["rounds"][1]] == [f"{n}" for n in range(29, 9, -1)]
    run["open"]["seconds_left"] = None
    assert in_words(facts_of(study, run))["summary"]["time left"] == "–"


def test_a_result_is_that_of_the_run_in_progress_or_of_the_last_one(study):
    assert facts_of(study, None, result=True)["result"] == RUN
    assert in_words(facts_of(study, None, result=True))["sentence"] == "The last run is complete."
    assert facts_of(study, run_state(study), result=True)["result"] is None
    assert facts_of(study, run_state(study, done=True, reason=None))["result"] == RUN


# --- the server ---


UNFIT = "the coordinator must run the same version of fedpower, got a reply that does not fit."


class Served:
    """A page that is served, over a session that a test scripts."""

    def __init__(self, study: StudyFile, result: Path) -> None:
        self.session = ScriptedSession(result)
        self.page = StatusPage(study, lambda: "f" * 16)
        self.address = ""

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        client = HTTPConnection(self.address, timeout=10)
        client.request(method, path, headers=headers)
        with client.getresponse() as answer:
            return answer.status, dict(answer.headers), answer.read().decode()

    def status(self) -> dict[str, Any]:
        self.page.update(self.session)  # type: ignore[arg-type]
        status: dict[str, Any] = json.loads(self.ask("/status.json")[2])
        return status


@pytest.fixture
def page(study: StudyFile, result: Path, tmp_path: Path) -> Iterator[Served]:
    made = Served(study, result)
    with served(made.page, 0, tmp_path) as address:
        made.address = address.removeprefix("http://")
        assert made.address.startswith("127.0.0.1:")
        yield made


def test_the_page_needs_nothing_but_itself_and_is_kept_nowhere(page, study):
    code, headers, text = page.ask("/")
    assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert study.digest[:12] in text
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    for tag in ("style", "script"):
        (own,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        assert f"{tag}-src '{hashed(own)}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r"innerHTML|https?://|\son\w+=", text)


def test_only_a_get_for_this_machine_is_answered(page):
    host, _, port = page.address.partition(":")
    for name in (host, f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", "localhost"):
        assert page.ask("/", Host=name)[0] == 200, name
    for name in ("", "example.org", f"example.org:{port}", "127.0.0.1.example.org", "localhost@example.org"):
        for path in ("/", "/status.json", "/report"):
            assert page.ask(path, Host=name)[0] == 403, name
    for path in ("/report", "/status", "/../status.json", "/status.json?x"):
        assert page.ask(path)[0] == 404, path
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert page.ask("/", method)[0] == 501, method


def test_the_report_is_made_once_from_the_numbers_that_the_coordinator_sends(page, study, result):
    page.session.run = run_state(study)
    assert page.status()["report"] is False
    page.session.run = run_state(study, done=True, reason=None)
    assert [page.status()["report"] for _ in range(2)] == [True, True]
    assert page.session.fetched == [RUN]
    assert page.session.asked == ["f" * 16] * 3
    code, headers, text = page.ask("/report")
    assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert read_result(result).headline in text
    page.session.run = None
    assert page.status()["report"] is False
    page.session.has_result = True  # of the last run, of which the coordinator knows no more
    assert page.status()["report"] is True
    assert page.session.fetched == [RUN, "f" * 16]


@pytest.mark.parametrize("change", [{"rounds": [{}]}, {"standings": {}}, {"open": 3}])
def test_a_reply_that_does_not_fit_is_a_sentence_and_the_page_goes_on(page, study, change):
    page.session.run = run_state(study)
    before = page.status()
    page.session.run = run_state(study) | change
    after = page.status()
    assert (after["problem"], after["facts"]) == (UNFIT, before["facts"])


def test_while_the_coordinator_is_away_the_page_shows_how_the_study_stood_and_then_goes_on(page, study):
    page.session.away = True
    first = page.status()
    assert (first["facts"], first["words"]) == (None, None)
    assert first["problem"].startswith("The coordinator does not answer.")
    page.session.away, page.session.run = False, run_state(study)
    known = page.status()
    assert known["problem"] is None
    page.session.away = True
    assert page.status() == {**known, "problem": first["problem"]}
    page.session.away, page.session.problem = False, "the coordinator must run fedpower, got something else"
    assert page.status()["problem"] == "the coordinator must run fedpower, got something else."
    page.session.problem = ""
    assert page.status() == known


def test_a_port_that_is_taken_and_a_second_page_of_a_kit_are_refused_in_one_sentence(page, tmp_path):
    port = int(page.address.partition(":")[2])
    sentences = {
        port: (tmp_path.parent, rf"^--port must be a free port, got {port} \(address already in use\)$"),
        0: (tmp_path, r" must have one page at a time, got another that is open$"),
    }
    for number, (kit, sentence) in sentences.items():
        with pytest.raises(InputError, match=sentence), served(page.page, number, kit):
            pass


# --- the command ---


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return what runs `study status` over a scripted session, and that session."""
    made, opened = write_study(tmp_path), list[tuple[str, Any]]()
    session = ScriptedSession()
    kit_of(made, RUNNER, tmp_path / "kits")
    (tmp_path / "kits" / RUNNER / running.LAST_RUNS).write_text(json.dumps({made.digest: RUN}))

    @contextmanager
    def open_session(kit: Any, name: str, patience: float | None = 1.0) -> Iterator[ScriptedSession]:
        opened.append((name, patience))
        yield session

    monkeypatch.setattr("fedpower.cli.study.open_session", open_session)

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, ["study", "status", str(tmp_path / "study.toml"), *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run, session, made, opened


def test_the_terminal_shows_the_same_facts(command):
    run, session, study, opened = command
    session.run = run_state(study, open=open_round(3, "north"), waiting_for=["south", "east"])
    assert run() == (
        f"Study heart-2026 ({study.digest[:12]})\n"
        "  silo   connected  approval  this round\n"
        "  north  yes        approved  answered\n"
        "  south  yes        approved  waiting\n"
        "  east   no         approved  waiting\n"
        "The study is approved, and rounds are in progress.\n"
        f"run: {RUN}\n"
        "rounds completed: 0\n"
        "open round: 3 (product 3)\n"
        "open for: 12 s\n"
        "time left: 48 s\n"
        "waiting for: east to connect and south to answer\n"
    )
    facts = json.loads(run("--json"))
    assert facts["silos"]["east"]["waits"] == "connect"
    assert facts["run"]["open"]["seconds_left"] == 47.6
    session.run, session.has_result = None, True
    assert run().endswith("The last run is complete.\nAdd --serve to see the report of the result.\n")
    assert json.loads(run("--json"))["result"] == RUN
    assert session.asked == [RUN] * 4
    assert {name for name, _ in opened} == {STATUS}


def test_the_page_is_served_until_ctrl_c_with_a_connection_of_its_own(command, monkeypatch):
    run, session, study, opened = command
    session.run = run_state(study)

    def interrupted(self: StatusPage, session: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(StatusPage, "update", interrupted)
    run("--serve", "--port", "0")
    assert opened == [(PAGE, None)]


# --- real processes ---


def asked(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}/status.json", timeout=10) as reply:  # noqa: S310
        status: dict[str, Any] = json.load(reply)
    return status


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with running_ground(tmp_path, silos=("north", "south"), min_silos=2, deadline=60.0) as made:
        yield made


@pytest.mark.federation
def test_the_page_follows_a_run_over_a_restart_of_the_coordinator_to_its_report(ground, tmp_path):
    words = ("study", "status", str(tmp_path / "agreed.toml"), "--kit", str(ground.runner), "--serve")
    log = tmp_path / "page.log"
    with log.open("w") as file:
        command = [sys.executable, "-u", "-m", "fedpower", *words, "--port", "0"]
        process = subprocess.Popen(command, stderr=file)
    try:
        wait_for(lambda: "Ctrl-C" in log.read_text(), "the page")
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+", log.read_text())

        def shown(sentence: str) -> bool:
            words = asked(address)["words"]
            return words is not None and words["sentence"] == sentence

        def in_round(number: int) -> list[str] | None:
            """Return who has answered in a round that is open."""
            facts = asked(address)["facts"]
            opened = facts["run"] and facts["run"]["open"]
            return opened["answered"] if opened and opened["round"] == number else None

        wait_for(lambda: shown("No run of this study is in progress."), "the page")
        ground.hold("south", "before-1")
        finish = ground.run("result")
        ground.reached("south", "before-1")
        wait_for(lambda: in_round(1) == ["north"], "the answer of north")
        facts = asked(address)["facts"]
        opened = facts["run"]["open"]
        assert facts["waiting"] == NOBODY | {"answer": ["south"]}
        assert 0 < opened["seconds_left"] <= 60 - opened["seconds_open"] + 1
        ground.kill(COORDINATOR)
        wait_for(lambda: asked(address)["problem"] is not None, "the coordinator's absence")
        assert asked(address)["facts"]["run"]["run"] == facts["run"]["run"]
        ground.release("south", "before-1")
        ground.start(COORDINATOR)
        finish()
        wait_for(lambda: shown("The run is complete.") and asked(address)["report"], "the result")
        with urllib.request.urlopen(f"{address}/report", timeout=10) as reply:  # noqa: S310
            assert b"held by" in reply.read()
        ground.kill(COORDINATOR)
        ground.start(COORDINATOR)
        wait_for(lambda: shown("The last run is complete."), "what the coordinator stored")
    finally:
        process.send_signal(2)
        assert process.wait(WAIT_S) == 0, log.read_text()
