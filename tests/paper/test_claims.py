"""Repetitions run the paper's settings; claims about them come out true where they are so."""

import json
from dataclasses import replace

import numpy as np
import pytest
from worlds import FALSE, SETTINGS, TRUE, twist_of, world

from fedpower.linalg import orth, sin_theta
from fedpower.options import PowerMethod
from paper.claims import Bound, Sample, estimate, judge
from paper.curves import Curve, terms_of
from paper.driven import keep, pooled_moment
from paper.own_claims import own_claims
from paper.paper_claims import paper_claims
from paper.runs import Run, run_repetition
from paper.settings import PAPER, Settings, derived_seed
from paper.table import Table, read_table

pytestmark = pytest.mark.reproduce


QUICK = Settings(quick=True, repetitions=2)
PLAIN = Curve(figure="3", panels=("a",), model="I")
COVARIANCE = replace(PLAIN, noise="covariance", epsilon=0.5)


def run(*curves: Curve, n_jobs: int = 1, repetition: int = 0) -> list[Run]:
    return run_repetition(QUICK, "I", repetition, curves, n_jobs=n_jobs)


def test_without_noise_a_round_at_every_step_is_central_power_iteration():
    curve = replace(PLAIN, local_steps=1, schedule="constant")
    (made,) = run(curve)
    pooled = pooled_moment(keep(QUICK.model("I", 0)))
    truth = np.linalg.eigh(pooled)[1][:, -4:]
    rng = np.random.default_rng(derived_seed("0/0/I", "start"))
    basis = orth(rng.standard_normal((pooled.shape[0], 5)))
    expected = []
    for _ in range(10):
        basis = orth(pooled @ basis)
        expected.append(sin_theta(basis, truth))
    np.testing.assert_allclose([point.error for point in made.points], expected, rtol=1e-9)


def test_the_outcome_does_not_depend_on_threads_or_on_what_runs_beside():
    curves = [PLAIN, *(replace(PLAIN, noise=noise, epsilon=0.5) for noise in ("paper", "step"))]
    curves += [
        COVARIANCE,
        replace(COVARIANCE, solver="krylov", local_steps=1),
        replace(COVARIANCE, epsilon=1.0),
    ]
    together = run(*curves, n_jobs=3)
    for place, curve in enumerate(curves):
        (alone,) = run(curve)
        assert repr(alone.points) == repr(together[place].points)


def test_the_paper_s_numbers_reach_the_solver():
    sizes = {f"silo-{place}": 100_000 for place in range(20)}
    curve = replace(PLAIN, noise="paper", epsilon=0.5, participation=0.4)
    study, settings = terms_of(curve, PAPER["I"], sizes)
    assert (study.epsilon, study.delta, study.n_steps) == (0.5, 1e-4, 10)
    expected = PowerMethod(tol=0.0, n_steps=10, n_participants=8, local_steps=2, schedule="decaying")
    assert settings.solver == expected
    ours = replace(curve, solver="krylov", noise="step", participation=1.0)
    study, settings = terms_of(ours, PAPER["I"], sizes)
    assert settings.method == "krylov"
    assert (settings.n_steps, settings.solver.n_participants, study.iteration_rank) == (10, None, 5)
    for model in ("I", "II"):
        default = replace(COVARIANCE, solver="default", model=model)
        study, settings = terms_of(default, PAPER[model], sizes)
        assert settings.method == "upload"
        assert (study.noise, study.center) == ("covariance", False)


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
