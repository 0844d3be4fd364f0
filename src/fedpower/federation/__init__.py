"""A federation of separate processes: what its parties agree on, and what each of them runs."""

import importlib.util

from fedpower.errors import InputError, installing


def needs_flare() -> None:
    """Refuse to continue without NVIDIA FLARE."""
    if importlib.util.find_spec("nvflare") is None:
        raise InputError(
            "a federation of separate processes must have NVIDIA FLARE, got none installed; run "
            + installing("flare")
        )
