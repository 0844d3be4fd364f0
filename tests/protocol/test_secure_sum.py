"""Secure sums among honest parties, one or several a session: exact, uniform in part, repeated on failure."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from private_silos import refused
from scipy.stats import chi2
from secure_silos import (
    DELTA,
    EPSILON,
    KEYS,
    OTHERS,
    PUBLICS,
    SEVERAL,
    SIZES,
    STUDY,
    D,
    K,
    called,
    coordinator_of,
    masked_moment,
    parties,
    party,
    query_for,
    rows_of,
    study_of,
    uploads,
    words_of,
)

import carriers
from federations import ASK_MOMENT, closed_rounds
from fedpower.exceptions import InputError, ProtocolError
from fedpower.privacy.accounting import compose
from fedpower.privacy.budget import COVARIANCE, QueryTerms, shares_of
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol.messages import AskMoment, AskSteps, KeyGone, OpenSession, Session, decode, encode
from fedpower.protocol.outcome import state_privacy
from fedpower.protocol.query import query_of
from fedpower.protocol.secure import total
from fedpower.protocol.solvers.sums import MOST_FREE_SESSIONS
from fedpower.protocol.study import PREPARED, pooled_std
from fedpower.sums.survey import STAGES

CENTRED = study_of(center=True)
PLAIN = study_of(aggregation="plain", colluders=0, identities=(), min_silos=0, attempts=1)
WHOLE = study_of(min_silos=len(SIZES))  # goes on with all of its silos or not at all
MANY = study_of(
    preparation=shares_of(n_rows=800, n_features=D, n_open=D, mu=0.24),
    ranges=(None,) * D,
    treatment=PREPARED,
    center=True,
    mean_weight=0.25,
)
NAMES = {"one sum": STUDY, "about the mean": CENTRED, "three sums": SEVERAL, "six sums": MANY}
EVERY = pytest.mark.parametrize("study", NAMES.values(), ids=NAMES)


def queries(study):
    pairs = zip(study.queries, PUBLICS[len(study.queries)], strict=True)
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


def drive(coordinator, there, *, lost=frozenset()):
    """Deliver all but the (round, silo) that are lost, over the wire's bytes."""

    def ask(questions):
        for each in questions:
            if (each.round, each.silo) not in lost:
                yield decode(encode(there[each.silo].silo.answer(decode(encode(each)))))

    carriers.drive(coordinator, ask)
    return coordinator.outcome


def answer_round(coordinator, there):
    for question in coordinator.next():
        coordinator.receive(there[question.silo].silo.answer(question))


def called_by(coordinator, there):
    for _ in range(2):
        answer_round(coordinator, there)
    return closed_rounds(coordinator)


def stated_mu(coordinator, study):
    """Return the μ against the coordinator, in those of one attempt."""
    return stated(coordinator, study).protections[1].mu / study.budget.total_mu


def restarted(there, name):
    kept = there[name]
    there[name] = party(name, kept.silo.study, ledger=kept.ledger)


def charges(there):
    return [there[name].charges for name in SIZES]


def kinds(coordinator):
    return [each.kind for each in coordinator.history]


def stated(coordinator, study):
    return state_privacy(study, coordinator.outcome.sizes, coordinator.history[1:])


def looks_uniform(words):
    """Uniform words: the median of some magnitudes is below 2⁵⁷ with probability below 1e-9."""
    return np.median(np.abs(words.view(np.int64).astype(np.float64))) > 2.0**57


