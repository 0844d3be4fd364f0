"""The modes' noise levels: as printed, exactly accounted, and checked by another accountant."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from fedpower.errors import InputError
from fedpower.privacy.accounting import compose, epsilon_of
from fedpower.privacy.calibration import default_delta, noise_multiplier, noise_std
from fedpower.privacy.mechanism import perturb_moment, perturb_product
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import moment_sensitivity, product_sensitivity, rounding_slack

TRIAL = {"epsilon": 0.5, "delta": 1e-4, "n_rows": 100_000, "n_steps": 10, "iteration_rank": 5}


def test_the_paper_mode_is_theorem_2_as_printed():
    printed = 2 * math.sqrt(5) / 1e5 * (2 * math.sqrt(2 * 10 * math.log(1e4)) / 0.5)
    assert noise_std("paper", **TRIAL) == pytest.approx(printed, rel=1e-12)
    loose = TRIAL | {"epsilon": 200.0, "delta": 0.2}  # the other branch of the maximum
    printed = 2 * math.sqrt(5) / 1e5 * math.sqrt(10 / 200)
    assert noise_std("paper", **loose) == pytest.approx(printed, rel=1e-12)


def test_a_step_needs_nine_times_less_noise_than_the_paper():
    assert noise_std("paper", **TRIAL) >= 9 * noise_std("step", **TRIAL)


def test_a_moment_disturbs_a_product_twenty_times_less_than_the_paper():
    """What acts on a fixed unit z is N z: entries of std nu in `paper`, about tau/√2 in `moment`.

    Var (Nz)_j = tau²/2·(1 + z_j²), so the expected ‖Nz‖² is tau²(d + 1)/2 against nu²·d.
    """
    d = 100
    effect = noise_std("moment", **TRIAL) * math.sqrt((d + 1) / (2 * d))
    assert noise_std("paper", **TRIAL) >= 20 * effect
    noise = perturb_moment(
        np.zeros((400, d, d)),
        sensitivity=moment_sensitivity(TRIAL["n_rows"]),
        slack=0.0,
        source=SeededNoiseForExperiments(0),
        multiplier=noise_multiplier("moment", epsilon=0.5, delta=1e-4, n_steps=10),
    ).value
    measured = np.sqrt(np.mean((noise @ np.full(d, d**-0.5)) ** 2))
    assert measured == pytest.approx(effect, rel=0.05)  # 40000 entries: 5% is over 10 sigma


def test_one_step_of_rank_one_needs_root_two_less_than_a_moment():
    one = TRIAL | {"n_steps": 1, "iteration_rank": 1}
    assert noise_std("moment", **one) == pytest.approx(math.sqrt(2) * noise_std("step", **one))


def test_a_moment_is_charged_once_whatever_the_steps_and_the_rank():
    more = TRIAL | {"n_steps": 1000, "iteration_rank": 50}
    assert noise_std("moment", **more) == noise_std("moment", **TRIAL)


@pytest.mark.parametrize("mode", ["paper", "step", "moment"])
def test_infinite_epsilon_needs_no_noise(mode):
    assert noise_std(mode, **TRIAL | {"epsilon": math.inf}) == 0.0


def really_released(mode, *, epsilon, delta, n_rows, n_steps, r, d):
    """What a silo really releases, with the standard deviations and sensitivities it used."""
    source = SeededNoiseForExperiments(1)
    slack = rounding_slack(n_rows, d, iteration_rank=r)
    if mode == "moment":
        sensitivity = moment_sensitivity(n_rows)
        multiplier = noise_multiplier(mode, epsilon=epsilon, delta=delta, n_steps=n_steps)
        A = np.eye(d) / d
        noised = perturb_moment(
            A, sensitivity=sensitivity, slack=slack, source=source, multiplier=multiplier
        )
        return [noised]
    level = {"epsilon": epsilon, "delta": delta, "n_steps": n_steps}
    noise = (
        {"multiplier": noise_multiplier(mode, **level)}
        if mode == "step"
        else {"std": noise_std(mode, **level, n_rows=n_rows, iteration_rank=r)}
    )
    return [
        perturb_product(
            np.eye(d, r) / d,
            sensitivity=product_sensitivity(n_rows, r),
            slack=slack,
            source=source,
            **noise,
        )
        for _ in range(n_steps)
    ]


@pytest.mark.parametrize("mode", ["paper", "step", "moment"])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize(("n_rows", "r", "d"), [(100_000, 5, 60), (300, 1, 7)])
def test_another_accountant_finds_the_epsilon_that_was_asked(mode, epsilon, n_rows, r, d):
    """The PLD accountant, told only the std added and the inflated sensitivity of each release."""
    delta, n_steps = 1e-4, 10
    releases = really_released(
        mode, epsilon=epsilon, delta=delta, n_rows=n_rows, n_steps=n_steps, r=r, d=d
    )
    losses = [
        pld.privacy_loss_distribution.from_gaussian_mechanism(
            releases[0].std,
            sensitivity=releases[0].sensitivity,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=1e-3,
        ).self_compose(len(releases))
        for pessimistic in (True, False)
    ]
    above, below = (loss.get_epsilon_for_delta(delta) for loss in losses)
    spent = epsilon_of(compose(release.mu for release in releases), delta)
    assert below - 1e-8 <= spent <= above + 1e-8  # its two estimates, and its FFT's accuracy
    assert spent <= epsilon
    assert above <= 1.01 * epsilon
    if mode != "paper":  # the paper's noise is several times too large
        assert below >= 0.99 * epsilon
    assert all(release.tv < 1e-30 for release in releases)


def test_the_rdp_accountant_agrees_that_the_paper_keeps_its_promise():
    """Theorem 2's own accounting, with its own sensitivity, by another implementation."""
    sigma = noise_multiplier("paper", epsilon=0.5, delta=1e-4, n_steps=10)
    accountant = dp_accounting.rdp.RdpAccountant()  # a Gaussian event has sensitivity 1
    accountant.compose(dp_accounting.GaussianDpEvent(sigma), 10)
    assert accountant.get_epsilon(1e-4) <= 0.5


def test_the_default_delta_is_well_below_one_over_n():
    for n in (1, 10, 10**4, 10**6, 10**9):
        assert 0 < default_delta(n) <= 1e-6
        assert default_delta(n) <= 1 / n
    assert default_delta(10**9) < 0.2 / 10**9
    with pytest.raises(InputError, match="n_rows must be a whole number"):
        default_delta(0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"epsilon": -1.0}, "epsilon must be above 0"),
        ({"delta": 0.0}, "delta must be between 0 and 1"),
        ({"delta": 1.0}, "delta must be between 0 and 1"),
        ({"n_rows": 0}, "n_rows must be"),
        ({"n_steps": 0}, "n_steps must be"),
        ({"n_steps": 2.5}, "n_steps must be"),
        ({"iteration_rank": 0}, "iteration_rank must be"),
    ],
)
@pytest.mark.parametrize("mode", ["paper", "step"])
def test_bad_arguments_are_refused_in_one_sentence(mode, change, sentence):
    with pytest.raises(InputError, match=sentence):
        noise_std(mode, **TRIAL | change)


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match="'paper', 'step' or 'moment', got 'none'"):
        noise_std("none", **TRIAL)
