"""Secure sums among honest parties, one or several a session: exact, uniform in part, repeated on failure."""

import json
import math
import struct
from copy import copy
from dataclasses import replace

import msgspec
import numpy as np
import pytest
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
    session_of,
    study_of,
    words_of,
)

from federations import ASK_MOMENT, closed_rounds
from fedpower.errors import InputError, ProtocolError
from fedpower.privacy.accounting import compose
from fedpower.privacy.budget import MOMENT, QueryTerms, shares_of
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol import Receipt, Silo, Study
from fedpower.protocol.messages import (
    AskMoment,
    AskQuery,
    AskSteps,
    Enrol,
    KeyGone,
    Member,
    Message,
    OpenSession,
    Refusal,
    Session,
    decode,
    encode,
)
from fedpower.protocol.outcome import state_privacy
from fedpower.protocol.query import query_of
from fedpower.protocol.query import vectors_from_bytes as from_public
from fedpower.protocol.query import vectors_to_bytes as to_public
from fedpower.protocol.secure import MaskChain, new_exchange_key, total
from fedpower.protocol.silo import ExactReleases, assemble
from fedpower.protocol.solvers.sums import MOST_FREE_SESSIONS
from fedpower.protocol.study import PREPARED, pooled_std
from fedpower.report.record import StudyTerms, plain
from fedpower.sums.survey import STAGES
from problems import ArrayMoment

LOW, HIGH, MIDDLE = np.full(D, -1.0), np.full(D, 1.0), np.zeros(D)
NOTHING, RANGED, ALL = (None,) * 4, (LOW, HIGH, None, None), (LOW, HIGH, MIDDLE, HIGH)
ZOOMED = (LOW, HIGH, np.eye(D)[0] + np.eye(D)[2], None)
OTHERS = (to_public((LOW, 2 * HIGH, None, None)), to_public((LOW, HIGH, MIDDLE, 2 * HIGH)))

STUDY = study_of()
CENTRED = study_of(center=True)
WHOLE = study_of(min_silos=len(SIZES))  # goes on with all of its silos or not at all
SEVERAL = study_of(preparation=(0.0, 0.0, 0.0, 0.1, 0.1), ranges=((-1.0, 1.0),) * D, treatment=PREPARED)
MANY = study_of(
    preparation=shares_of(n_rows=800, n_features=D, n_open=D, mu=0.24),
    ranges=(None,) * D,
    treatment=PREPARED,
    center=True,
    mean_weight=0.25,
)
PUBLICS = {
    1: (b"",),
    3: (to_public(RANGED), to_public(ALL), to_public(ALL, 1.0)),
    6: (*map(to_public, (NOTHING, RANGED, ZOOMED, RANGED, ALL)), to_public(ALL, 1.0)),
}
NAMES = {"one sum": STUDY, "about the mean": CENTRED, "three sums": SEVERAL, "six sums": MANY}
EVERY = pytest.mark.parametrize("study", NAMES.values(), ids=NAMES)
PREPARING = pytest.mark.parametrize("study", [SEVERAL, MANY], ids=["three sums", "six sums"])


def publics_of(study):
    return PUBLICS[len(study.queries)]


def queries(study):
    pairs = zip(study.queries, publics_of(study), strict=True)
    return [query_of(study, terms.label, public) for terms, public in pairs]


def noise_of(study, query):
    return study.budget.noise(query.label, query.sensitivity, tuple(SIZES.values()))


def spread_of(noise):
    return np.repeat(noise.stds, [group.length for group in noise.sensitivity.groups])


def hidden(study, query, source=None):
    """Return what each silo adds up and masks, noised by ``source`` where one is given."""
    noise, silos = noise_of(study, query), parties(study)
    found = {}
    for name, each in silos.items():
        words = query.evaluate(each.rows, noise.exponents)
        found[name] = words if source is None else words + noise.draw(source)
    return found


def ask(study, session, index, public=None):
    public = publics_of(study)[index] if public is None else public
    return AskQuery(session=session, index=index, label=study.queries[index].label, public=public)


def uploads(study, there, session, index):
    question = ask(study, session, index)
    return {name: words_of(each.ask(question)) for name, each in there.items()}


def drive(coordinator, there, *, lost=frozenset(), spoil=lambda answer: answer):
    """Deliver all but the (round, silo) that are lost, over the wire's bytes."""
    while not coordinator.done:
        number = coordinator.history[-1].number
        for question in coordinator.next():
            if (question.round, question.silo) not in lost:
                answer = there[question.silo].silo.answer(decode(encode(question)))
                coordinator.receive(spoil(decode(encode(answer))))
        if not coordinator.done and coordinator.history[-1].number == number:
            coordinator.deadline()
    return coordinator.outcome