@EVERY
def test_uploads_add_up_to_the_noised_sum_of_pooled_rows_exactly_and_parts_of_them_are_uniform(study):
    """Within 7 standard deviations in each of some 1,000 numbers; the noise is seeded."""
    there = parties(study, source=SeededNoiseForExperiments(3))
    shared = SeededNoiseForExperiments(3)  # one stream, from which silos draw in turn
    session = called(study, there)
    pooled = np.vstack([rows_of(name) for name in SIZES])
    for index, query in enumerate(queries(study)):
        sent, expected = uploads(study, there, session, index), hidden(study, query, shared)
        together, noise = total(sent.values()), noise_of(study, query)
        assert np.array_equal(together, sum(expected.values()))
        assert np.array_equal(together, total([*sent.values()][::-1]))
        exact = noise.values(sum(hidden(study, query).values()))
        assert exact.size == study.queries[index].size
        assert np.abs((noise.values(together) - exact) / spread_of(noise)).max() < 7
        if study is MANY and query.label != COVARIANCE:
            assert np.abs((exact - query.stage.tally(pooled)) / spread_of(noise)).max() < 1
        assert not looks_uniform(together)
        for words in (total([sent[name] for name in ("north", "south", "east")]), *sent.values()):
            assert looks_uniform(words)
        for name, words in sent.items():
            assert not np.any(words.view(np.int64) == expected[name])


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
    assert kinds(coordinator) == ["enrol", "open-session", "covariance"]
    assert charges(there) == [1] * 4


@pytest.mark.parametrize(
    ("study", "index"),
    [(STUDY, 0), pytest.param(SEVERAL, 1, marks=pytest.mark.slow)],
    ids=["covariance", "norms"],
)
def test_a_total_has_the_noise_of_all_shares_and_a_part_of_the_session_is_uniform_in_every_byte(study, index):
    """χ² of the noise in 20 totals, and of bytes; fails by chance with 1e-7."""
    study, attempts = replace(study, attempts=20), 20
    query = queries(study)[index]
    noise, there = noise_of(study, query), parties(study, attempts=attempts)
    exact, seen, parts, alone = noise.values(sum(hidden(study, query).values())), [], [], []
    for attempt in range(attempts):
        session = called(study, there, attempt=attempt)
        sent = [uploads(study, there, session, each) for each in range(index + 1)][-1]
        seen.append((noise.values(total(sent.values())) - exact) / spread_of(noise))
        alone.append(sent["north"])
        parts.append(total([sent[name] for name in ("north", "south", "east")]))
    low, high = chi2.ppf([5e-10, 1 - 5e-10], np.size(seen))
    assert low < float(np.sum(np.square(seen))) < high
    assert len({each.tobytes() for each in alone}) == attempts
    for words, is_masked in ((alone, True), (parts, True), ([*hidden(study, query).values()], False)):
        data = np.concatenate(words).view(np.uint8)
        expected = data.size / 256
        statistic = np.sum((np.bincount(data, minlength=256) - expected) ** 2 / expected)
        assert bool(statistic < chi2.ppf(1 - 1e-8, 255)) is is_masked


def test_numbers_beyond_what_rows_can_add_are_brought_back_without_a_word():
    """A refusal would depend on rows; and the ring holds no more."""
    noise = noise_of(SEVERAL, queries(SEVERAL)[1])
    most = 300 << noise.exponents[0]
    for number, kept in ((most + 1, most), (2**62, most), (-(2**62), -most), (most - 1, most - 1)):
        assert set(noise.bounded(np.full(noise.sensitivity.size, number), 300).tolist()) == {kept}


