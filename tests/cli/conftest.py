"""A folder of hospitals, for every test of a command."""

from pathlib import Path

import pytest
from hospitals import write_hospitals


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the hospitals' files."""
    write_hospitals(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
