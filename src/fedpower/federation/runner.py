"""The runner's session with the coordinator's FLARE server, and a run from its start to its result."""

import contextlib
import json
import logging
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedpower.errors import ProtocolError
from fedpower.federation.certificates import RUNNER, USER
from fedpower.federation.environment import PROGRESS, REJOIN, RESULT, STATE
from fedpower.federation.kits import check_certificate, kit_study
from fedpower.federation.policy import write_job
from fedpower.federation.private_files import write_private
from fedpower.federation.study_file import StudyFile

logger = logging.getLogger(__name__)

_CONNECT_S = 10.0


class CoordinatorLostError(ProtocolError):
    """The coordinator no longer answers, or knows nothing of this session or of its job."""

    def __init__(self) -> None:
        super().__init__(
            "the coordinator must answer, got no word from it; see that it runs and try again"
        )


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """Tell FLARE's many words for a session that is over by one; a job that it refuses stays an error."""
    from nvflare.fuel.flare_api.api_spec import (  # noqa: PLC0415
        AuthorizationError,
        InvalidJobDefinition,
    )

    try:
        yield
    except (AuthorizationError, InvalidJobDefinition):
        raise
    except Exception as error:  # FLARE raises what it likes while a connection breaks
        raise CoordinatorLostError from error


def _tried(call: Callable[[], Any]) -> Any:
    """Return what FLARE answers; None where it does not, of which the log has the particulars."""
    try:
        return call()
    except Exception:
        logger.debug("FLARE gave no answer", exc_info=True)
        return None


