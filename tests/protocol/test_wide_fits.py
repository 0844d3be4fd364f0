"""Wide rows: moments of few rows by their factors, and noised steps whose history is small."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import sparse

from fedpower import CodeBook, FedPCA
from fedpower.linalg import moment_factor, orth, sin_theta
from fedpower.protocol.coordinator import Round
from fedpower.protocol.messages import AskMoment, Enrolment, Message, MomentPart
from fedpower.protocol.receiving import problem_with
from fedpower.protocol.solvers import start
from fedpower.protocol.solvers.products import TALL, Answers
from problems import Array
from runs import averaged_product, exact_study, krylov_settings, make_silos, run

WIDE = 9_000  # beyond what a d×d moment is made for
SIZES = (7, 12, 9)


def wide_rows(seed: int = 0) -> list[Array]:
    """Return silos with few rows about a mean of their own each, in directions of falling strength."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(3.0, 0.1, 12)
    axes = orth(rng.standard_normal((WIDE, len(scales))))
    return [
        rng.standard_normal((size, len(scales))) * scales @ axes.T
        + 0.01 * rng.standard_normal((size, WIDE))
        + place * axes[:, 3]
        for place, size in enumerate(SIZES)
    ]


def pooled_pairs(parts: list[Array], center: bool) -> tuple[Array, Array]:
    rows = np.vstack(parts)
    rows = rows - rows.mean(axis=0) if center else rows
    _, sizes, right = np.linalg.svd(rows, full_matrices=False)
    return sizes**2 / len(rows), right.T


@pytest.mark.parametrize("center", [False, True])
def test_few_wide_rows_take_one_round_and_give_the_pooled_eigenpairs(center):
    parts = wide_rows()
    values, vectors = pooled_pairs(parts, center)
    solution, coordinator = run(parts, rank=3, width=6, center=center)
    assert [each.kind for each in coordinator.history] == ["enrol", "factor"]
    assert solution.converged
    assert solution.values == pytest.approx(values[:6], rel=1e-10)
    assert sin_theta(solution.vectors[:, :3], vectors[:, :3]) < 1e-10
    np.testing.assert_allclose(solution.basis.T @ solution.basis, np.eye(solution.basis.shape[1]), atol=1e-12)
    assert solution.total_variance == pytest.approx(values.sum(), rel=1e-10)
    by_share, _ = run(parts, rank=0.9, center=center)
    assert by_share.rank == 1 + np.searchsorted(np.cumsum(values) / values.sum(), 0.9, side="right")


def test_a_wide_silo_that_is_gone_is_left_out():
    parts = wide_rows()
    _, vectors = pooled_pairs(parts[:2], True)
    solution, _ = run(parts, rank=3, width=6, center=True, dead_from={"silo-2": 1}, min_silos=2)
    assert list(solution.sizes) == ["silo-0", "silo-1"]
    assert sin_theta(solution.vectors[:, :3], vectors[:, :3]) < 1e-10


@pytest.mark.parametrize("width", [4, WIDE])
def test_rows_of_a_silo_that_is_gone_make_no_column_constant(width):
    """What counts as rounding of a constant column grows with the rows that were summed."""
    spread, asked = 1e-14, {"north": 2, "south": 1000}
    values = np.full(width, spread**2) if width < WIDE else np.array([[spread] * WIDE])
    part = MomentPart(values=values, mean=np.ones(width), total_variance=width * spread**2)
    option = krylov_settings(exact_study(width, 2, center=True), 1)
    solver = start(dataclasses.replace(option, standardize=True), np.random.default_rng(0))
    next(solver)
    enrolled = {name: Enrolment(n_rows=size, n_features=width) for name, size in asked.items()}
    solver.send(Round(number=0, kind="enrol", step=0, asked=tuple(asked), answers=enrolled))
    closed = Round(number=1, kind="a part", step=0, asked=tuple(asked), answers={"north": part})
    try:
        gains = solver.send(closed).body.gains
    except StopIteration as stop:
        gains = stop.value.gains
    assert gains == pytest.approx(np.full(width, 1 / spread))


def test_silos_whose_sum_alone_may_count_are_asked_for_blocks():
    parts = wide_rows()
    _, vectors = pooled_pairs(parts, False)
    solution, coordinator = run(parts, rank=3, width=6, lookahead=False)
    assert {each.kind for each in coordinator.history} == {"enrol", "steps"}
    assert sin_theta(solution.vectors[:, :3], vectors[:, :3]) < 1e-8


