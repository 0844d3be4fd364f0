"""`fedpower doctor` finds what is sound, what is absent and what is broken, and never fails itself."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fedpower.cli.health import Finding, Requirement, check_extra, check_isolation, check_packages, within
from hospitals import run, succeed

from fedpower import native
from fedpower.cli import health, selftests
from fedpower.cli.doctor import _without_loops, examine
from fedpower.federation.isolation import Isolation

ASKED = [
    Requirement(package="numpy", bounds=">=2.0", extra=None),
    Requirement(package="scikit-learn", bounds=">=1.6", extra=None),
]


def module(folder: Path, name: str, body: str, version: str = "1.0") -> Requirement:
    """Install a small package into a folder, as pip leaves it, and return that it is asked for."""
    (folder / f"{name}.py").write_text(body)
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return Requirement(package=name, bounds=">=1.0,<2", extra="own")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which this process and those it starts import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
    return tmp_path


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no extra be tried: importing all of them takes a while."""
    extras = health.extras_of(health.requirements())
    monkeypatch.setattr(health, "NOT_FOR_USERS", (*health.NOT_FOR_USERS, *extras))


@pytest.mark.programs
def test_this_installation_is_sound(here: Path):
    before = sorted(here.iterdir())
    reported = json.loads(succeed("doctor", "--json", "--folder", ".").stdout)
    assert reported["sound"] is True
    states = {each["name"]: each["state"] for each in reported["findings"]}
    tests = ("Python", "packages", "matrix products", "exact fit", "noise", "private fit", "ledger")
    assert {name: states[name] for name in tests} == dict.fromkeys(tests, "sound")
    extras = set(importlib.metadata.metadata("fedpower").get_all("Provides-Extra")) - {"dev"}
    assert {f"extra {extra}" for extra in extras} <= set(states)
    assert states["isolation"] in ("sound", "absent")
    assert sorted(here.iterdir()) == before


@pytest.mark.programs
@pytest.mark.usefixtures("without_extras")
def test_a_table_tells_the_findings():
    said = succeed("doctor")
    assert said.stdout.splitlines()[0].startswith("fedpower ")
    assert "epsilon=1 is calibrated" in said.stdout
    assert said.stdout.splitlines()[-1] == "fedpower is sound here."


