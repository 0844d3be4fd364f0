"""`fedpower doctor`: whether the installation is sound, and what is missing."""

# ruff: noqa: PLC0415 - what is imported may be missing or broken

import importlib.metadata
import json
import platform
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from packaging.requirements import Requirement

import fedpower
from fedpower.cli.console import say
from fedpower.exceptions import installing
from fedpower.federation.isolation import available, describe

if TYPE_CHECKING:
    from fedpower import FedPCA

_MODULES = {"scikit-learn": "sklearn"}  # packages that are not imported by their own name
NOT_FOR_USERS = ("dev",)
TIMEOUT_S = 120
_COPY = "`pip install .` in a copy of the project"
_REPORT = "make the environment again; if that does not help, report it"


class FailedError(Exception):
    """A check that found something broken, or absent, which is optional; and what to do about it."""

    def __init__(self, sentence: str, advice: str = _REPORT, state: str = "broken") -> None:
        super().__init__(" ".join(sentence.split()))
        self.advice, self.state = advice, state


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), help="Folder of ledgers, to test its disk.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(*, folder: Path | None, as_json: bool) -> int:
    """Check that fedpower works on this machine, and show how to install what is missing.

    The checks compare package versions, run small fits and charge a temporary ledger. The exit status is
    1 if something is broken. A missing extra is not an error.
    """
    findings = [_tried(name, check) for name, check in _checks(folder).items()]
    broken = [found["name"] for found in findings if found["state"] == "broken"]
    if as_json:
        overview = {"fedpower": fedpower.__version__, "sound": not broken}
        click.echo(json.dumps({**overview, "findings": findings}, indent=2))
    else:  # without rich, which may be missing
        for name, state, detail, advice in (found.values() for found in findings):
            say(f"{name:<16} {state:<7} {detail}{advice and f': {advice}'}", hanging=25)
        click.echo(f"Broken: {', '.join(broken)}." if broken else "fedpower works on this machine.")
    return int(bool(broken))


def _checks(folder: Path | None) -> dict[str, Callable[[], str]]:
    """Return by name what returns a detail or raises, in the order in which findings are shown."""
    asked = requirements()
    extras = {name: lines for name, lines in asked.items() if name and name not in NOT_FOR_USERS}
    return {
        "Python": lambda: f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "packages": partial(packages, asked[""]),
        "exact fit": exact_fit,
        "private fit": private_fit,
        "ledger": partial(ledger, folder),
        "compiled loops": loops,
        "isolation": isolation,
        **{f"extra {name}": partial(packages, lines, name) for name, lines in extras.items()},
        "GPU": device,
    }


def _tried(name: str, check: Callable[[], str]) -> dict[str, str]:
    try:
        return {"name": name, "state": "sound", "detail": check(), "advice": ""}
    except Exception as error:  # the doctor reports whatever happens
        failed = error if isinstance(error, FailedError) else FailedError(f"{type(error).__name__}: {error}")
        return {"name": name, "state": failed.state, "detail": str(failed), "advice": failed.advice}


# --- packages --------------------------------------------------------------------------------------


def requirements() -> dict[str, list[Requirement]]:
    """Return what fedpower's own metadata asks for on this system: for all under "", then by extra."""
    extras = importlib.metadata.metadata("fedpower").get_all("Provides-Extra") or []
    asked: dict[str, list[Requirement]] = {name: [] for name in ("", *extras)}
    for line in map(Requirement, importlib.metadata.requires("fedpower") or ()):
        marker = line.marker
        wanted = [name for name in asked if marker is None or marker.evaluate({"extra": name})]
        if wanted:
            asked[wanted[0]].append(line)
    return {name: lines for name, lines in asked.items() if lines or not name}


