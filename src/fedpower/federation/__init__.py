"""A federation of separate processes: what its parties agree on, and what each of them runs."""

import importlib.util

from fedpower.exceptions import InputError, installing

FEDERATION_FILE, SILO_FILE, IDENTITY = "federation.toml", "silo.toml", "identity.pem"
TLS, KEY, CERTIFICATE, AUTHORITY_CERTIFICATE = "tls", "party.key", "party.crt", "authority.crt"
REVOKED = "revoked.crl"
"""Files of a kit; the node of a silo reads the first and the folder ``tls``, and nothing else of it."""

MOST_BYTES = 2**28 + 2**22  # of a message: an exact moment of 8,192 columns has fewer


def needs_flare() -> None:
    """Refuse to continue without NVIDIA FLARE."""
    if importlib.util.find_spec("nvflare") is None:
        must = "a federation of separate processes must have NVIDIA FLARE"
        raise InputError(f"{must}, got none installed; run {installing('flare')}")
