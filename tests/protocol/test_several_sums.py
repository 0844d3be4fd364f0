"""Several secure sums over one session: each has noise and masks of its own, in order, once."""

import json
import math
import struct
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from scipy.stats import chi2
from secure_silos import DELTA, EPSILON, RUN, SIZES, D, called, party, rows_of, session_of, study_of

from federations import ASK_MOMENT
from fedpower.errors import InputError, ProtocolError
from fedpower.privacy.accounting import compose
from fedpower.privacy.budget import MOMENT, QueryTerms, shares_of
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol import Coordinator
from fedpower.protocol.messages import (
    AskQuery,
    Enrol,
    KeyGone,
    Message,
    OpenSession,
    QueryAnswer,
    Refusal,
    decode,
    encode,
)
from fedpower.protocol.outcome import state_privacy
from fedpower.protocol.query import query_of
from fedpower.protocol.query import vectors_from_bytes as from_public
from fedpower.protocol.query import vectors_to_bytes as to_public
from fedpower.protocol.secure import MaskChain, new_exchange_key, total
from fedpower.protocol.solvers import UploadSettings
from fedpower.protocol.solvers.sums import summed
from fedpower.protocol.study import PREPARED, budget_of, pooled_std
from fedpower.report.record import StudyTerms, plain
from fedpower.rows.opening import open_source
from fedpower.sums.survey import STAGES, Survey

SHARES = (0.0, 0.0, 0.0, 0.1, 0.1)
LOW, HIGH, MIDDLE = np.full(D, -1.0), np.full(D, 1.0), np.zeros(D)
NOTHING, RANGED, WHOLE = (None,) * 4, (LOW, HIGH, None, None), (LOW, HIGH, MIDDLE, HIGH)
ZOOMED = (LOW, HIGH, np.eye(D)[0] + np.eye(D)[2], None)
STUDY = study_of(preparation=SHARES, ranges=((-1.0, 1.0),) * D, treatment=PREPARED)
OPEN = study_of(
    preparation=shares_of(n_rows=800, n_features=D, n_open=D, mu=0.24),
    ranges=(None,) * D,
    treatment=PREPARED,
    center=True,
    mean_weight=0.25,
)
SUMS = STUDY.queries
PUBLICS = (to_public(RANGED), to_public(WHOLE), to_public(WHOLE, 1.0))
OPEN_PUBLICS = (*map(to_public, (NOTHING, RANGED, ZOOMED, RANGED, WHOLE)), to_public(WHOLE, 1.0))
OTHERS = (to_public((LOW, 2 * HIGH, None, None)), to_public((LOW, HIGH, MIDDLE, 2 * HIGH)))
BOTH = pytest.mark.parametrize("study", [STUDY, OPEN], ids=["ranges known", "nothing known"])


def publics_of(study):
    return OPEN_PUBLICS if study is OPEN else PUBLICS


def queries(study=STUDY):
    return [
        query_of(study, terms.label, public)
        for terms, public in zip(study.queries, publics_of(study), strict=True)
    ]


def survey_of(name):
    return Survey(open_source(rows_of(name)))


def one(name, study=STUDY, **options):
    return party(name, study, rows=survey_of(name), **options)


def everybody(study=STUDY, **options):
    return {name: one(name, study, **options) for name, _ in study.identities}


def script(sums):
    """What a coordinator makes of three sums."""
    first, second, third = queries()
    one = yield from sums.total(first)
    two = yield from sums.total(second)
    found = yield from sums.moment(third.public)
    return one, two, found, sums.sizes


def coordinator(study=STUDY, *, solver=None, recorded=()):
    names = [name for name, _ in study.identities]
    solver = solver or UploadSettings(study=study, rank=2, run=RUN).solve(np.random.default_rng(0))
    return Coordinator(solver, names, study=study, run=RUN, min_silos=study.min_silos, recorded=recorded)


