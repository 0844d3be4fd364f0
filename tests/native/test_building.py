"""The loops in C: built where there is a compiler, done without elsewhere, used only if they fit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_build
from fedpower import native

pytestmark = pytest.mark.programs


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "src" / "fedpower" / "native"
    folder.mkdir(parents=True)
    for source in (*native.FOLDER.glob("*.c"), *native.FOLDER.glob("*.h")):
        shutil.copy(source, folder)
    shutil.copy(native.__file__, folder)
    return tmp_path


def account_in(project: Path) -> str:
    """What the package's loader in a folder says, in a process of its own."""
    code = "import native; print(native.account())"
    environment = {**os.environ, "PYTHONPATH": str(project / "src" / "fedpower")}
    environment.pop("FEDPOWER_NATIVE", None)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_a_compiler_makes_a_library_that_is_used_unless_it_is_of_another_source(project):
    folder = project / "src" / "fedpower" / "native"
    built = hatch_build.compile_loops(project)
    assert built == folder / native.BUILT.name
    assert account_in(project) == "the loops in C are used"
    others = {each.name for each in folder.iterdir() if each.suffix not in {"", ".c", ".h"}}
    assert others == {"__init__.py", native.BUILT.name}
    with (folder / "lattice.c").open("a") as source:
        source.write("\n")
    assert "another version" in account_in(project)
    built.write_bytes(b"none")
    assert "cannot be loaded" in account_in(project)


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false"])
def test_without_a_compiler_numpy_is_used_and_one_line_says_so(project, compiler, monkeypatch, capsys):
    monkeypatch.setenv("CC", compiler)
    assert hatch_build.compile_loops(project) is None
    said = capsys.readouterr().err
    assert said.startswith("fedpower: the loops in C were not compiled, NumPy is used in their place")
    assert said.count("\n") == 1
    assert "were not compiled" in account_in(project)
