"""A solver is one file and one line of registration: options, studies and plans know it from then on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fedpower import FedPCA
from fedpower.errors import InputError
from fedpower.estimator.plan import plan
from fedpower.linalg import orth, rayleigh_ritz, sin_theta
from fedpower.options import FLAT, SOLVERS, Iterative, from_flat, setting
from fedpower.protocol.coordinator import Exchange
from fedpower.protocol.solvers import SETTINGS, register
from fedpower.protocol.solvers.products import Products
from fedpower.protocol.solvers.shared import StepSettings, enrol


class Momentum(Iterative):
    """What users give."""

    name: ClassVar[str] = "momentum"
    noises: ClassVar[tuple[str, ...]] = ("none",)
    beta: float = setting(0.0, "Weight of the last basis but one.", "tol", group="solver", section="solver")


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumSettings(StepSettings):
    """Power iteration with momentum [Xu et al. 2018]."""

    beta: float = 0.0

    def solve(self, rng: np.random.Generator, run: str = "") -> Exchange:
        products = yield from Products.opened(self, (yield from enrol()), rng)
        before = np.zeros((self.study.n_features, self.study.iteration_rank))
        basis = orth(rng.standard_normal(before.shape))
        for _ in range(self.n_steps or 60):
            product, _ = yield from products.multiply(basis)
            values, turn = rayleigh_ritz(basis, product)
            vectors = basis @ turn
            before, basis = basis, orth(product - self.beta * before)
        return products.solution(
            basis=basis, values=values, vectors=vectors, rank=self.rank, change=0.0, converged=True
        )


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    known = dict(FLAT)
    register(Momentum, MomentumSettings)
    yield
    del SOLVERS["momentum"], SETTINGS["momentum"]
    FLAT.clear()
    FLAT.update(known)


def test_a_registered_solver_fits():
    rows = np.random.default_rng(0).standard_normal((300, 8)) * [5, 4, 3, 1, 1, 1, 1, 1]
    model = FedPCA(3, epsilon=math.inf, standardize=False, solver=Momentum(beta=0.1)).fit_silos(
        np.split(rows, 3)
    )
    truth = np.linalg.eigh(np.cov(rows.T))[1][:, ::-1][:, :3]
    assert model.solver_.solver == "momentum"
    assert sin_theta(model.components_.T, truth) < 1e-6


def test_options_files_and_plans_know_a_registered_solver():
    assert from_flat({"solver": "momentum", "beta": 0.2, "n_components": 3}).solver == Momentum(beta=0.2)
    made = plan(FedPCA(2, epsilon=math.inf), sizes=[50, 50], n_features=6, spectrum=[0.4, 0.3, 0.1])
    assert "momentum" in [candidate.solver for candidate in made.candidates]
    with pytest.raises(InputError, match="solver='momentum'"):
        FedPCA(2, epsilon=1.0, noise="step", standardize=False, solver=Momentum()).fit(np.ones((50, 4)))