def answer_round(coordinator, there):
    for question in coordinator.next():
        coordinator.receive(there[question.silo].silo.answer(question))


def restarted(there, name):
    kept = there[name]
    there[name] = party(name, kept.silo.study, ledger=kept.ledger)


def charges(there):
    return [there[name].charges for name in SIZES]


def kinds(coordinator):
    return [each.kind for each in coordinator.history]


def stated(coordinator, study):
    return state_privacy(study, study.budget, coordinator.outcome.sizes, coordinator.history[1:])


def refused(answer, *words):
    assert isinstance(answer, Refusal), answer
    assert "\n" not in answer.reason
    assert all(word in answer.reason for word in words), answer.reason
    return True


def looks_uniform(words):
    """Uniform words: the median of some magnitudes is below 2⁵⁷ with probability below 1e-9."""
    return np.median(np.abs(words.view(np.int64).astype(np.float64))) > 2.0**57


# Totals


@EVERY
def test_uploads_add_up_to_the_lattice_sum_exactly_in_any_order_and_parts_of_them_are_uniform(study):
    there = parties(study, source=SeededNoiseForExperiments(3))
    shared = SeededNoiseForExperiments(3)  # one stream, from which silos draw in turn
    session = called(study, there)
    for index, query in enumerate(queries(study)):
        sent, expected = uploads(study, there, session, index), hidden(study, query, shared)
        together = total(sent.values())
        assert np.array_equal(together, sum(expected.values()))
        assert np.array_equal(together, total([*sent.values()][::-1]))
        assert not looks_uniform(together)
        part = total([sent[name] for name in ("north", "south", "east")])
        assert np.abs(part.astype(float)).max() > 2.0**60
        for words in (part, *sent.values()):
            assert looks_uniform(words)
        for name, words in sent.items():
            assert not np.any(words.view(np.int64) == expected[name])


@EVERY
def test_every_total_is_that_of_the_pooled_rows_within_its_noise(study):
    """Within 7 standard deviations in each of some 1,000 numbers; fails by chance below 1e-8."""
    there = parties(study)
    session = called(study, there)
    pooled = np.vstack([rows_of(name) for name in SIZES])
    for index, query in enumerate(queries(study)):
        noise = noise_of(study, query)
        found = noise.values(total(uploads(study, there, session, index).values()))
        exact = noise.values(sum(hidden(study, query).values()))
        assert found.size == study.queries[index].size
        assert np.abs((found - exact) / spread_of(noise)).max() < 7
        if study is MANY and query.label != MOMENT:
            assert np.abs((found - query.stage.tally(pooled)) / spread_of(noise)).max() < 7


@pytest.mark.parametrize("study", [STUDY, CENTRED], ids=["one sum", "about the mean"])
def test_the_solution_is_that_of_the_pooled_rows_up_to_the_shared_noise(study):
    there, coordinator = parties(study), coordinator_of(study)
    solution = drive(coordinator, there)
    rows = np.vstack([rows_of(name) for name in SIZES])
    moment = rows.T @ rows / len(rows)
    std = pooled_std(study, SIZES)
    if study.center:
        mean = rows.mean(axis=0)
        assert np.abs(solution.center - mean).max() < 7 * std * math.sqrt(2)
        moment -= np.outer(mean, mean)
    assert abs(solution.total_variance - np.trace(moment)) < 7 * std * 2
    values = np.linalg.eigvalsh(moment)[::-1]
    assert np.abs(solution.values - values[:K]).max() < 7 * std * math.sqrt(D) * 2
    assert solution.sizes == SIZES
    assert kinds(coordinator) == ["enrol", "open-session", "moment"]
    assert charges(there) == [1] * 4


@pytest.mark.parametrize(
    ("study", "index"),
    [(STUDY, 0), pytest.param(SEVERAL, 1, marks=pytest.mark.slow)],
    ids=["moment", "norms"],
)
def test_the_noise_of_a_total_is_the_shares_together(study, index):
    """χ² of the noise in 30 totals; fails by chance with 1e-9."""
    query = queries(study)[index]
    noise = noise_of(study, query)
    exact, seen = noise.values(sum(hidden(study, query).values())), []
    for _ in range(30):
        there = parties(study)
        session = called(study, there)
        sent = [uploads(study, there, session, each) for each in range(index + 1)][-1]
        seen.append((noise.values(total(sent.values())) - exact) / spread_of(noise))
    low, high = chi2.ppf([5e-10, 1 - 5e-10], np.size(seen))
    assert low < float(np.sum(np.square(seen))) < high


