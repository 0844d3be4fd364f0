"""Shared fixtures, the hypothesis profile, and the tiers: a test without a tier's mark is a fast one."""

import itertools
import os
import shutil
import tempfile

# Before SciPy is imported: else scikit-learn skips its check of array API input.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from problems import Array, spiked_rows
from tiers import FAST, IMPORT_TORCH, NAMED, TIERS, is_left_alone, named_in

settings.register_profile("fedpower", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("fedpower")

IN_MEMORY = Path("/dev/shm")  # noqa: S108
"""Where the fast and the slow tests make their files: a charge of a ledger waits several times for a disk."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose the fast tests where nothing else is said; whoever names files gets all but servers."""
    if not config.option.markexpr:
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.option.markexpr = NAMED if named else FAST
    chosen = config.option.markexpr
    if chosen in (FAST, "slow") and IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 2**30:
        tempfile.tempdir = str(IN_MEMORY)  # pytest's own folders are made there too


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave alone the files that have no test of the tier, and where it is another PyTorch's own."""
    chosen = config.option.markexpr
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    wanted = chosen == NAMED or (chosen != FAST and "devices" in chosen)
    if collection_path.name in IMPORT_TORCH and not wanted:
        return True
    return is_left_alone(collection_path.read_text(encoding="utf-8"), chosen) or None


@pytest.hookimpl(tryfirst=True)  # before those of other tiers are put aside
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that its tier would not find: the tiers of a file's tests are named in it."""
    marks: dict[Path, set[str]] = {}
    for item in items:
        marks.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    for path, found in marks.items():
        hidden = (found & set(TIERS)) - named_in(path.read_text(encoding="utf-8"))
        if hidden:
            raise pytest.UsageError(
                f"{path} must name the tiers of its tests as pytest.mark.TIER, got tests of "
                f"{', '.join(sorted(hidden))} without; see tests/tiers.py"
            )


@pytest.fixture
def rows() -> Array:
    return spiked_rows()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Give a ledger in memory, of which one study of epsilon 1 can be paid."""
    with Ledger.in_memory(1.0, 1e-6, silo="north") as made:
        yield made


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each silo draw noise of its own that is the same in every run of a test."""
    seeds = itertools.count(3)

    class Repeated(SystemNoise):
        def __init__(self) -> None:
            self.words = SeededNoiseForExperiments(next(seeds)).words  # type: ignore[method-assign]

    monkeypatch.setattr("fedpower.protocol.silo.SystemNoise", Repeated)