def drive(made, there, *, lost=frozenset()):
    """Deliver all but the (round, silo) that are lost, over the wire's bytes."""
    while not made.done:
        number = made.history[-1].number
        for question in made.next():
            if (question.round, question.silo) not in lost:
                asked = decode(encode(question))
                answer = there[question.silo].silo.answer(asked)
                made.receive(decode(encode(answer)))
        if not made.done and made.history[-1].number == number:
            made.deadline()
    return made.outcome


def ask(session, index, public=None, label=None):
    public = PUBLICS[index] if public is None else public
    return AskQuery(session=session, index=index, label=label or SUMS[index].label, public=public)


def uploads(there, session, index, study=STUDY):
    question = ask(session, index, publics_of(study)[index], study.queries[index].label)
    answers = {name: each.ask(question) for name, each in there.items()}
    assert all(isinstance(answer, QueryAnswer) for answer in answers.values()), answers
    return {name: answer.words for name, answer in answers.items()}


def refused(answer, *words):
    assert isinstance(answer, Refusal), answer
    assert all(word in answer.reason for word in words), answer.reason
    return True


def looks_uniform(words):
    """Uniform words: the median of some magnitudes is below 2⁵⁷ with probability below 1e-9."""
    return np.median(np.abs(words.astype(np.float64))) > 2.0**57


def test_a_run_of_three_sums_gives_each_total_within_its_noise():
    """Each of 18 + 30 + 22 numbers is within 7 standard deviations: fails by chance with 1e-9."""
    there = everybody()
    made = coordinator(solver=summed(STUDY, script, run=RUN))
    *totals, found, sizes = drive(made, there)
    assert sizes == SIZES
    assert [each.kind for each in made.history] == ["enrol", "open-session", "means", "norms", "moment"]
    for query, total_ in zip(queries(), totals, strict=False):
        exact = sum(query.evaluate(survey_of(name), [0] * len(total_.stds)) for name in SIZES)
        spread = np.repeat(total_.stds, [group.length for group in query.sensitivity.groups])
        assert np.abs((total_.values - exact) / spread).max() < 7
    rows = np.vstack([rows_of(name) for name in SIZES])
    std = pooled_std(budget_of(STUDY), SIZES)
    assert np.abs(found.moment - rows.T @ rows / len(rows)).max() < 7 * std


@BOTH
def test_the_sums_have_the_shares_of_the_stages_and_together_cost_one_epsilon(study):
    budget = budget_of(study)
    plain = budget_of(
        replace(study, aggregation="plain", colluders=0, identities=(), min_silos=0, attempts=1)
    )
    labels = [terms.label for terms in study.queries]
    assert labels == [*(STAGES if study is OPEN else STAGES[3:]), MOMENT]
    prices = [budget.price(label).mu for label in labels]
    assert compose(prices) == pytest.approx(budget.total_mu, rel=1e-12)
    assert compose(prices) <= budget.total_mu
    for label, price in zip(labels, prices, strict=True):
        assert (price / budget.total_mu) ** 2 == pytest.approx((plain.price(label).mu / plain.total_mu) ** 2)


@BOTH
def test_the_sums_of_an_attempt_compose_to_the_epsilon_that_was_asked_for(study):
    there, made = everybody(study), coordinator(study)
    solution = drive(made, there)
    budget = budget_of(study)
    for each in there.values():
        entries = each.ledger.entries()
        assert [entry.purpose for entry in entries] == [
            f"{terms.label}, share of a secure sum over 4 silos" for terms in study.queries
        ]
        assert compose([entry.mu for entry in entries]) == pytest.approx(budget.total_mu, rel=1e-12)
        assert compose([entry.mu for entry in entries]) <= budget.total_mu
        assert sum(entry.slack_delta for entry in entries) == pytest.approx(budget.slack_delta)
        assert each.ledger.spent().epsilon <= EPSILON * (1 + 1e-9)
    assert solution.code_book.n_rows == sum(SIZES.values())
    assert solution.code_book.mu == pytest.approx(budget.total_mu * math.sqrt(sum(study.preparation)))
    told = state_privacy(study, budget, SIZES, made.history[1:])
    assert told.protections[1].epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert told.protections[0].mu == pytest.approx(budget.total_mu * math.sqrt(3 / 4))
    assert f"the {len(study.queries)} noised sums over all silos" in str(told)
    assert "charged most often on these rows was for 1 attempt," in str(told)
    assert "found privately, out of the same epsilon" in str(told)


