"""Gaussian-DP accounting against arithmetic of 60 digits, and the price list: what releases cost together."""

import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest

from budgets import moment_bound, priced
from fedpower.exceptions import InputError
from fedpower.privacy.accounting import _DELTA_MARGIN as DELTA_MARGIN
from fedpower.privacy.accounting import _log_delta as log_delta
from fedpower.privacy.accounting import (
    compose,
    default_delta,
    delta_of,
    delta_with_distance,
    epsilon_of,
    mu_of,
    multiplier_of,
    noise_std,
)
from fedpower.privacy.budget import COVARIANCE, PRODUCT
from fedpower.privacy.sensitivity import moved_by_row
from fedpower.protocol.study import FREE_ORDER_ROWS, PANEL_ROWS, longest_sum
from fedpower.rows.opening import open_source
from fedpower.rows.source import block_rows
from fedpower.rules.treatment import RowTreatment
from fedpower.sums import local
from fedpower.sums.local import KernelChoice, LocalMoment

EPSILONS = [1e-4, 1e-2, 0.1, 0.46, 1.0, 3.0, 10.0, 60.0, 317.0, 1000.0]
DELTAS = [1e-30, 2.3e-28, 1e-15, 1e-10, 1e-6, 1e-4, 1e-2, 0.5]


def exact_delta(mu, epsilon):
    with mpmath.workdps(max(60, mpmath.mp.dps)):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.ncdf(mu / 2 - epsilon / mu)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def test_composition_is_pythagoras():
    assert compose([3.0, 4.0]) == 5.0
    assert compose([]) == 0.0
    assert compose([0.1] * 100) == pytest.approx(1.0, rel=1e-14)
    assert compose([1.0, math.inf]) == math.inf


def everywhere(test):
    return pytest.mark.parametrize(("epsilon", "delta"), list(itertools.product(EPSILONS, DELTAS)))(test)


@everywhere
def test_delta_is_never_too_small_and_computed_to_less_than_its_margin(epsilon, delta):
    calibrated = mu_of(epsilon, delta)
    with mpmath.workdps(60):
        for mu in (calibrated * factor for factor in (1 - 1e-3, 1, 1 + 1e-3)):
            exact = exact_delta(mu, epsilon)
            assert abs(mpmath.mpf(log_delta(mu, epsilon)) - mpmath.log(exact)) < DELTA_MARGIN / 2
            assert exact <= delta_of(mu, epsilon) <= exact * (1 + mpmath.mpf("4e-13"))


@everywhere
def test_the_calibrated_release_keeps_its_promise_and_wastes_nothing(epsilon, delta):
    multiplier, mu = multiplier_of(epsilon, delta), mu_of(epsilon, delta)
    back = epsilon_of(mu, delta)  # never too small, hardly too large, and undoes mu_of
    assert back <= epsilon
    assert back == pytest.approx(epsilon, rel=1e-6, abs=1e-6)
    with mpmath.workdps(60):
        assert exact_delta(1 / mpmath.mpf(multiplier), epsilon) <= delta
        smaller = mpmath.mpf(multiplier) / (1 + mpmath.mpf("1.001e-9"))
        assert exact_delta(1 / smaller, epsilon) > delta
        assert exact_delta(mu, back) <= delta
        assert exact_delta(mu, back * (1 - mpmath.mpf("1e-12")) - mpmath.mpf("1e-12")) > delta


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # its own, far out
@everywhere
def test_another_accountant_finds_the_same(epsilon, delta):
    other = dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert multiplier_of(epsilon, delta) == pytest.approx(other, rel=1.2e-9)
    other = dp_accounting.get_epsilon_gaussian(1 / mu_of(epsilon, delta), delta, tol=1e-15)
    assert epsilon_of(mu_of(epsilon, delta), delta) == pytest.approx(other, rel=5e-10, abs=1e-12)


