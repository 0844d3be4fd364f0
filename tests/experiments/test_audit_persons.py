"""Neighbours that differ in all rows of a person: the promise holds, and wrong weights are caught.

Seeded audits do not vary. A sound silo is accused with probability 1 − confidence = 10⁻⁶ at most.
"""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fedpower.cli.privacy import audit
from fedpower.experiments.audit import audit_mode
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.rows import units
from fedpower.rows.units import PARTS, TALLY_PARTS
from fedpower.sums import lattice, local, moment, survey

pytestmark = pytest.mark.audits

TERMS = {"epsilon": 4.0, "delta": 1e-5, "n_steps": 2, "confidence": 1 - 1e-6, "unit": "person"}
CASES = [("moment", False), ("moment", True), ("step", False), ("secure", True), ("prepared", False)]


def audited(mode, center=False, n_runs=400):
    source = SeededNoiseForExperiments(1)
    return audit_mode(mode, center=center, n_runs=n_runs, source=source, **TERMS)


@pytest.mark.parametrize(("mode", "center"), CASES)
def test_no_person_is_told_from_another_better_than_promised(mode, center):
    if mode == "secure":
        pytest.importorskip("cryptography")
    found = audited(mode, center, n_runs=60 if mode == "secure" else 400)
    assert not found.violation
    assert found.unit == "person"


@pytest.mark.parametrize(("mode", "center"), [case for case in CASES if case[0] != "secure"])
def test_persons_are_as_far_apart_as_the_noise_is_made_for(mode, center):
    """No neighbours are worse, and weights are not smaller than they may be: within 2√m/P, of 4 rows."""
    found = audited(mode, center, n_runs=20)
    # Preparation weighs in parts of T, of which three rows have three thirds less one.
    loose = 1e-3 if mode == "prepared" else 2e-4
    assert found.reachable_epsilon <= found.exact_epsilon * (1 + 1e-9)
    assert found.reachable_epsilon == pytest.approx(found.exact_epsilon, rel=loose)


@pytest.mark.parametrize("mode", ["moment", "step", "prepared"])
def test_weights_that_do_not_add_up_to_one_are_caught(mode, monkeypatch):
    """The planted error: every row of a person counts in full, as it did before persons counted."""
    monkeypatch.setattr(lattice, "lattice_shares", lambda m, most: np.full(m.shape, 1.0 * PARTS))
    for module in (moment, local):
        monkeypatch.setattr(module, "exact_weights", lambda m, most: np.ones(m.shape))
    monkeypatch.setattr(survey, "tally_weights", lambda m, most: np.full(m.shape, TALLY_PARTS))
    assert audited(mode).violation


@pytest.mark.parametrize("mode", ["moment", "step", "prepared"])
def test_ids_that_are_told_apart_by_their_spelling_are_caught(mode, monkeypatch):
    """The planted error: 7, 7.0 and 7.00 are three persons, as they were before there was one key."""
    monkeypatch.setattr(units, "_in_one_spelling", lambda texts: texts)
    assert audited(mode).violation


def test_the_command_audits_persons():
    words = ["--mode", "moment", "--neighbours", "person", "--runs", "20", "--json"]
    done = CliRunner().invoke(audit, words, standalone_mode=False)
    assert {each["unit"] for each in json.loads(done.stdout)["audits"]} == {"person"}