def test_a_part_of_the_session_sums_to_noise_over_the_whole_ring():
    words = []
    for _ in range(20):
        there = parties(STUDY)
        sent = uploads(STUDY, there, called(STUDY, there), 0)
        words.append(total([sent[name] for name in list(SIZES)[:3]]))
    uniform = np.sort(np.concatenate(words).astype(np.float64) / 2.0**64 + 0.5)
    n = uniform.size
    gap = np.abs(uniform - (np.arange(n) + 0.5) / n).max()
    assert gap < math.sqrt(math.log(2 / 1e-9) / (2 * n)) + 1 / n


def bytes_of(words):
    data = np.concatenate(words).view(np.uint8)
    expected = data.size / 256
    counts = np.bincount(data, minlength=256)
    return data, ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-7, 255)


def test_what_leaves_a_silo_looks_uniform_to_standard_tests_and_would_not_without_a_mask():
    study, kept = replace(STUDY, attempts=60), []
    there = parties(study, attempts=60)
    for attempt in range(60):
        session = called(study, there, attempt=attempt)
        kept.append(words_of(there["north"].upload(session)))
    assert len({each.tobytes() for each in kept}) == 60
    data, is_uniform = bytes_of(kept)
    assert is_uniform
    edge = norm.ppf(1 - 0.5e-7)
    bits = np.unpackbits(data).astype(np.int64)
    assert abs(2 * bits.sum() - bits.size) < edge * math.sqrt(bits.size)
    changes = int(np.count_nonzero(np.diff(bits)))  # binomial with probability ½ where bits are fair
    assert abs(2 * changes - (bits.size - 1)) < edge * math.sqrt(bits.size - 1)
    centred_bytes = data - 127.5
    products = centred_bytes[1:] * centred_bytes[:-1]
    assert abs(products.sum()) < edge * (256**2 - 1) / 12 * math.sqrt(products.size)
    assert not bytes_of([hidden(STUDY, queries(STUDY)[0], SeededNoiseForExperiments(0))["north"]])[1]


def bare_session(secrets):
    members = (
        Member(silo=f"silo-{i}", n_rows=1, key=each.public_key().public_bytes_raw(), signature=bytes(64))
        for i, each in enumerate(secrets)
    )
    return Session(study="s", run="r", attempt=0, members=tuple(members))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_masks_of_any_number_of_silos_cancel(count):
    rng = np.random.default_rng(0)
    secrets = [new_exchange_key() for _ in range(count)]
    session = bare_session(secrets)
    words = [rng.integers(0, 2**64, 20_000, dtype=np.uint64) for _ in range(count)]
    masked = [
        MaskChain(f"silo-{i}", session, secret).masked(each, question=b"")
        for i, (each, secret) in enumerate(zip(words, secrets, strict=True))
    ]
    assert np.array_equal(total(masked), total(words))
    assert not np.any(masked[0] == words[0])


def test_masks_are_of_one_sum_and_one_question_and_are_used_once():
    secrets = [new_exchange_key() for _ in range(4)]
    chain = MaskChain("silo-0", bare_session(secrets), secrets[0])
    nothing = np.zeros(50, dtype=np.uint64)
    seen = [chain.masked(nothing, question=b"a" * 32), chain.masked(nothing, question=b"b" * 32)]
    assert np.array_equal(seen[0], chain.masked(nothing, question=b"a" * 32))
    for _ in range(5):
        before = chain._links
        chain.advance()
        assert not {key for _, key in before} & {key for _, key in chain._links}
        seen.append(chain.masked(nothing, question=b"a" * 32))
    words = np.concatenate(seen)
    assert len(set(words.tolist())) == words.size


def test_numbers_beyond_what_rows_can_add_are_brought_back_without_a_word():
    """A refusal would depend on rows; and the ring holds no more."""
    noise = noise_of(SEVERAL, queries(SEVERAL)[1])
    most = 300 << noise.exponents[0]
    for number, kept in ((most + 1, most), (2**62, most), (-(2**62), -most), (most - 1, most - 1)):
        assert set(noise.bounded(np.full(noise.sensitivity.size, number), 300).tolist()) == {kept}


# Budgets


