"""Gaussian-DP accounting against arithmetic of 60 digits."""

import itertools
import math

import mpmath
import pytest

from fedpower.errors import InputError
from fedpower.privacy.accounting import _DELTA_MARGIN as DELTA_MARGIN
from fedpower.privacy.accounting import _log_delta as log_delta
from fedpower.privacy.accounting import (
    compose,
    delta_of,
    delta_with_distance,
    epsilon_of,
    mu_of,
    multiplier_of,
)

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
    assert delta_with_distance(1e-6, 1.0, 1e-9) == pytest.approx(1e-6 + (1 + math.e) * 1e-9)
    assert delta_with_distance(1e-6, 1.0, 0.0) == 1e-6
    assert delta_with_distance(1e-6, 5000.0, 1e-30) == 1.0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: multiplier_of(0.0, 1e-6), "epsilon must be above 0"),
        (lambda: multiplier_of(math.nan, 1e-6), "epsilon must be above 0"),
        (lambda: multiplier_of(1.0, 0.0), "delta must lie between 0 and 1"),
        (lambda: epsilon_of(1.0, 1.0), "delta must lie between 0 and 1"),
        (lambda: epsilon_of(-1.0, 0.1), "mu must be a number of at least 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
