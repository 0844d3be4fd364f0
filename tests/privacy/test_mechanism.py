"""Releases: exact identities of the lattice, sensitivity of the map really used, and the noise."""

import math

import numpy as np
import pytest
from scipy import stats

from fedpower.errors import InputError
from fedpower.privacy.noise import (
    SeededNoiseForExperiments,
    SystemNoise,
    gaussian_integers,
    lattice_for_multiplier,
    lattice_for_std,
    perturb,
    quantise,
)
from fedpower.privacy.sensitivity import (
    mean_sensitivity,
    moment_sensitivity,
    product_sensitivity,
    rounding_slack,
)


@pytest.mark.parametrize("multiplier", [1e-3, 0.7, 6.3, 400.0])
@pytest.mark.parametrize("sensitivity", [1e-9, math.sqrt(2) / 1e5, 0.3, 1.0])
@pytest.mark.parametrize("n", [1, 500, 500_500])
def test_the_lattice_pays_for_its_own_rounding(multiplier, sensitivity, n):
    lattice = lattice_for_multiplier(multiplier, sensitivity=sensitivity, n_coordinates=n)
    assert math.frexp(lattice.spacing)[0] == 0.5  # a power of two
    assert lattice.sensitivity >= sensitivity + lattice.spacing * math.sqrt(n)
    assert lattice.std >= multiplier * lattice.sensitivity * (1 - 1e-15)
    assert lattice.std <= multiplier * sensitivity * (1 + 2**-29 * (1 + multiplier * math.sqrt(n)))


def test_a_given_std_is_met_from_above():
    for std in (1e-7, 0.123, 1.0, 57.0):
        lattice = lattice_for_std(std, sensitivity=1.0, n_coordinates=9)
        assert std <= lattice.std <= std * (1 + 2**-29)


def test_quantising_is_exact_rounding():
    g = 2.0**-20
    values = np.array([0.0, g / 2, 3 * g / 2, -g, 0.3, -0.7])
    assert quantise(values, g).tolist() == [0, 0, 2, -1, round(0.3 / g), round(-0.7 / g)]


def test_a_release_is_the_quantised_value_plus_the_integers_of_the_source():
    A = np.array([[0.5, 0.1], [0.1, 0.25]])
    arguments = {"sensitivity": 0.01, "multiplier": 2.0}
    noised = perturb(A, source=SeededNoiseForExperiments(1), **arguments)
    lattice = lattice_for_multiplier(2.0, sensitivity=0.01, n_coordinates=4)
    K = gaussian_integers(SeededNoiseForExperiments(1), 4, scale=lattice.scale).reshape(2, 2)
    assert np.array_equal(noised.value, (quantise(A, lattice.spacing) + K) * lattice.spacing)
    assert (noised.std, noised.spacing) == (lattice.std, lattice.spacing)


def test_a_release_is_read_only_and_never_the_value_itself():
    A = np.diag([0.5, 0.3, 0.2])
    noised = perturb(A, sensitivity=0.01, source=SystemNoise(), multiplier=1.0).value
    assert not np.any(noised == A)
    with pytest.raises(ValueError, match="read-only"):
        noised[0, 0] = 0.0


def test_no_low_bit_of_a_release_is_the_values_own():
    """Every released number is a multiple of the spacing [docs/privacy.md, rule 5]."""
    A = np.random.default_rng(0).random((5, 5)) / 9
    noised = perturb(A, sensitivity=0.01, source=SystemNoise(), multiplier=1.0)
    steps = noised.value / noised.spacing
    assert np.array_equal(steps, np.rint(steps))
    assert math.frexp(noised.spacing)[0] == 0.5


def test_the_noise_is_normal_and_independent_from_number_to_number():
    """KS of 60000 standardised numbers at 1e-7, and neighbours' correlation within 6 sigma."""
    noised = perturb(np.zeros(60_000), sensitivity=0.01, source=SeededNoiseForExperiments(2), multiplier=3.0)
    standard = noised.value / noised.std
    assert stats.kstest(standard, "norm").pvalue > 1e-7
    assert abs(np.corrcoef(standard[::2], standard[1::2])[0, 1]) < 6 / 30_000**0.5