@pytest.mark.parametrize(
    ("version", "bounds", "kept"),
    [
        ("2.4.6", ">=2.0", True),
        ("2.0", ">=2.0.0", True),
        ("1.26.4", ">=2.0", False),
        ("23.2.0", "<24", True),
        ("24.0", "<24", False),
        ("0.6.0", "<0.7,>=0.6", True),
        ("0.10.0", "<0.7,>=0.6", False),
        ("2.13.0+cpu", ">=2.6", True),
        ("3.0rc1", ">=3.0", False),
        ("3.1rc1", ">=3.0", True),
        ("2.5.3", "~=2.4", True),
        ("3.0", "~=2.4", False),
        ("2.4.1", "!=2.4.*", False),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_as_installers_do(version: str, bounds: str, kept: bool):
    assert within(version, bounds) is kept


def test_every_requirement_of_the_package_is_understood():
    asked = health.requirements()
    core = {each.package for each in asked if not each.extra}
    assert {"numpy", "polars", "scikit-learn"} <= core
    assert not core & {"attrs", "dp-accounting"}  # an oracle of the tests alone
    assert {"flare", "sql", "torch"} <= set(health.extras_of(asked))
    assert "dev" not in health.extras_of(asked)
    by_name = {each.package: each for each in asked}
    assert by_name["scikit-learn"].module == "sklearn"
    assert by_name["adbc-driver-sqlite"].module == "adbc_driver_sqlite"
    assert by_name["attrs"].bounds == "<24"


@pytest.mark.programs
def test_a_package_that_is_too_old_or_not_there_is_broken():
    assert check_packages(ASKED).state == "sound"
    old = Requirement(package="numpy", bounds=">=999", extra=None)
    found = check_packages([*ASKED, old])
    assert (found.state, found.detail[:21]) == ("broken", "numpy must be >=999, ")
    gone = Requirement(package="no-such-package", bounds="", extra=None)
    assert check_packages([gone]).detail == "no-such-package is not installed"


def test_an_extra_that_is_absent_breaks_nothing_and_is_told_how_to_get():
    gone = Requirement(package="no-such-package", bounds="", extra="sql")
    found = check_extra("sql", [*ASKED, gone])
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
    asked = module(site, "fragile", body)
    assert check_extra("own", [asked]) == Finding(
        name="extra own",
        state="broken",
        detail=reported,
        advice="`pip install '.[own]'` in a copy of the project",
    )


def test_an_extra_of_another_version_is_broken_and_one_that_prints_is_sound(site: Path):
    newer = module(site, "newer", "", version="2.5")
    assert check_extra("own", [newer]).detail == "newer must be >=1.0,<2, got 2.5"
    loud = module(site, "loud", "print('hello'); import warnings; warnings.warn('x')")
    assert check_extra("own", [loud]).state == "sound"


@pytest.mark.programs
def test_an_import_that_hangs_is_broken(site: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "TIMEOUT_S", 1)
    asked = module(site, "endless", "import time; time.sleep(60)")
    assert "no answer within 1 seconds" in check_extra("own", [asked]).detail


@pytest.mark.programs
@pytest.mark.usefixtures("without_extras")
def test_what_is_broken_is_told_in_one_line_and_gives_status_1(monkeypatch: pytest.MonkeyPatch):
    def fail() -> str:
        raise ZeroDivisionError("by\nzero")

    def off() -> str:
        raise selftests.SelfTestError("noise must be fresh in every draw, got the same twice")

    monkeypatch.setattr(selftests, "blas", fail)
    monkeypatch.setattr(selftests, "noise", off)
    said = run("doctor")
    assert said.exit_code == 1
    assert "Broken: matrix products, noise." in said.stdout
    assert "ZeroDivisionError: by zero" in said.stdout
    assert said.stderr == ""


def test_it_says_whether_loops_in_c_or_numpy_are_used(monkeypatch: pytest.MonkeyPatch):
    if native.loops() is not None:
        assert selftests.loops() == "the loops in C are used, and give what NumPy gives"
    monkeypatch.setenv("FEDPOWER_NATIVE", "0")
    assert selftests.loops() == ""
    found = _without_loops()
    assert found.state == "absent"
    assert found.detail == "NumPy is used in their place: FEDPOWER_NATIVE is 0"


def test_a_system_that_cannot_isolate_a_silo_is_warned_of_and_not_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "available", lambda: Isolation.LANDLOCK)
    assert check_isolation().state == "sound"
    assert check_isolation().detail.startswith("Landlock (ABI ")
    monkeypatch.setattr(health, "available", lambda: Isolation.NONE)
    assert check_isolation().state == "absent"
    assert check_isolation().detail.startswith("NO ISOLATION: ")


@pytest.mark.parametrize("test", ["blas", "exact_fit", "noise", "private_fit"])
def test_every_self_test_passes_here(test: str):
    assert getattr(selftests, test)()


def test_noise_that_is_constant_or_too_small_is_noticed(monkeypatch: pytest.MonkeyPatch):
    import numpy as np

    draw = "fedpower.privacy.noise.gaussian_integers"
    monkeypatch.setattr(draw, lambda source, n, scale: np.full(n, scale))
    with pytest.raises(selftests.SelfTestError, match="same twice"):
        selftests.noise()
    rng = np.random.default_rng(0)
    monkeypatch.setattr(draw, lambda source, n, scale: rng.standard_normal(n) * scale / 2)
    with pytest.raises(selftests.SelfTestError, match="size asked for"):
        selftests.noise()


@pytest.mark.programs
@pytest.mark.usefixtures("without_extras")
def test_a_folder_that_keeps_no_ledger_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert str(tmp_path) in selftests.ledger(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (ledger,) = [each for each in examine(tmp_path / "nowhere") if each.name == "ledger"]
    assert ledger.state == "broken"
    assert "nowhere" in ledger.detail
    monkeypatch.setattr(selftests, "LOCKED", "print('free')")
    with pytest.raises(selftests.SelfTestError, match="keeps no locks"):
        selftests.ledger(tmp_path)


@pytest.mark.programs
@pytest.mark.parametrize("gone", ["rich", "numpy"])
def test_without_a_package_that_is_needed_the_doctor_still_speaks(gone: str):
    code = f"import sys; sys.modules[{gone!r}] = None\nfrom fedpower.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert "exact fit" in done.stdout
    assert done.returncode == (1 if gone == "numpy" else 0)


def test_a_folder_that_is_none_is_a_finding_with_advice(here: Path):
    with pytest.raises(selftests.SelfTestError, match="must be a folder that can be written") as raised:
        selftests.ledger(Path("nowhere"))
    assert raised.value.advice == "make it writable, or name another with --folder"


@pytest.mark.programs
@pytest.mark.usefixtures("without_extras")
def test_whatever_is_broken_has_something_to_do_beside_it(here: Path):
    findings = examine(here / "north.csv")
    broken = [each for each in findings if each.state == "broken"]
    assert [each.name for each in broken] == ["ledger"]
    assert "PermissionError" not in broken[0].detail
    assert all(each.advice for each in broken)
