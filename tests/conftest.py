"""Shared fixtures and the hypothesis profile."""

import pytest
from hypothesis import settings

from problems import Array, spiked_rows

settings.register_profile("fedpower", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("fedpower")


@pytest.fixture
def rows() -> Array:
    return spiked_rows()
