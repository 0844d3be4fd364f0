"""A run from the runner's side: wait for silos, submit, follow, take up again, fetch the result.

Every wait has an end and says what it is waiting for. A job that ends before the run does, because the
coordinator died or too few silos answered, is followed by another that takes up the same run.
"""

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpower.errors import ProtocolError
from fedpower.federation.certificates import RUNNER
from fedpower.federation.desk import CoordinatorLostError, Desk, Ended, open_desk
from fedpower.federation.kits import kit_study
from fedpower.federation.private_files import write_private
from fedpower.federation.study_file import StudyFile

LOOK_S = 0.5
MOST_JOBS = 20
"""So many jobs in a row without an end of the run, and something else is wrong."""

START_S = 120.0
"""How long a submitted job may take to begin."""

SILENCE_S = 120.0
"""How long a job that began may say nothing before it is taken for lost."""

LAST_RUN = "last_run.json"
TURNED_AWAY = "FINISHED:FAILED_TO_RUN"
"""FLARE's word for a job that could not be deployed."""


@dataclass(kw_only=True)
class Runner:
    """Sees a run through.

    Attributes
    ----------
    kit
        The runner's.
    patience
        Seconds to wait for silos that are not there, and for a coordinator that does not answer.
    say
        Called with each sentence for the person who waits.
    on_round
        Called with each closed round as the coordinator tells it.
    """

    kit: Path
    patience: float
    say: Callable[[str], None]
    on_round: Callable[[dict[str, Any]], None]
    study: StudyFile = field(init=False)
    _shown: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        self.study = kit_study(self.kit, RUNNER)

    def run(self, destination: Path, *, resume: bool) -> dict[str, Any]:
        """Return the final state of a run whose result folder is now at ``destination``.

        Parameters
        ----------
        destination
            An empty folder that the result's files are put into.
        resume
            Take up the last run of this study instead of beginning one.
        """
        run = self._resumed() if resume else self._begun()
        for _ in range(MOST_JOBS):
            with tempfile.TemporaryDirectory() as scratch:
                ended = self._one_job(run, Path(scratch))
                state = ended.state or {}
                self._show(state)
                if ended.result is not None:
                    for each in ended.result.iterdir():
                        shutil.copyfile(each, destination / each.name)
                    return state
            self._consider(state)
        raise ProtocolError(
            f"a run must end within {MOST_JOBS} jobs, got none that did; look into the coordinator's log"
        )

    def _one_job(self, run: str, scratch: Path) -> Ended:
        """Return how a job ended; one that was lost with its coordinator ends without a state."""
        with open_desk(self.kit, patience=self.patience) as desk:
            try:
                present = self._gather(desk)
                since = desk.since()
                job = desk.submit(run)
                self.say(f"run {run}: asking {', '.join(present)}")
                self._follow(desk, job, present, since)
                return desk.fetch(job, scratch)
            except CoordinatorLostError:
                self.say("the connection to the coordinator was lost; trying to find it again")
        return Ended(state=None, result=None)

    def _gather(self, desk: Desk) -> list[str]:
        """Return the silos that are there: all, or after ``patience`` seconds enough."""
        study, ends, told = self.study, time.monotonic() + self.patience, ""
        while True:
            there = desk.silos()
            missing = [name for name in study.silos if name not in there]
            if not missing:
                return list(study.silos)
            sentence = f"waiting for {', '.join(missing)} to connect"
            if sentence != told:
                self.say(f"{sentence}, {max(0.0, ends - time.monotonic()):.0f} s at most")
                told = sentence
            if time.monotonic() >= ends:
                if len(study.silos) - len(missing) >= study.min_silos:
                    self.say(f"going on without {', '.join(missing)}")
                    return [name for name in study.silos if name in there]
                raise ProtocolError(
                    f"{study.min_silos} silos must be connected, got "
                    f"{len(study.silos) - len(missing)} after {self.patience:.0f} s; start "
                    f"{', '.join(missing)} and run again with --resume"
                )
            time.sleep(LOOK_S)

    def _follow(self, desk: Desk, job: str, present: Collection[str], since: float) -> None:
        """Wait for a job's end; it is lost with the coordinator's process.

        A coordinator that was started again may take the session over and still list the job of the
        process before it as running: when its process began tells, and so does a long silence.
        """
        heard, begun, asked = time.monotonic(), False, False
        while True:
            status = desk.status(job)
            if status == TURNED_AWAY:
                raise ProtocolError(
                    "a job must be let in by the silos, got it turned away; their logs say why: see that "
                    "every party runs the same version of fedpower, then run again with --resume"
                )
            if status.startswith("FINISHED"):
                return
            told = desk.progress(job)
            silent = time.monotonic() - heard
            if told is None and (desk.since() != since or (begun and silent > SILENCE_S)):
                raise CoordinatorLostError
            if told is not None:
                heard, begun = time.monotonic(), True
                self._show(told)
                if not asked and self._came_back(desk, told, present):
                    self.say("a silo came back; it is taken in after this round")
                    desk.ask_to_rejoin(job)
                    asked = True
            if not begun and silent > START_S:
                raise ProtocolError(
                    f"a job must begin within {START_S:.0f} s, got {status or 'no word'}; look into "
                    "the coordinator's log and run again with --resume"
                )
            time.sleep(LOOK_S)

    def _came_back(self, desk: Desk, told: dict[str, Any], present: Collection[str]) -> bool:
        """Return whether a silo that is not, or no longer, in the job is connected now."""
        absent = {name for name in self.study.silos if name not in present} | set(told["gone"])
        return bool(absent and told["rounds"]) and not absent.isdisjoint(desk.silos())

    def _consider(self, state: dict[str, Any]) -> None:
        """Say why there will be another job, or refuse where it could not fare better."""
        reason = state.get("reason")
        if reason and not state.get("again", True):
            raise ProtocolError(reason)
        if reason and "refused:" in reason:
            raise ProtocolError(
                f"{reason}; what was released stays known: once that is settled run again with --resume"
            )
        self.say(f"taking the run up again: {reason or 'the coordinator ended before it was done'}")
        time.sleep(LOOK_S)

    def _show(self, state: dict[str, Any]) -> None:
        for each in state.get("rounds", ()):
            if each["round"] > self._shown:
                self._shown = each["round"]
                self.on_round(each)

    def _begun(self) -> str:
        run = secrets.token_hex(8)
        told = {"study": self.study.digest, "run": run}
        write_private(self.kit / LAST_RUN, json.dumps(told))
        return run

    def _resumed(self) -> str:
        try:
            told = json.loads((self.kit / LAST_RUN).read_text())
            study, run = str(told["study"]), str(told["run"])
        except (OSError, ValueError, LookupError, TypeError):
            raise ProtocolError(
                f"there must be a run to resume, got no trace of one in {self.kit}; run without --resume"
            ) from None
        if study != self.study.digest:
            raise ProtocolError(
                "the last run must be of this study, got one of study "
                f"{study[:12]}; run without --resume"
            )
        return run
