"""Results of every kind, written once for all tests of the report."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedpower.report import Result, read_result
from sample_results import KINDS, kinds


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = kinds(tmp_path_factory.mktemp("results"))
    assert set(made) == set(KINDS)
    return made


@pytest.fixture
def result(folders: dict[str, Path]) -> Callable[[str], Result]:
    return lambda kind: read_result(folders[kind])
