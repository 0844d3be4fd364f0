"""The tiers of the tests: every mark has a target, and PyTorch is imported in its own tier alone."""

import re
from pathlib import Path

from tiers import FAST, IMPORT_TORCH, NAMED, TIERS, is_left_alone

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


def test_a_tier_imports_the_files_that_name_it_and_leaves_the_others_alone():
    whole, one = "pytestmark = pytest.mark.audits", "@pytest.mark.audits\ndef test_it(): ..."
    for text in (whole, one):
        assert not is_left_alone(text, "audits")
        assert not is_left_alone(text, "audits and not pages")
        assert is_left_alone(text, "slow")
        assert is_left_alone(text, "audits and pages")
        for chosen in (NAMED, "not slow", "slow or audits", "not (slow and pages)"):
            assert not is_left_alone(text, chosen)
    assert is_left_alone(whole, FAST)
    assert is_left_alone("pytestmark = [\n    pytest.mark.audits,\n]", FAST)
    assert not is_left_alone(one, FAST)
    assert not is_left_alone("def test_it(): ...", FAST)
