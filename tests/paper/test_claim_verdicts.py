"""Claims are functions of the runs: each comes out true where it is, and false where it is not."""

import itertools
import json
import math

import numpy as np
import pytest
from worlds import FALSE, SETTINGS, TRUE, scaled, twist_of, world

from paper.claims import (
    Bound,
    Claim,
    Part,
    Sample,
    estimate,
    judge,
    judge_all,
    ratio,
    rounds_to,
    rows_to,
    slope,
)
from paper.curves import Curve
from paper.own_claims import own_claims
from paper.paper_claims import LESS, fedpower, paper_claims
from paper.table import Table, read_table

pytestmark = pytest.mark.reproduce

CLAIMS = {claim.name: claim for claim in [*paper_claims(SETTINGS), *own_claims(SETTINGS)]}


@pytest.fixture(scope="module")
def plain() -> Table:
    return world()


@pytest.mark.parametrize("name", CLAIMS)
def test_each_claim_holds_in_a_world_where_it_is_true(name: str, plain: Table) -> None:
    twist = twist_of(TRUE, name)
    verdict = judge(CLAIMS[name], plain if twist is None else world(**twist))
    assert verdict.holds, verdict.explanation
    assert verdict.explanation.startswith("It holds: ")


@pytest.mark.parametrize("name", CLAIMS)
def test_each_claim_fails_in_a_world_where_it_is_false(name: str) -> None:
    twist = twist_of(FALSE, name)
    assert twist is not None, "every claim must have a world in which it is false"
    verdict = judge(CLAIMS[name], world(**twist))
    assert not verdict.holds, verdict.explanation
    assert verdict.explanation.startswith("It does not hold: ")


def test_a_planted_wrong_claim_does_not_hold(plain: Table) -> None:
    wrong = Claim(
        name="smaller-epsilon-gives-smaller-error",
        whose="paper",
        sentence="Smaller ε gives smaller error.",
        locus="nowhere",
        figure="3",
        panel="b",
        how="As the right one, the other way round.",
        parts=[
            Part(
                what="last error at ε=0.5 over that at ε=10",
                sample=lambda table: ratio(
                    table, fedpower("I", "paper"), fedpower("I", "paper", epsilon=10.0)
                ),
                bound=LESS,
            )
        ],
    )
    verdict = judge(wrong, plain)
    assert not verdict.holds
    assert verdict.weakest.found.p_value > 0.999
    assert verdict.as_dict()["holds"] is False


def test_the_paper_has_at_least_eight_claims_and_names_are_unique() -> None:
    paper = [claim for claim in CLAIMS.values() if claim.whose == "paper"]
    assert len(CLAIMS) == len(paper_claims(SETTINGS)) + len(own_claims(SETTINGS))
    assert len({claim.sentence for claim in paper}) >= 8
    assert all(claim.locus.startswith("[FP ") for claim in paper)


def test_only_claims_whose_runs_are_there_are_judged(plain: Table) -> None:
    some = Table([row for row in plain.rows if row.figure == "silos"])
    assert [each.claim.name for each in judge_all(list(CLAIMS.values()), some)] == [
        "noise-term-falls-with-silos-I"
    ]


def test_where_noise_drowns_everything_the_verdict_says_so() -> None:
    drowned = world(error=lambda curve, value: 0.999 if curve.noise == "paper" else value)
    ordered = judge(CLAIMS["epsilon-orders-the-error-II"], drowned)
    assert not ordered.holds
    assert "because the noise drowns the signal" in ordered.explanation
    assert all(each.found.holds for each in ordered.also["step"])
    little = judge(CLAIMS["participation-matters-little-II"], drowned)
    assert little.holds
    assert "though only because the noise drowns the signal" in little.explanation


def test_what_too_few_repetitions_leave_open_is_told_apart_from_what_is_false() -> None:
    wobble = itertools.cycle([0.2, 2.0])

    def wide(curve: Curve, value: float) -> float:
        return value * next(wobble) if curve.epsilon == 1.0 else value

    verdict = judge(CLAIMS["epsilon-orders-the-error-I"], world(error=wide))
    assert not verdict.holds
    assert verdict.explanation.startswith("It is not shown: ")
    assert "6 repetitions spread too widely" in verdict.explanation


def test_a_verdict_is_strict_json_whatever_came_out() -> None:
    never = world(error=scaled(lambda c: c.figure == "schedules", lambda c: 1e9))
    record = judge(CLAIMS["communications-are-divided-by-p-I"], never).as_dict()
    assert record["test"]["value"] is None
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert {"id", "whose", "sentence", "locus", "figure", "panel", "how"} <= record.keys()


def test_an_estimate_is_student_s_interval_and_test() -> None:
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


def test_ratios_are_geometric_means() -> None:
    found = estimate(Sample(values=np.log([1.0, 4.0]), ratios=True), Bound(at_least=1.0))
    assert found.value == pytest.approx(2.0)
    assert found.low < 2.0 < found.high


@pytest.mark.parametrize(("value", "holds"), [(0.5, True), (2.0, False), (math.inf, False)])
def test_numbers_that_are_all_alike_need_no_test(value: float, holds: bool) -> None:
    found = estimate(Sample(values=np.full(3, value)), Bound(at_most=1.0))
    assert (found.value, found.holds) == (value, holds)


def test_slopes_rounds_and_rows_are_read_off_exactly() -> None:
    exact = world(error=lambda curve, value: 0.8 / curve.copies**0.5)
    where = {"figure": "rows", "solver": "fedpower", "noise": "paper"}
    n_rows = SETTINGS.sizes["II"].n_rows
    np.testing.assert_allclose(rows_to(exact, where, 0.4), 4 * n_rows, rtol=1e-4)
    np.testing.assert_array_equal(rows_to(exact, where, 0.8), n_rows)
    assert np.isinf(rows_to(exact, where, 1e-3)).all()
    sizes = {copies: {**where, "n_rows": n_rows * copies} for copies in (1, 10, 100)}
    np.testing.assert_allclose(slope(exact, sizes).values, -0.5, atol=1e-5)
    plain = world(error=lambda curve, value: value)
    once = {"figure": "schedules", "panel": "I", "local_steps": 1}
    np.testing.assert_array_equal(rounds_to(plain, once, 1e-2), 4)
    assert np.isinf(rounds_to(plain, once, 1e-20)).all()


def test_the_table_reads_back_from_its_csv_and_gives_the_same_verdicts(plain: Table) -> None:
    again = read_table(plain.as_csv())
    assert again.as_csv() == plain.as_csv()
    for claim in CLAIMS.values():
        assert judge(claim, again).as_dict() == judge(claim, plain).as_dict()


def test_a_question_that_means_two_curves_is_our_own_mistake(plain: Table) -> None:
    with pytest.raises(AssertionError, match="one curve must be meant"):
        plain.values(figure="3", solver="fedpower")