@EVERY
def test_the_sums_of_an_attempt_compose_to_epsilon_and_the_statement_names_every_observer(study):
    there, coordinator = parties(study), coordinator_of(study)
    solution = drive(coordinator, there)
    budget, reported = study.budget, stated(coordinator, study)
    labels = [terms.label for terms in study.queries]
    prices = [budget.price(label).mu for label in labels]
    assert [mu**2 for mu in prices] == pytest.approx(
        [terms.share * budget.total_mu**2 for terms in study.queries]
    )
    for each in there.values():
        entries = each.ledger.entries()
        assert [entry.purpose for entry in entries] == [
            f"{label}, share of a secure sum over 4 silos" for label in labels
        ]
        assert [entry.mu for entry in entries] == pytest.approx(prices)
        assert budget.total_mu * (1 - 1e-12) <= compose(entry.mu for entry in entries) <= budget.total_mu
        assert sum(entry.slack_delta for entry in entries) == pytest.approx(budget.slack_delta)
        assert each.ledger.spent().epsilon <= EPSILON * (1 + 1e-9)
    alone, together, public = reported.protections
    assert together.mu == pytest.approx(budget.total_mu)
    assert public.mu == alone.mu == pytest.approx(together.mu * math.sqrt(3 / 4))
    assert alone.epsilon < together.epsilon <= EPSILON
    assert together.epsilon == pytest.approx(EPSILON, rel=1e-5)
    assert {each.delta for each in reported.protections} == {DELTA}
    if study.preparation:
        assert labels == [*(STAGES if study is MANY else STAGES[3:]), COVARIANCE]
        assert solution.code_book.n_rows == sum(SIZES.values())
        assert solution.code_book.mu == pytest.approx(budget.total_mu * math.sqrt(sum(study.preparation)))
        for words in (
            f"the {len(labels)} noised sums over all silos",
            "charged for 1 attempt,",
            "found privately",
        ):
            assert words in str(reported)


def test_the_statement_counts_the_attempts_of_earlier_runs():
    there = parties(WHOLE)
    first = coordinator_of(WHOLE, run="first")
    called_by(first, there)
    for question in first.next():
        if question.silo != "east":
            words_of(there[question.silo].silo.answer(question).body)
    second = coordinator_of(WHOLE, run="second")
    drive(second, there)
    assert charges(there) == [2, 2, 1, 2]
    assert stated_mu(second, WHOLE) == pytest.approx(math.sqrt(2))
    spent, reported = there["north"].ledger.spent(), stated(second, WHOLE)
    assert reported.protections[1].mu == pytest.approx(spent.mu)
    assert reported.protections[1].epsilon >= spent.epsilon * (1 - 1e-9)
    assert "charged for 2 attempts, earlier runs included. All 3 that the study allows" in str(reported)


def test_the_statement_counts_a_silo_that_was_asked_and_stayed_silent():
    there, coordinator = parties(STUDY), coordinator_of(STUDY)
    drive(coordinator_of(STUDY, run="earlier"), there)
    assert "east" not in drive(coordinator, there, lost={(2, "east"), (3, "east")}).sizes
    assert stated_mu(coordinator, STUDY) == pytest.approx(math.sqrt(3))


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
    assert stated_mu(coordinator, study) == pytest.approx(math.sqrt(2))
    assert stated(coordinator, study).protections[1].epsilon > EPSILON


@pytest.mark.parametrize("killed", ["no", "within", "after"])
def test_a_silo_restarted_before_its_upload_is_called_again_also_where_the_coordinator_dies(killed):
    there, coordinator = parties(WHOLE), coordinator_of(WHOLE)
    called_by(coordinator, there)
    if killed == "within":
        for question in coordinator.next()[:3]:
            assert not coordinator.receive(there[question.silo].silo.answer(question))
    restarted(there, "west")
    if killed == "after":
        answer_round(coordinator, there)
    if killed != "no":
        closed = closed_rounds(coordinator)
        assert len(closed) == (3 if killed == "after" else 2)
        coordinator = coordinator_of(WHOLE, recorded=closed)
        assert coordinator.n_replayed == len(closed)
    assert drive(coordinator, there).sizes == SIZES
    assert kinds(coordinator) == ["enrol", "open-session", "covariance", "open-session", "covariance"]
    assert charges(there) == [2, 2, 2, 1]
    assert stated_mu(coordinator, WHOLE) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("study", [WHOLE, SEVERAL], ids=["one sum", "three sums"])
def test_a_run_taken_up_after_everybody_uploaded_is_done_without_another_charge(study):
    there, first = parties(study), coordinator_of(study)
    closed = called_by(first, there)
    for question in first.next():
        words_of(there[question.silo].silo.answer(question).body)
    if study is WHOLE:
        for name in SIZES:
            restarted(there, name)
    resumed = coordinator_of(study, recorded=closed)
    assert resumed.n_replayed == 2
    assert drive(resumed, there).sizes == SIZES
    assert charges(there) == [len(study.queries)] * 4
    assert stated_mu(resumed, study) == pytest.approx(1.0)


