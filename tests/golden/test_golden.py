"""Hashes, result folders and amounts are what they were."""

import difflib

import pytest

from golden.pins import HERE, PINS, as_text, pinned


@pytest.mark.parametrize("name", PINS)
def test_nothing_pinned_has_changed(name):
    was = pinned(name)
    differences = difflib.unified_diff(
        as_text(was).splitlines(), PINS[name].text(was).splitlines(), "pinned", "now", lineterm=""
    )
    reported = "\n".join(differences)
    assert not reported, f"{reported}\n\nif this is meant: `make golden`, and commit {name}.json"


def test_every_study_has_terms_of_its_own():
    hashes = pinned("studies")
    assert set(hashes) == {path.stem for path in (HERE / "studies").glob("*.toml")}
    for kind in ("agreement", "terms"):
        assert len({each[kind] for each in hashes.values()}) == len(hashes)
