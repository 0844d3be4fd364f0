"""The audit of counted scores: the promise is met, and a forgotten factor is caught."""

from dataclasses import replace

import numpy as np
import pytest

from fedpower.experiments.audit import audit_mode
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol import query as queries
from fedpower.rows.units import TALLY_PARTS
from fedpower.sums import survey

TERMS = {"epsilon": 4.0, "delta": 1e-5, "n_rows": 20, "confidence": 0.999}


def audited(seed: int, n_runs: int = 300, **changed: object):
    source = SeededNoiseForExperiments(seed)
    return audit_mode("scores", n_runs=n_runs, source=source, **{**TERMS, **changed})


def test_the_attacker_of_moment_and_scores_sees_all_that_is_promised_and_no_more():
    """Scales of counts are rounded up to whole numbers, of which there are few at such an epsilon."""
    assert 0.95 < audited(1, 20, epsilon=1.0).reachable_epsilon <= 1.0 * (1 + 1e-4)


@pytest.mark.audits
@pytest.mark.parametrize("unit", ["row", "person"])
def test_scores_keep_their_promise_and_a_third_of_the_noise_is_caught(unit):
    """With confidence 0.999 of the first; in the second μ is 2.5 for 0.87, beyond ten standard errors."""
    assert not audited(2, unit=unit).violation
    assert audited(3, unit=unit, noise_factor=0.35).violation


@pytest.mark.audits
def test_a_forgotten_factor_is_caught(monkeypatch):
    """The planted errors: counts have noise for one place that changes in place of two, and for a row.

    Endless runs would show the first, the root of two; 300 runs show the second, of a person.
    """
    right = queries.of_counts

    def halved(size, **how):
        found = right(size, **how)
        return replace(found, squared=found.squared / 2)

    monkeypatch.setattr(queries, "of_counts", halved)
    small = audited(4, 20, epsilon=1.0)
    assert small.reachable_epsilon > 1.1 * small.claimed_epsilon
    monkeypatch.setattr(queries, "of_counts", lambda size, **how: right(size))
    assert audited(6, unit="person").violation


@pytest.mark.audits
def test_a_person_whose_every_row_counts_in_full_is_caught(monkeypatch):
    """The planted error: four rows of a person are four in the counts."""
    monkeypatch.setattr(survey, "tally_weights", lambda m, most: np.full(m.shape, TALLY_PARTS))
    assert audited(6, unit="person").violation
