"""Who comes in at a silo: FLARE's question whether a job may be deployed here, answered and logged.

FLARE's own checks stay in force (no code with a job, classes from the allow-list only). Before them
comes a simpler one: a job holds the files that fedpower writes, word for word, and nothing else.
"""

import io
import json
import logging
import zipfile
from typing import Any

from nvflare.apis.app_deployer_spec import AppDeployerSpec
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.utils.app_deployer import AppDeployer

from fedpower.federation import policy

logger = logging.getLogger(__name__)

_SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
"""FLARE's files with the submitter's signature and certificate, which it checks itself."""


class JobCheck(AppDeployerSpec, FLComponent):
    """Lets in jobs of this version of fedpower, and tells the operator of those that it turns away."""

    def deploy(  # noqa: PLR0917 (FLARE's signature)
        self,
        workspace: Workspace,
        job_id: str,
        job_meta: dict[str, Any],
        app_name: str,
        app_data: Any,
        fl_ctx: FLContext,
    ) -> str:
        """Return why a job may not be deployed here; empty where it may, and is."""
        problem = problem_with(app_data) or AppDeployer().deploy(
            workspace, job_id, job_meta, app_name, app_data, fl_ctx
        )
        if problem:
            logger.error("turned away job %s: %s", job_id, problem)
        return problem or ""


def problem_with(app_data: bytes) -> str | None:
    """Return what is wrong with a job's files, or None."""
    place = "config/config_fed_client.json"
    expected = policy.job("", "")[f"app/{place}"]
    try:
        with zipfile.ZipFile(io.BytesIO(app_data)) as archive:
            names = {name for name in archive.namelist() if not name.endswith(("/", *_SIGNATURES))}
            found = json.loads(archive.read(place)) if place in names else None
    except (zipfile.BadZipFile, ValueError, OSError, TypeError):
        return "a job must be an archive of fedpower's files, got something else"
    foreign = sorted(names - {place, "config/config_fed_server.json"})
    if foreign:
        return f"a job must hold fedpower's two files and nothing else, got {foreign[0]!a} too"
    if found != expected:
        return "a job must be what fedpower writes, word for word, got another configuration"
    return None
