"""Partial participation: who is asked, with what weight, and that expectations are right."""

import numpy as np
import pytest

from fedpower.errors import InputError
from fedpower.linalg import sin_theta
from fedpower.protocol import coordinator as driving
from fedpower.protocol.coordinator import Asking, in_turn
from fedpower.protocol.messages import AskSteps, Message
from fedpower.protocol.schedule import decaying, every
from fedpower.protocol.solvers import PowerSettings
from fedpower.protocol.solvers.shared import SiloSampler
from problems import spiked_rows, split
from runs import exact_study, make_coordinator, make_silos, solve

SIZES = {"a": 100, "b": 300, "c": 600}


def test_everyone_weighs_by_size():
    sampler = SiloSampler(sizes=SIZES, rng=np.random.default_rng(0))
    assert sampler.draw(None) == ("a", "b", "c")
    assert sampler.weights("abc") == {"a": 0.1, "b": 0.3, "c": 0.6}
    assert sampler.weights("bc") == {"b": pytest.approx(1 / 3), "c": pytest.approx(2 / 3)}


def test_sampled_draws_weigh_in_expectation_as_everyone_does():
    sampler = SiloSampler(sizes=SIZES, rng=np.random.default_rng(1), n_participants=2)
    total = dict.fromkeys(SIZES, 0.0)
    for _ in range(2000):
        asked = sampler.draw("a")
        assert asked is not None
        assert "a" in asked
        for name, weight in sampler.weights(asked).items():
            total[name] += weight / 2000
    for name, share in {"a": 0.1, "b": 0.3, "c": 0.6}.items():
        assert abs(total[name] - share) < 5 * np.sqrt(share * (1 - share) / 2 / 2000)


@pytest.mark.parametrize("count", [0, 4, -1])
def test_an_impossible_number_of_participants_is_refused(count):
    with pytest.raises(InputError, match="n_participants must lie between 1 and the 3 silos"):
        SiloSampler(sizes=SIZES, rng=np.random.default_rng(0), n_participants=count)


def test_sampled_participation_asks_the_drawn_and_the_first_silo_and_the_same_after_the_last_round():
    parts = split(spiked_rows(), [100, 100, 200, 200])
    _, coordinator, _ = solve(parts, n_steps=5, schedule=every(2), n_participants=2, seed=3)
    for closed in coordinator.history[1:]:
        assert "silo-0" in closed.asked
        assert len(closed.asked) <= 3
    last_round, trailing = coordinator.history[-2:]
    assert trailing.step == 5
    assert trailing.asked == last_round.asked


def test_the_first_k_answers_close_a_round_which_lets_go_of_what_was_asked():
    silos = make_silos(split(spiked_rows(), [150] * 4), 3)
    settings = PowerSettings(
        study=exact_study(12, 3), rank=3, n_steps=4, n_participants=2, participation="first"
    )
    coordinator = make_coordinator(silos, settings, min_silos=2)
    left: list[int] = []

    def last_first(questions: tuple[Message, ...]) -> Asking:
        assert len(questions) == 4
        try:
            yield from in_turn(silos)(questions[::-1])
        finally:
            left.append(questions[0].round)

    driving.drive(coordinator, last_first)
    assert [tuple(r.answers) for r in coordinator.history[1:]] == [("silo-2", "silo-3")] * 4
    assert left == [each.number for each in coordinator.history]


def test_when_the_reference_silo_is_silent_another_takes_its_place():
    parts = split(spiked_rows(), [150] * 4)
    silos = make_silos(parts, 3)
    settings = PowerSettings(study=exact_study(12, 3), rank=3, n_steps=40, schedule=decaying(4))
    coordinator = make_coordinator(silos, settings, min_silos=3)

    def without_the_first(questions: tuple[Message, ...]) -> Asking:
        for question in questions:
            if question.silo != "silo-0" or not isinstance(question.body, AskSteps):
                yield silos[question.silo].answer(question)

    driving.drive(coordinator, without_the_first)
    rest = np.vstack(parts[1:])
    _, vectors = np.linalg.eigh(rest.T @ rest)
    assert sin_theta(coordinator.outcome.basis, vectors[:, ::-1][:, :3]) < 1e-10
