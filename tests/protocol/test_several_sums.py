"""Several secure sums over one roll: each has noise and masks of its own, in order, once."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from scipy.stats import chi2
from secure_silos import DELTA, EPSILON, RUN, SIZES, D, called, parties, party, roll_of, rows_of, study_of

from fedpower.errors import InputError, ProtocolError
from fedpower.privacy.accounting import compose
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.integer_release import root_above
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import summary_size, unpack
from fedpower.privacy.shares import sum_noise
from fedpower.protocol import Coordinator
from fedpower.protocol.messages import (
    AskMasked,
    AskSum,
    CallRoll,
    Enrol,
    KeyGone,
    MaskedSum,
    Message,
    Refusal,
    decode,
    encode,
)
from fedpower.protocol.private_study import budget_of, pooled_std, state_privacy
from fedpower.protocol.roll import new_exchange_key
from fedpower.protocol.secure_releases import MaskChain, Summand, share_of_integers, total
from fedpower.protocol.solvers.shared import enrol
from fedpower.protocol.solvers.sums import secure_sums
from fedpower.protocol.study import SumTerms
from fedpower.report.record import StudyTerms, plain
from problems import ArrayMoment

SUMS = (
    SumTerms("prepare/1", 2 * D, 0.1),
    SumTerms("prepare/2", D, 0.1),
    SumTerms(MOMENT, summary_size(D, with_mean=False), 0.8),
)
STUDY = study_of(sums=SUMS)
MOVED = {"prepare/1": root_above(2 * D), "prepare/2": root_above(4 * D * 100**2)}
PER_ROW = {"prepare/1": 1, "prepare/2": 100}


class Columns:
    """Signs of every column; then hundredths within a bound that the coordinator found from these."""

    def __init__(self, name):
        self.rows = rows_of(name)

    def integers(self, label, public):
        if label == "prepare/1":
            above = self.rows > 0
            return np.concatenate([above.sum(axis=0), (~above).sum(axis=0)]).astype(np.int64)
        bound = json.loads(public)["bound"]
        return np.rint(100 * np.clip(self.rows / bound, -1, 1)).sum(axis=0).astype(np.int64)

    def summand(self, label, public):
        return Summand(
            integers=self.integers(label, public), sensitivity=MOVED[label], per_row=PER_ROW[label]
        )

    def moment(self, public):
        assert public == b"as found"
        return ArrayMoment(self.rows)


def one(name, study=STUDY, **options):
    return party(name, study, summands=Columns(name), **options)


def everybody(study=STUDY, **options):
    return {name: one(name, study, **options) for name, _ in study.identities}


def script(sums):
    """What a coordinator makes of three sums, each asked with what came before."""
    first = yield from sums.total("prepare/1", sensitivity=MOVED["prepare/1"], per_row=1)
    bound = 0.5 if first.values[0] > 0 else 0.25
    public = json.dumps({"bound": bound}).encode()
    second = yield from sums.total("prepare/2", public, sensitivity=MOVED["prepare/2"], per_row=100)
    vector = yield from sums.moment(b"as found")
    return first, second, vector, bound, sums.sizes


def solver(study=STUDY, run=RUN):
    enrolled = yield from enrol()
    return (yield from secure_sums(study, run=run, enrolled=enrolled, script=script))


def coordinator(study=STUDY, *, recorded=(), run=RUN):
    names = [name for name, _ in study.identities]
    return Coordinator(
        solver(study, run), names, study=study, run=run, min_silos=study.min_silos, recorded=recorded
    )


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


def ask(roll, index, public=b"", label=None):
    return AskSum(roll=roll.to_bytes(), index=index, label=label or SUMS[index].label, public=public)


PUBLICS = (b"", b'{"bound": 0.5}', b"as found")


def uploads(there, roll, index, public=None):
    sent = PUBLICS[index] if public is None else public
    answers = {name: each.ask(ask(roll, index, sent)) for name, each in there.items()}
    assert all(isinstance(answer, MaskedSum) for answer in answers.values()), answers
    return {name: answer.words for name, answer in answers.items()}


def refused(answer, *words):
    assert isinstance(answer, Refusal), answer
    assert all(word in answer.reason for word in words), answer.reason
    return True


def looks_uniform(words):
    """Uniform words: the median of some magnitudes is below 2⁵⁷ with probability below 1e-9."""
    return np.median(np.abs(words.astype(np.float64))) > 2.0**57


def test_a_run_of_three_sums_gives_each_total_within_its_noise():
    """Each of 12 + 6 + 22 numbers is within 7 standard deviations: fails by chance with 1e-10."""
    there = everybody()
    made = coordinator()
    first, second, vector, bound, sizes = drive(made, there)
    assert sizes == SIZES
    kinds = [each.kind for each in made.history]
    assert kinds == ["enrol", "call-roll", "masked-sum", "masked-sum", "masked-sum"]
    exact = sum(Columns(name).integers("prepare/1", b"") for name in SIZES)
    assert np.abs(first.values - exact).max() < 7 * first.std
    public = json.dumps({"bound": bound}).encode()
    exact = sum(Columns(name).integers("prepare/2", public) for name in SIZES)
    assert np.abs(second.values - exact).max() < 7 * second.std
    rows = np.vstack([rows_of(name) for name in SIZES])
    moment, _, _ = unpack(vector, D, with_mean=False)
    std = pooled_std(budget_of(STUDY), SIZES)
    assert np.abs(moment - rows.T @ rows / len(rows)).max() < 7 * std


def test_the_sums_of_an_attempt_compose_to_the_epsilon_that_was_asked_for():
    there = everybody()
    made = coordinator()
    drive(made, there)
    budget = budget_of(STUDY)
    for each in there.values():
        entries = each.ledger.entries()
        assert [entry.purpose.split(" over ")[0] for entry in entries] == [
            f"share of the secure sum {terms.label}" for terms in SUMS
        ]
        assert compose([entry.mu for entry in entries]) == pytest.approx(budget.mu, rel=1e-12)
        assert compose([entry.mu for entry in entries]) <= budget.mu
        assert sum(entry.slack_delta for entry in entries) == pytest.approx(budget.slack_delta)
    told = state_privacy(STUDY, budget, SIZES, made.history[1:])
    assert told.protections[1].epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert told.protections[0].mu == pytest.approx(budget.mu * math.sqrt(3 / 4))
    assert "the 3 noised sums over all silos" in str(told)
    assert "charged most often on these rows was for 1 attempt," in str(told)


def test_a_fit_with_a_share_of_the_budget_has_that_share_s_noise():
    whole, part = (pooled_std(budget_of(study), SIZES) for study in (study_of(), STUDY))
    assert part / whole == pytest.approx(1 / math.sqrt(0.8), rel=1e-4)


def test_the_uploads_of_each_sum_add_up_exactly():
    there = everybody(source=SeededNoiseForExperiments(3))
    roll = called(STUDY, there)
    shared = SeededNoiseForExperiments(3)  # one stream, from which silos draw in turn
    for index in (0, 1):
        label, size, _ = SUMS[index]
        noise = noise_of(index, roll)
        sent = uploads(there, roll, index)
        expected = sum(
            share_of_integers(
                Columns(name).summand(label, PUBLICS[index]),
                noise,
                size=size,
                n_rows=SIZES[name],
                source=shared,
            )
            for name in SIZES
        )
        assert np.array_equal(total(sent.values()), expected)
        for words in sent.values():
            assert looks_uniform(words.view(np.int64))


def noise_of(index, roll, study=STUDY):
    label = SUMS[index].label
    return sum_noise(
        budget_of(study).price_of_sum(index).multiplier,
        sensitivity=MOVED[label],
        per_row=PER_ROW[label],
        sizes=roll.sizes.values(),
        colluders=study.colluders,
    )


@pytest.mark.slow
def test_the_noise_of_a_total_is_the_shares_together():
    """χ² of the noise in 12 numbers of 60 sums; fails by chance with 1e-9."""
    exact = sum(Columns(name).integers("prepare/1", b"") for name in SIZES)
    seen = []
    for _ in range(60):
        there = everybody()
        roll = called(STUDY, there)
        noise = noise_of(0, roll)
        seen.append(total(uploads(there, roll, 0).values()) / 2.0**noise.fineness - exact)
    low, high = chi2.ppf([5e-10, 1 - 5e-10], 60 * 2 * D)
    assert low < float(np.sum(np.square(seen))) / noise.std**2 < high


def test_masks_are_of_one_sum_and_one_question_and_are_used_once():
    there = everybody()
    roll = called(STUDY, there)
    secret = new_exchange_key()
    chain = MaskChain("north", roll, secret)
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


def test_the_same_question_gets_the_same_bytes_and_one_charge_each():
    there = everybody()
    roll = called(STUDY, there)
    sent = [uploads(there, roll, index) for index in range(3)]
    for index in (1, 0, 2, 0):
        again = uploads(there, roll, index)
        assert all(np.array_equal(again[name], sent[index][name]) for name in SIZES)
    assert all(each.charges == 3 for each in there.values())


def test_a_sum_that_is_ahead_is_refused_and_costs_nothing():
    there = everybody()
    roll = called(STUDY, there)
    for index in (1, 2):
        told = there["north"].ask(ask(roll, index, PUBLICS[index]))
        assert refused(told, "in the study's order", f"sum 1 of 3 comes before sum {index + 1}")
    uploads(there, roll, 0)
    assert refused(there["north"].ask(ask(roll, 2, PUBLICS[2])), "sum 2 of 3 comes before sum 3")
    assert there["north"].charges == 1


def test_a_sum_that_was_asked_for_is_not_asked_for_in_other_words():
    """Else fresh noise for the same rows, under one charge for both, could be averaged away."""
    there = everybody()
    roll = called(STUDY, there)
    uploads(there, roll, 0)
    uploads(there, roll, 1)
    north = there["north"]
    for index, public in ((0, b"other"), (1, b'{"bound": 0.25}')):
        assert refused(north.ask(ask(roll, index, public)), "once over a roll", "other numbers")
    assert north.charges == 2
    uploads(there, roll, 2)
    assert refused(north.ask(ask(roll, 1, b'{"bound": 0.25}')), "once over a roll")
    assert north.charges == 3


def test_another_roll_between_two_sums_is_refused():
    """Two sums over different sets of silos, or one sum twice, never share a key."""
    there = everybody()
    presents = {name: each.present() for name, each in there.items()}
    whole = roll_of(STUDY, presents)
    part = roll_of(STUDY, {name: presents[name] for name in ("north", "south", "east")})
    uploads(there, whole, 0)
    north = there["north"]
    for index in (0, 1):
        told = north.ask(ask(part, index, PUBLICS[index]))
        assert refused(told, "on one roll only")
    assert north.charges == 1
    uploads(there, whole, 1)  # the run itself goes on


def test_a_sum_over_a_roll_that_was_given_up_cannot_go_on():
    """A new roll call ends the old attempt: its sums come from the ledger, and no further ones."""
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


def test_the_roll_of_a_run_that_has_begun_is_not_called_again():
    there = everybody()
    uploads(there, called(STUDY, there), 0)
    assert refused(there["north"].ask(CallRoll(attempt=0)), "must not be used twice")


def test_silos_that_are_asked_for_different_things_sum_to_noise():
    there = everybody()
    roll = called(STUDY, there)
    uploads(there, roll, 0)
    sent = []
    for name, each in there.items():
        public = PUBLICS[1] if name != "west" else b'{"bound": 0.25}'
        sent.append(each.ask(ask(roll, 1, public)).words)
    assert looks_uniform(total(sent))
    assert looks_uniform(total(sent[:3]))


def test_a_part_of_the_roll_sums_to_noise_in_every_sum():
    there = everybody()
    roll = called(STUDY, there)
    for index in range(3):
        sent = uploads(there, roll, index)
        assert looks_uniform(total([sent[name] for name in ("north", "south", "east")]))
        assert not looks_uniform(total(sent.values()))


@pytest.mark.parametrize(
    "change",
    [
        {"index": 3},
        {"index": -1},
        {"index": True},
        {"index": "0"},
        {"label": "moment"},
        {"label": "another"},
        {"public": "text"},
        {"public": None},
    ],
)
def test_a_sum_that_the_study_does_not_list_is_refused(change):
    there = everybody()
    roll = called(STUDY, there)
    terms = {"roll": roll.to_bytes(), "index": 0, "label": SUMS[0].label, "public": b""}
    told = there["north"].ask(AskSum(**terms | change))
    assert refused(told, "one of those that the study lists")
    assert there["north"].charges == 0


def test_a_study_of_one_sum_and_one_of_several_are_asked_each_in_its_own_way():
    plain = study_of()
    there = parties(plain)
    roll = called(plain, there)
    assert refused(there["north"].ask(ask(roll, 0)), "one of those that the study lists")
    several = everybody()
    told = several["north"].ask(AskMasked(roll=called(STUDY, several).to_bytes()))
    assert refused(told, "several secure sums")


def test_a_silo_that_vanishes_between_sums_costs_the_attempt_and_all_is_summed_anew():
    there = everybody()
    made = coordinator()
    *_, sizes = drive(made, there, lost={(3, "east")})
    assert list(sizes) == ["north", "south", "west"]
    kinds = [each.kind for each in made.history]
    assert kinds == [
        "enrol", "call-roll", "masked-sum", "masked-sum", "call-roll", *["masked-sum"] * 3,
    ]  # fmt: skip
    assert {name: each.charges for name, each in there.items()} == {
        "north": 5, "south": 5, "east": 1, "west": 5,
    }  # fmt: skip
    words = [made.history[place].answers["north"].words for place in (2, 5)]
    assert not np.any(words[0] == words[1])
    told = state_privacy(STUDY, budget_of(STUDY), sizes, made.history[1:])
    assert "charged most often on these rows was for 2 attempts" in str(told)
    assert told.protections[1].mu == pytest.approx(math.sqrt(2) * budget_of(STUDY).mu)


def test_attempts_are_counted_by_their_first_sum_and_capped():
    there = everybody()
    for attempt in range(STUDY.attempts):
        assert there["north"].present(attempt).charged == attempt
        uploads(there, called(STUDY, there, attempt=attempt), 0)
    north = there["north"]
    for body in (Enrol(), CallRoll(attempt=STUDY.attempts)):
        assert refused(north.ask(body), "charged for 3 of 3 on these rows")
    assert north.charges == STUDY.attempts


def test_a_silo_that_could_not_pay_for_all_sums_says_so_before_the_first():
    poor = one("north", ledger=Ledger.in_memory(EPSILON / 2, DELTA, silo="north"))
    assert refused(poor.ask(CallRoll(attempt=0)), "would spend", "left")
    assert poor.charges == 0


def test_a_silo_started_again_between_sums_has_lost_its_masks_and_is_called_again(tmp_path):
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=30.0, delta=DELTA, silo="north").close()
    others = {name: one(name) for name in SIZES if name != "north"}
    with Ledger.open(path) as ledger:
        there = {"north": one("north", ledger=ledger), **others}
        roll = called(STUDY, there)
        sent = uploads(there, roll, 0)
    with Ledger.open(path) as ledger:
        there["north"] = one("north", ledger=ledger)
        assert np.array_equal(there["north"].ask(ask(roll, 0)).words, sent["north"])
        assert there["north"].ask(ask(roll, 1, PUBLICS[1])) == KeyGone()
        assert there["north"].ask(ask(roll, 0, b"other")) == KeyGone()
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
    there = everybody(study_of(sums=SUMS, min_silos=4))
    made = coordinator(study_of(sums=SUMS, min_silos=4))
    with pytest.raises(ProtocolError, match="bring back"):
        drive(made, there, lost={(number, "east") for number in range(2, 40)})


def test_a_silo_without_a_way_to_compute_a_sum_tells_its_operator_only(caplog):
    there = parties(STUDY)
    roll = called(STUDY, there)
    assert refused(there["north"].ask(ask(roll, 0)), "its operator's log says why")
    assert "must know how to compute" in caplog.text
    assert there["north"].charges == 0


def test_an_upload_of_another_length_is_set_aside():
    there = everybody()
    made = coordinator()
    while made.history[-1].kind != "masked-sum":
        for question in made.next():
            made.receive(there[question.silo].silo.answer(question))
    question = made.next()[0]
    short = MaskedSum(words=np.zeros(3, dtype=np.uint64), charged=1)
    told = made.receive(
        Message(study=STUDY.digest, run=RUN, round=question.round, silo=question.silo, body=short)
    )
    assert told.name == "MALFORMED"


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        ((SumTerms("a", 1, 0.5), SumTerms("a", 1, 0.5)), "different names"),
        ((SumTerms("", 1, 0.5),), "different names"),
        ((SumTerms("a\n", 1, 0.5),), "different names"),
        ((SumTerms("a", 0, 0.5),), "1 number or more"),
        ((SumTerms("a", 1, 0.0),), "share of"),
        ((SumTerms("a", 1, math.nan),), "share of"),
        ((SumTerms("a", 1, 0.6), SumTerms("b", 1, 0.5)), "add up to 1"),
        ((SumTerms("moment", 5, 0.6),), "22 numbers"),
    ],
)
def test_sums_that_cannot_be_agreed_on_are_refused(sums, words):
    with pytest.raises(InputError, match=words):
        study_of(sums=sums)


def test_sums_are_terms_of_the_study_and_studies_of_one_sum_keep_their_hash():
    assert STUDY.digest != study_of().digest
    assert study_of(sums=SUMS[:2]).digest != STUDY.digest
    assert study_of(sums=()).digest == study_of().digest
    shares = tuple(terms._replace(share=terms.share / 2) for terms in SUMS)
    assert study_of(sums=shares).digest != STUDY.digest


def test_numbers_beyond_what_rows_can_add_are_brought_back_without_a_word():
    """A refusal would depend on rows; and the ring holds no more."""
    there = everybody()
    roll = called(STUDY, there)

    def share(number):
        made = Summand(integers=np.full(2 * D, number), sensitivity=1.0, per_row=1)
        source = SeededNoiseForExperiments(0)
        return share_of_integers(made, noise_of(0, roll), size=2 * D, n_rows=300, source=source)

    assert np.array_equal(share(301), share(300))
    assert np.array_equal(share(-(2**62)), share(-300))


def test_a_result_s_record_gives_the_sums_of_its_study_back():
    terms = plain(asdict(STUDY))
    terms = json.loads(json.dumps(terms))
    assert StudyTerms(hash=STUDY.digest, terms=terms).agreed == STUDY
