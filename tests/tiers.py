"""The tiers of the tests; one without a tier's mark is a fast one."""

import re

TIERS = (
    "slow", "programs", "audits", "memory", "reproduce", "benchmarks", "pages", "devices", "browser",
    "federation", "image",
)  # fmt: skip
"""Marks of tests that ``make test`` leaves to ``make test-all``, each with a target of its own."""

FAST = " and ".join(f"not {tier}" for tier in TIERS)

NAMED = "not federation and not image"
"""What runs of files that somebody names: all but servers and the image."""

IMPORT_TORCH = ("test_device_moment.py",)
"""Files of tests that take PyTorch with them; others import it where they need it."""

_MARKS = {tier: re.compile(rf"\bmark\.{tier}\b") for tier in TIERS}
_MARKS["devices"] = re.compile(r"\bmark\.devices\b|\bforms\(")  # row_forms.py marks some of its forms
_WHOLE = re.compile(rf"^pytestmark = \[?\s*pytest\.mark\.({'|'.join(TIERS)})\b", re.MULTILINE)


def named_in(text: str) -> set[str]:
    """Return the tiers that a file of tests names, of which alone it may hold tests."""
    return {tier for tier, mark in _MARKS.items() if mark.search(text)}


def is_left_alone(text: str, chosen: str) -> bool:
    """Return whether a file of tests cannot hold one that is chosen by marks, so need not be imported.

    To import all of them takes some ten seconds a process, and a tier is in a few.
    """
    if chosen == FAST:
        return _WHOLE.search(text) is not None
    if " or " in chosen or "(" in chosen:
        return False
    wanted = set(chosen.split(" and ")) & set(TIERS)
    return not wanted <= named_in(text)