@PREPARING
def test_the_sums_of_an_attempt_have_their_stages_shares_and_compose_to_epsilon(study):
    there, coordinator = parties(study), coordinator_of(study)
    solution = drive(coordinator, there)
    budget = study.budget
    terms = {"aggregation": "plain", "colluders": 0, "identities": (), "min_silos": 0, "attempts": 1}
    alone = replace(study, **terms).budget
    labels = [terms.label for terms in study.queries]
    assert labels == [*(STAGES if study is MANY else STAGES[3:]), MOMENT]
    prices = [budget.price(label).mu for label in labels]
    for label, price in zip(labels, prices, strict=True):
        assert (price / budget.total_mu) ** 2 == pytest.approx((alone.price(label).mu / alone.total_mu) ** 2)
    for each in there.values():
        entries = each.ledger.entries()
        assert [entry.purpose for entry in entries] == [
            f"{label}, share of a secure sum over 4 silos" for label in labels
        ]
        mus = [entry.mu for entry in entries]
        assert mus == pytest.approx(prices)
        assert compose(mus) == pytest.approx(budget.total_mu, rel=1e-12)
        assert max(compose(mus), compose(prices)) <= budget.total_mu
        assert sum(entry.slack_delta for entry in entries) == pytest.approx(budget.slack_delta)
        assert each.ledger.spent().epsilon <= EPSILON * (1 + 1e-9)
    assert solution.code_book.n_rows == sum(SIZES.values())
    assert solution.code_book.mu == pytest.approx(budget.total_mu * math.sqrt(sum(study.preparation)))
    reported = stated(coordinator, study)
    assert f"the {len(study.queries)} noised sums over all silos" in str(reported)
    assert "charged most often on these rows was for 1 attempt," in str(reported)
    assert "found privately, out of the same epsilon" in str(reported)


@EVERY
def test_the_statement_names_every_observer_with_what_the_noise_gives(study):
    coordinator = coordinator_of(study)
    drive(coordinator, parties(study))
    budget, reported = study.budget, stated(coordinator, study)
    alone, together, public = reported.protections
    assert together.mu == pytest.approx(budget.total_mu)
    assert public.mu == alone.mu
    assert alone.epsilon < together.epsilon <= EPSILON
    assert together.epsilon == pytest.approx(EPSILON, rel=1e-5)
    assert alone.mu == pytest.approx(together.mu * math.sqrt(3 / 4))
    assert {each.delta for each in reported.protections} == {DELTA}
    assert reported.as_dict()["notes"]


def test_the_noise_is_that_which_silos_share_and_a_share_of_the_budget_has_more():
    plain_study = Study(
        columns=None, n_features=D, iteration_rank=K, noise="moment", epsilon=EPSILON, delta=DELTA
    )
    sizes = dict.fromkeys(SIZES, 200)
    ratio = pooled_std(STUDY, sizes) / pooled_std(plain_study, sizes)
    assert ratio == pytest.approx(math.sqrt(1 / 3), rel=1e-6)  # √(m/(m−c))/√m
    whole, part = (pooled_std(study, SIZES) for study in (STUDY, SEVERAL))
    assert part / whole == pytest.approx(1 / math.sqrt(0.8), rel=1e-4)


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
    drive(coordinator_of(STUDY, run="earlier"), there)
    coordinator = coordinator_of(STUDY)
    assert "east" not in drive(coordinator, there, lost={(2, "east"), (3, "east")}).sizes
    mu = stated(coordinator, STUDY).protections[1].mu
    assert mu == pytest.approx(math.sqrt(3) * STUDY.budget.total_mu)


# Silos that vanish, and runs that are taken up


@pytest.mark.parametrize(
    ("study", "number", "others", "lost"),
    [(STUDY, 2, 2, 0), (SEVERAL, 3, 5, 1), (MANY, 4, 9, 2)],
    ids=["one sum", "three sums", "six sums"],
)
def test_a_silo_that_vanishes_costs_the_attempt_and_all_is_summed_again(study, number, others, lost):
    there, coordinator = parties(study), coordinator_of(study)
    solution = drive(coordinator, there, lost={(number, "east")})
    assert list(solution.sizes) == ["north", "south", "west"]
    if study.preparation:
        assert solution.code_book.n_rows == sum(SIZES.values()) - SIZES["east"]
    labels, opened = [terms.label for terms in study.queries], "open-session"
    assert kinds(coordinator) == ["enrol", opened, *labels[: number - 1], opened, *labels]
    assert charges(there) == [others, others, lost, others]
    answers = [each.answers["north"] for each in coordinator.history]
    assert not np.any(answers[2].words == answers[number + 2].words)
    assert answers[1].key != answers[number + 1].key
    reported = stated(coordinator, study)
    assert reported.protections[1].mu == pytest.approx(math.sqrt(2) * study.budget.total_mu)
    assert reported.protections[1].epsilon > EPSILON
    assert "charged most often on these rows was for 2 attempts, runs before" in str(reported)


