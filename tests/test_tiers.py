"""The tiers of the tests: every mark has a target, and PyTorch is imported in its own tier alone."""

import re
from pathlib import Path

from tiers import FAST, IMPORT_TORCH, TIERS

ROOT = Path(__file__).parents[1]
AT_THE_TOP = re.compile(r"^(\S.* = )?(import|from|pytest\.importorskip\(.) ?(torch|triton)\b", re.MULTILINE)


def test_every_tier_has_a_mark_and_a_target_that_test_all_runs(pytestconfig):
    marks = {line.split(":")[0] for line in pytestconfig.getini("markers")}
    assert set(TIERS) <= marks
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (run,) = re.findall(r"^TIERS\s*:= (.*)$", makefile, flags=re.MULTILINE)
    assert sorted(run.split()) == sorted(f"test-{tier}" for tier in TIERS)
    for tier in TIERS:
        (recipe,) = re.findall(rf"^test-{tier}:.*##.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE)
        assert re.search(rf"-m \"?{tier}\b", recipe), tier
        assert f"not {tier}" in FAST


def test_pytorch_is_imported_at_the_top_of_its_own_tests_alone():
    """So the fast tests need none, and do not wait for it."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name not in IMPORT_TORCH:
            assert not AT_THE_TOP.search(path.read_text(encoding="utf-8")), path
