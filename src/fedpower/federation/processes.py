"""A party's process: FLARE's server or client under supervision, in the foreground."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedpower.federation import environment as names
from fedpower.federation import policy
from fedpower.federation.certificates import COORDINATOR, STUDY_FILE, organisation
from fedpower.federation.kits import check_certificate, kit_study
from fedpower.federation.lifeline import start_process
from fedpower.federation.silo_file import read_silo

MOST_RESTARTS, WITHIN_S = 5, 300.0
"""A process that fails so often within so many seconds is not started again."""

_STOP_S = 10.0
_APPS = "nvflare.private.fed.app"


def coordinator_command(kit: Path) -> tuple[list[str], dict[str, str]]:
    """Return the coordinator's command and what its jobs are told, after its policy is written."""
    kit = kit.absolute()
    kit_study(kit, COORDINATOR)
    check_certificate(kit)
    policy.write_coordinator_policy(kit)
    variables = {names.STUDY: str(kit / STUDY_FILE), names.RUNS: str(kit / "runs")}
    return _command(kit, "server", "server_train", "org=coordinator"), variables


def silo_command(kit: Path, silo_path: Path, *, checked: str) -> tuple[list[str], dict[str, str]]:
    """Return a silo's command and what its jobs are told, after its policy is written.

    The silo's file is read and held against the study first, so that a mistake is told to the operator
    and not to the coordinator. ``checked`` is the fingerprint of the rows that jobs may answer for, as
    :func:`~fedpower.federation.silo_node.open_silo` found it; empty where nothing is private.
    """
    kit = kit.absolute()
    own = read_silo(silo_path)
    study = kit_study(kit, own.name)
    own.check_agreed(study)
    check_certificate(kit)
    policy.write_silo_policy(kit)
    variables = {
        names.STUDY: str(kit / STUDY_FILE),
        names.SILO: str(silo_path.absolute()),
        names.ROWS: checked,
    }
    command = _command(
        kit, "client", "client_train", f"uid={own.name}", f"org={organisation(own.name)}"
    )
    return command, variables


def supervise(
    command: list[str], variables: Mapping[str, str], *, say: Callable[[str], None], cwd: Path
) -> int:
    """Run a process until it is told to stop (Ctrl-C, SIGTERM); start it again where it fails.

    Returns
    -------
    int
        0 after being told to stop; 1 where the process failed too often.
    """
    stopped: list[int] = []
    earlier = {
        number: signal.signal(number, lambda received, _: stopped.append(received))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    failures: list[float] = []
    try:
        while not stopped:
            child = start(command, variables, cwd=cwd)
            while child.poll() is None and not stopped:
                time.sleep(0.2)
            if stopped:
                say("stopping; releases and charges are on disk")
                stop(child)
                return 0
            if child.returncode == 0:
                return 0
            failures = [each for each in failures if time.monotonic() - each < WITHIN_S]
            failures.append(time.monotonic())
            if len(failures) >= MOST_RESTARTS:
                say(f"the process failed {len(failures)} times in {WITHIN_S:.0f} s; giving up")
                return 1
            say(f"the process ended with status {child.returncode}; starting it again")
            time.sleep(1.0)
        return 0
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def start(
    command: list[str], variables: Mapping[str, str], *, cwd: Path, log: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a party's process, which ends with this one; its jobs end with it."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("FEDPOWER_")},
        **variables,
    }
    return start_process(
        command,
        environment,
        cwd=cwd,
        stdout=log,
        stderr=subprocess.STDOUT if log is not None else None,
    )


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a process and its jobs: ask first, then insist."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue
    child.wait()


def _command(kit: Path, side: str, module: str, *settings: str) -> list[str]:
    return [
        sys.executable,
        "-u",
        "-m",
        "fedpower.federation.party",
        f"{_APPS}.{side}.{module}",
        "-m",
        str(kit),
        "-s",
        f"fed_{side}.json",
        "--set",
        "secure_train=true",
        *settings,
        "config_folder=config",
    ]