def test_a_silo_that_misses_the_session_call_costs_nobody_anything():
    there = parties(STUDY)
    solution = drive(coordinator_of(STUDY), there, lost={(1, "south")})
    assert list(solution.sizes) == ["north", "east", "west"]
    assert charges(there) == [1, 0, 1, 1]


@pytest.mark.parametrize("killed", ["no", "before", "within", "after"])
def test_a_silo_restarted_before_its_upload_is_called_again_also_where_the_coordinator_dies(killed):
    there, coordinator = parties(WHOLE), coordinator_of(WHOLE)
    answer_round(coordinator, there)
    answer_round(coordinator, there)
    if killed == "within":
        for question in coordinator.next()[:3]:
            assert coordinator.receive(there[question.silo].silo.answer(question)) is Receipt.ACCEPTED
    restarted(there, "west")
    if killed == "after":
        answer_round(coordinator, there)
    if killed != "no":
        closed = closed_rounds(coordinator)
        assert len(closed) == (3 if killed == "after" else 2)
        coordinator = coordinator_of(WHOLE, recorded=closed)
        assert coordinator.n_replayed == len(closed)
    assert drive(coordinator, there).sizes == SIZES
    assert kinds(coordinator) == ["enrol", "open-session", "moment", "open-session", "moment"]
    assert charges(there) == [2, 2, 2, 1]
    mu = stated(coordinator, WHOLE).protections[1].mu
    assert mu == pytest.approx(math.sqrt(2) * WHOLE.budget.total_mu)


@pytest.mark.parametrize("study", [WHOLE, SEVERAL], ids=["one sum", "three sums"])
def test_a_run_taken_up_after_everybody_uploaded_is_done_without_another_charge(study):
    there, first = parties(study), coordinator_of(study)
    answer_round(first, there)
    answer_round(first, there)
    closed = closed_rounds(first)
    for question in first.next():
        words_of(there[question.silo].silo.answer(question).body)
    if study is WHOLE:
        for name in SIZES:
            restarted(there, name)
    resumed = coordinator_of(study, recorded=closed)
    assert resumed.n_replayed == 2
    assert drive(resumed, there).sizes == SIZES
    assert charges(there) == [len(study.queries)] * 4
    assert stated(resumed, study).protections[1].epsilon == pytest.approx(EPSILON, rel=1e-5)


def test_a_silo_started_again_between_sums_has_lost_its_masks_and_is_called_again(tmp_path):
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=30.0, delta=DELTA, silo="north").close()
    there = parties(SEVERAL)
    with Ledger.open(path) as ledger:
        there["north"] = party("north", SEVERAL, ledger=ledger)
        session = called(SEVERAL, there)
        sent = uploads(SEVERAL, there, session, 0)
    with Ledger.open(path) as ledger:
        north = there["north"] = party("north", SEVERAL, ledger=ledger)
        assert np.array_equal(north.ask(ask(SEVERAL, session, 0)).words, sent["north"])
        assert north.ask(ask(SEVERAL, session, 1)) == KeyGone()
        assert north.ask(ask(SEVERAL, session, 0, OTHERS[0])) == KeyGone()
        assert north.charges == 1
        again = called(SEVERAL, there, attempt=1)
        for index in range(3):
            uploads(SEVERAL, there, again, index)
        assert north.charges == 4


def test_a_refusal_that_a_new_session_would_not_cure_costs_no_further_attempt():
    there, first = parties(WHOLE), coordinator_of(WHOLE)
    answer_round(first, there)
    answer_round(first, there)
    closed = closed_rounds(first)
    there["west"].ledger.set_cap(EPSILON / 2, DELTA)
    with pytest.raises(ProtocolError, match=r"silo 'west' refused: .* left"):
        answer_round(first, there)
    assert charges(there) == [1, 1, 1, 0]
    there["west"].ledger.set_cap(10 * EPSILON, DELTA)
    assert drive(coordinator_of(WHOLE, recorded=closed), there).sizes == SIZES
    assert charges(there) == [1] * 4


def test_sessions_that_cost_nobody_anything_do_not_count_and_still_come_to_an_end():
    once = replace(WHOLE, attempts=1)

    def interrupted(coordinator, there, times):
        answer_round(coordinator, there)
        for _ in range(times):
            answer_round(coordinator, there)
            for name in SIZES:
                restarted(there, name)
            answer_round(coordinator, there)

    there, coordinator = parties(once), coordinator_of(once)
    interrupted(coordinator, there, 5)
    assert charges(there) == [0] * 4
    assert drive(coordinator, there).sizes == SIZES
    assert charges(there) == [1] * 4
    there = parties(once)
    with pytest.raises(ProtocolError, match="too few were left"):
        interrupted(coordinator_of(once, run="hopeless"), there, MOST_FREE_SESSIONS)
    assert charges(there) == [0] * 4


