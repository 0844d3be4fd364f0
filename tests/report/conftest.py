"""Results of every kind, written, read and drawn at most once in a process."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from parsed_page import Node, parsed

from fedpower import load
from fedpower.report import Result
from fedpower.report.page import result_page
from sample_results import sample


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    base = tmp_path_factory.mktemp("results")
    return lambda kind: sample(base, kind)


@pytest.fixture(scope="session")
def result(folders: Callable[[str], Path]) -> Callable[[str], Result]:
    return cache(lambda kind: load(folders(kind)))


@pytest.fixture(scope="session")
def shown(result: Callable[[str], Result]) -> Callable[[str], Node]:
    return cache(lambda kind: parsed(result_page(result(kind))))
