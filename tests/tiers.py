"""The tiers of the tests; one without a tier's mark is a fast one."""

TIERS = (
    "slow", "programs", "audits", "memory", "reproduce", "benchmarks", "pages", "devices", "browser",
    "federation",
)  # fmt: skip
"""Marks of tests that ``make test`` leaves to ``make test-all``, each with a target of its own."""

FAST = " and ".join(f"not {tier}" for tier in TIERS)

NAMED = "not federation"
"""What runs of files that somebody names: all but servers."""

IMPORT_TORCH = (
    "test_device_moment.py",
    "test_fused.py",
    "test_bytes.py",
    "test_limbs.py",
    "kernels.py",
)
"""Files of tests that take PyTorch with them; others import it where they need it."""