def test_a_silo_that_restarts_every_time_costs_no_more_attempts_than_were_agreed():
    there, coordinator = parties(WHOLE), coordinator_of(WHOLE)
    answer_round(coordinator, there)
    with pytest.raises(ProtocolError, match="within 3 attempts"):  # noqa: PT012
        for _ in range(MOST_FREE_SESSIONS):
            answer_round(coordinator, there)
            restarted(there, "west")
            answer_round(coordinator, there)
    assert charges(there) == [3, 3, 3, 0]


@pytest.mark.parametrize(
    ("study", "lost", "words"),
    [
        (STUDY, {(2, "east"), (2, "west"), (4, "north")}, "round 4 needs 2 answers and got 1"),
        (study_of(attempts=1), {(2, "east")}, "within 1 attempts"),
        (replace(SEVERAL, min_silos=4), {(number, "east") for number in range(2, 40)}, "bring back"),
    ],
)
def test_attempts_end_at_their_bound_and_at_the_fewest_silos(study, lost, words):
    with pytest.raises(ProtocolError, match=words):
        drive(coordinator_of(study), parties(study), lost=lost)


def test_attempts_are_counted_by_their_first_sum_and_capped():
    there = parties(SEVERAL)
    north = there["north"]
    for attempt in range(SEVERAL.attempts):
        assert north.present(attempt).charged == attempt
        uploads(SEVERAL, there, called(SEVERAL, there, attempt=attempt), 0)
    for body in (Enrol(), OpenSession(attempt=SEVERAL.attempts)):
        assert refused(north.ask(body), "charged for 3 of 3 on these rows")
    assert north.charges == SEVERAL.attempts


def test_a_silo_that_could_not_pay_for_all_sums_says_so_before_the_first():
    poor = party("north", SEVERAL, ledger=Ledger.in_memory(EPSILON / 2, DELTA, silo="north"))
    assert refused(poor.ask(OpenSession(attempt=0)), "would spend", "left")
    assert poor.charges == 0


# Answers that cannot be


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        *((1, "charged", value) for value in (-1, 3, 10**400)),
        (1, "signature", bytes(64)),
        *((2, "charged", value) for value in (-1, 0, 4, 10**400)),
        (2, "words", np.zeros(3, dtype=np.uint64)),
    ],
)
def test_a_silo_whose_answer_cannot_be_is_set_aside(number, field, value):
    there, coordinator = parties(STUDY), coordinator_of(STUDY)
    while coordinator.history[-1].number < number:
        answer_round(coordinator, there)
    for question in coordinator.next():
        answer = there[question.silo].silo.answer(question)
        if question.silo == "west":
            answer = msgspec.structs.replace(
                answer, body=msgspec.structs.replace(answer.body, **{field: value})
            )
        coordinator.receive(answer)
    if field == "signature":
        assert "signature" in coordinator.history[-1].set_aside["west"]
    if coordinator.history[-1].number == number:  # it was set aside, and the round waits for it
        coordinator.deadline()
    assert list(drive(coordinator, there).sizes) == ["north", "south", "east"]
    assert there["west"].charges == number - 1


# Questions that are refused


@PREPARING
def test_the_same_question_gets_the_same_bytes_and_one_charge_each(study):
    there = parties(study)
    session = called(study, there)
    sent = [uploads(study, there, session, index) for index in range(len(study.queries))]
    for index in (1, 0, 2, 0, len(sent) - 1):
        again = uploads(study, there, session, index)
        assert all(np.array_equal(again[name], sent[index][name]) for name in SIZES)
    assert charges(there) == [len(sent)] * 4


def test_a_sum_that_is_ahead_is_refused_and_costs_nothing():
    there = parties(SEVERAL)
    session, north = called(SEVERAL, there), there["north"]
    for index in (1, 2):
        words = "in the study's order", f"sum 1 of 3 comes before sum {index + 1}"
        assert refused(north.ask(ask(SEVERAL, session, index)), *words)
    uploads(SEVERAL, there, session, 0)
    assert refused(north.ask(ask(SEVERAL, session, 2)), "sum 2 of 3 comes before sum 3")
    assert north.charges == 1


