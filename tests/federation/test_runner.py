"""The runner's decisions: which run to take up, and whether another job could fare better."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from nvflare.fuel.hci.client import api
from studies import write_study

from fedpower.errors import ProtocolError
from fedpower.federation import runner as running
from fedpower.federation.runner import LAST_RUN, CoordinatorLostError, CoordinatorSession, Runner


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A runner's kit but for its keys: nobody is contacted here."""
    (tmp_path / "startup").mkdir()
    for name in ("rootCA.pem", "fed_admin.json"):
        (tmp_path / "startup" / name).write_text("{}")
    write_study(tmp_path)
    return tmp_path


def runner_with(kit: Path, said: list[str]) -> Runner:
    return Runner(kit=kit, patience=0.0, say=said.append, on_round=lambda reported: None)


@pytest.mark.parametrize("left", [None, "", "no json"])
def test_where_no_run_was_begun_none_is_resumed(
    left: str | None, kit: Path, tmp_path: Path
) -> None:
    if left is not None:
        (kit / LAST_RUN).write_text(left)
    with pytest.raises(ProtocolError, match=r"a run to resume, got no trace .*; run without --res"):
        runner_with(kit, []).run(tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    "reported", [{}, [], {"study": "0" * 64}, {"run": "a"}, {"study": 1, "run": 2}]
)
def test_a_trace_that_names_no_run_is_no_trace(reported: Any, kit: Path, tmp_path: Path) -> None:
    (kit / LAST_RUN).write_text(json.dumps(reported))
    with pytest.raises(ProtocolError, match="run without --resume"):
        runner_with(kit, []).run(tmp_path / "out", resume=True)


def test_the_last_run_of_another_study_is_not_resumed(kit: Path, tmp_path: Path) -> None:
    (kit / LAST_RUN).write_text(json.dumps({"study": "0" * 64, "run": "0123456789abcdef"}))
    with pytest.raises(ProtocolError, match=r"must be of this study, got one of study 0{12}; run"):
        runner_with(kit, []).run(tmp_path / "out", resume=True)


def test_a_run_that_cannot_be_opened_is_not_tried_again(kit: Path) -> None:
    said: list[str] = []
    with pytest.raises(ProtocolError, match=r"^a checkpoint must begin as fedpower writes it$"):
        runner_with(kit, said)._consider(
            {"reason": "a checkpoint must begin as fedpower writes it", "again": False}
        )
    assert said == []


def test_a_refusal_is_told_with_what_to_do(kit: Path) -> None:
    state = {"reason": "silo 'north' refused: no budget is left", "again": True, "refused": True}
    with pytest.raises(ProtocolError, match=r"no budget is left; .* run again with --resume"):
        runner_with(kit, [])._consider(state)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"reason": "round 1 needs 3 answers", "again": True, "refused": False},
        {"reason": "bring back silo 'refused: no'", "again": True, "refused": False},
    ],
)
def test_what_may_be_better_another_time_is_taken_up_again(
    state: dict[str, Any], kit: Path
) -> None:
    said: list[str] = []
    runner_with(kit, said)._consider(state)
    assert len(said) == 1
    assert said[0].startswith("taking the run up again: ")


def test_only_flare_is_kept_from_speaking(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    level = logging.getLogger("nvflare").level
    monkeypatch.setattr(api, "_print_hci_message", api._print_hci_message)  # put back afterwards
    before = logging.getLogger().level
    try:
        running._quieten_flare()
        assert logging.getLogger().level == before
        assert not logging.getLogger("nvflare.fuel").isEnabledFor(logging.ERROR)
        assert logging.getLogger("another").isEnabledFor(logging.ERROR)
        print("a caller's own words")
        api.AdminAPI._print_hci(None, "Connecting to FLARE ...")
    finally:
        logging.getLogger("nvflare").setLevel(level)
    assert capsys.readouterr().out == "a caller's own words\n"


def test_what_flare_raises_is_no_answer_and_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def do_app_command(self, *_: object) -> None:
            raise AttributeError("a cell that is gone")

    with caplog.at_level(logging.DEBUG):
        assert CoordinatorSession(Broken(), "heart").progress("job") is None
    assert "a cell that is gone" in caplog.text


class Told:
    """A coordinator whose words are written down beforehand; the last is said for ever."""

    def __init__(self, *looks: tuple[str, dict[str, Any] | None, float]) -> None:
        self._looks = list(looks)

    def status(self, job: str) -> str:
        self._now = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        return self._now[0]

    def progress(self, job: str) -> dict[str, Any] | None:
        return self._now[1]

    def since(self) -> float:
        return self._now[2]

    def silos(self) -> dict[str, float]:
        return {}


AT_WORK = {"rounds": [], "gone": []}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.001)
    monkeypatch.setattr(running, "SILENCE_S", 0.05)
    monkeypatch.setattr(running, "START_S", 0.05)


def follow(kit: Path, *looks: tuple[str, dict[str, Any] | None, float]) -> None:
    runner_with(kit, [])._follow(Told(*looks), "a-job", ["north"], 1.0)  # type: ignore[arg-type]


@pytest.mark.usefixtures("hasty")
def test_a_job_that_ended_is_waited_for_no_longer(kit: Path) -> None:
    follow(kit, ("RUNNING", AT_WORK, 1.0), ("FINISHED:COMPLETED", None, 1.0))


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("first", [AT_WORK, None])
def test_a_coordinator_that_was_started_again_has_lost_the_job_whatever_it_lists(
    first: dict[str, Any] | None, kit: Path
) -> None:
    with pytest.raises(CoordinatorLostError):
        follow(kit, ("RUNNING", first, 1.0), ("RUNNING", None, 2.0))


@pytest.mark.usefixtures("hasty")
def test_a_job_that_says_nothing_for_long_is_lost(kit: Path) -> None:
    with pytest.raises(CoordinatorLostError):
        follow(kit, ("RUNNING", AT_WORK, 1.0), ("RUNNING", None, 1.0))


@pytest.mark.usefixtures("hasty")
def test_a_job_that_never_begins_is_told(kit: Path) -> None:
    with pytest.raises(ProtocolError, match="a job must begin within"):
        follow(kit, ("SUBMITTED", None, 1.0))
