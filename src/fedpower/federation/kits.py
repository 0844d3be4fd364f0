"""Kits: one folder a party, with its key, its certificate and the study, made by FLARE's provisioning."""

import contextlib
import io
import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from fedpower.errors import InputError
from fedpower.federation import policy
from fedpower.federation.study_file import StudyFile, read_study, rendered

COORDINATOR, RUNNER, AUTHORITY = "coordinator", "runner", "authority"
STUDY_FILE, SILO_FILE = "study.toml", "silo.toml"
USER = "runner@fedpower.local"
VALID_DAYS = 3650

SILO_TEMPLATE = """\
# This organisation's own terms. Nothing in here leaves it, and nobody else can change it.
silo = "{name}"

[data]
path = "rows.parquet"        # also .csv, .npy, .npz, .feather, .svm; from this file's folder
version = "1"                # public: give another whenever the rows change, which is a new charge
# name = "heart"             # of the data set, if the ledger is to be for it and no other
# or, in place of path, a query; its password comes from a variable or a file, never from here:
# query = "SELECT age, bmi FROM patients"
# database = "postgresql://db.internal:5432/clinic"    # or "sqlite:///clinic.db"
# user = "fedpower"
# password_env = "CLINIC_DB_PASSWORD"
# drop = ["patient_id"]      # columns that are not for the study
# extra_columns = "drop"     # or refuse (default) columns beyond the study's

[ledger]
# every release is charged here before it leaves; made once, by you:
# fedpower budget init {name}.ledger --silo {name} --epsilon 3 --delta 1e-6
# (its cap: what all studies together may spend, best at the study's delta)
path = "{name}.ledger"
# epsilon = 3.0              # the cap, if it is to be checked against the ledger's at every start
# delta = 1e-6

# [identity]                 # only for a study with aggregation = "secure"
# path = "{name}.pem"        # made with `fedpower identity new`; its public key is in the study

[agrees]
study = "{digest}"   # this study and no other
# epsilon = 1.0              # the most that any one study may spend
"""


def make_kits(study: StudyFile, folder: Path) -> None:
    """Write a study's kits into a new folder: coordinator, runner, every silo.

    Whoever runs this holds every key for a moment. Hand each kit to its party over a channel you trust,
    then delete it here; ``authority`` can make further kits and belongs in a safe.
    """
    taken = {COORDINATOR, RUNNER, AUTHORITY} & set(study.silos)
    if taken:
        raise InputError(
            f"a silo must not be called {sorted(taken)[0]!r}, which names another kit; rename it"
        )
    if study.host in study.silos:
        raise InputError(
            f"a silo must not be called like the coordinator's host, got {study.host!r} for both; rename "
            "the silo or give the host's full name"
        )
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{folder} must be new or empty, got a folder that holds "
            f"{sorted(each.name for each in folder.iterdir())[0]!r}; name another with -o"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = _provision(study, Path(scratch))
        places = {COORDINATOR: study.host, RUNNER: USER, **{name: name for name in study.silos}}
        for kit, name in places.items():
            shutil.move(made / name, folder / kit)
        shutil.move(made.parent / "state", folder / AUTHORITY)
    (folder / AUTHORITY).chmod(0o700)
    for kit in places:
        _finish(folder / kit, study)


def organisation(silo: str) -> str:
    """Return a silo's name as FLARE lets an organisation be called: it knows no dashes there."""
    return silo.replace("-", "_")


def kit_study(kit: Path, party: str | None = None) -> StudyFile:
    """Return the study that a kit was made for; refuse a folder that is no kit.

    ``party`` is whose kit it must be: the coordinator's, the runner's, or that of a silo by its name.
    """
    if not (kit / "startup" / "rootCA.pem").is_file() or not (kit / STUDY_FILE).is_file():
        raise InputError(
            f"{kit} must be a kit made by `fedpower federation init`, got "
            f"{'something else' if kit.exists() else 'nothing'} there; give one "
            "of the folders it wrote"
        )
    whose = _whose(kit)
    if party is not None and whose != party:
        spoken = party if party in (COORDINATOR, RUNNER) else f"silo {party!r}"
        raise InputError(
            f"{kit} must be the kit of the {spoken}, got that of {whose!r}; give its own"
        )
    return read_study(kit / STUDY_FILE)


def _whose(kit: Path) -> str:
    """Return the party that a kit was made for."""
    if (kit / "startup" / "fed_server.json").is_file():
        return COORDINATOR
    if (kit / "startup" / "fed_admin.json").is_file():
        return RUNNER
    try:
        told = json.loads((kit / "startup" / "fed_client.json").read_text())
        return str(told["client"]["fqsn"])
    except (OSError, ValueError, LookupError, TypeError):
        return "nobody"


def _finish(kit: Path, study: StudyFile) -> None:
    """Take out what only invites a second way of starting, put in the study and the site's policy."""
    for script in (*(kit / "startup").glob("*.sh"), *(kit / "startup").glob("*.ipynb")):
        script.unlink()
    for readme in (kit / "readme.txt", kit / "startup" / "readme.txt"):
        readme.unlink(missing_ok=True)
    for key in (kit / "startup").glob("*.key"):
        key.chmod(0o600)
    (kit / STUDY_FILE).write_text(rendered(study.content))
    if kit.name in study.silos:
        policy.write_silo_policy(kit)
        text = SILO_TEMPLATE.format(name=kit.name, digest=study.digest)
        (kit / SILO_FILE).write_text(text)
    elif kit.name == COORDINATOR:
        policy.write_coordinator_policy(kit)
    kit.chmod(0o700)


def _provision(study: StudyFile, scratch: Path) -> Path:
    """Return the folder in which FLARE's provisioning put a folder for every party."""
    from nvflare.lighter.prov_utils import prepare_builders, prepare_packager  # noqa: PLC0415
    from nvflare.lighter.provision import prepare_project  # noqa: PLC0415
    from nvflare.lighter.provisioner import Provisioner  # noqa: PLC0415

    lighter = "nvflare.lighter.impl"
    parties: list[dict[str, Any]] = [
        {
            "name": study.host,
            "type": "server",
            "org": COORDINATOR,
            "fed_learn_port": study.port,
        },
        {"name": USER, "type": "admin", "org": COORDINATOR, "role": policy.ROLE},
        *(
            {
                "name": name,
                "type": "client",
                "org": organisation(name),
                "allow_log_streaming": False,
            }
            for name in study.silos
        ),
    ]
    project = {
        "api_version": 3,
        "name": study.name,
        "description": f"fedpower study {study.digest}",
        "participants": parties,
        "builders": [
            {
                "path": f"{lighter}.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {
                "path": f"{lighter}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": f"{lighter}.cert.CertBuilder", "args": {"root_valid_days": VALID_DAYS}},
            {"path": f"{lighter}.signature.SignatureBuilder", "args": {}},
        ],
    }
    told = io.StringIO()
    logging.getLogger("nvflare").setLevel(logging.WARNING)
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        made = prepare_project(project)
        Provisioner(str(scratch), prepare_builders(project), prepare_packager(project)).provision(
            made
        )
    return scratch / study.name / "prod_00"
