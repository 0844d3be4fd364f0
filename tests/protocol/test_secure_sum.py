"""Secure sums among honest parties: the sum is exact, a part of it is noise, failures are repeated."""

import math
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from private_silos import bounded_rows
from scipy.stats import chi2, norm
from secure_silos import (
    DELTA,
    EPSILON,
    KEYS,
    RUN,
    SIZES,
    D,
    K,
    called,
    coordinator_of,
    masked_moment,
    parties,
    party,
    rows_of,
    study_of,
    words_of,
)

from fedpower.errors import InputError, ProtocolError
from fedpower.linalg import symmetric_of
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import pack
from fedpower.protocol import Receipt, Silo, Study
from fedpower.protocol import coordinator as driving
from fedpower.protocol.messages import (
    AskMoment,
    AskSteps,
    Member,
    Message,
    OpenSession,
    Refusal,
    Session,
    decode,
    encode,
)
from fedpower.protocol.outcome import state_privacy
from fedpower.protocol.query import moment_of
from fedpower.protocol.secure import MaskChain, new_exchange_key, total
from fedpower.protocol.silo import ExactReleases, assemble
from fedpower.protocol.solvers.sums import MOST_FREE_SESSIONS
from fedpower.protocol.study import budget_of, pooled_std
from problems import ArrayMoment

STUDY = study_of()
EXACT = {"noise": "none", "epsilon": math.inf}
centred = pytest.mark.parametrize("study", [STUDY, study_of(center=True)], ids=["plain", "centred"])


def drive(coordinator, there, *, lost=frozenset(), spoil=None):

    def ask(questions):
        for question in questions:
            answer = there[question.silo].silo.answer
            if (question.round, question.silo) not in lost:
                yield answer(question)
            elif spoil is not None:
                whole = answer(question)
                yield structs.replace(whole, body=structs.replace(whole.body, words=spoil(whole.body.words)))
                assert question.silo in coordinator.history[-1].set_aside

    driving.drive(coordinator, ask)
    return coordinator.outcome


def hidden_words(study, session, seed=0):
    noise = budget_of(study).moment_noise(tuple(session.sizes.values()))
    return {
        name: moment_of(study).evaluate(ArrayMoment(rows_of(name)), noise.exponents)
        + noise.draw(SeededNoiseForExperiments(seed))
        for name in session.sizes
    }


@centred
def test_the_sum_of_the_uploads_is_the_lattice_sum_exactly(study):
    there = {name: party(name, study, source=SeededNoiseForExperiments(0)) for name, _ in study.identities}
    session = called(study, there)
    uploads = {name: words_of(each.upload(session)) for name, each in there.items()}
    expected = sum(hidden_words(study, session).values())
    assert np.array_equal(total(uploads.values()), expected)
    for name, words in uploads.items():
        assert not np.any(words.view(np.int64) == hidden_words(study, session)[name])


def test_the_sum_does_not_depend_on_the_order_of_arrival():
    there = parties(STUDY)
    session = called(STUDY, there)
    uploads = [words_of(each.upload(session)) for each in there.values()]
    assert np.array_equal(total(uploads), total(uploads[::-1]))


@centred
def test_the_solution_is_that_of_the_pooled_rows_up_to_the_shared_noise(study):
    there = parties(study)
    coordinator = coordinator_of(study)
    solution = drive(coordinator, there)
    rows = np.vstack([rows_of(name) for name in SIZES])
    moment = rows.T @ rows / len(rows)
    std = pooled_std(budget_of(study), SIZES)
    if study.center:
        mean = rows.mean(axis=0)
        assert np.abs(solution.center - mean).max() < 7 * std * math.sqrt(2)
        moment -= np.outer(mean, mean)
    assert abs(solution.total_variance - np.trace(moment)) < 7 * std * 2
    values = np.linalg.eigvalsh(moment)[::-1]
    assert np.abs(solution.values - values[:K]).max() < 7 * std * math.sqrt(D) * 2
    assert solution.sizes == SIZES
    assert [each.kind for each in coordinator.history] == ["enrol", "open-session", "moment"]
    assert all(each.charges == 1 for each in there.values())


