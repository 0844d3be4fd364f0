"""How a party starts the process of a job: as FLARE does, held by the party's lifeline."""

import os
import shlex
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle, ProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_credential_env

from fedpower.federation.lifeline import start_process

PARTY = "fedpower.federation.party"


class _Held(ProcessJobLauncher):
    """Starts a job's process so that it ends with this one; code that came with a job is on no path."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> ProcessHandle:
        """Return a handle of the started process."""
        interpreter, option, *rest = shlex.split(self.get_command(job_meta, fl_ctx))
        credentials = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})
        command = [interpreter, "-u", option, PARTY, *rest]
        return ProcessHandle(process=start_process(command, {**os.environ, **credentials}))


class SiloJobs(_Held, ClientProcessJobLauncher):
    """A silo's."""


class CoordinatorJobs(_Held, ServerProcessJobLauncher):
    """The coordinator's."""
