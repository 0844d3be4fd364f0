"""What a site lets FLARE do: written anew at every start, whatever the kit brought along.

FLARE's own defaults let a job bring code, let an administrator run shell commands at a site, and stream a
site's logs to the server. None of it is needed here, and each would undo what a silo enforces.
"""

import json
from pathlib import Path
from typing import Any

from fedpower.federation.private_files import private_folder, write_private

CONTROLLER = "fedpower.federation.apps.StudyController"
EXECUTOR = "fedpower.federation.apps.StudySilo"
JOB_CHECK = "fedpower.federation.job_check.JobCheck"
_LAUNCHER = "fedpower.federation.launcher"
ROLE = "lead"
"""FLARE's name for someone who may submit jobs and look after their own, and no more."""

_SILO_RIGHTS = {"submit_job": "any"}
"""At a silo: run the study's own job. Not: bring code, see logs or statistics, run commands."""

COORDINATOR_RIGHTS = {
    "submit_job": "any",
    "manage_job": "n:submitter",
    "download_job": "n:submitter",
    "app_command": "n:submitter",
    "view": "any",
}
LOOK_S = 0.1
"""How often a silo asks whether there is something to do."""


def write_silo_policy(kit: Path) -> None:
    """Write what a silo's site allows into its kit."""
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [EXECUTOR],
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "Gzip"},
        "components": [
            *_resource_components(),
            {
                "id": "process_launcher",
                "path": f"{_LAUNCHER}.SiloJobs",
                "args": {},
            },
            {"id": "app_deployer", "path": JOB_CHECK, "args": {}},
        ],
    }
    _write(kit, resources, _SILO_RIGHTS)


def write_coordinator_policy(kit: Path) -> None:
    """Write what the coordinator's site allows into its kit, with its storage inside the kit."""
    store = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [CONTROLLER],
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": 1000,
                "heart_beat_timeout": 60,
                "download_job_url": "",
                "admin_timeout": 10.0,
            }
        ],
        "snapshot_persistor": {
            "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
            "args": {
                "uri_root": "/",
                "storage": {
                    "path": store,
                    "args": {"root_dir": str(kit / "snapshots"), "uri_root": "/"},
                },
            },
        },
        "components": [
            {
                "id": "job_scheduler",
                "path": "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                "args": {"max_jobs": 1, "min_schedule_interval": 1.0, "max_schedule_interval": 2.0},
            },
            {
                "id": "job_manager",
                "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                "args": {"uri_root": str(kit / "jobs"), "job_store_id": "job_store"},
            },
            {"id": "job_store", "path": store},
            {
                "id": "process_launcher",
                "path": f"{_LAUNCHER}.CoordinatorJobs",
                "args": {},
            },
        ],
    }
    _write(kit, resources, COORDINATOR_RIGHTS)


def write_runner_settings(kit: Path) -> None:
    """Write how long the runner's session waits into its kit."""
    waits = {"idle_timeout": 900.0, "login_timeout": 10.0, "authenticate_msg_timeout": 2.0}
    settings = {"format_version": 1, "admin": {**waits, "with_debug": False, "prompt": "> "}}
    write_private(private_folder(kit / "local") / "resources.json", json.dumps(settings, indent=2))


def job(run: str, study_name: str) -> dict[str, dict[str, Any]]:
    """Return the files of a job that starts or resumes a run: two class names and the run."""
    return {
        "meta.json": {
            "name": study_name,
            "resource_spec": {},
            # Who must be there is the study's to say, round by round; FLARE is to start with anyone.
            "min_clients": 1,
            "deploy_map": {"app": ["@ALL"]},
        },
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "dead_client_grace_period": 3.0,
            "dead_client_check_lead_time": 3.0,
            "server": {"task_request_interval": LOOK_S},  # FLARE's 2 s would be most of a round
            "workflows": [{"id": "study", "path": CONTROLLER, "args": {"run": run}}],
            "components": [],
            "task_data_filters": [],
            "task_result_filters": [],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["fedpower"], "executor": {"path": EXECUTOR, "args": {}}}],
            "components": [],
            "task_data_filters": [],
            "task_result_filters": [],
            "default_task_fetch_interval": LOOK_S,
            # Past this FLARE would tell its party without a pause, for ever; a job that cannot reach its
            # party has ended long before.
            "notify_cp_retry_timeout": 86_400.0,
        },
    }


def write_job(folder: Path, run: str, study_name: str) -> None:
    """Write the job's files into a folder."""
    for name, content in job(run, study_name).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2))


def _resource_components() -> list[dict[str, Any]]:
    return [
        {
            "id": "resource_manager",
            "path": "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
            "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0},
        },
        {
            "id": "resource_consumer",
            "path": "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
            "args": {},
        },
    ]


def _write(kit: Path, resources: dict[str, Any], rights: dict[str, str]) -> None:
    local = private_folder(kit / "local")
    for left in (*local.glob("*.default"), *local.glob("*.sample")):
        left.unlink()
    permissions = {"format_version": "1.0", "permissions": {ROLE: rights}}
    write_private(local / "resources.json", json.dumps(resources, indent=2))
    write_private(local / "authorization.json", json.dumps(permissions, indent=2))
    write_private(local / "log_config.json", json.dumps(_logging(), indent=2))


def _logging() -> dict[str, Any]:
    """Return logs as an operator reads them: fedpower's own words, FLARE's warnings; all in a file."""
    plain = {"()": "nvflare.fuel.utils.log_utils.BaseFormatter", "datefmt": "%Y-%m-%d %H:%M:%S"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "brief": {**plain, "fmt": "%(asctime)s %(levelname)s %(message)s"},
            "full": {**plain, "fmt": "%(asctime)s %(name)s %(levelname)s %(fl_ctx)s %(message)s"},
        },
        "filters": {"brief": {"()": "fedpower.federation.logs.ForOperators"}},
        "handlers": {
            "console": {
                "class": "logging.StreamHandler",
                "level": "INFO",
                "formatter": "brief",
                "filters": ["brief"],
                "stream": "ext://sys.stdout",
            },
            "file": {
                "class": "logging.handlers.RotatingFileHandler",
                "level": "INFO",
                "formatter": "full",
                "filename": "log.txt",
                "mode": "a",
                "maxBytes": 20_000_000,
                "backupCount": 3,
            },
        },
        "loggers": {"root": {"level": "INFO", "handlers": ["console", "file"]}},
    }
