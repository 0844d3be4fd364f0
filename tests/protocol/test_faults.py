"""Late, lost, repeated and corrupt messages change nothing but who answered; and who is asked."""

import functools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec import structs

from carriers import Transport, drive, in_turn
from fedpower.engines.inprocess import MOST_ATTEMPTS
from fedpower.exceptions import InputError, ProtocolError
from fedpower.linalg import sin_theta
from fedpower.protocol.coordinator import Arrived, Coordinator, Unreadable
from fedpower.protocol.messages import AskSteps, LocalSteps, Message, Refusal
from fedpower.protocol.silo import Silo
from fedpower.protocol.solvers.shared import SiloSampler
from fedpower.protocol.study import Study
from problems import spiked_rows, split
from runs import exact_study, krylov_settings, make_coordinator, make_silos, power_settings, solve

SIZES = [100, 150, 150, 200]
SETTINGS = power_settings(exact_study(12, 3, center=True), 3, n_steps=6, local_steps=2)


def federation(min_silos: int | None = None) -> tuple[Coordinator, dict[str, Silo]]:
    silos = make_silos(split(spiked_rows(), SIZES), 3, center=True)
    return make_coordinator(silos, SETTINGS, min_silos=min_silos), silos


def answers_of_first_round() -> tuple[Coordinator, dict[str, Message]]:
    coordinator, silos = federation(min_silos=2)
    return coordinator, {q.silo: silos[q.silo].answer(q) for q in coordinator.next()}


def test_what_is_late_repeated_or_foreign_changes_nothing_and_only_a_wrong_answer_is_asked_for_again():
    coordinator, answers = answers_of_first_round()
    first, second = answers["silo-0"], answers["silo-1"]
    assert not coordinator.receive(first)
    counted = coordinator.history[0].bytes_up
    ignored = [structs.replace(first, body=Refusal(reason="no"))]
    ignored += [
        structs.replace(second, **change) for change in ({"run": "other"}, {"silo": "nobody"}, {"round": 5})
    ]
    assert not any(map(coordinator.receive, ignored))
    assert list(coordinator.history[0].answers) == ["silo-0"]
    assert coordinator.history[0].bytes_up == counted
    assert not coordinator.history[0].refused
    wrong = structs.replace(second, body=LocalSteps(product=np.zeros((12, 3))))
    assert coordinator.receive(wrong)
    for name in ("silo-1", "silo-2", "silo-3"):
        coordinator.receive(answers[name])
    assert not coordinator.receive(first)
    assert len(coordinator.history) == 2
    assert not coordinator.history[1].answers


def test_a_refusal_counts_as_no_answer_and_its_reason_is_told():
    coordinator, answers = answers_of_first_round()
    for name in ("silo-0", "silo-1", "silo-2"):
        refusal = structs.replace(answers[name], body=Refusal(reason="no budget is left"))
        assert not coordinator.receive(refusal)
    with pytest.raises(ProtocolError, match="silo 'silo-0' refused: no budget is left"):
        coordinator.receive(answers["silo-3"])


def test_silos_with_the_same_name_are_refused():
    with pytest.raises(ProtocolError, match="different names"):
        Coordinator(iter(()), ["a", "a"], study=Study(columns=None, n_features=1, iteration_rank=1), run="r")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings_for", "steps"), [(power_settings, {"n_steps": 60}), (krylov_settings, {})]
)
def test_a_silo_whose_mean_came_too_late_is_left_out_of_the_run(settings_for, steps):
    parts = [*split(spiked_rows(), SIZES)[:3], spiked_rows(n_rows=200, seed=9) + 5.0]
    silos = make_silos(parts, 3, center=True)
    settings = settings_for(silos["silo-0"].study, 3, **steps)
    coordinator = make_coordinator(silos, settings, min_silos=3)

    def ask(questions: tuple[Message, ...]) -> Iterator[Arrived]:
        for question in questions:
            if question.silo != "silo-3" or question.round != 1:
                yield silos[question.silo].answer(question)

    drive(coordinator, ask)
    solution = coordinator.outcome
    assert list(solution.sizes) == ["silo-0", "silo-1", "silo-2"]
    rest = np.vstack(parts[:3])
    values = np.linalg.eigvalsh(np.cov(rest.T, bias=True))[::-1]
    np.testing.assert_allclose(solution.values[:3], values[:3], rtol=1e-6)


# One loop drives a run: what is malformed is asked again; a round ends when nothing comes.