def test_a_silo_started_again_gives_its_stored_bytes_has_lost_its_masks_and_is_called_again(tmp_path):
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=30.0, delta=DELTA, silo="north").close()
    there = parties(SEVERAL)
    with Ledger.open(path) as ledger:
        there["north"] = party("north", SEVERAL, ledger=ledger)
        session = called(SEVERAL, there)
    with Ledger.open(path) as ledger:
        north = party("north", SEVERAL, ledger=ledger)
        assert north.ask(query_for(SEVERAL, session, 0)) == KeyGone()
        there["north"] = north
        session = called(SEVERAL, there, attempt=1)
        sent = uploads(SEVERAL, there, session, 0)
    with Ledger.open(path) as ledger:
        north = there["north"] = party("north", SEVERAL, ledger=ledger)
        assert np.array_equal(north.ask(query_for(SEVERAL, session, 0)).words, sent["north"])
        assert north.ask(query_for(SEVERAL, session, 1)) == KeyGone()
        assert north.ask(query_for(SEVERAL, session, 0, OTHERS[0])) == KeyGone()
        changed = party("north", SEVERAL, ledger=ledger, version="2")
        assert changed.ask(query_for(SEVERAL, session, 0)) == KeyGone()
        assert north.charges == 1
        again = called(SEVERAL, there, attempt=2)  # which ends the old attempt
        assert np.array_equal(north.ask(query_for(SEVERAL, session, 0)).words, sent["north"])
        fresh = [uploads(SEVERAL, there, again, index)["north"] for index in range(3)]
        assert not np.any(fresh[0] == sent["north"])
        assert north.ask(query_for(SEVERAL, session, 1)) == KeyGone()
        assert north.charges == 4


def test_a_refusal_that_a_new_session_would_not_cure_costs_no_further_attempt():
    there, first = parties(WHOLE), coordinator_of(WHOLE)
    closed = called_by(first, there)
    there["west"].ledger.set_cap(EPSILON / 2, DELTA)
    with pytest.raises(ProtocolError, match=r"silo 'west' refused: .* left"):
        answer_round(first, there)
    assert charges(there) == [1, 1, 1, 0]
    there["west"].ledger.set_cap(10 * EPSILON, DELTA)
    assert drive(coordinator_of(WHOLE, recorded=closed), there).sizes == SIZES
    assert charges(there) == [1] * 4


def interrupted(coordinator, there, times, names=SIZES):
    """Enrol, and open so many sessions, in each of which silos are restarted before they upload."""
    answer_round(coordinator, there)
    for _ in range(times):
        answer_round(coordinator, there)
        for name in names:
            restarted(there, name)
        answer_round(coordinator, there)


def test_sessions_that_cost_nobody_anything_do_not_count_and_still_come_to_an_end():
    once = replace(WHOLE, attempts=1)
    there, coordinator = parties(once), coordinator_of(once)
    interrupted(coordinator, there, 5)
    assert charges(there) == [0] * 4
    assert drive(coordinator, there).sizes == SIZES
    assert charges(there) == [1] * 4
    there = parties(once)
    with pytest.raises(ProtocolError, match="got fewer; reconnect the others"):
        interrupted(coordinator_of(once, run="hopeless"), there, MOST_FREE_SESSIONS)
    assert charges(there) == [0] * 4


def test_a_silo_that_restarts_every_time_costs_no_more_attempts_than_were_agreed():
    there = parties(WHOLE)
    with pytest.raises(ProtocolError, match="within 3 attempts"):
        interrupted(coordinator_of(WHOLE), there, MOST_FREE_SESSIONS, ["west"])
    assert charges(there) == [3, 3, 3, 0]


