"""Moment upload: one round, exact, whatever the silos' means and sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower.errors import ProtocolError
from fedpower.linalg import sin_theta
from fedpower.protocol import Coordinator, Receipt
from fedpower.protocol.messages import Message, MomentPart
from fedpower.protocol.solvers import UploadSettings
from problems import Array, spiked_rows
from runs import drive, make_silos


def solve(parts: list[Array], *, center: bool, rank: int | float = 3) -> Coordinator:
    silos = make_silos(parts, 5, center=center)
    settings = UploadSettings(study=silos["silo-0"].study, rank=rank)
    coordinator = Coordinator(
        settings.solve(np.random.default_rng(0)), list(silos), study=silos["silo-0"].study, run="test"
    )
    drive(coordinator, silos)
    return coordinator


@given(cuts=st.sets(st.integers(1, 599), max_size=5), offset=st.floats(-1e5, 1e5))
def test_it_equals_the_eigendecomposition_of_the_pooled_covariance(cuts: set[int], offset: float) -> None:
    rows = spiked_rows() + offset
    solution = solve(np.split(rows, sorted(cuts)), center=True).outcome
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    np.testing.assert_allclose(solution.values[:3], values[::-1][:3], rtol=1e-8)
    assert sin_theta(solution.vectors[:, :3], vectors[:, ::-1][:, :3]) < 1e-8
    np.testing.assert_allclose(solution.center, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(solution.total_variance, values.sum(), rtol=1e-9)


def test_without_centring_it_is_the_second_moment_about_the_origin(rows: Array) -> None:
    solution = solve(np.split(rows + 1, [100]), center=False).outcome
    moment = (rows + 1).T @ (rows + 1) / len(rows)
    np.testing.assert_allclose(solution.values[0], np.linalg.eigvalsh(moment)[-1], rtol=1e-12)
    assert solution.center is None
    np.testing.assert_allclose(solution.total_variance, np.trace(moment), rtol=1e-12)


def test_it_takes_one_round_of_a_packed_triangle(rows: Array) -> None:
    coordinator = solve(np.split(rows, [100]), center=True)
    enrolment, only = coordinator.history
    assert enrolment.kind == "enrol"
    assert only.kind == "moment"
    numbers = 12 * 13 // 2 + 12
    assert 2 * 8 * numbers < only.bytes_up < 2 * (8 * numbers + 600)


def test_moments_of_the_wrong_size_alone_end_the_run_in_one_sentence(rows: Array) -> None:
    silos = make_silos(np.split(rows, [100]), 5)
    settings = UploadSettings(study=silos["silo-0"].study, rank=3)
    coordinator = Coordinator(
        settings.solve(np.random.default_rng(0)), list(silos), study=silos["silo-0"].study, run="test"
    )
    for question in coordinator.next():
        coordinator.receive(silos[question.silo].answer(question))
    first, second = (
        Message(
            study=question.study,
            run=question.run,
            round=question.round,
            silo=question.silo,
            body=MomentPart(values=np.zeros(5), total_variance=1.0),
        )
        for question in coordinator.next()
    )
    assert coordinator.receive(first) is Receipt.MALFORMED
    assert coordinator.receive(second) is Receipt.MALFORMED
    with pytest.raises(ProtocolError, match=r"silo-0 sent was set aside: a covariance must have the"):
        coordinator.deadline()
