"""A folder of hospitals, and a result of two of them, for every test of a command."""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from hospitals import EXACT, succeed, write_hospitals


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to copy: the hospitals' files, and `model`, fitted to north and south."""
    folder = tmp_path_factory.mktemp("hospitals")
    write_hospitals(folder)
    with chdir(folder):
        succeed("fit", "north.csv", "south.parquet", *EXACT, "-o", "model")
    return folder


@pytest.fixture
def here(hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(hospitals, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
