"""The constants of ``auto``'s prediction are held to what was rehearsed over the grid."""

import json
from pathlib import Path

import pytest

from benchmarks.clipped import CLEARLY, MOST_LOST, Point

pytestmark = pytest.mark.benchmarks

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "clipped_auto.json"
FIELDS = ("n_features", "rank", "energy", "epsilon", "n_rows", "spectrum")


def test_auto_clips_where_it_gains_clearly_and_never_loses_where_the_moment_wins():
    found = json.loads(STORED.read_text(encoding="utf-8"))["measured"]
    taken = []
    for each in found:
        point = Point(**{name: each[name] for name in FIELDS})
        ratio = each["clipped"] / each["moment"]
        taken.append(point.taken)
        assert ratio <= MOST_LOST or not point.taken, each
        assert ratio >= CLEARLY or point.taken, each
        assert point.taken == each["taken"], each
    assert 20 < sum(taken) < len(taken) - 20
