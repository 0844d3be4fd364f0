"""The modes' noise levels: as printed, exactly accounted, and checked by another accountant."""

import math

import dp_accounting
import numpy as np
import pytest

from fedpower.errors import InputError
from fedpower.linalg import symmetric_of
from fedpower.privacy.accounting import default_delta, noise_multiplier, noise_std
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import noise_for
from fedpower.protocol.query import Moment

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
    d = 100
    effect = noise_std("moment", **TRIAL) * math.sqrt((d + 1) / (2 * d))
    assert noise_std("paper", **TRIAL) >= 20 * effect
    source = SeededNoiseForExperiments(0)
    multiplier = noise_multiplier("moment", epsilon=0.5, delta=1e-4, n_steps=10)
    query = Moment(n_features=d, mean_weight=0.0)
    drawn = noise_for(query.sensitivity, multiplier, (TRIAL["n_rows"],))
    noise = [
        symmetric_of(query.read(drawn.values(drawn.draw(source)), TRIAL["n_rows"])[0], d) for _ in range(400)
    ]
    measured = np.sqrt(np.mean((np.array(noise) @ np.full(d, d**-0.5)) ** 2))
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


def test_the_rdp_accountant_agrees_that_the_paper_keeps_its_promise():
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