def test_what_is_summed_are_the_tallies_of_all_rows():
    """Within 7 standard deviations in each of some 1,000 numbers; fails by chance below 1e-8."""
    there = everybody(OPEN)
    session = called(OPEN, there)
    pooled = np.vstack([rows_of(name) for name in SIZES])
    for index, query in enumerate(queries(OPEN)[:-1]):
        noise = budget_of(OPEN).noise(query.label, query.sensitivity, tuple(SIZES.values()))
        spread = np.repeat(noise.stds, [group.length for group in noise.sensitivity.groups])
        told = noise.values(total(uploads(there, session, index, OPEN).values()))
        assert np.abs((told - query.stage.tally(pooled)) / spread).max() < 7
        assert told.size == OPEN.queries[index].size


def test_a_fit_with_a_share_of_the_budget_has_that_share_s_noise():
    whole, part = (pooled_std(budget_of(study), SIZES) for study in (study_of(), STUDY))
    assert part / whole == pytest.approx(1 / math.sqrt(0.8), rel=1e-4)


def test_the_uploads_of_each_sum_add_up_exactly():
    there = everybody(source=SeededNoiseForExperiments(3))
    session = called(STUDY, there)
    shared = SeededNoiseForExperiments(3)  # one stream, from which silos draw in turn
    for index, query in enumerate(queries()[:2]):
        noise = budget_of(STUDY).noise(query.label, query.sensitivity, tuple(session.sizes.values()))
        sent = uploads(there, session, index)
        expected = sum(
            query.evaluate(survey_of(name), noise.exponents) + noise.draw(shared) for name in SIZES
        )
        assert np.array_equal(total(sent.values()), expected)
        for words in sent.values():
            assert looks_uniform(words.view(np.int64))


@pytest.mark.slow
def test_the_noise_of_a_total_is_the_shares_together():
    """χ² of the noise in the norms of 60 sums; fails by chance with 1e-9."""
    _, query, _ = queries()
    exact = sum(query.evaluate(survey_of(name), (0,)) for name in SIZES)
    seen = []
    for _ in range(60):
        there = everybody()
        session = called(STUDY, there)
        noise = budget_of(STUDY).noise(query.label, query.sensitivity, tuple(session.sizes.values()))
        uploads(there, session, 0)
        seen.append(noise.values(total(uploads(there, session, 1).values())) - exact)
    low, high = chi2.ppf([5e-10, 1 - 5e-10], np.size(seen))
    assert low < float(np.sum(np.square(seen))) / noise.stds[0] ** 2 < high


def test_masks_are_of_one_sum_and_one_question_and_are_used_once():
    there = everybody()
    session = called(STUDY, there)
    secret = new_exchange_key()
    chain = MaskChain("north", session, secret)
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


@BOTH
def test_the_same_question_gets_the_same_bytes_and_one_charge_each(study):
    there = everybody(study)
    session = called(study, there)
    sent = [uploads(there, session, index, study) for index in range(len(study.queries))]
    for index in (1, 0, 2, 0, len(sent) - 1):
        again = uploads(there, session, index, study)
        assert all(np.array_equal(again[name], sent[index][name]) for name in SIZES)
    assert all(each.charges == len(sent) for each in there.values())


def test_a_sum_that_is_ahead_is_refused_and_costs_nothing():
    there = everybody()
    session = called(STUDY, there)
    for index in (1, 2):
        told = there["north"].ask(ask(session, index, PUBLICS[index]))
        assert refused(told, "in the study's order", f"sum 1 of 3 comes before sum {index + 1}")
    uploads(there, session, 0)
    assert refused(there["north"].ask(ask(session, 2, PUBLICS[2])), "sum 2 of 3 comes before sum 3")
    assert there["north"].charges == 1


