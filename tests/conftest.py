"""Shared fixtures, the hypothesis profile, and the tiers: a test without a tier's mark is a fast one."""

import os

# Before SciPy is imported: else scikit-learn skips its check of array API input.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

from pathlib import Path

import pytest
from hypothesis import settings

from problems import Array, spiked_rows
from tiers import FAST, IMPORT_TORCH, NAMED

settings.register_profile("fedpower", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("fedpower")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the fast tests where nothing else is said; whoever names files gets all but servers."""
    if not config.option.markexpr:
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.option.markexpr = NAMED if named else FAST


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave alone the files whose import takes PyTorch with it, where another tier is run."""
    chosen = config.option.markexpr
    wanted = chosen == NAMED or (chosen != FAST and "devices" in chosen)
    return (collection_path.name in IMPORT_TORCH and not wanted) or None


@pytest.fixture
def rows() -> Array:
    return spiked_rows()