def packages(asked: list[Requirement], extra: str = "") -> str:
    """Return the versions of packages, which must be those that are needed, and can be imported."""
    advice = installing(extra) if extra else "`pip install --force-reinstall .` in a copy of the project"
    versions: dict[str, str] = {}
    for line in asked:
        try:
            version = versions[line.name] = importlib.metadata.version(line.name)
        except importlib.metadata.PackageNotFoundError:
            state = "absent" if extra else "broken"
            raise FailedError(f"{line.name} is not installed", advice, state) from None
        if not line.specifier.contains(version, prereleases=True):
            raise FailedError(f"{line.name} must be {line.specifier}, got {version}", advice)
    _python(f"import {', '.join(_MODULES.get(name, name.replace('-', '_')) for name in versions)}", advice)
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _python(code: str, advice: str = _REPORT) -> str:
    """Return what a piece of Python prints in a process of its own; what it ends with is a finding."""
    try:
        done = subprocess.run(  # noqa: S603 - our own words, run by this Python
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise FailedError(f"no answer within {TIMEOUT_S} seconds", advice) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
        raise FailedError(lines[-1], advice)
    return done.stdout.strip()


# --- self-tests: each returns what it saw, or raises -----------------------------------------------


def loops() -> str:
    """Return that the loops in C are those of this version."""
    from fedpower import native

    if native.loops() is None:
        raise FailedError(native.account(), f"for speed, a C compiler and {_COPY}", "absent")
    return native.account()


def exact_fit() -> str:
    """Return that a small fit is NumPy's eigendecomposition, and which libraries multiply matrices."""
    import numpy as np
    import threadpoolctl

    from fedpower import FedPCA

    rows = np.random.default_rng(0).standard_normal((60, 4)) * [4.0, 3.0, 2.0, 1.0]
    model = FedPCA(2, epsilon=float("inf"), standardize=False).fit_silos([rows[:20], rows[20:]])
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    cosines = np.abs(np.einsum("ij,ji->i", model.components_, vectors[:, ::-1][:, :2]))
    both = np.array([*model.explained_variance_, *cosines])
    if not np.allclose(both, [*values[::-1][:2], 1, 1], rtol=1e-9):
        raise FailedError("a fit over two silos must be the eigenvectors of the pooled rows, got others")
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    found = [f"; {pool['internal_api']} {pool['version']} on {pool['num_threads']} threads" for pool in pools]
    return f"two silos give the eigenvectors of the pooled rows{''.join(found)}"


def _fit_privately(ledgers: dict[str, Path] | None = None) -> "FedPCA":
    import numpy as np

    from fedpower import CodeBook, FedPCA

    rows = np.random.default_rng(0).standard_normal((60, 4))
    model = FedPCA(1, epsilon=1.0, delta=1e-6, codebook=CodeBook(row_norm=4.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 60 rows are noise, and are fitted twice
        return model.fit_silos({"test": rows}, ledgers=ledgers)


def private_fit() -> str:
    """Return that a fit with noise is private, and that its noise is fresh."""
    one, other = _fit_privately(), _fit_privately()
    if one.explained_variance_ == other.explained_variance_:
        raise FailedError("noise must be fresh in every fit, got the same twice")
    if not one.privacy_.is_private:
        raise FailedError("a fit with epsilon=1 must be private, got one that is not")
    return "two fits of the same rows differ, as their noise is fresh"


LOCKED = """
import sqlite3
try:
    sqlite3.connect({path!r}, timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError:
    print("locked")
"""


def ledger(folder: Path | None) -> str:
    """Return that a ledger can be made, charged, read again and locked in a folder."""
    from fedpower.privacy import Ledger

    try:
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix=".fedpower-doctor-")
    except OSError as error:
        sentence = (
            f"{folder or tempfile.gettempdir()} must be a folder that can be written ({error.strerror})"
        )
        raise FailedError(sentence, "make it writable, or name another with --folder") from None
    with scratch as place:
        path = Path(place) / "test.ledger"
        Ledger.create(path, epsilon=1.5, delta=1e-6, silo="test").close()
        one, again = (_fit_privately({"test": path}) for _ in range(2))
        with Ledger.open(path) as opened:
            n_releases = opened.spent().n_releases
        if n_releases != 1 or one.explained_variance_ != again.explained_variance_:
            raise FailedError("a ledger must answer a repeated question from its record, got another answer")
        held = sqlite3.connect(path, isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        answer = _python(LOCKED.format(path=str(path)))
        held.close()
    where = Path(place).parent
    if answer != "locked":
        sentence = f"{where} must lock a ledger for other processes, got a disk that keeps no locks"
        raise FailedError(sentence, "keep ledgers on a disk of this machine")
    return f"made, charged, read again and locked in {where} (SQLite {sqlite3.sqlite_version})"


def isolation() -> str:
    """Return that the process which talks to the network can be kept from a silo's files."""
    if not available():
        raise FailedError(describe(confined=False), "", "absent")
    return describe(confined=True)


CUDA = """
import importlib.util
if importlib.util.find_spec("torch"):
    import torch
    if torch.cuda.is_available():
        ones = torch.ones(64, 64, dtype=torch.float64, device="cuda")
        assert float((ones @ ones).sum()) == 64.0**3, "a product on the device is wrong"
        print(torch.cuda.get_device_name(), "with CUDA", torch.version.cuda)
"""


def device() -> str:
    """Return the GPU that PyTorch has here, tried."""
    answer = _python(CUDA)
    if not answer:
        raise FailedError("none that PyTorch can use: silos compute on the CPU", "", "absent")
    return answer