@pytest.mark.parametrize(
    ("study", "lost", "words"),
    [
        (STUDY, {(2, "east"), (2, "west"), (4, "north")}, "round 4 must have 2 answers, got 1"),
        (study_of(attempts=1), {(2, "east")}, "within 1 attempts"),
        (replace(SEVERAL, min_silos=4), {(number, "east") for number in range(2, 40)}, "reconnect"),
    ],
)
def test_attempts_end_at_their_bound_and_at_the_fewest_silos(study, lost, words):
    with pytest.raises(ProtocolError, match=words):
        drive(coordinator_of(study), parties(study), lost=lost)


def test_a_sum_that_is_ahead_or_not_listed_is_refused_and_costs_nothing():
    there = parties(SEVERAL)
    session, north = called(SEVERAL, there), there["north"]
    for index in (1, 2):
        words = "follow the study's order", f"sum 1 of 3 comes before sum {index + 1}"
        assert refused(north.ask(query_for(SEVERAL, session, index)), *words)
    for change in ({"index": 3}, {"index": -1}, {"label": "covariance"}, {"label": "another"}):
        question = msgspec.structs.replace(query_for(SEVERAL, session, 0), **change)
        assert refused(north.ask(question), "on the study's list")
    assert refused(north.ask(query_for(SEVERAL, session, 0, b"")))
    assert north.charges == 0
    uploads(SEVERAL, there, session, 0)
    assert refused(north.ask(query_for(SEVERAL, session, 2)), "sum 2 of 3 comes before sum 3")
    assert north.charges == 1


def test_a_sum_that_was_asked_for_gets_the_same_bytes_and_is_not_asked_for_in_other_words():
    """Else fresh noise for the same rows, under one charge for both, could be averaged away."""
    there = parties(SEVERAL)
    session, north = called(SEVERAL, there), there["north"]
    sent = [uploads(SEVERAL, there, session, index)["north"] for index in range(2)]
    for n_charged in (2, 3):
        for index, public in enumerate(OTHERS):
            told = north.ask(query_for(SEVERAL, session, index, public))
            assert refused(told, "once in a session", "another question")
            assert np.array_equal(north.ask(query_for(SEVERAL, session, index)).words, sent[index])
        assert north.charges == n_charged
        uploads(SEVERAL, there, session, 2)


@pytest.mark.parametrize(
    ("study", "body", "words"),
    [
        (STUDY, AskMoment(label="mean"), "must be for a secure sum"),
        (STUDY, AskMoment(label="covariance"), "must be for a secure sum"),
        (STUDY, AskSteps(basis=np.eye(D)[:, :1], n_local_steps=1), "must be for a secure sum"),
        (STUDY, masked_moment(None), "a query must have a session"),
        (SEVERAL, ASK_MOMENT, "a query must have a session"),
        (PLAIN, OpenSession(attempt=0), "aggregation='secure'"),
        (PLAIN, masked_moment(Session(study="", run="", attempt=0, members=())), "aggregation='secure'"),
    ],
)
def test_nothing_but_a_secure_sum_leaves_its_silo_and_none_another(study, body, words):
    north = party("north", study)
    assert refused(north.ask(body), words)
    assert north.charges == 0


DESIGN = {"noise": "clipped", "aggregation": "plain", "colluders": 0, "identities": (), "min_silos": 0}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colluders": 0}, "must have more silos than the . that may collude"),
        ({"colluders": 2}, "must have more silos than the . that may collude"),
        ({"min_silos": 5}, "must have more silos than the . that may collude"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"noise": "step", "n_steps": 3}, "must be used with noise='covariance'"),
        (
            {"noise": "none", "epsilon": math.inf},
            "aggregation='secure' must have a finite epsilon, got epsilon=inf",
        ),
        ({"aggregation": "other"}, "must be 'plain' or 'secure'"),
        ({"identities": (("a", "00" * 32), ("b", "00" * 32))}, "different names and keys"),
        ({"identities": (("a", "00" * 32), ("b", "xx" * 32))}, "64 lower-case hexadecimal digits"),
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
    with pytest.raises(InputError, match="must have the identity in the study"):
        parties(study_of(identities=tuple((name, KEYS[other].public) for name, other in swapped)))
