"""`fedpower doctor`: whether the installation is sound, and what is missing."""

# ruff: noqa: PLC0415 - what is imported may be missing or broken

import importlib.metadata
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import fedpower
from fedpower.errors import installing
from fedpower.federation.isolation import available, describe

if TYPE_CHECKING:
    from fedpower import FedPCA

_MODULES = {"scikit-learn": "sklearn"}
"""Packages that are not imported by their own name."""

_PURPOSES = {
    "plot": "pictures of results",
    "flare": "federations of separate processes",
    "sql": "silos that are queries on SQLite or PostgreSQL",
    "secure": "secure sums",
    "torch": "silos on a GPU",
    "dask": "silos spread over Dask's workers",
    "h5ad": "cells by genes in .h5ad files",
    "pgen": "genotypes in .pgen files",
    "onnx": "results as ONNX graphs",
}
NOT_FOR_USERS = ("dev",)
TIMEOUT_S = 120
REINSTALL = "make the environment again; if that does not help, report it"
COPY = "`pip install .` in a copy of the project"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what is ``broken`` is there and fails, what is ``absent`` is optional."""

    name: str
    state: Literal["sound", "absent", "broken"]
    detail: str
    advice: str = ""


class SelfTestError(Exception):
    """A self-test that failed, in one sentence, and what to do about it."""

    def __init__(self, sentence: str, *, advice: str = REINSTALL) -> None:
        super().__init__(sentence)
        self.advice = advice


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), help="Folder for ledgers to test.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(*, folder: Path | None, as_json: bool) -> int:
    """Check whether fedpower is sound on this machine, and how to get what is missing.

    Packages are compared with what fedpower needs, and it runs a small fit, draws noise and charges a
    ledger. Nothing is kept. The exit status is 0 where all that is there works, and 1 where something is
    broken; an extra that is not installed breaks nothing.
    """
    findings = examine(folder)
    broken = [finding.name for finding in findings if finding.state == "broken"]
    if as_json:
        overview = {"fedpower": fedpower.__version__, "sound": not broken}
        click.echo(json.dumps({**overview, "findings": [asdict(finding) for finding in findings]}, indent=2))
        return int(bool(broken))
    rows = [tuple(asdict(finding).values()) for finding in findings]
    try:
        from fedpower.cli.console import print_table

        print_table(f"fedpower {fedpower.__version__}", ("what", "state", "found", "to do"), rows)
    except ImportError:  # rich is missing, as a finding reports
        for row in rows:
            click.echo(" ".join(filter(None, row)))
    click.echo(f"Broken: {', '.join(broken)}." if broken else "fedpower is sound here.")
    return int(bool(broken))


def examine(folder: Path | None) -> list[Finding]:
    """Return all findings, in the order in which they are shown."""
    try:
        asked = requirements()
    except importlib.metadata.PackageNotFoundError:
        return [Finding("fedpower", "broken", "its metadata is missing", advice=COPY)]
    tests: dict[str, Callable[[], str]] = {
        "matrix products": blas,
        "exact fit": exact_fit,
        "noise": noise,
        "private fit": private_fit,
        "ledger": lambda: ledger(folder),
        "compiled loops": loops,
    }
    findings = [check_python(), check_packages(asked[""])]
    findings += [_tried(name, test) for name, test in tests.items()]
    confined = available()
    findings.append(Finding("isolation", "sound" if confined else "absent", describe(confined=confined)))
    extras = {name: check_packages(asked[name], name) for name in asked if name and name not in NOT_FOR_USERS}
    findings += extras.values()
    if "torch" in extras and extras["torch"].state == "sound":
        findings.append(_tried("GPU", device))
    return findings


def _tried(name: str, test: Callable[[], str]) -> Finding:
    """Return the finding of a self-test; whatever it raises is a finding too."""
    try:
        detail = test()
    except Exception as error:  # the doctor reports whatever happens
        what = " ".join(str(error).split())
        if isinstance(error, SelfTestError):
            return Finding(name, "broken", what, error.advice)
        return Finding(name, "broken", f"{type(error).__name__}: {what}", REINSTALL)
    if name == "compiled loops" and not detail:
        from fedpower import native

        return Finding(name, "absent", native.account(), f"for speed, a C compiler and {COPY}")
    if name == "GPU" and not detail:
        return Finding(name, "absent", "none that PyTorch can use: silos compute on the CPU")
    return Finding(name, "sound", detail)


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


def check_python() -> Finding:
    """Return whether this Python is one that fedpower is for."""
    version, needed = platform.python_version(), importlib.metadata.metadata("fedpower")["Requires-Python"]
    detail = f"{version} on {platform.system()} {platform.machine()}"
    if SpecifierSet(needed).contains(version, prereleases=True):
        return Finding("Python", "sound", detail)
    return Finding("Python", "broken", detail, f"make the environment again with Python {needed}")


def check_packages(asked: list[Requirement], extra: str = "") -> Finding:
    """Return whether packages are installed, of the versions that are needed, and can be imported."""
    name = f"extra {extra}" if extra else "packages"
    advice = installing(extra) if extra else "`pip install --force-reinstall .` in a copy of the project"
    versions = {line: _version(line) for line in asked}
    missing = [line.name for line, version in versions.items() if version is None]
    if extra and missing:
        purpose = f" ({_PURPOSES[extra]})" if extra in _PURPOSES else ""
        return Finding(name, "absent", f"without {', '.join(missing)}{purpose}", advice)
    wrong = [f"{package} is not installed" for package in missing]
    wrong += [
        f"{line.name} must be {line.specifier}, got {version}"
        for line, version in versions.items()
        if version is not None and not line.specifier.contains(version, prereleases=True)
    ]
    modules = [_MODULES.get(line.name, line.name.replace("-", "_")) for line in asked]
    problem = "; ".join(wrong) or run_python(f"import {', '.join(modules)}")[0]
    if problem:
        return Finding(name, "broken", problem, advice)
    return Finding(name, "sound", ", ".join(f"{line.name} {version}" for line, version in versions.items()))


def _version(asked: Requirement) -> str | None:
    try:
        return importlib.metadata.version(asked.name)
    except importlib.metadata.PackageNotFoundError:
        return None


def run_python(code: str) -> tuple[str, str]:
    """Return the error of a piece of Python in a process of its own, and what it printed."""
    try:
        done = subprocess.run(  # noqa: S603 - our own words, run by this Python
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S} seconds", ""
    if done.returncode == 0:
        return "", done.stdout.strip()
    lines = done.stderr.strip().splitlines()
    return (lines[-1].strip() if lines else f"ended with status {done.returncode}"), ""


# --- self-tests: each returns what it saw, or raises -----------------------------------------------


def blas() -> str:
    """Return which libraries multiply matrices, and with how many threads."""
    import numpy as np
    import threadpoolctl

    np.ones((2, 2)) @ np.ones((2, 2))
    pools = [
        f"{pool['internal_api']} {pool['version'] or ''}".strip() + f" on {pool['num_threads']} threads"
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{'; '.join(pools) or 'an unknown library'}; {cores} cores here"


def loops() -> str:
    """Return that the loops in C give what NumPy gives; empty where there are none."""
    import numpy as np

    from fedpower import native
    from fedpower.rules.treatment import RowTreatment
    from fedpower.sums.lattice import LatticeRows

    if native.loops() is None:
        return ""
    rows = np.random.default_rng(0).standard_normal((200, 9))
    rule = RowTreatment(row_norm=3.0)
    compiled, _ = LatticeRows(rule, 9).of_dense(rows)
    with native.switched_off():
        plain, _ = LatticeRows(rule, 9).of_dense(rows)
    if np.abs(compiled - plain).max() > 1:
        advice = "set FEDPOWER_NATIVE=0, and report it"
        raise SelfTestError("the loops in C must give NumPy's integers, got others", advice=advice)
    return f"{native.account()}, and give what NumPy gives"


def exact_fit() -> str:
    """Return that a small fit over two silos is NumPy's eigendecomposition of the pooled rows."""
    import numpy as np

    from fedpower import FedPCA

    rows = np.random.default_rng(0).standard_normal((60, 4)) * [4.0, 3.0, 2.0, 1.0]
    model = FedPCA(2, epsilon=float("inf"), standardize=False).fit_silos([rows[:20], rows[20:]])
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    cosines = np.abs(np.einsum("ij,ji->i", model.components_, vectors[:, ::-1][:, :2]))
    close = np.allclose(model.explained_variance_, values[::-1][:2], rtol=1e-9)
    if not (close and np.allclose(cosines, 1.0, atol=1e-9)):
        raise SelfTestError("a fit over two silos must be the eigenvectors of the pooled rows, got others")
    return "two silos give the eigenvectors of the pooled rows"