@pytest.mark.parametrize(
    ("kind", "treated"), [("dense", "normalize"), ("dense", "standardize"), ("sparse", ""), ("float32", "")]
)
def test_a_fit_of_few_wide_rows_is_the_pooled_one(kind, treated):
    parts: list[Any] = [np.round(part, 2) for part in wide_rows(1)]
    rows = np.vstack(parts)
    if kind == "sparse":
        parts = [sparse.csr_array(part) for part in parts]
    if kind == "float32":
        parts = [part.astype(np.float32) for part in parts]
        rows = np.vstack(parts).astype(np.float64)
    book, standardize = CodeBook(normalize=treated == "normalize"), treated == "standardize"
    model = FedPCA(3, epsilon=math.inf, standardize=standardize, codebook=book, random_state=0)
    model.fit_silos(parts)
    if book.normalize:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    about = rows - rows.mean(axis=0)
    about = about / rows.std(axis=0) if standardize else about
    _, sizes, right = np.linalg.svd(about, full_matrices=False)
    assert [each["kind"] for each in model.history_] == ["factor"]
    assert sin_theta(model.components_.T, right[:3].T) < 1e-9
    assert model.mean_ == pytest.approx(rows.mean(axis=0), abs=1e-12)
    assert model.explained_variance_ratio_ == pytest.approx(sizes[:3] ** 2 / np.sum(sizes**2), rel=1e-9)


def test_a_factor_is_of_the_moment_and_tells_the_rows_apart_no_further():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5, 40))
    turned = orth(rng.standard_normal((5, 5))) @ rows  # other rows of the same moment
    one, other = moment_factor(rows), moment_factor(turned)
    assert one.T @ one == pytest.approx(rows.T @ rows / 5, abs=1e-12)
    assert np.abs(one) == pytest.approx(np.abs(other), abs=1e-10)
    assert moment_factor(np.zeros((3, 4))).shape == (0, 4)


@pytest.mark.slow
def test_what_is_no_factor_is_set_aside():
    silo = make_silos(wide_rows(), 4, center=True)["silo-0"]
    ask = Message(study=silo.study.digest, run="", round=1, silo="silo-0", body=AskMoment(label="factor"))

    def problem(body: Any) -> str | None:
        return problem_with(body, ask, silo.study, n_rows=7)

    good: Any = silo.answer(ask).body
    assert problem(good) is None
    for spoilt in (
        replace(good, values=np.where(good.values == good.values[0, 0], np.nan, good.values)),
        replace(good, values=good.values[:, 1:]),
        replace(good, values=good.values[0]),
        replace(good, values=np.vstack([good.values, good.values])),
        replace(good, values=good.values.astype(np.float32)),
        replace(good, total_variance=2 * good.total_variance),
        replace(good, total_variance=float("nan")),
        replace(good, mean=None),
        replace(good, mean=np.zeros(WIDE - 1)),
        silo.answer(replace(ask, body=AskMoment(label="covariance"))).body,
    ):
        assert problem(spoilt) is not None, spoilt


@pytest.mark.parametrize("noise", [1e-3, 1e-2, 0.1])
def test_tall_answers_are_averaged_in_float32_as_all_questions_and_answers(noise):
    rng = np.random.default_rng(3)
    spectrum = 1.0 / np.arange(1, TALL + 1)
    basis = orth(rng.standard_normal((TALL, 5)))
    held, blocks, products = Answers(basis), [], []
    for _ in range(6):
        blocks.append(basis)
        products.append(spectrum[:, np.newaxis] * basis + noise * rng.standard_normal(basis.shape))
        held.add(products[-1])
        basis, _ = held.next_basis(3)
    whole = averaged_product(np.hstack(blocks), np.hstack(products), 3, 5)
    assert sin_theta(basis, orth(whole)) < 1e-4  # far below the noise


def test_a_run_of_noised_steps_keeps_no_wide_array_in_its_record():
    parts = [np.random.default_rng(place).standard_normal((3, TALL)) for place in range(2)]
    _, coordinator = run(parts, rank=1, width=2, n_steps=3)
    asked_for = [each for each in coordinator.history if each.kind == "steps"]
    assert [tuple(each.answers) for each in asked_for] == [("silo-0", "silo-1")] * 3
    assert all(body.product.size == 0 for each in asked_for for body in each.answers.values())