def test_the_noise_of_the_sum_is_the_shares_together():
    seen = []
    for _ in range(60):
        there = parties(STUDY)
        session = called(STUDY, there)
        uploads = {name: each.upload(session) for name, each in there.items()}
        noise = budget_of(STUDY).moment_noise(tuple(session.sizes.values()))
        values = noise.values(total(each.words for each in uploads.values()))
        below, mean, trace = moment_of(STUDY).read(values, sum(session.sizes.values()))
        seen.append(pack(symmetric_of(below, D), mean, trace))
    noise = np.array(seen) - np.mean(seen, axis=0)
    std = pooled_std(budget_of(STUDY), SIZES)
    low, high = chi2.ppf([5e-10, 1 - 5e-10], noise.shape[1] * 59)
    assert low < float(np.sum(noise**2)) / std**2 < high


def test_a_part_of_the_session_sums_to_noise_over_the_whole_ring():
    words = []
    for _ in range(40):
        there = parties(STUDY)
        session = called(STUDY, there)
        words.append(total([words_of(there[name].upload(session)) for name in list(SIZES)[:3]]))
    uniform = np.sort(np.concatenate(words).astype(np.float64) / 2.0**64 + 0.5)
    n = uniform.size
    gap = np.abs(uniform - (np.arange(n) + 0.5) / n).max()
    assert gap < math.sqrt(math.log(2 / 1e-9) / (2 * n)) + 1 / n


def test_what_leaves_a_silo_looks_uniform_to_standard_tests():
    kept = []
    for attempt in range(60):
        there = parties(STUDY, attempts=60)
        session = called(STUDY, there, attempt=attempt)
        kept.append(words_of(there["north"].upload(session)))
    assert len({each.tobytes() for each in kept}) == 60
    data = np.concatenate(kept).view(np.uint8)
    counts = np.bincount(data, minlength=256)
    expected = data.size / 256
    assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-7, 255)
    edge = norm.ppf(1 - 0.5e-7)
    bits = np.unpackbits(data).astype(np.int64)
    assert abs(2 * bits.sum() - bits.size) < edge * math.sqrt(bits.size)
    changes = int(np.count_nonzero(np.diff(bits)))  # binomial with probability ½ where bits are fair
    assert abs(2 * changes - (bits.size - 1)) < edge * math.sqrt(bits.size - 1)
    centred_bytes = data - 127.5
    products = centred_bytes[1:] * centred_bytes[:-1]
    assert abs(products.sum()) < edge * (256**2 - 1) / 12 * math.sqrt(products.size)


def test_without_a_mask_the_same_tests_would_fail():
    there = parties(STUDY)
    data = hidden_words(STUDY, called(STUDY, there))["north"].view(np.uint8)
    counts = np.bincount(data, minlength=256)
    expected = data.size / 256
    assert ((counts - expected) ** 2 / expected).sum() > chi2.ppf(1 - 1e-7, 255)


def test_masks_of_any_number_of_silos_cancel():
    rng = np.random.default_rng(0)
    for count in (2, 3, 7):
        secrets = [new_exchange_key() for _ in range(count)]
        session = Session(
            study="s", run="r", attempt=0, members=tuple(place(i, s) for i, s in enumerate(secrets))
        )
        words = [rng.integers(0, 2**64, 70_000, dtype=np.uint64) for _ in range(count)]
        hidden = [
            MaskChain(f"silo-{i}", session, secret).masked(each, question=b"")
            for i, (each, secret) in enumerate(zip(words, secrets, strict=True))
        ]
        assert np.array_equal(total(hidden), total(words))
        assert not np.any(hidden[0] == words[0])


def place(index, secret):
    return Member(
        silo=f"silo-{index}", n_rows=1, key=secret.public_key().public_bytes_raw(), signature=bytes(64)
    )


