"""The runner's desk: a session with the coordinator's FLARE server, in the words of a study."""

import contextlib
import io
import json
import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpower.errors import ProtocolError
from fedpower.federation.certificates import RUNNER, USER
from fedpower.federation.environment import PROGRESS, REJOIN, RESULT, STATE
from fedpower.federation.kits import check_certificate, kit_study
from fedpower.federation.policy import write_job

CONNECT_S = 10.0


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
    except Exception as error:
        raise CoordinatorLostError from error


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


class Desk:
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
        """Return the job that starts or takes up a run; an earlier one of the study is ended first."""
        with _answered():
            earlier = self._session.list_jobs()
        for job in earlier:
            if not str(job.get("status", "")).startswith("FINISHED"):
                with contextlib.suppress(Exception):
                    self._session.abort_job(job["job_id"])
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
        try:
            told = self._session.do_app_command(job, PROGRESS, {})
        except Exception:  # not started yet, or over: the next look will tell
            return None
        return told if isinstance(told, dict) else None

    def ask_to_rejoin(self, job: str) -> None:
        """Ask a job to end after its round, so that silos that came back can be in the next."""
        with contextlib.suppress(Exception):
            self._session.do_app_command(job, REJOIN, {})

    def fetch(self, job: str, destination: Path) -> Ended:
        """Return what a job that ended left, fetched into ``destination``."""
        try:
            place = Path(self._session.download_job_result(job, str(destination)))
        except Exception:
            return Ended(state=None, result=None)
        states = list(place.rglob(STATE))
        if not states:
            return Ended(state=None, result=None)
        folder = states[0].parent / RESULT
        return Ended(
            state=json.loads(states[0].read_text()), result=folder if folder.is_dir() else None
        )


@contextlib.contextmanager
def open_desk(kit: Path, *, patience: float = CONNECT_S) -> Iterator[Desk]:
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
    logging.getLogger().setLevel(logging.CRITICAL)  # FLARE's client speaks of every attempt
    ends = time.monotonic() + patience
    while True:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it counts the seconds in dots
                session = new_secure_session(USER, str(kit), timeout=CONNECT_S)
            break
        except Exception as error:
            if time.monotonic() >= ends:
                raise ProtocolError(
                    f"the coordinator must answer at {study.host}:{study.port}, got no connection in "
                    f"{patience:.0f} s; start it with `fedpower coordinator KIT` and check the network"
                ) from error
            time.sleep(0.5)
    try:
        yield Desk(session, study.name)
    finally:
        with contextlib.suppress(Exception):
            session.close()
