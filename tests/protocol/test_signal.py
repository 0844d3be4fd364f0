"""What stands above the noise: counted with a stated chance of error, and denoised."""

import numpy as np
import pytest
from scipy import stats

from fedpower.errors import InputError
from fedpower.protocol.solvers.signal import LEVEL, Signal, chosen_rank, eigenvalues, find_signal
from problems import Array

EDGE = 0.01


def signal_of(
    moment: Array, mean: Array | None, rng: np.random.Generator, edge: float = EDGE
) -> Signal:
    """Return what is found in a moment about its mean, released with noise whose edge is ``edge``."""
    d = len(moment)
    std = edge / np.sqrt(2 * d)
    drawn = rng.standard_normal((d, d)) * std
    released = moment + (drawn + drawn.T) / 2
    trace = float(np.trace(moment)) + std * rng.standard_normal()
    center = None
    if mean is not None:
        center = mean + np.sqrt(2) * std * rng.standard_normal(d)
        released += np.outer(mean, mean) - np.outer(center, center)
        trace += float(mean @ mean) - float(center @ center)
    _, vectors = np.linalg.eigh(released)
    pairs = (eigenvalues(released), vectors[:, ::-1])
    return find_signal(released, pairs, center=center, total_variance=trace, std=std)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [None, pytest.param(0.0, marks=pytest.mark.slow), 0.6])
@pytest.mark.parametrize("level", [0.0, 0.004])
@pytest.mark.parametrize("d", [pytest.param(2, marks=pytest.mark.slow), 20])
def test_no_direction_stands_out_of_rows_that_have_none(
    d: int, level: float, mean: float | None
) -> None:
    """False alarms are binomial with probability at most LEVEL: fails with probability below 1e-6."""
    runs, rng = 500, np.random.default_rng([d, int(1000 * level)])
    about = None if mean is None else np.full(d, mean / np.sqrt(d))
    found = [signal_of(level * np.eye(d), about, rng).n_above for _ in range(runs)]
    assert np.count_nonzero(found) <= stats.binom.isf(1e-6, runs, LEVEL)


@pytest.mark.parametrize("mean", [None, 0.6])
def test_planted_directions_are_counted_and_their_variances_told(mean: float | None) -> None:
    """At 2.5 times the edge and more; counts too many with probability at most LEVEL a run."""
    d, planted = 40, np.array([0.06, 0.04, 0.025])
    moment = np.diag(np.append(planted, np.full(d - 3, 0.001)))
    about = None if mean is None else np.append(np.zeros(3), np.full(d - 3, mean / np.sqrt(d - 3)))
    rng, runs = np.random.default_rng(5), 60
    found = [signal_of(moment, about, rng) for _ in range(runs)]
    assert sum(each.n_above != 3 for each in found) <= stats.binom.isf(1e-6, runs, LEVEL)
    reported = [each for each in found if each.n_above == 3]
    # The mean of so many has an error of σ√(1 + 8(μᵀu)²)/√runs, below 0.01·edge.
    np.testing.assert_allclose(
        np.mean([each.denoised for each in reported], axis=0), planted, atol=0.05 * EDGE
    )
    total = float(np.mean([each.total_variance for each in reported]))
    assert total == pytest.approx(float(np.trace(moment)), rel=0.01)


def test_without_noise_to_speak_of_every_direction_but_a_level_rest_counts() -> None:
    moment = np.diag([0.5, 0.3, 0.1, 0.05, 0.05, 0.05])
    found = signal_of(moment, None, np.random.default_rng(0), edge=1e-9)
    assert found.n_above == 3
    np.testing.assert_allclose(found.denoised, [0.5, 0.3, 0.1], rtol=1e-6)
    np.testing.assert_allclose(found.together, [0.5 / 1.05, 0.8 / 1.05, 0.9 / 1.05], rtol=1e-6)
    assert signal_of(np.diag([0.3]), None, np.random.default_rng(0), edge=1e-9).n_above == 1


def test_a_rank_is_chosen_among_what_stands_above() -> None:
    shown = Signal(
        n_above=3, denoised=np.array([0.5, 0.3, 0.1]), total_variance=1.0, prominence=4.0
    )
    assert chosen_rank("noise", shown) == 3
    assert [chosen_rank(asked, shown) for asked in (0.4, 0.5, 0.7, 0.85)] == [1, 2, 2, 3]
    with pytest.raises(InputError, match=r"got 0\.900 of the variance with all 3 of them"):
        chosen_rank(0.95, shown)
    nothing = Signal(n_above=0, denoised=np.empty(0), total_variance=1.0, prominence=0.4)
    for asked in ("noise", 0.5):
        with pytest.raises(InputError, match=r"got none: the largest variance is 0\.4 of what"):
            chosen_rank(asked, nothing)