def test_a_lost_upload_is_a_new_roll_with_fresh_noise_and_a_fresh_charge():
    there = parties(STUDY)
    coordinator = coordinator_of(STUDY)
    solution = drive(coordinator, there, lost={(2, "east")})
    assert list(solution.sizes) == ["north", "south", "west"]
    kinds = [each.kind for each in coordinator.history]
    assert kinds == ["enrol", "open-session", "moment", "open-session", "moment"]
    assert {name: each.charges for name, each in there.items()} == {
        "north": 2, "south": 2, "east": 0, "west": 2,
    }  # fmt: skip
    first, second = (coordinator.history[place].answers["north"].words for place in (2, 4))
    assert not np.any(first == second)
    keys = [coordinator.history[place].answers["north"].key for place in (1, 3)]
    assert keys[0] != keys[1]
    rounds = coordinator.history[1:]
    reported = state_privacy(STUDY, budget_of(STUDY), solution.sizes, rounds)
    assert reported.protections[1].mu == pytest.approx(math.sqrt(2) * budget_of(STUDY).total_mu)
    assert reported.protections[1].epsilon > EPSILON
    assert "charged most often on these rows was for 2 attempts, runs before" in str(reported)


WHOLE = study_of(min_silos=len(SIZES))
"""A secure sum that goes on with all of its silos or not at all, as studies do unless they say so."""


def restarted(there, name):
    kept = there[name]
    there[name] = party(name, kept.silo.study, ledger=kept.ledger)


def answer_round(coordinator, there):
    for question in coordinator.next():
        coordinator.receive(there[question.silo].silo.answer(question))


def stated(coordinator, study):
    return state_privacy(study, budget_of(study), coordinator.outcome.sizes, coordinator.history[1:])


def test_a_silo_restarted_between_roll_call_and_upload_is_called_again_and_the_sum_is_had():
    there = parties(WHOLE)
    coordinator = coordinator_of(WHOLE)
    answer_round(coordinator, there)
    answer_round(coordinator, there)
    restarted(there, "west")
    solution = drive(coordinator, there)
    assert solution.sizes == SIZES
    kinds = [each.kind for each in coordinator.history]
    assert kinds == ["enrol", "open-session", "moment", "open-session", "moment"]
    assert {name: each.charges for name, each in there.items()} == {
        "north": 2, "south": 2, "east": 2, "west": 1,
    }  # fmt: skip
    reported = stated(coordinator, WHOLE)
    assert reported.protections[1].mu == pytest.approx(math.sqrt(2) * budget_of(WHOLE).total_mu)


@pytest.mark.parametrize("killed", ["before", "within", "after"])
def test_a_run_taken_up_after_its_roll_has_died_calls_a_new_one(killed):
    there = parties(WHOLE)
    first = coordinator_of(WHOLE)
    answer_round(first, there)
    answer_round(first, there)
    if killed == "within":
        for question in first.next()[:3]:
            assert first.receive(there[question.silo].silo.answer(question)) is Receipt.ACCEPTED
    restarted(there, "west")
    if killed == "after":
        answer_round(first, there)
    closed = [replace(each, answers=dict(each.answers)) for each in first.history[:-1]]
    assert len(closed) == (3 if killed == "after" else 2)
    resumed = coordinator_of(WHOLE, recorded=closed)
    assert resumed.n_replayed == len(closed)
    assert drive(resumed, there).sizes == SIZES
    assert {name: each.charges for name, each in there.items()} == {
        "north": 2, "south": 2, "east": 2, "west": 1,
    }  # fmt: skip


def test_a_run_taken_up_after_everybody_uploaded_is_done_without_another_charge():
    there = parties(WHOLE)
    first = coordinator_of(WHOLE)
    answer_round(first, there)
    answer_round(first, there)
    closed = list(first.history[:-1])
    for question in first.next():
        words_of(there[question.silo].silo.answer(question).body)
    for name in SIZES:
        restarted(there, name)
    resumed = coordinator_of(WHOLE, recorded=closed)
    assert drive(resumed, there).sizes == SIZES
    assert all(each.charges == 1 for each in there.values())
    assert stated(resumed, WHOLE).protections[1].epsilon == pytest.approx(EPSILON, rel=1e-5)