@pytest.mark.parametrize("delta", [1e-300, 1e-100, 0.9, 0.9999])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-4, 1.0, 60.0, 1e4])
def test_a_promise_is_kept_beyond_the_range_of_the_stated_error(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert epsilon_of(mu, delta) <= epsilon
    with mpmath.workdps(400):
        assert exact_delta(mu, epsilon) <= delta
        assert exact_delta(mu, epsilon_of(mu, delta)) <= delta


def test_the_extremes_are_what_they_should_be():
    assert multiplier_of(math.inf, 1e-6) == 0
    assert mu_of(math.inf, 1e-6) == math.inf
    assert epsilon_of(math.inf, 1e-6) == math.inf
    assert epsilon_of(0.0, 1e-6) == 0
    assert delta_of(0.0, 1.0) == 0
    assert delta_of(math.inf, 1.0) == 1
    assert epsilon_of(0.01, 0.3) == 0  # (0, delta)-DP already
    assert delta_of(1e-320, 1.0) == 0
    assert delta_of(1e300, 1.0) == 1
    assert epsilon_of(1e-320, 1e-300) == 0
    assert epsilon_of(1e200, 1e-6) == math.inf  # μ²/2 is beyond a float


def test_total_variation_costs_one_plus_e_to_the_epsilon():
    cases = {
        (1e-6, 1.0, 1e-9): 1e-6 + (1 + math.e) * 1e-9,
        (1e-6, 1.0, 0.0): 1e-6,
        (1e-6, 5000.0, 1e-30): 1.0,
    }
    assert {given: delta_with_distance(*given) for given in cases} == pytest.approx(cases)


MODES = [(mode, center) for mode in ("paper", "step", "covariance") for center in (False, True)]


@pytest.mark.parametrize(("mode", "center"), MODES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_all_releases_compose_to_what_was_asked_and_never_above(mode, center, epsilon):
    budget = priced(mode, center=center, epsilon=epsilon)
    prices = [budget.price(terms.label).mu for terms in budget.queries for _ in range(terms.times)]
    assert compose(prices) <= budget.study_mu * (1 + 1e-12)
    spent = epsilon_of(compose(prices), budget.left_delta)
    assert spent <= epsilon
    if mode != "paper":
        assert spent == pytest.approx(epsilon, rel=1e-6)
    slack = [budget.price(terms.label).slack_delta * terms.times for terms in budget.queries]
    assert sum(slack) == pytest.approx(budget.slack_delta)
    assert budget.slack_delta < 1e-20


def test_the_papers_products_cost_what_their_noise_really_gives_and_no_less():
    budget = priced("paper")
    charged = budget.price(PRODUCT).mu
    for center_norm in (0.0, 0.1, 0.7, 3.0, 1e3):
        moved = budget.step_sensitivity(1000, center_norm)
        noise = budget.noise(PRODUCT, moved, (1000,))
        step = 2.0 ** -noise.exponents[0]
        real = math.sqrt(moved.squared) + step * math.sqrt(moved.size)  # with its rounding
        assert real / noise.stds[0] <= charged * (1 + 1e-12)
        assert charged == pytest.approx(real / noise.stds[0], rel=1e-5)
    assert charged < priced("step").price(PRODUCT).mu / 5


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: multiplier_of(0.0, 1e-6), "epsilon must be above 0"),
        (lambda: multiplier_of(math.nan, 1e-6), "epsilon must be above 0"),
        (lambda: multiplier_of(1.0, 0.0), "delta must be between 0 and 1"),
        (lambda: epsilon_of(1.0, 1.0), "delta must be between 0 and 1"),
        (lambda: epsilon_of(-1.0, 0.1), "mu must be a number of at least 0"),
        (lambda: priced("step", epsilon=math.inf), "must be used with noise='none' only"),
        (lambda: priced("step", epsilon=0.0), "got 0"),
        (lambda: priced("step", delta=0.0), "delta must be between"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def test_up_to_131072_rows_any_order_of_summation_is_covered_and_beyond_it_that_of_the_data_layer():
    assert local.FREE_ORDER_ROWS <= FREE_ORDER_ROWS
    for s in (1, 1000, FREE_ORDER_ROWS):
        assert longest_sum(s, 100) == s
    for d in (1, 10, 100, 2048, 4096, 40_000, 10**6):
        rows = block_rows(d)
        for s in (2 * 10**5, 10**7, 10**9):
            n_panels = math.ceil(s / min(PANEL_ROWS, rows))
            assert longest_sum(s, d) >= rows + n_panels - FREE_ORDER_ROWS // PANEL_ROWS
            assert longest_sum(s, d) <= s


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("s", [10**3, 10**8, 10**12])
def test_a_noised_moment_has_the_ideal_noise_however_many_rows_there_are(s, center):
    budget = priced("covariance", n_features=100, center=center)
    ideal = budget.price(COVARIANCE).multiplier * moment_bound(s, center=center)
    assert budget.std(s) == pytest.approx(ideal, rel=1e-11 if s < 2**22 else 1e-4)
    assert budget.std(s) >= ideal * (1 - 1e-12)


@pytest.mark.parametrize("kind", ["covariance", "product"])
def test_what_the_data_layer_computes_is_within_half_the_slack_of_the_truth(kind):
    s, d = 150_000, 4
    X = np.random.default_rng(0).normal(size=(s, d)) * 0.01
    X[:, 0] += np.where(np.arange(s) < block_rows(d), 0.9, -0.9)
    rule = RowTreatment(row_norm=1.0)
    moment = LocalMoment(open_source(X), rule, KernelChoice(kind=kind))
    wide = X.astype(np.longdouble)
    S = wide.T @ wide / s
    budget = priced("step", n_features=d, iteration_rank=2)
    Z = np.linalg.qr(np.random.default_rng(1).normal(size=(d, 2)))[0]
    exact = np.append(S @ Z.astype(np.longdouble), np.trace(S))
    computed = np.append(moment.product(Z), moment.summary.trace())
    ideal = moved_by_row("product", 2) / s
    error = np.linalg.norm((computed - exact).astype(float))
    assert 2 * error <= math.sqrt(budget.step_sensitivity(s, 0.0).squared) - ideal


TRIAL = {"epsilon": 0.5, "delta": 1e-4, "n_rows": 100_000, "n_steps": 10, "iteration_rank": 5}


def test_the_paper_mode_is_theorem_2_as_printed_and_needs_nine_times_the_noise_of_steps():
    printed = 2 * math.sqrt(5) / 1e5 * (2 * math.sqrt(2 * 10 * math.log(1e4)) / 0.5)
    assert noise_std("paper", **TRIAL) == pytest.approx(printed, rel=1e-12)
    loose = TRIAL | {"epsilon": 200.0, "delta": 0.2}  # the other branch of the maximum
    printed = 2 * math.sqrt(5) / 1e5 * math.sqrt(10 / 200)
    assert noise_std("paper", **loose) == pytest.approx(printed, rel=1e-12)
    assert noise_std("paper", **TRIAL) >= 9 * noise_std("step", **TRIAL)
    assert noise_std("paper", **TRIAL) >= 20 * noise_std("covariance", **TRIAL) * math.sqrt(
        101 / 200
    )  # d = 100
    for mode in ("paper", "step", "covariance"):
        assert noise_std(mode, **TRIAL | {"epsilon": math.inf}) == 0.0
        budget = priced(mode, epsilon=0.5, delta=1e-4, iteration_rank=5)
        assert budget.std(TRIAL["n_rows"]) == pytest.approx(noise_std(mode, **TRIAL), rel=1e-4)


def test_a_moment_is_charged_once_and_needs_root_two_more_than_one_step_of_rank_one():
    one = TRIAL | {"n_steps": 1, "iteration_rank": 1}
    assert noise_std("covariance", **one) == pytest.approx(math.sqrt(2) * noise_std("step", **one))
    more = TRIAL | {"n_steps": 1000, "iteration_rank": 50}
    assert noise_std("covariance", **more) == noise_std("covariance", **TRIAL)


def test_the_default_delta_is_well_below_one_over_n():
    for n in (1, 10, 10**4, 10**6, 10**9):
        assert 0 < default_delta(n) <= 1e-6
        assert default_delta(n) <= 1 / n
    assert default_delta(10**9) < 0.2 / 10**9
    for none in (0, -1, 1.5, math.nan, "9", True):
        with pytest.raises(InputError, match="n_rows must be a whole number of at least 1"):
            default_delta(none)
