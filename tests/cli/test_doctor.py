"""`fedpower doctor` finds what is sound, what is absent and what is broken, and never fails itself."""

import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hospitals import run, succeed
from packaging.requirements import Requirement

from fedpower import native

doctor = importlib.import_module("fedpower.cli.doctor")
ASKED = [Requirement("numpy>=2.0"), Requirement("scikit-learn>=1.6")]


def module(folder: Path, name: str, body: str, version: str = "1.0") -> Requirement:
    """Install a small package into a folder, as pip leaves it, and return that it is asked for."""
    (folder / f"{name}.py").write_text(body)
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return Requirement(f"{name}>=1.0,<2")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which this process and those it starts import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
    return tmp_path


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no extra be tried: importing all of them takes a while."""
    monkeypatch.setattr(doctor, "NOT_FOR_USERS", tuple(filter(None, doctor.requirements())))


@pytest.mark.programs
def test_this_installation_is_sound(here: Path):
    before = sorted(here.iterdir())
    reported = json.loads(succeed("doctor", "--json", "--folder", ".").stdout)
    assert reported["sound"] is True
    states = {finding["name"]: finding["state"] for finding in reported["findings"]}
    tests = ("Python", "packages", "matrix products", "exact fit", "noise", "private fit", "ledger")
    assert {name: states[name] for name in tests} == dict.fromkeys(tests, "sound")
    extras = set(importlib.metadata.metadata("fedpower").get_all("Provides-Extra")) - {"dev"}
    assert {f"extra {extra}" for extra in extras} <= set(states)
    assert states["isolation"] in ("sound", "absent")
    assert sorted(here.iterdir()) == before


def test_every_requirement_of_the_package_is_understood():
    asked = doctor.requirements()
    core = {line.name for line in asked[""]}
    assert {"numpy", "polars", "scikit-learn"} <= core
    assert not core & {"attrs", "dp-accounting"}  # an oracle of the tests alone
    assert {"flare", "sql", "torch"} <= set(asked)


@pytest.mark.programs
def test_a_package_that_is_too_old_or_not_there_is_broken():
    assert doctor.check_packages(ASKED).state == "sound"
    found = doctor.check_packages([*ASKED, Requirement("numpy>=999")])
    assert (found.state, found.detail[:21]) == ("broken", "numpy must be >=999, ")
    assert doctor.check_packages([Requirement("no-such-package")]).state == "broken"


def test_an_extra_that_is_absent_breaks_nothing():
    found = doctor.check_packages(extra="sql", asked=[*ASKED, Requirement("no-such-package")])
    assert found.state == "absent"
    assert found.advice == "`pip install '.[sql]'` in a copy of the project"
    assert "PostgreSQL" in found.detail


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ("raise OSError('libnothing.so: cannot open')", "OSError: libnothing.so: cannot open"),
        ("import os; os.kill(os.getpid(), 11)", "ended with status -11"),
        ("raise SystemExit(3)", "ended with status 3"),
    ],
)
def test_an_extra_that_is_there_and_fails_is_broken(site: Path, body: str, reported: str):
    found = doctor.check_packages(extra="own", asked=[module(site, "fragile", body)])
    assert (found.state, found.detail) == ("broken", reported)
    assert "'.[own]'" in found.advice


def test_an_extra_of_another_version_is_broken_and_one_that_prints_is_sound(site: Path):
    newer = doctor.check_packages(extra="own", asked=[module(site, "newer", "", version="2.5")])
    assert newer.state == "broken"
    assert newer.detail.endswith("got 2.5")
    loud = module(site, "loud", "print('hello'); import warnings; warnings.warn('x')")
    assert doctor.check_packages(extra="own", asked=[loud]).state == "sound"


@pytest.mark.programs
def test_an_import_that_hangs_is_broken(site: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "TIMEOUT_S", 1)
    asked = module(site, "endless", "import time; time.sleep(60)")
    assert "no answer within 1 seconds" in doctor.check_packages(extra="own", asked=[asked]).detail


@pytest.mark.programs
@pytest.mark.usefixtures("without_extras")
def test_what_is_broken_is_reported_with_advice_and_status_1(monkeypatch: pytest.MonkeyPatch):
    def fail() -> str:
        raise ZeroDivisionError("by\nzero")

    def off() -> str:
        raise doctor.SelfTestError("noise must be fresh in every draw, got the same twice")

    monkeypatch.setattr(doctor, "blas", fail)
    monkeypatch.setattr(doctor, "noise", off)
    said = run("doctor")
    assert said.exit_code == 1
    assert "Broken: matrix products, noise." in said.stdout
    assert "ZeroDivisionError: by zero" in said.stdout
    assert doctor.REINSTALL[:20] in said.stdout
    assert said.stderr == ""


def test_loops_in_c_are_compared_with_numpy(monkeypatch: pytest.MonkeyPatch):
    if native.loops() is not None:
        assert doctor.loops().endswith("give what NumPy gives")
    monkeypatch.setenv("FEDPOWER_NATIVE", "0")
    assert doctor.loops() == ""


@pytest.mark.usefixtures("without_extras")
@pytest.mark.parametrize("confined", [True, False])
def test_a_system_that_cannot_isolate_a_silo_is_not_broken(confined: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "available", lambda: confined)
    monkeypatch.setattr(doctor, "run_python", lambda code: ("", ""))
    for name in ("blas", "exact_fit", "private_fit", "noise", "loops", "ledger"):
        monkeypatch.setattr(doctor, name, lambda *_: "not tried")
    (found,) = [finding for finding in doctor.examine(None) if finding.name == "isolation"]
    assert found.state == ("sound" if confined else "absent")


def test_noise_that_is_constant_or_too_small_is_noticed(monkeypatch: pytest.MonkeyPatch):
    draw = "fedpower.privacy.noise.gaussian_integers"
    monkeypatch.setattr(draw, lambda source, n, scale: np.full(n, scale))
    with pytest.raises(doctor.SelfTestError, match="same twice"):
        doctor.noise()
    rng = np.random.default_rng(0)
    monkeypatch.setattr(draw, lambda source, n, scale: rng.standard_normal(n) * scale / 2)
    with pytest.raises(doctor.SelfTestError, match="size asked for"):
        doctor.noise()


@pytest.mark.programs
def test_a_folder_that_keeps_no_ledger_is_broken(here: Path, monkeypatch: pytest.MonkeyPatch):
    before = sorted(here.iterdir())
    assert str(here) in doctor.ledger(here)
    assert sorted(here.iterdir()) == before
    for place in (here / "nowhere", here / "north.csv"):
        with pytest.raises(doctor.SelfTestError, match="must be a folder that can be written") as raised:
            doctor.ledger(place)
        assert "--folder" in raised.value.advice
    monkeypatch.setattr(doctor, "LOCKED", "print('free')")
    with pytest.raises(doctor.SelfTestError, match="keeps no locks"):
        doctor.ledger(here)


@pytest.mark.programs
@pytest.mark.parametrize("gone", ["rich", "numpy"])
def test_without_a_package_that_is_needed_the_doctor_still_reports(gone: str):
    code = f"import sys; sys.modules[{gone!r}] = None\nfrom fedpower.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert "exact fit" in done.stdout
    assert done.returncode == (1 if gone == "numpy" else 0)