def test_a_sum_that_was_asked_for_is_not_asked_for_in_other_words():
    """Else fresh noise for the same rows, under one charge for both, could be averaged away."""
    there = everybody()
    session = called(STUDY, there)
    uploads(there, session, 0)
    uploads(there, session, 1)
    north = there["north"]
    for index, public in enumerate(OTHERS):
        assert refused(north.ask(ask(session, index, public)), "once in a session", "other numbers")
    assert north.charges == 2
    uploads(there, session, 2)
    assert refused(north.ask(ask(session, 1, OTHERS[1])), "once in a session")
    assert north.charges == 3


def test_another_roll_between_two_sums_is_refused():
    """Two sums over different sets of silos, or one sum twice, never share a key."""
    there = everybody()
    presents = {name: each.present() for name, each in there.items()}
    whole = session_of(STUDY, presents)
    part = session_of(STUDY, {name: presents[name] for name in ("north", "south", "east")})
    uploads(there, whole, 0)
    north = there["north"]
    for index in (0, 1):
        told = north.ask(ask(part, index, PUBLICS[index]))
        assert refused(told, "in one session only")
    assert north.charges == 1
    uploads(there, whole, 1)  # the run itself goes on


def test_a_sum_over_a_session_that_was_given_up_cannot_go_on():
    """A new session call ends the old attempt: its sums come from the ledger, and no further ones."""
    there = everybody()
    first = called(STUDY, there)
    sent = uploads(there, first, 0)
    second = called(STUDY, there, attempt=1)
    north = there["north"]
    assert north.ask(ask(first, 1, PUBLICS[1])) == KeyGone()
    assert np.array_equal(north.ask(ask(first, 0)).words, sent["north"])
    fresh = uploads(there, second, 0)
    assert not np.any(fresh["north"] == sent["north"])
    assert north.ask(ask(first, 1, PUBLICS[1])) == KeyGone()
    assert north.charges == 2


def test_the_session_of_a_run_that_has_begun_is_not_called_again():
    there = everybody()
    uploads(there, called(STUDY, there), 0)
    assert refused(there["north"].ask(OpenSession(attempt=0)), "must not be used twice")


def test_silos_that_are_asked_for_different_things_sum_to_noise():
    there = everybody()
    session = called(STUDY, there)
    uploads(there, session, 0)
    sent = []
    for name, each in there.items():
        public = PUBLICS[1] if name != "west" else OTHERS[1]
        sent.append(each.ask(ask(session, 1, public)).words)
    assert looks_uniform(total(sent))
    assert looks_uniform(total(sent[:3]))


@BOTH
def test_a_part_of_the_session_sums_to_noise_in_every_sum(study):
    there = everybody(study)
    session = called(study, there)
    for index in range(len(study.queries)):
        sent = uploads(there, session, index, study)
        part = total([sent[name] for name in ("north", "south", "east")])
        assert looks_uniform(part)
        assert np.abs(part.astype(float)).max() > 2.0**60
        assert not looks_uniform(total(sent.values()))


@pytest.mark.parametrize("change", [{"index": 3}, {"index": -1}, {"label": "moment"}, {"label": "another"}])
def test_a_sum_that_the_study_does_not_list_is_refused(change):
    there = everybody()
    session = called(STUDY, there)
    terms = {"session": session, "index": 0, "label": SUMS[0].label, "public": PUBLICS[0]}
    told = there["north"].ask(AskQuery(**terms | change))
    assert refused(told, "one of those that the study lists")
    assert there["north"].charges == 0


@pytest.mark.parametrize(("study", "number", "charged"), [(STUDY, 3, (5, 1)), (OPEN, 4, (9, 2))])
def test_a_silo_that_vanishes_between_sums_costs_the_attempt_and_all_is_summed_again(study, number, charged):
    there, made = everybody(study), coordinator(study)
    solution = drive(made, there, lost={(number, "east")})
    assert list(solution.sizes) == ["north", "south", "west"]
    assert solution.code_book.n_rows == sum(SIZES.values()) - SIZES["east"]
    labels, opened = [terms.label for terms in study.queries], "open-session"
    kinds = [each.kind for each in made.history]
    assert kinds == ["enrol", opened, *labels[: number - 1], opened, *labels]
    others, lost = charged
    assert {name: each.charges for name, each in there.items()} == {
        "north": others, "south": others, "east": lost, "west": others,
    }  # fmt: skip
    words = [made.history[place].answers["north"].words for place in (2, number + 2)]
    assert not np.any(words[0] == words[1])
    told = state_privacy(study, budget_of(study), solution.sizes, made.history[1:])
    assert "charged most often on these rows was for 2 attempts" in str(told)
    assert told.protections[1].mu == pytest.approx(math.sqrt(2) * budget_of(study).total_mu)


