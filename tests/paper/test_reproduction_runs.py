"""What a repetition runs: the paper's settings through the protocol, whatever the number of threads."""

from dataclasses import replace

import numpy as np
import pytest

from fedpower.linalg import orth, sin_theta
from fedpower.protocol.solvers import KrylovSettings, PowerSettings, UploadSettings
from paper.curves import Curve, terms_of
from paper.driven import keep, pooled_moment
from paper.runs import Run, run_repetition
from paper.settings import PAPER, Settings, derived_seed

pytestmark = pytest.mark.reproduce

QUICK = Settings(quick=True, repetitions=2)
PLAIN = Curve(figure="3", panels=("a",), model="I")
MOMENT = replace(PLAIN, noise="moment", epsilon=0.5)


def run(*curves: Curve, n_jobs: int = 1, repetition: int = 0) -> list[Run]:
    return run_repetition(QUICK, "I", repetition, curves, n_jobs=n_jobs)


def errors(made: Run) -> list[float]:
    return [point.error for point in made.points]


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
    np.testing.assert_allclose(errors(made), expected, rtol=1e-9)


def test_the_outcome_does_not_depend_on_threads_or_on_what_runs_beside():
    curves = [PLAIN, *(replace(PLAIN, noise=noise, epsilon=0.5) for noise in ("paper", "step"))]
    curves += [MOMENT, replace(MOMENT, solver="krylov", local_steps=1), replace(MOMENT, epsilon=1.0)]
    together = run(*curves, n_jobs=3)
    for place, curve in enumerate(curves):
        (alone,) = run(curve)
        assert repr(alone.points) == repr(together[place].points)


def test_the_paper_s_numbers_reach_the_solver():
    sizes = {f"silo-{place}": 100_000 for place in range(20)}
    curve = replace(PLAIN, noise="paper", epsilon=0.5, participation=0.4)
    study, settings = terms_of(curve, PAPER["I"], sizes)
    assert (study.epsilon, study.delta, study.n_steps) == (0.5, 1e-4, 10)
    assert isinstance(settings, PowerSettings)
    assert settings.n_participants == 8
    assert settings.schedule.rounds(10) == (2, 3, 4, 5, 6, 7, 8, 9, 10)
    ours = replace(curve, solver="krylov", noise="step", participation=1.0)
    study, settings = terms_of(ours, PAPER["I"], sizes)
    assert isinstance(settings, KrylovSettings)
    assert (settings.n_steps, settings.n_participants, study.iteration_rank) == (10, None, 5)
    for model in ("I", "II"):
        default = replace(MOMENT, solver="default", model=model)
        study, settings = terms_of(default, PAPER[model], sizes)
        assert isinstance(settings, UploadSettings)
        assert (study.noise, study.center) == ("moment", False)