def test_a_sum_that_was_asked_for_is_not_asked_for_in_other_words():
    """Else fresh noise for the same rows, under one charge for both, could be averaged away."""
    there = parties(SEVERAL)
    session, north = called(SEVERAL, there), there["north"]
    uploads(SEVERAL, there, session, 0)
    uploads(SEVERAL, there, session, 1)
    for index, public in enumerate(OTHERS):
        told = north.ask(ask(SEVERAL, session, index, public))
        assert refused(told, "once in a session", "other numbers")
    assert north.charges == 2
    uploads(SEVERAL, there, session, 2)
    assert refused(north.ask(ask(SEVERAL, session, 1, OTHERS[1])), "once in a session")
    assert north.charges == 3


def test_another_session_between_two_sums_is_refused():
    """Two sums over different sets of silos, or one sum twice, never share a key."""
    there = parties(SEVERAL)
    presents = {name: each.present() for name, each in there.items()}
    whole = session_of(SEVERAL, presents)
    part = session_of(SEVERAL, {name: presents[name] for name in ("north", "south", "east")})
    uploads(SEVERAL, there, whole, 0)
    north = there["north"]
    for index in (0, 1):
        assert refused(north.ask(ask(SEVERAL, part, index)), "in one session only")
    assert refused(north.ask(OpenSession(attempt=0)), "must not be used twice")
    assert north.charges == 1
    uploads(SEVERAL, there, whole, 1)  # the run itself goes on


def test_a_sum_over_a_session_that_was_given_up_cannot_go_on():
    """A new session call ends the old attempt: its sums come from the ledger, and no further ones."""
    there = parties(SEVERAL)
    first = called(SEVERAL, there)
    sent = uploads(SEVERAL, there, first, 0)
    second, north = called(SEVERAL, there, attempt=1), there["north"]
    assert north.ask(ask(SEVERAL, first, 1)) == KeyGone()
    assert np.array_equal(north.ask(ask(SEVERAL, first, 0)).words, sent["north"])
    fresh = uploads(SEVERAL, there, second, 0)
    assert not np.any(fresh["north"] == sent["north"])
    assert north.ask(ask(SEVERAL, first, 1)) == KeyGone()
    assert north.charges == 2


def test_silos_that_are_asked_for_different_things_sum_to_noise():
    there = parties(SEVERAL)
    session = called(SEVERAL, there)
    uploads(SEVERAL, there, session, 0)
    sent = [
        each.ask(ask(SEVERAL, session, 1, OTHERS[1] if name == "west" else None)).words
        for name, each in there.items()
    ]
    assert looks_uniform(total(sent))
    assert looks_uniform(total(sent[:3]))


@pytest.mark.parametrize("change", [{"index": 3}, {"index": -1}, {"label": "moment"}, {"label": "another"}])
def test_a_sum_that_the_study_does_not_list_is_refused(change):
    there = parties(SEVERAL)
    question = msgspec.structs.replace(ask(SEVERAL, called(SEVERAL, there), 0), **change)
    assert refused(there["north"].ask(question), "one of those that the study lists")
    assert there["north"].charges == 0


NAN = np.full(D, math.nan)
HOSTILE = {
    "no ranges": (0, to_public(NOTHING)),
    "a range of no width": (0, to_public((LOW, LOW, None, None))),
    "a range too narrow to divide by": (0, to_public((MIDDLE, np.full(D, 5e-324), None, None))),
    "a range the wrong way round": (0, to_public((HIGH, LOW, None, None))),
    "nan": (0, to_public((LOW, NAN, None, None))),
    "infinity": (0, to_public((LOW, np.full(D, math.inf), None, None))),
    "too few columns": (0, to_public((LOW[:2], HIGH[:2], None, None))),
    "an offset": (0, to_public((LOW, HIGH, MIDDLE, None))),
    "a bound": (0, to_public(RANGED, 3.0)),
    "nothing": (0, b""),
    "one byte more": (0, to_public(RANGED) + b"\0"),
    "one byte less": (0, to_public(RANGED)[:-1]),
    "half a number": (0, struct.pack("<Q", 4) + bytes(36)),
    "a length beyond the end": (0, struct.pack("<Q", 2**63) + to_public(RANGED)[8:]),
    "a moment without a bound": (2, to_public(ALL)),
    "a moment with a bound of 0": (2, to_public(ALL, 0.0)),
    "a moment whose bound is no number": (2, to_public(ALL, math.nan)),
    "a moment with scales of 0": (2, to_public((LOW, HIGH, MIDDLE, MIDDLE), 3.0)),
    "a moment without scales": (2, to_public(RANGED, 3.0)),
    "a moment of nothing": (2, b""),
}


