"""FLARE by itself: rounds of the same size that carry nothing, the yardstick of its engine."""

import json
import os
import time
from pathlib import Path

from fedpower.engines.flare import LOOK_S
from fedpower.federation.job_check import JobCheck
from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable

from fedpower.federation import environment, policy

TASK, KEY = "fedpower", "message"
SHAPE = "BENCHMARK_ECHO"
"""Environment: rounds, bytes down and bytes up, as JSON."""


class EchoController(Controller):
    """Broadcasts so many bytes so many times and waits for all answers: FLARE's own idea of a round."""

    def __init__(self, run: str) -> None:
        super().__init__(task_check_period=LOOK_S)
        self._run = run

    def start_controller(self, fl_ctx):
        """Do nothing."""

    def stop_controller(self, fl_ctx):
        """Do nothing."""

    def process_result_of_unknown_task(self, client, task_name, client_task_id, result, fl_ctx):
        """Do nothing."""

    def control_flow(self, abort_signal, fl_ctx):
        """Run the rounds and leave their durations behind."""
        shape = json.loads(os.environ[SHAPE])
        seconds = {}
        silos = len(self._engine.get_clients())
        for number in range(shape["rounds"]):
            started = time.monotonic()
            carried = Shareable()
            carried[KEY] = os.urandom(shape["down"])
            self.broadcast_and_wait(
                Task(name=TASK, data=carried),
                fl_ctx,
                min_responses=silos,
                abort_signal=abort_signal,
            )
            seconds[str(number)] = time.monotonic() - started
        workspace = self._engine.get_workspace()
        place = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / "fedpower"
        (place / environment.RESULT).mkdir(parents=True)
        reported = {
            "done": True,
            "reason": None,
            "run": self._run,
            "rounds": [],
            "seconds": seconds,
        }
        (place / environment.STATE).write_text(json.dumps(reported))


class EchoJobCheck(JobCheck):
    """Lets in jobs that name the echo in place of the study's class."""

    def deploy(self, *args, **options):
        """Return why a job may not be deployed here."""
        policy.EXECUTOR = "benchmarks.federation_echo.EchoSilo"
        return super().deploy(*args, **options)


class EchoSilo(Executor):
    """Answers with so many bytes."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        """Return an answer of the agreed size."""
        answer = Shareable()
        answer[KEY] = os.urandom(json.loads(os.environ[SHAPE])["up"])
        return answer