SILOS = make_silos(split(spiked_rows(), [200] * 3), 3)
PLAIN = power_settings(exact_study(12, 3), 3, n_steps=4)


def spoilt(times: int) -> tuple[Counter[int], Transport]:
    asked: Counter[int] = Counter()

    def answer(question: Message) -> Arrived:
        if question.silo == "silo-1":
            asked[question.round] += 1
            if asked[question.round] <= times:
                return Unreadable(silo="silo-1", problem="a message must be bytes")
        return SILOS[question.silo].answer(question)

    return asked, functools.partial(map, answer)


def test_what_cannot_be_read_is_asked_for_again_and_the_run_is_the_same():
    whole = make_coordinator(SILOS, PLAIN)
    drive(whole, in_turn(SILOS))
    coordinator = make_coordinator(SILOS, PLAIN)
    asked, ask = spoilt(MOST_ATTEMPTS - 1)
    drive(coordinator, ask)
    np.testing.assert_array_equal(coordinator.outcome.basis, whole.outcome.basis)
    assert set(asked.values()) == {MOST_ATTEMPTS}
    assert not any(each.set_aside for each in coordinator.history)


def test_a_silo_that_cannot_be_read_is_given_up_and_named():
    coordinator = make_coordinator(SILOS, PLAIN)
    asked, ask = spoilt(10**6)
    with pytest.raises(ProtocolError, match=r"must have 3 answers, got 2; .* answer of silo-1 was rejected"):
        drive(coordinator, ask)
    assert asked == {0: MOST_ATTEMPTS}


ROWS = {"a": 100, "b": 300, "c": 600}


def test_sampled_draws_weigh_in_expectation_as_everyone_does():
    everyone = SiloSampler(sizes=ROWS, rng=np.random.default_rng(0))
    assert everyone.draw(None) == ("a", "b", "c")
    assert everyone.weights("abc") == {"a": 0.1, "b": 0.3, "c": 0.6}
    sampler = SiloSampler(sizes=ROWS, rng=np.random.default_rng(1), n_participants=2)
    total = dict.fromkeys(ROWS, 0.0)
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
    with pytest.raises(InputError, match="n_participants must be between 1 and the 3 silos"):
        SiloSampler(sizes=ROWS, rng=np.random.default_rng(0), n_participants=count)


def test_sampled_participation_asks_the_drawn_and_the_first_silo_and_the_same_after_the_last_round():
    parts = split(spiked_rows(), [100, 100, 200, 200])
    _, coordinator, _ = solve(parts, n_steps=5, local_steps=2, n_participants=2, seed=3)
    for closed in coordinator.history[1:]:
        assert "silo-0" in closed.asked
        assert len(closed.asked) <= 3
    last_round, trailing = coordinator.history[-2:]
    assert trailing.step == 5
    assert trailing.asked == last_round.asked


def test_the_first_k_answers_close_a_round_which_lets_go_of_what_was_asked():
    silos = make_silos(split(spiked_rows(), [150] * 4), 3)
    settings = power_settings(exact_study(12, 3), 3, n_steps=4, n_participants=2, participation="first")
    coordinator = make_coordinator(silos, settings, min_silos=2)
    left: list[int] = []

    def last_first(questions: tuple[Message, ...]) -> Iterator[Arrived]:
        assert len(questions) == 4
        try:
            yield from in_turn(silos)(questions[::-1])
        finally:
            left.append(questions[0].round)

    drive(coordinator, last_first)
    assert [tuple(r.answers) for r in coordinator.history[1:]] == [("silo-2", "silo-3")] * 4
    assert left == [each.number for each in coordinator.history]


def test_when_the_reference_silo_is_silent_another_takes_its_place():
    parts = split(spiked_rows(), [150] * 4)
    silos = make_silos(parts, 3)
    settings = power_settings(exact_study(12, 3), 3, n_steps=40, local_steps=4, schedule="decaying")
    coordinator = make_coordinator(silos, settings, min_silos=3)

    def without_the_first(questions: tuple[Message, ...]) -> Iterator[Arrived]:
        for question in questions:
            if question.silo != "silo-0" or not isinstance(question.body, AskSteps):
                yield silos[question.silo].answer(question)

    drive(coordinator, without_the_first)
    rest = np.vstack(parts[1:])
    _, vectors = np.linalg.eigh(rest.T @ rest)
    assert sin_theta(coordinator.outcome.basis, vectors[:, ::-1][:, :3]) < 1e-10