def noise() -> str:
    """Return that the system's noise is fresh and of the size that is asked for."""
    import numpy as np

    from fedpower.privacy.noise import SystemNoise, gaussian_integers

    n_draws, scale = 20_000, 2**20
    drawn = [gaussian_integers(SystemNoise(), n_draws, scale=scale) for _ in range(2)]
    if np.array_equal(drawn[0], drawn[1]):
        raise SelfTestError("noise must be fresh in every draw, got the same twice")
    if any(abs(float(np.mean((draw / scale) ** 2)) - 1) > 0.1 for draw in drawn):
        raise SelfTestError("noise must be of the size asked for, got another")
    return f"{n_draws:,} draws of the operating system's generator, of the size asked for"


def _fit_privately(ledgers: dict[str, Path] | None = None) -> "FedPCA":
    import numpy as np

    from fedpower import CodeBook, FedPCA

    rows = np.random.default_rng(0).standard_normal((60, 4))
    model = FedPCA(1, epsilon=1.0, delta=1e-6, codebook=CodeBook(row_norm=4.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 60 rows are noise, and are fitted twice
        return model.fit_silos({"test": rows}, ledgers=ledgers)


def private_fit() -> str:
    """Return that private fits have the epsilon they were asked for, and each its own noise."""
    from fedpower.privacy import epsilon_of, mu_of

    if abs(epsilon_of(mu_of(1.0, 1e-6), 1e-6) - 1.0) > 1e-6:
        raise SelfTestError("calibration and accounting must agree on epsilon, got two answers")
    one, other = _fit_privately(), _fit_privately()
    if not (one.privacy_.is_private and other.privacy_.is_private):
        raise SelfTestError("a fit with epsilon=1 must be private, got one that is not")
    if one.explained_variance_ == other.explained_variance_:
        raise SelfTestError("two private fits must have noise of their own, got the same")
    return "epsilon=1 is calibrated and stated, and two fits differ"


LOCKED = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError:
    print("locked")
"""


def ledger(folder: Path | None) -> str:
    """Return that a ledger can be made, charged, read again and locked in a folder."""
    from fedpower.privacy import Ledger

    with _scratch(folder) as place:
        path = place / "test.ledger"
        Ledger.create(path, epsilon=1.5, delta=1e-6, silo="test").close()
        one, again = (_fit_privately({"test": path}) for _ in range(2))
        with Ledger.open(path) as opened:
            n_releases = opened.spent().n_releases
        if n_releases != 1 or one.explained_variance_ != again.explained_variance_:
            raise SelfTestError(
                "a ledger must answer a repeated question from its record, got another answer"
            )
        held = sqlite3.connect(path, isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        answer = run_python(f"import sys; sys.argv[1:] = [{str(path)!r}]\n{LOCKED}")[1]
        held.close()
        if answer != "locked":
            raise SelfTestError(
                f"{place.parent} must lock a ledger for other processes, got a disk that keeps no locks",
                advice="keep ledgers on a disk of this machine",
            )
        return f"made, charged, read again and locked in {place.parent} (SQLite {sqlite3.sqlite_version})"


@contextmanager
def _scratch(folder: Path | None) -> Iterator[Path]:
    """Give a folder inside another, which must exist and be writable."""
    try:
        made = tempfile.TemporaryDirectory(dir=folder, prefix=".fedpower-doctor-")
    except OSError as error:
        raise SelfTestError(
            f"{folder or tempfile.gettempdir()} must be a folder that can be written ({error.strerror})",
            advice="make it writable, or name another with --folder",
        ) from None
    with made as place:
        yield Path(place)


CUDA = """
import torch
if torch.cuda.is_available():
    ones = torch.ones(64, 64, dtype=torch.float64, device="cuda")
    assert float((ones @ ones).sum()) == 64.0**3, "a product on the device is wrong"
    print(torch.cuda.get_device_name(), "with CUDA", torch.version.cuda)
"""


def device() -> str:
    """Return the GPU that PyTorch has here, tried; empty where there is none."""
    error, answer = run_python(CUDA)
    if error:
        raise SelfTestError(error)
    return answer
