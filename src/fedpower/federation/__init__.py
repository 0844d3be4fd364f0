"""A federation of separate processes: what its parties agree on, and what each of them runs."""

import importlib.util

from fedpower.exceptions import InputError, installing

STUDY_FILE, SILO_FILE = "study.toml", "silo.toml"
TLS, KEY, CERTIFICATE, AUTHORITY_CERTIFICATE = "tls", "party.key", "party.crt", "authority.crt"
"""Files of a kit; the node of a silo reads the study and the folder ``tls``, and nothing else of it."""


def needs_flare() -> None:
    """Refuse to continue without NVIDIA FLARE."""
    if importlib.util.find_spec("nvflare") is None:
        must = "a federation of separate processes must have NVIDIA FLARE"
        raise InputError(f"{must}, got none installed; run {installing('flare')}")
