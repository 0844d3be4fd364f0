"""Shared fixtures and the hypothesis profile."""

import os

# Before SciPy is imported: else scikit-learn skips its check of array API input.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

import pytest
from hypothesis import settings

from problems import Array, spiked_rows

settings.register_profile("fedpower", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("fedpower")


@pytest.fixture
def rows() -> Array:
    return spiked_rows()