def test_attempts_are_counted_by_their_first_sum_and_capped():
    there = everybody()
    for attempt in range(STUDY.attempts):
        assert there["north"].present(attempt).charged == attempt
        uploads(there, called(STUDY, there, attempt=attempt), 0)
    north = there["north"]
    for body in (Enrol(), OpenSession(attempt=STUDY.attempts)):
        assert refused(north.ask(body), "charged for 3 of 3 on these rows")
    assert north.charges == STUDY.attempts


def test_a_silo_that_could_not_pay_for_all_sums_says_so_before_the_first():
    poor = one("north", ledger=Ledger.in_memory(EPSILON / 2, DELTA, silo="north"))
    assert refused(poor.ask(OpenSession(attempt=0)), "would spend", "left")
    assert poor.charges == 0


def test_a_silo_started_again_between_sums_has_lost_its_masks_and_is_called_again(tmp_path):
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=30.0, delta=DELTA, silo="north").close()
    others = {name: one(name) for name in SIZES if name != "north"}
    with Ledger.open(path) as ledger:
        there = {"north": one("north", ledger=ledger), **others}
        session = called(STUDY, there)
        sent = uploads(there, session, 0)
    with Ledger.open(path) as ledger:
        there["north"] = one("north", ledger=ledger)
        assert np.array_equal(there["north"].ask(ask(session, 0)).words, sent["north"])
        assert there["north"].ask(ask(session, 1, PUBLICS[1])) == KeyGone()
        assert there["north"].ask(ask(session, 0, OTHERS[0])) == KeyGone()
        assert there["north"].charges == 1
        again = called(STUDY, there, attempt=1)
        for index in range(3):
            uploads(there, again, index)
        assert there["north"].charges == 4


def test_a_coordinator_that_is_started_again_goes_on_from_its_record():
    there = everybody()
    first = coordinator()
    while len(first.history) < 4:
        for question in first.next():
            first.receive(there[question.silo].silo.answer(question))
    second = coordinator(recorded=first.history[:3])
    assert second.n_replayed == 3
    drive(second, there)
    assert all(each.charges == 3 for each in there.values())


def test_too_few_that_come_back_end_the_run():
    there = everybody(replace(STUDY, min_silos=4))
    made = coordinator(replace(STUDY, min_silos=4))
    with pytest.raises(ProtocolError, match="bring back"):
        drive(made, there, lost={(number, "east") for number in range(2, 40)})


def test_an_upload_of_another_length_is_set_aside():
    there = everybody()
    made = coordinator()
    while made.history[-1].kind != "means":
        for question in made.next():
            made.receive(there[question.silo].silo.answer(question))
    question = made.next()[0]
    short = QueryAnswer(words=np.zeros(3, dtype=np.uint64), charged=1)
    told = made.receive(
        Message(study=STUDY.digest, run=RUN, round=question.round, silo=question.silo, body=short)
    )
    assert told.name == "MALFORMED"


DESIGN = {"noise": "clipped", "aggregation": "plain", "colluders": 0, "identities": (), "min_silos": 0}


