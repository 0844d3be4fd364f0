"""`fedpower doctor` finds what is sound, what is absent and what is broken, and never fails itself."""

import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hospitals import run, succeed
from packaging.requirements import Requirement

doctor = importlib.import_module("fedpower.cli.doctor")
ASKED = [Requirement("numpy>=2.0"), Requirement("scikit-learn>=1.6")]
SELF_TESTS = ("exact_fit", "private_fit", "ledger", "loops", "device")


def module(folder: Path, name: str, body: str) -> Requirement:
    """Install a small package into a folder, as pip leaves it, and return that it is asked for."""
    (folder / f"{name}.py").write_text(body)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    return Requirement(f"{name}>=1.0,<2")


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no package and no self-test be tried: they take a while."""
    monkeypatch.setattr(doctor, "NOT_FOR_USERS", tuple(filter(None, doctor.requirements())))
    for name in (*SELF_TESTS, "packages"):
        monkeypatch.setattr(doctor, name, lambda *_: "not tried")


@pytest.mark.programs
def test_this_installation_is_sound(here):
    before = sorted(here.iterdir())
    reported = json.loads(succeed("doctor", "--json", "--folder", ".").stdout)
    assert reported["sound"] is True
    states = {finding["name"]: finding["state"] for finding in reported["findings"]}
    tests = ("Python", "packages", "exact fit", "private fit", "ledger")
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


@pytest.mark.parametrize(
    ("missing", "extra", "state", "detail"),
    [
        ("numpy>=999", "", "broken", "numpy must be >=999, got "),
        ("no-such-package", "", "broken", "no-such-package is not installed"),
        ("no-such-package", "sql", "absent", "no-such-package is not installed"),
    ],
)
def test_a_package_that_is_too_old_or_not_there_is_found(missing, extra, state, detail):
    with pytest.raises(doctor.FailedError) as raised:
        doctor.packages([*ASKED, Requirement(missing)], extra)
    assert raised.value.state == state
    assert str(raised.value).startswith(detail)
    assert raised.value.advice.endswith("in a copy of the project")


@pytest.mark.programs
@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ("raise OSError('libnothing.so: cannot open')", "OSError: libnothing.so: cannot open"),
        ("import os; os.kill(os.getpid(), 11)", "ended with status -11"),
        ("raise SystemExit(3)", "ended with status 3"),
        ("import time; time.sleep(60)", "no answer within 3 seconds"),
        ("print('hello'); import warnings; warnings.warn('x')", ""),
    ],
)
def test_an_extra_that_is_there_and_fails_is_broken(tmp_path, body, reported, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
    monkeypatch.setattr(doctor, "TIMEOUT_S", 3)
    asked = [module(tmp_path, "fragile", body)]
    if not reported:
        assert doctor.packages(asked, "own") == "fragile 1.0"
        return
    with pytest.raises(doctor.FailedError, match=reported) as raised:
        doctor.packages(asked, "own")
    assert (raised.value.state, "'.[own]'" in raised.value.advice) == ("broken", True)


@pytest.mark.usefixtures("without_extras")
def test_what_is_broken_is_reported_with_advice_and_status_1(monkeypatch):
    def fail() -> str:
        raise ZeroDivisionError("by\nzero")

    def off() -> str:
        raise doctor.FailedError("noise must be fresh in every fit, got the same twice")

    monkeypatch.setattr(doctor, "exact_fit", fail)
    monkeypatch.setattr(doctor, "private_fit", off)
    monkeypatch.setattr(doctor, "available", lambda: False)
    said = run("doctor")
    assert said.exit_code == 1
    assert "Broken: exact fit, private fit." in said.stdout
    assert "ZeroDivisionError: by zero: make the environment again" in said.stdout
    assert "isolation        absent  NO ISOLATION" in said.stdout
    assert said.stderr == ""


def test_noise_that_is_constant_is_noticed(monkeypatch):
    fitted = doctor._fit_privately()
    monkeypatch.setattr(doctor, "_fit_privately", lambda: fitted)
    with pytest.raises(doctor.FailedError, match="same twice"):
        doctor.private_fit()


@pytest.mark.programs
def test_a_folder_that_keeps_no_ledger_is_broken(here, monkeypatch):
    before = sorted(here.iterdir())
    assert str(here) in doctor.ledger(here)
    assert sorted(here.iterdir()) == before
    for place in (here / "nowhere", here / "north.csv"):
        with pytest.raises(doctor.FailedError, match="must be a folder that can be written") as raised:
            doctor.ledger(place)
        assert "--folder" in raised.value.advice
    monkeypatch.setattr(doctor, "LOCKED", "print('free')")
    with pytest.raises(doctor.FailedError, match="keeps no locks"):
        doctor.ledger(here)


@pytest.mark.programs
@pytest.mark.parametrize("gone", ["rich", "numpy"])
def test_without_a_package_that_is_needed_the_doctor_still_reports(gone):
    code = f"import sys; sys.modules[{gone!r}] = None\nfrom fedpower.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert "exact fit" in done.stdout
    assert done.returncode == (1 if gone == "numpy" else 0)
