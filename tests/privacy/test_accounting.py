"""Gaussian-DP accounting against arithmetic of 60 digits."""

import math
import subprocess
import sys

import mpmath
import pytest

from fedpower.errors import InputError
from fedpower.privacy.accounting import (
    compose,
    delta_of,
    delta_with_distance,
    epsilon_of,
    mu_of,
    multiplier_of,
)

EPSILONS = [1e-3, 1e-2, 0.1, 0.5, 1.0, 3.0, 10.0, 100.0, 1000.0]
DELTAS = [1e-15, 1e-10, 1e-6, 1e-4, 1e-2, 0.3]


def exact_delta(mu, epsilon):
    """[BW18 Thm 8] with 60 digits, as printed."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.ncdf(mu / 2 - epsilon / mu)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def test_composition_is_pythagoras():
    assert compose([3.0, 4.0]) == 5.0
    assert compose([]) == 0.0
    assert compose([0.1] * 100) == pytest.approx(1.0, rel=1e-14)
    assert compose([1.0, math.inf]) == math.inf


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_the_calibrated_release_keeps_its_promise_and_wastes_nothing(epsilon, delta):
    mu = 1 / multiplier_of(epsilon, delta)
    with mpmath.workdps(60):
        assert exact_delta(mu, epsilon) <= delta
        assert exact_delta(mu * (1 + 1e-7), epsilon) > delta


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_of_is_never_too_small_and_undoes_mu_of(epsilon, delta):
    mu = mu_of(epsilon, delta)
    back = epsilon_of(mu, delta)
    assert back <= epsilon
    assert back == pytest.approx(epsilon, rel=1e-6, abs=1e-6)
    assert exact_delta(mu, back) <= delta
    assert float(exact_delta(mu, epsilon)) == pytest.approx(delta_of(mu, epsilon), rel=1e-8)


def test_the_extremes_are_what_they_should_be():
    assert multiplier_of(math.inf, 1e-6) == 0
    assert mu_of(math.inf, 1e-6) == math.inf
    assert epsilon_of(math.inf, 1e-6) == math.inf
    assert epsilon_of(0.0, 1e-6) == 0
    assert delta_of(0.0, 1.0) == 0
    assert delta_of(math.inf, 1.0) == 1
    assert epsilon_of(0.01, 0.3) == 0  # (0, delta)-DP already


def test_total_variation_costs_one_plus_e_to_the_epsilon():
    assert delta_with_distance(1e-6, 1.0, 1e-9) == pytest.approx(1e-6 + (1 + math.e) * 1e-9)
    assert delta_with_distance(1e-6, 1.0, 0.0) == 1e-6
    assert delta_with_distance(1e-6, 5000.0, 1e-30) == 1.0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: multiplier_of(0.0, 1e-6), "epsilon must be above 0"),
        (lambda: multiplier_of(math.nan, 1e-6), "epsilon must be above 0"),
        (lambda: multiplier_of(1.0, 0.0), "delta must be between 0 and 1"),
        (lambda: epsilon_of(1.0, 1.0), "delta must be between 0 and 1"),
        (lambda: epsilon_of(-1.0, 0.1), "mu must be a number of at least 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def test_importing_the_privacy_modules_does_not_import_the_accountant():
    code = (
        "import sys, fedpower.privacy.audit, fedpower.privacy.accounting\n"
        "sys.exit(any(m.split('.')[0] in ('dp_accounting', 'opendp') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
