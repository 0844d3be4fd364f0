"""Claims are functions of the runs: each comes out true where it is, and false where it is not."""

import json

import numpy as np
import pytest
from worlds import FALSE, SETTINGS, TRUE, twist_of, world

from paper.claims import Bound, Sample, estimate, judge
from paper.own_claims import own_claims
from paper.paper_claims import paper_claims
from paper.table import Table, read_table

pytestmark = pytest.mark.reproduce

CLAIMS = {claim.name: claim for claim in [*paper_claims(SETTINGS), *own_claims(SETTINGS)]}


@pytest.fixture(scope="module")
def plain() -> Table:
    return world()


@pytest.mark.parametrize("name", CLAIMS)
def test_each_claim_holds_in_a_world_where_it_is_true_and_fails_in_another(name, plain):
    for worlds, holds, words in ((TRUE, True, "It holds: "), (FALSE, False, "It does not hold: ")):
        twist = twist_of(worlds, name)
        assert holds or twist is not None, "every claim must have a world in which it is false"
        verdict = judge(CLAIMS[name], plain if twist is None else world(**twist))
        assert verdict.holds == holds, verdict.explanation
        assert verdict.explanation.startswith(words)


def test_where_noise_drowns_everything_the_verdict_says_so():
    drowned = world(error=lambda curve, value: 0.999 if curve.noise == "paper" else value)
    ordered = judge(CLAIMS["epsilon-orders-the-error-II"], drowned)
    assert not ordered.holds
    assert "because the noise drowns the signal" in ordered.explanation
    assert all(each.found.holds for each in ordered.also["step"])
    little = judge(CLAIMS["participation-matters-little-II"], drowned)
    assert little.holds
    assert "though only because the noise drowns the signal" in little.explanation


def test_an_estimate_is_student_s_interval_and_test():
    """Against SciPy's own t test."""
    from scipy.stats import ttest_1samp

    values = np.random.default_rng(0).normal(1.0, 2.0, 12)
    found = estimate(Sample(values=values), Bound(at_most=2.0))
    right = ttest_1samp(values, 2.0, alternative="less")
    interval = ttest_1samp(values, 0.0).confidence_interval(0.98)
    assert found.p_value == pytest.approx(right.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    twice = estimate(Sample(values=values), Bound(at_least=0.5, at_most=2.0))
    left = ttest_1samp(values, 0.5, alternative="greater")
    assert twice.p_value == pytest.approx(max(left.pvalue, right.pvalue))


def test_the_table_reads_back_from_its_csv_and_gives_the_same_verdicts(plain):
    again = read_table(plain.as_csv())
    assert again.as_csv() == plain.as_csv()
    for claim in CLAIMS.values():
        record = judge(claim, again).as_dict()
        assert json.loads(json.dumps(record, allow_nan=False)) == judge(claim, plain).as_dict()