@pytest.mark.parametrize(("index", "public"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_question_is_refused_in_a_sentence_and_charged_nothing(index, public):
    there = parties(SEVERAL)
    session = called(SEVERAL, there)
    for before in range(index):
        uploads(SEVERAL, there, session, before)
    answer = there["north"].ask(ask(SEVERAL, session, index, public))
    assert refused(answer)
    assert "operator" not in answer.reason
    assert there["north"].charges == index


@pytest.mark.parametrize(
    ("study", "body", "words"),
    [
        (STUDY, AskMoment(label="mean"), "nothing but a secure sum leaves"),
        (STUDY, AskMoment(label="moment"), "nothing but a secure sum leaves"),
        (STUDY, AskSteps(basis=np.eye(D)[:, :1], n_local_steps=1), "nothing but a secure sum leaves"),
        (SEVERAL, ASK_MOMENT, "a query must have a session"),
    ],
)
def test_nothing_else_can_be_asked_of_a_silo_of_a_secure_sum(study, body, words):
    north = parties(study)["north"]
    assert refused(north.ask(body), words)
    assert north.charges == 0


@pytest.mark.parametrize("body", [OpenSession(attempt=0), masked_moment(b"a session")])
def test_no_session_is_opened_in_a_plain_study(body):
    study = Study(columns=None, n_features=D, iteration_rank=K)
    silo = Silo("north", study, ExactReleases(ArrayMoment(bounded_rows()), study))
    question = Message(study=study.digest, run=RUN, round=0, silo="north", body=body)
    assert refused(silo.answer(question).body, "aggregation='secure'")


def test_a_question_is_read_as_it_was_written():
    for vectors, bound in ((NOTHING, None), (RANGED, None), (ALL, None), (ALL, 2.5)):
        read, found = from_public(to_public(vectors, bound))
        assert found == bound
        for one, other in zip(read, vectors, strict=True):
            assert (one is None) == (other is None)
            assert one is None or np.array_equal(one, other)
    with pytest.raises(ProtocolError, match="four vectors and a bound"):
        from_public(to_public(ALL, 2.5)[8:])


# Studies


EXACT = {"noise": "none", "epsilon": math.inf}
DESIGN = {"noise": "clipped", "aggregation": "plain", "colluders": 0, "identities": (), "min_silos": 0}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colluders": 0}, "must have more silos than the . that may collude"),
        ({"colluders": 2}, "must have more silos than the . that may collude"),
        ({"min_silos": 5}, "must have more silos than the . that may collude"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"noise": "step", "n_steps": 3}, "must go with noise='moment'"),
        (EXACT, "aggregation='secure' must have a finite epsilon, got epsilon=inf"),
        ({"aggregation": "other"}, "must be 'plain' or 'secure'"),
        ({"identities": (("a", "00" * 32), ("b", "00" * 32))}, "different names and keys"),
        ({"identities": (("a", "00" * 32), ("b", "xx" * 32))}, "64 hexadecimal digits"),
        *(
            ({"attempts": 1, **DESIGN, "design": design}, words)
            for design, words in [
                ((QueryTerms("mean", D, 0.5), QueryTerms("mean", D, 0.5)), "each once"),
                ((QueryTerms("", 7, 0.5),), "each once"),
                ((QueryTerms("product 1\n", 7, 0.5),), "each once"),
                ((QueryTerms("product 1", 7, 0.0),), "share"),
                ((QueryTerms("product 1", 7, math.nan),), "share"),
                ((QueryTerms("product 1", 7, 0.6), QueryTerms("product 2", 7, 0.5)), "add up to 1"),
            ]
        ),
    ],
)
def test_terms_that_cannot_be_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(STUDY, **change)


def test_a_silo_must_hold_the_identity_that_the_study_lists():
    swapped = zip(SIZES, [*SIZES][::-1], strict=True)
    with pytest.raises(InputError, match="must hold the identity that the study lists"):
        parties(study_of(identities=tuple((name, KEYS[other].public) for name, other in swapped)))


def test_no_silo_is_assembled_for_exact_secure_sums():
    forged = copy(STUDY)
    for name, value in EXACT.items():
        object.__setattr__(forged, name, value)
    with pytest.raises(InputError, match="so use aggregation='plain' or a finite epsilon"):
        assemble("north", ArrayMoment(bounded_rows()), forged, ledger=None, identity=KEYS["north"])


def test_a_result_s_record_gives_the_terms_of_its_study_back():
    content = json.loads(json.dumps(plain({"hash": SEVERAL.digest, "terms": SEVERAL})))
    assert msgspec.convert(content, StudyTerms, strict=False).terms == SEVERAL