def rows(rng, n, d):
    x = rng.normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(40))
def test_the_quantised_map_never_moves_more_than_what_is_paid_for(seed):
    """Integers before noise, on neighbours, with a coarse lattice so that rounding matters."""
    rng = np.random.default_rng(seed)
    s, d = int(rng.integers(1, 30)), int(rng.integers(2, 8))
    r = int(rng.integers(1, d + 1))
    X = rows(rng, s, d)
    Y = X.copy()
    Y[-1] = rows(rng, 1, d)[0] if seed % 2 else np.linalg.svd(X[-1:])[2][1]
    Z = np.linalg.qr(rng.normal(size=(d, r)))[0]
    if seed % 4 == 0:  # the basis that sees the whole change
        Z = np.linalg.qr(np.column_stack([X[-1], Y[-1], rng.normal(size=(d, d))]))[0][:, :r]

    def maps(M):
        A = M.T @ M / s
        low = np.tril_indices(d)
        flat = A[low] * np.where(low[0] == low[1], 1.0, math.sqrt(2))
        return {"moment": flat, "product": A @ Z, "mean": M.mean(axis=0)}

    stated = {
        "moment": moment_sensitivity(s),
        "product": product_sensitivity(s, r),
        "mean": mean_sensitivity(s),
    }
    before, after = maps(X), maps(Y)
    for name, sensitivity in stated.items():
        slack = rounding_slack(s, d, iteration_rank=r)
        for spacing in (2.0**-30, 2.0**-8, 2.0**-4, 2.0**-2):
            lattice = lattice_for_std(
                spacing * 2**30, sensitivity=sensitivity + slack, n_coordinates=before[name].size
            )
            moved = quantise(after[name], lattice.spacing) - quantise(before[name], lattice.spacing)
            assert lattice.spacing == spacing
            assert np.linalg.norm(moved) * spacing <= lattice.sensitivity


def test_without_noise_the_value_is_returned_as_it_is():
    A = np.eye(2) / 3
    for level in ({"multiplier": 0.0}, {"std": 0.0}):
        noised = perturb(A, sensitivity=1.0, source=SystemNoise(), **level)
        assert np.array_equal(noised.value, A)
        assert (noised.std, noised.tv, noised.mu) == (0.0, 0.0, math.inf)


def test_a_release_says_what_it_cost():
    noised = perturb(np.zeros((3, 2)), sensitivity=0.1, source=SystemNoise(), multiplier=4.0)
    assert noised.mu <= 0.25
    assert noised.mu == pytest.approx(0.25, rel=1e-7)
    assert noised.tv == 6 * 2.0**-120


@pytest.mark.parametrize(
    ("value", "level", "sentence"),
    [
        ([np.nan], {"multiplier": 1.0}, "must be finite"),
        ([1.0], {}, "one of multiplier and std must be given"),
        ([1.0], {"multiplier": 1.0, "std": 1.0}, "one of multiplier and std must be given"),
        ([1.0], {"multiplier": -1.0}, "multiplier must be a positive number"),
        ([1.0], {"std": math.inf}, "std must be a positive number"),
        ([1.0], {"multiplier": 1e12}, "must not double the noise"),
        (np.zeros((0, 2)), {"multiplier": 1.0}, "at least one number"),
    ],
)
def test_what_cannot_be_released_is_refused_in_one_sentence(value, level, sentence):
    with pytest.raises(InputError, match=sentence) as refusal:
        perturb(value, sensitivity=1.0, source=SystemNoise(), **level)
    assert "\n" not in str(refusal.value)
    assert "1e+30" not in str(refusal.value)


def test_values_beyond_the_lattice_are_brought_back_and_none_move_farther_apart():
    """Refusing them would tell that rows had come so far."""
    values = np.array([0.0, 2.0**61, 2.0**61 + 2.0**20, 1e300, -1e300])
    found = quantise(values, 1.0)
    assert found.tolist() == [0, 2**61, 2**61, 2**61, -(2**61)]
    assert np.all(
        np.abs(np.subtract.outer(found.astype(float), found.astype(float)))
        <= np.abs(np.subtract.outer(values, values))
    )