def test_a_refusal_that_a_new_roll_would_not_cure_costs_no_further_attempt():
    there = parties(WHOLE)
    first = coordinator_of(WHOLE)
    answer_round(first, there)
    answer_round(first, there)
    closed = list(first.history[:-1])
    there["west"].ledger.set_cap(EPSILON / 2, DELTA)
    with pytest.raises(ProtocolError, match=r"silo 'west' refused: .* left"):
        answer_round(first, there)
    assert {name: each.charges for name, each in there.items()} == {
        "north": 1, "south": 1, "east": 1, "west": 0,
    }  # fmt: skip
    there["west"].ledger.set_cap(10 * EPSILON, DELTA)
    assert drive(coordinator_of(WHOLE, recorded=closed), there).sizes == SIZES
    assert all(each.charges == 1 for each in there.values())


def test_rolls_that_cost_nobody_anything_do_not_count_and_still_come_to_an_end():
    once = replace(WHOLE, attempts=1)
    there = parties(once)
    coordinator = coordinator_of(once)
    answer_round(coordinator, there)
    for _ in range(5):
        answer_round(coordinator, there)
        for name in SIZES:
            restarted(there, name)
        answer_round(coordinator, there)
    assert all(each.charges == 0 for each in there.values())
    assert drive(coordinator, there).sizes == SIZES
    assert all(each.charges == 1 for each in there.values())
    hopeless = coordinator_of(once, run="hopeless")
    there = parties(once)
    answer_round(hopeless, there)
    with pytest.raises(ProtocolError, match="too few were left"):  # noqa: PT012
        for _ in range(MOST_FREE_SESSIONS):
            answer_round(hopeless, there)
            for name in SIZES:
                restarted(there, name)
            answer_round(hopeless, there)
    assert all(each.charges == 0 for each in there.values())


def test_a_silo_that_restarts_every_time_costs_no_more_attempts_than_were_agreed():
    there = parties(WHOLE)
    coordinator = coordinator_of(WHOLE)
    answer_round(coordinator, there)
    with pytest.raises(ProtocolError, match="within 3 attempts"):  # noqa: PT012
        for _ in range(MOST_FREE_SESSIONS):
            answer_round(coordinator, there)
            restarted(there, "west")
            answer_round(coordinator, there)
    assert {name: each.charges for name, each in there.items()} == {
        "north": 3, "south": 3, "east": 3, "west": 0,
    }  # fmt: skip


def test_the_statement_counts_the_attempts_of_earlier_runs():
    there = parties(WHOLE)
    first = coordinator_of(WHOLE, run="first")
    answer_round(first, there)
    answer_round(first, there)
    for question in first.next():
        if question.silo != "east":
            words_of(there[question.silo].silo.answer(question).body)
    second = coordinator_of(WHOLE, run="second")
    drive(second, there)
    reported = stated(second, WHOLE)
    for each in there.values():
        spent = each.ledger.spent()
        assert reported.protections[1].mu >= spent.mu * (1 - 1e-12)
        assert reported.protections[1].epsilon >= spent.epsilon * (1 - 1e-9)
    assert there["north"].charges == 2
    assert reported.protections[1].mu == pytest.approx(there["north"].ledger.spent().mu)
    assert "for 2 attempts, runs before this one counted. All 3 that the study allows" in str(reported)


def test_the_statement_counts_a_silo_that_was_asked_and_stayed_silent():
    there = parties(STUDY)
    earlier = coordinator_of(STUDY, run="earlier")
    drive(earlier, there)
    coordinator = coordinator_of(STUDY)
    solution = drive(coordinator, {**there}, lost={(2, "east"), (3, "east")})
    assert "east" not in solution.sizes
    reported = stated(coordinator, STUDY)
    assert reported.protections[1].mu == pytest.approx(math.sqrt(3) * budget_of(STUDY).total_mu)


