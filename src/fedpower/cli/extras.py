"""What to say where an optional part of fedpower is not installed."""

import importlib.util

from fedpower.errors import InputError, installing


def needs_flare() -> None:
    """Refuse to go on without NVIDIA FLARE, in one sentence."""
    if importlib.util.find_spec("nvflare") is None:
        raise InputError(
            "a federation of separate processes must have NVIDIA FLARE, got none installed; run "
            + installing("flare")
        )
