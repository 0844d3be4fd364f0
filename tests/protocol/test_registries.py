"""A query or a solver is a class that is registered: options, studies and plans know it from then on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pytest
from private_silos import COVARIANCE, EPSILON, D, ask, bounded_rows, message, private_silo

from fedpower import FedPCA
from fedpower.estimator.plan import planned
from fedpower.estimator.terms import options_of
from fedpower.exceptions import InputError, ProtocolError
from fedpower.linalg import orth, rayleigh_ritz, sin_theta
from fedpower.options import FLAT, SOLVERS, Iterative, from_flat, setting
from fedpower.privacy.budget import QueryTerms
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import Sensitivity, of_counts
from fedpower.protocol.coordinator import Exchange
from fedpower.protocol.messages import AskQuery, QueryAnswer
from fedpower.protocol.query import QUERIES, query_of
from fedpower.protocol.receiving import problem_with
from fedpower.protocol.solvers import GENERATORS, register
from fedpower.protocol.solvers.products import Products
from fedpower.protocol.solvers.shared import enrol

LABEL = "positives"
STUDY = replace(COVARIANCE, noise="clipped", design=(QueryTerms(LABEL, D, 1.0),))


@dataclass(frozen=True)
class Positives:
    """How many cells of each column are positive."""

    n_features: int
    label: str = LABEL
    public: bytes = b""

    @classmethod
    def parse(cls, study, label, public):
        if public:
            raise ProtocolError("positive cells are asked for with nothing beside them")
        return cls(study.n_features)

    @property
    def sensitivity(self) -> Sensitivity:
        return of_counts(self.n_features, counted=self.n_features)

    def evaluate(self, rows, exponents):
        return (rows.rows > 0).sum(axis=0, dtype=np.int64)


def test_a_registered_query_leaves_a_silo_with_noise_and_once(ledger):
    rows, question = bounded_rows(), AskQuery(index=0, label=LABEL)
    silo = private_silo(STUDY, ledger, source=SeededNoiseForExperiments(1))
    answer = ask(silo, question)
    assert np.array_equal(ask(silo, question).words, answer.words)
    assert ledger.spent().n_releases == 1
    assert ledger.spent().epsilon == pytest.approx(EPSILON, rel=1e-6)
    noise = STUDY.budget.noise(LABEL, query_of(STUDY, LABEL).sensitivity, (len(rows),))
    off = noise.values(answer.words.view(np.int64)) - (rows > 0).sum(axis=0)
    assert 0 < np.abs(off).max() < 6 * noise.stds[0]
    assert problem_with(answer, message(STUDY, question), STUDY, n_rows=len(rows)) is None
    far = QueryAnswer(words=answer.words + np.uint64(2**40))
    assert "range" in problem_with(far, message(STUDY, question), STUDY, n_rows=len(rows))


def test_what_a_query_does_not_ask_for_is_refused_at_no_charge(ledger):
    silo = private_silo(STUDY, ledger)
    assert "nothing beside" in ask(silo, AskQuery(index=0, label=LABEL, public=b"1")).reason
    longer = replace(STUDY, design=(QueryTerms(LABEL, D + 1, 1.0),))
    assert "6 numbers" in ask(private_silo(longer, ledger), AskQuery(index=0, label=LABEL)).reason
    assert ledger.spent().n_releases == 0


class Momentum(Iterative):
    """What users give."""

    name: ClassVar[str] = "momentum"
    noises: ClassVar[tuple[str, ...]] = ("none",)
    beta: float = setting(0.0, "Weight of the last basis but one.", "tol", group="solver", section="solver")


def solve(settings, rng: np.random.Generator, run: str = "") -> Exchange:
    """Power iteration with momentum [Xu et al. 2018]."""
    products = yield from Products.opened(settings, (yield from enrol()), rng)
    before = np.zeros((settings.study.n_features, settings.study.iteration_rank))
    basis = orth(rng.standard_normal(before.shape))
    for _ in range(settings.n_steps or 60):
        product, _ = yield from products.multiply(basis)
        values, turn = rayleigh_ritz(basis, product)
        vectors = basis @ turn
        before, basis = basis, orth(product - settings.solver.beta * before)
    return products.solution(
        basis=basis, values=values, vectors=vectors, rank=settings.rank, change=0.0, converged=True
    )


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with patch.dict(QUERIES), patch.dict(SOLVERS), patch.dict(GENERATORS), patch.dict(FLAT):
        QUERIES[LABEL] = Positives.parse
        register(Momentum, solve)
        yield


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
    made = planned(
        options_of(FedPCA(2, epsilon=math.inf)), sizes=[50, 50], n_features=6, spectrum=[0.4, 0.3, 0.1]
    )
    assert "momentum" in [candidate.solver for candidate in made.candidates]
    with pytest.raises(InputError, match="solver='momentum'"):
        FedPCA(2, epsilon=1.0, noise="step", standardize=False, solver=Momentum()).fit(np.ones((50, 4)))