@pytest.mark.parametrize("reported", [-1, 3, 10**400])
def test_a_place_whose_charges_cannot_be_is_left_off_the_roll(reported):
    there = parties(STUDY)
    coordinator = coordinator_of(STUDY)
    answer_round(coordinator, there)
    for question in coordinator.next():
        answer = there[question.silo].silo.answer(question)
        if question.silo == "west":
            answer = structs.replace(answer, body=structs.replace(answer.body, charged=reported))
        coordinator.receive(answer)
    if coordinator.history[-1].number == 1:  # it was set aside, and the round waits for it
        coordinator.deadline()
    assert list(drive(coordinator, there).sizes) == ["north", "south", "east"]
    assert there["west"].charges == 0


@pytest.mark.parametrize("reported", [-1, 0, 4, 10**400])
def test_an_upload_whose_charges_cannot_be_is_as_if_it_had_not_come(reported):
    there = parties(STUDY)
    coordinator = coordinator_of(STUDY)

    def ask(questions):
        for question in questions:
            answer = there[question.silo].silo.answer(question)
            if question.silo == "west" and question.round == 2:
                answer = structs.replace(answer, body=structs.replace(answer.body, charged=reported))
            yield answer

    driving.drive(coordinator, ask)
    assert list(coordinator.outcome.sizes) == ["north", "south", "east"]


def test_a_run_may_be_interrupted_at_no_cost_but_while_a_session_is_open():
    there = parties(WHOLE)
    coordinator = coordinator_of(WHOLE)
    seen = []

    def ask(questions):
        seen.append((coordinator.history[-1].kind, coordinator.interruptible))
        for question in questions:
            yield there[question.silo].silo.answer(question)

    driving.drive(coordinator, ask)
    assert seen == [("enrol", True), ("open-session", True), ("moment", False)]


def test_a_silo_that_misses_the_session_call_costs_nobody_anything():
    there = parties(STUDY)
    solution = drive(coordinator_of(STUDY), there, lost={(1, "south")})
    assert list(solution.sizes) == ["north", "east", "west"]
    assert {name: each.charges for name, each in there.items()} == {
        "north": 1, "south": 0, "east": 1, "west": 1,
    }  # fmt: skip


def test_attempts_end_at_their_bound_and_at_the_fewest_silos():
    there = parties(STUDY)
    lost = {(2, "east"), (2, "west"), (4, "north")}
    with pytest.raises(ProtocolError, match="round 4 needs 2 answers and got 1"):
        drive(coordinator_of(STUDY), there, lost=lost)
    once = study_of(attempts=1)
    with pytest.raises(ProtocolError, match="within 1 attempts"):
        drive(coordinator_of(once), parties(once), lost={(2, "east")})


def test_a_place_that_its_silo_did_not_sign_is_left_off_the_roll():
    there = parties(STUDY)
    coordinator = coordinator_of(STUDY)
    for question in coordinator.next():
        coordinator.receive(there[question.silo].silo.answer(question))
    for question in coordinator.next():
        answer = there[question.silo].silo.answer(question)
        if question.silo == "west":
            answer = structs.replace(answer, body=structs.replace(answer.body, signature=bytes(64)))
            assert coordinator.receive(answer) is Receipt.MALFORMED
        else:
            assert coordinator.receive(answer) is Receipt.ACCEPTED
    assert "signature" in coordinator.history[-1].set_aside["west"]
    drive(coordinator, there, lost={(1, "west")})
    assert list(coordinator.outcome.sizes) == ["north", "south", "east"]
    assert there["west"].charges == 0


def test_an_upload_of_the_wrong_length_is_a_failed_attempt():
    there = parties(STUDY)
    coordinator = coordinator_of(STUDY)
    drive(coordinator, there, lost={(2, "west")}, spoil=lambda words: words[:-1])
    assert list(coordinator.outcome.sizes) == ["north", "south", "east"]


def test_the_statement_names_every_observer_with_what_the_noise_gives():
    there = parties(STUDY)
    coordinator = coordinator_of(STUDY)
    drive(coordinator, there)
    budget = budget_of(STUDY)
    reported = state_privacy(STUDY, budget, SIZES, coordinator.history[1:])
    alone, together, public = reported.protections
    assert together.mu == pytest.approx(budget.total_mu)
    assert public.mu == alone.mu
    assert alone.epsilon < together.epsilon <= EPSILON
    assert together.epsilon == pytest.approx(EPSILON, rel=1e-5)
    assert alone.mu == pytest.approx(together.mu * math.sqrt(3 / 4))
    assert {each.delta for each in reported.protections} == {DELTA}
    assert reported.as_dict()["notes"]