def _quieten_flare() -> None:
    """Keep FLARE's client from speaking of every attempt to connect, here and in its threads.

    Only FLARE: other loggers, and what others print, are the program's that calls this.
    """
    from nvflare.fuel.hci.client import api  # noqa: PLC0415

    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    api._print_hci_message = lambda text: logger.debug("FLARE: %s", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended.

    Attributes
    ----------
    state
        What the coordinator wrote at the end; None where it could not.
    result
        The result folder, where there is one.
    """

    state: dict[str, Any] | None
    result: Path | None


class CoordinatorSession:
    """What a runner can do at the coordinator: see who is there, submit, ask how far, fetch."""

    def __init__(self, session: Any, study_name: str) -> None:
        self._session = session
        self._name = study_name

    def since(self) -> float:
        """Return when the coordinator's process began: another time is another process."""
        with _answered():
            return float(self._session.get_system_info().server_info.start_time)

    def silos(self) -> dict[str, float]:
        """Return the connected silos and when each last connected."""
        with _answered():
            clients = self._session.get_connected_client_list()
        return {each.name: each.last_connect_time for each in clients}

    def report(self) -> dict[str, Any]:
        """Return who is connected and how far the run that is under way is; None where there is none."""
        with _answered():
            jobs = self._session.list_jobs()
        running = [job["job_id"] for job in jobs if job["status"] == "RUNNING"]
        return {
            "connected": list(self.silos()),
            "run": self.progress(running[0]) if running else None,
        }

    def submit(self, run: str) -> str:
        """Return the job that starts or resumes a run; an earlier one of the study is ended first."""
        with _answered():
            earlier = self._session.list_jobs()
        for job in earlier:
            if not str(job.get("status", "")).startswith("FINISHED"):
                _tried(partial(self._session.abort_job, job["job_id"]))
        with tempfile.TemporaryDirectory() as scratch, _answered():
            folder = Path(scratch) / self._name
            write_job(folder, run, self._name)
            return str(self._session.submit_job(str(folder)))

    def status(self, job: str) -> str:
        """Return FLARE's word for a job's state."""
        with _answered():
            return str(self._session.get_job_status(job) or "")

    def progress(self, job: str) -> dict[str, Any] | None:
        """Return how far a job is; None where it cannot tell at the moment."""
        progress = _tried(lambda: self._session.do_app_command(job, PROGRESS, {}))
        return progress if isinstance(progress, dict) else None

    def ask_to_rejoin(self, job: str) -> None:
        """Ask a job to end after its round, so that silos that came back can be in the next."""
        _tried(lambda: self._session.do_app_command(job, REJOIN, {}))

    def fetch(self, job: str, destination: Path) -> Ended:
        """Return what a job that ended left, fetched into ``destination``."""
        place = _tried(lambda: self._session.download_job_result(job, str(destination)))
        states = [] if place is None else list(Path(place).rglob(STATE))
        if not states:
            return Ended(state=None, result=None)
        folder = states[0].parent / RESULT
        return Ended(
            state=json.loads(states[0].read_text()), result=folder if folder.is_dir() else None
        )


@contextlib.contextmanager
def open_session(kit: Path, *, patience: float = _CONNECT_S) -> Iterator[CoordinatorSession]:
    """Give a session with the coordinator; refuse in one sentence where there is none to be had.

    Parameters
    ----------
    kit
        The runner's.
    patience
        Seconds to try for.
    """
    from nvflare.fuel.flare_api.flare_api import new_secure_session  # noqa: PLC0415

    kit = kit.absolute()
    study = kit_study(kit, RUNNER)
    check_certificate(kit)
    _quieten_flare()
    ends = time.monotonic() + patience
    while True:
        try:
            session = new_secure_session(USER, str(kit), timeout=_CONNECT_S)
            break
        except Exception as error:
            if time.monotonic() >= ends:
                raise ProtocolError(
                    f"the coordinator must answer at {study.host}:{study.port}, got no connection in "
                    f"{patience:.0f} s; start it with `fedpower coordinator KIT` and check the network"
                ) from error
            time.sleep(0.5)
    try:
        yield CoordinatorSession(session, study.name)
    finally:
        _tried(session.close)


LOOK_S = 0.5
_MOST_JOBS = 20
"""So many jobs in a row without an end of the run, and something else is wrong."""

_IDLE_JOBS = 6
"""So many in a row in which no round was closed although all went well with the coordinator."""

START_S = 120.0
"""How long a submitted job may take to begin."""

SILENCE_S = 120.0
"""How long a job that began may say nothing before it is taken for lost."""

LAST_RUN = "last_run.json"
_TURNED_AWAY = "FINISHED:FAILED_TO_RUN"
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
        idle = 0
        for _ in range(_MOST_JOBS):
            shown = self._shown
            with tempfile.TemporaryDirectory() as scratch:
                ended = self._one_job(run, Path(scratch))
                state = ended.state or {}
                self._show(state)
                if ended.result is not None:
                    for each in ended.result.iterdir():
                        shutil.copyfile(each, destination / each.name)
                    return state
            idle = idle + 1 if ended.state is not None and self._shown == shown else 0
            if idle == _IDLE_JOBS and state.get("reason"):
                raise ProtocolError(
                    f"{state['reason']}: so it was in {idle} jobs in a row; once that is settled run "
                    "again with --resume"
                )
            self._consider(state)
        raise ProtocolError(
            f"a run must end within {_MOST_JOBS} jobs, got none that did; look into the coordinator's log"
        )

    def _one_job(self, run: str, scratch: Path) -> Ended:
        """Return how a job ended; one that was lost with its coordinator ends without a state."""
        with open_session(self.kit, patience=self.patience) as session:
            try:
                present = self._gather(session)
                since = session.since()
                job = session.submit(run)
                self.say(f"run {run}: asking {', '.join(present)}")
                self._follow(session, job, present, since)
                return session.fetch(job, scratch)
            except CoordinatorLostError:
                self.say("the connection to the coordinator was lost; trying to find it again")
        return Ended(state=None, result=None)

    def _gather(self, session: CoordinatorSession) -> list[str]:
        """Return the silos that are there: all, or after ``patience`` seconds enough."""
        study, ends, last_sentence = self.study, time.monotonic() + self.patience, ""
        while True:
            there = session.silos()
            missing = [name for name in study.silos if name not in there]
            if not missing:
                return list(study.silos)
            sentence = f"waiting for {', '.join(missing)} to connect"
            if sentence != last_sentence:
                self.say(f"{sentence}, {max(0.0, ends - time.monotonic()):.0f} s at most")
                last_sentence = sentence
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

    def _follow(
        self, session: CoordinatorSession, job: str, present: Collection[str], since: float
    ) -> None:
        """Wait for a job's end; it is lost with the coordinator's process.

        A coordinator that was started again may take the session over and still list the job of the
        process before it as running: when its process began tells, and so does a long silence.
        """
        heard, begun, asked = time.monotonic(), False, False
        while True:
            status = session.status(job)
            if status == _TURNED_AWAY:
                raise ProtocolError(
                    "a job must be let in by the silos, got it turned away; their logs say why: see that "
                    "every party runs the same version of fedpower, then run again with --resume"
                )
            if status.startswith("FINISHED"):
                return
            progress = session.progress(job)
            silent = time.monotonic() - heard
            if progress is None and (session.since() != since or (begun and silent > SILENCE_S)):
                raise CoordinatorLostError
            if progress is not None:
                heard, begun = time.monotonic(), True
                self._show(progress)
                if not asked and self._came_back(session, progress, present):
                    self.say("a silo came back; it is taken in after this round")
                    session.ask_to_rejoin(job)
                    asked = True
            if not begun and silent > START_S:
                raise ProtocolError(
                    f"a job must begin within {START_S:.0f} s, got {status or 'no word'}; look into "
                    "the coordinator's log and run again with --resume"
                )
            time.sleep(LOOK_S)

    def _came_back(
        self, session: CoordinatorSession, progress: dict[str, Any], present: Collection[str]
    ) -> bool:
        """Return whether a silo that is not, or no longer, in the job is connected now."""
        absent = {name for name in self.study.silos if name not in present} | set(progress["gone"])
        return bool(absent and progress["rounds"]) and not absent.isdisjoint(session.silos())

    def _consider(self, state: dict[str, Any]) -> None:
        """Say why there will be another job, or refuse where it could not fare better."""
        reason = state.get("reason")
        if reason and not state.get("again", True):
            raise ProtocolError(reason)
        if reason and state.get("refused", False):
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
        record = {"study": self.study.digest, "run": run}
        write_private(self.kit / LAST_RUN, json.dumps(record))
        return run

    def _resumed(self) -> str:
        try:
            record = json.loads((self.kit / LAST_RUN).read_text())
            study, run = str(record["study"]), str(record["run"])
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