@pytest.mark.parametrize(
    ("design", "words"),
    [
        ((QueryTerms("mean", D, 0.5), QueryTerms("mean", D, 0.5)), "each once"),
        ((QueryTerms("", 7, 0.5),), "each once"),
        ((QueryTerms("product 1\n", 7, 0.5),), "each once"),
        ((QueryTerms("product 1", 0, 0.5),), "1 number or more"),
        ((QueryTerms("product 1", 7, 0.0),), "share"),
        ((QueryTerms("product 1", 7, math.nan),), "share"),
        ((QueryTerms("product 1", 7, 0.6), QueryTerms("product 2", 7, 0.5)), "add up to 1"),
        ((QueryTerms("moment", 5, 0.6),), "as many numbers"),
    ],
)
def test_queries_that_cannot_be_agreed_on_are_refused(design, words):
    with pytest.raises(InputError, match=words):
        study_of(attempts=1, design=design, **DESIGN)


def test_numbers_beyond_what_rows_can_add_are_brought_back_without_a_word():
    """A refusal would depend on rows; and the ring holds no more."""
    query = queries()[1]
    noise = budget_of(STUDY).noise(query.label, query.sensitivity, tuple(SIZES.values()))
    most = 300 << noise.exponents[0]
    for number, kept in ((most + 1, most), (2**62, most), (-(2**62), -most), (most - 1, most - 1)):
        assert set(noise.bounded(np.full(query.sensitivity.size, number), 300).tolist()) == {kept}


def test_a_result_s_record_gives_the_terms_of_its_study_back():
    content = json.loads(json.dumps(plain({"hash": STUDY.digest, "terms": STUDY})))
    assert msgspec.convert(content, StudyTerms, strict=False).terms == STUDY


NAN = np.full(D, math.nan)
HOSTILE = {
    "no ranges": to_public(NOTHING),
    "a range of no width": to_public((LOW, LOW, None, None)),
    "a range too narrow to divide by": to_public((MIDDLE, np.full(D, 5e-324), None, None)),
    "a range the wrong way round": to_public((HIGH, LOW, None, None)),
    "nan": to_public((LOW, NAN, None, None)),
    "infinity": to_public((LOW, np.full(D, math.inf), None, None)),
    "too few columns": to_public((LOW[:2], HIGH[:2], None, None)),
    "an offset": to_public((LOW, HIGH, MIDDLE, None)),
    "a bound": to_public(RANGED, 3.0),
    "nothing": b"",
    "one byte more": to_public(RANGED) + b"\0",
    "one byte less": to_public(RANGED)[:-1],
    "half a number": struct.pack("<Q", 4) + bytes(36),
    "a length beyond the end": struct.pack("<Q", 2**63) + to_public(RANGED)[8:],
}


@pytest.mark.parametrize("public", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_question_is_refused_in_a_sentence_and_charged_nothing(public):
    there = everybody()
    session = called(STUDY, there)
    told = there["north"].ask(ask(session, 0, public))
    assert isinstance(told, Refusal)
    assert "operator" not in told.reason
    assert told.reason.count("\n") == 0
    assert there["north"].charges == 0


@pytest.mark.parametrize(
    "public",
    [
        to_public(WHOLE),
        to_public(WHOLE, 0.0),
        to_public(WHOLE, math.nan),
        to_public((LOW, HIGH, MIDDLE, MIDDLE), 3.0),
        to_public(RANGED, 3.0),
        b"",
    ],
)
def test_a_moment_without_a_proper_treatment_is_refused_and_charged_nothing(public):
    there = everybody()
    session = called(STUDY, there)
    for index in (0, 1):
        uploads(there, session, index)
    told = there["north"].ask(ask(session, 2, public))
    assert isinstance(told, Refusal)
    assert "operator" not in told.reason
    assert there["north"].charges == 2


def test_a_tally_does_not_leave_such_a_silo_in_any_other_way():
    north = one("north")
    assert refused(north.ask(ASK_MOMENT), "a query must have a session")
    assert north.charges == 0


def test_a_question_is_read_as_it_was_written():
    for vectors, bound in ((NOTHING, None), (RANGED, None), (WHOLE, None), (WHOLE, 2.5)):
        read, found = from_public(to_public(vectors, bound))
        assert found == bound
        for one, other in zip(read, vectors, strict=True):
            assert (one is None) == (other is None)
            assert one is None or np.array_equal(one, other)
    with pytest.raises(ProtocolError, match="each after its length"):
        from_public(to_public(WHOLE, 2.5)[8:])