def test_the_noise_is_that_which_silos_share():
    plain = Study(columns=None, n_features=D, iteration_rank=K, noise="moment", epsilon=EPSILON, delta=DELTA)
    sizes = dict.fromkeys(SIZES, 200)
    ratio = pooled_std(budget_of(STUDY), sizes) / pooled_std(budget_of(plain), sizes)
    assert ratio == pytest.approx(math.sqrt(1 / 3), rel=1e-6)  # √(m/(m−c))/√m


@pytest.mark.parametrize(
    "body",
    [AskMoment(label="mean"), AskMoment(label="moment"), AskSteps(basis=np.eye(D)[:, :1], n_local_steps=1)],
)
def test_nothing_else_can_be_asked_of_a_silo_of_a_secure_sum(body):
    north = parties(STUDY)["north"]
    answer = north.ask(body)
    assert isinstance(answer, Refusal)
    assert "nothing but a secure sum leaves" in answer.reason
    assert north.charges == 0


@pytest.mark.parametrize("body", [OpenSession(attempt=0), masked_moment(b"a session")])
def test_no_roll_is_called_in_a_plain_study(body):
    study = Study(columns=None, n_features=D, iteration_rank=K)
    silo = Silo("north", study, ExactReleases(ArrayMoment(bounded_rows()), study))
    question = Message(study=study.digest, run=RUN, round=0, silo="north", body=body)
    answer = silo.answer(question).body
    assert isinstance(answer, Refusal)
    assert "aggregation='secure'" in answer.reason


def test_a_silo_must_hold_the_identity_that_the_study_lists():
    swapped = study_of(
        identities=tuple(
            (name, KEYS[other].public) for name, other in zip(SIZES, [*SIZES][::-1], strict=True)
        )
    )
    with pytest.raises(InputError, match="must hold the identity that the study lists"):
        parties(swapped)


def test_a_sum_over_bytes_on_a_wire_is_the_sum_over_objects():

    def solved(carry):
        there = {
            name: party(name, STUDY, source=SeededNoiseForExperiments(place))
            for place, name in enumerate(SIZES)
        }
        coordinator = coordinator_of(STUDY)

        def ask(questions):
            for question in questions:
                yield carry(there[question.silo].silo.answer(carry(question)))

        driving.drive(coordinator, ask)
        return coordinator.outcome

    direct = solved(lambda message: message)
    carried = solved(lambda message: decode(encode(message)))
    assert np.array_equal(direct.vectors, carried.vectors)
    assert np.array_equal(direct.values, carried.values)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colluders": 0}, "must have more silos than the . that may collude"),
        ({"colluders": 2}, "must have more silos than the . that may collude"),
        ({"min_silos": 5}, "must have more silos than the . that may collude"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"noise": "step", "n_steps": 3}, "must go with noise='moment'"),
        (EXACT, "aggregation='secure' must have a finite epsilon, got epsilon=inf"),
        ({"aggregation": "plain"}, "must go with aggregation='secure'"),
        ({"aggregation": "other"}, "must be 'plain' or 'secure'"),
        ({"identities": (("a", "00" * 32), ("b", "00" * 32))}, "different names and keys"),
        ({"identities": (("a", "00" * 32), ("b", "xx" * 32))}, "64 hexadecimal digits"),
    ],
)
def test_terms_that_cannot_be_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(STUDY, **change)


def test_no_silo_is_assembled_for_exact_secure_sums():
    forged = copy(STUDY)
    for name, value in EXACT.items():
        object.__setattr__(forged, name, value)
    with pytest.raises(InputError, match="so use aggregation='plain' or a finite epsilon"):
        assemble("north", ArrayMoment(bounded_rows()), forged, ledger=None, identity=KEYS["north"])
