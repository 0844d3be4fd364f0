"""Exact numbers in secure sums: the same to a stated rounding, uploads uniform, the same silos."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest
from secure_silos import KEYS, RUN, SIZES, D, K, roll_of, rows_of

from fedpower.errors import InputError, ProtocolError
from fedpower.linalg import orth, sin_theta
from fedpower.protocol import Coordinator, Silo, Study
from fedpower.protocol.exact_sums import (
    MEAN,
    MEAN_RANGE,
    RANGE,
    ExactSecureReleases,
    Question,
    exact_sums,
    exponent_words,
    from_steps,
    largest_exponent,
    own_words,
    rounding_of_sum,
    whole_steps,
)
from fedpower.protocol.messages import (
    AskMoment,
    AskSum,
    CallRoll,
    KeyGone,
    MaskedSum,
    Message,
    Present,
    Refusal,
    decode,
    encode,
)
from fedpower.protocol.secure_releases import SecureReleases, total
from fedpower.protocol.solvers import ExactSumsSettings, exact_secure
from problems import ArrayMoment

UNITS = 1e3  # of nobody's choosing: exact rows have any
SILOS = {name: ArrayMoment(UNITS * (rows_of(name) + place)) for place, name in enumerate(SIZES)}
ALL_ROWS = np.vstack([each.rows for each in SILOS.values()])


def study_of(*, solver="krylov", center=True, n_products=30, **changes):
    terms = {
        "columns": None,
        "n_features": D,
        "iteration_rank": K + 1,
        "center": center,
        "aggregation": "secure",
        "colluders": 1,
        "identities": tuple((name, KEYS[name].public) for name in SIZES),
        "min_silos": 2,
        "attempts": 3,
        "sums": exact_sums(
            n_features=D,
            iteration_rank=K + 1,
            center=center,
            n_products=n_products if solver == "krylov" else None,
        ),
    }
    return Study(**{**terms, **changes})


def silo_of(name, study):
    releases = ExactSecureReleases(name, SILOS[name], study, identity=KEYS[name])
    return Silo(name, study, releases)


def everybody(study):
    return {name: silo_of(name, study) for name in SIZES}


def coordinator_of(study, *, solver="krylov", run=RUN, recorded=()):
    settings = ExactSumsSettings(study=study, rank=K, solver=solver, tol=1e-12, run=run)
    return Coordinator(
        exact_secure(settings, np.random.default_rng(0)),
        list(SIZES),
        study=study,
        run=run,
        min_silos=study.min_silos,
        recorded=recorded,
    )


def drive(made, silos, *, lost=frozenset(), seen=None):
    """Deliver all but the (round, silo) that are lost, over the wire's bytes."""
    while not made.done:
        number = made.history[-1].number
        for question in made.next():
            if (question.round, question.silo) not in lost:
                answer = decode(encode(silos[question.silo].answer(decode(encode(question)))))
                if seen is not None:
                    seen.append(answer)
                made.receive(answer)
        if not made.done and made.history[-1].number == number:
            made.deadline()
    return made.outcome


def pooled(names=SIZES, *, center=True):
    rows = np.vstack([SILOS[name].rows for name in names])
    about = rows - rows.mean(axis=0) if center else rows
    values, vectors = np.linalg.eigh(about.T @ about / len(rows))
    return rows.mean(axis=0), values[::-1], vectors[:, ::-1]


@pytest.mark.parametrize("solver", ["moment", "krylov"])
@pytest.mark.parametrize("center", [True, False])
def test_sums_give_the_pooled_rows_own_components_mean_and_trace(solver, center):
    study = study_of(solver=solver, center=center)
    found = drive(coordinator_of(study, solver=solver), everybody(study))
    mean, values, vectors = pooled(center=center)
    assert sin_theta(found.vectors[:, :K], vectors[:, :K]) < 1e-10
    assert found.values[:K] == pytest.approx(values[:K], rel=1e-12)
    assert found.total_variance == pytest.approx(values.sum(), rel=1e-12)
    assert found.converged
    assert found.sizes == SIZES
    if center:
        assert found.center == pytest.approx(mean, rel=1e-14)
    else:
        assert found.center is None


@given(
    values=st.lists(st.floats(-1.0, 1.0, allow_subnormal=False), min_size=3, max_size=3),
    exponent=st.integers(-900, 900),
)
def test_a_sum_is_off_by_half_a_step_for_each_silo_at_most(values, exponent):
    numbers = np.ldexp(np.array(values), exponent)
    words = [whole_steps(each, exponent, 3).reshape(1).view(np.uint64) for each in numbers]
    (found,) = from_steps(total(words), exponent, 3)
    # Compared in units of 2^e; float64 itself holds 53 bits of a sum.
    off = abs(math.ldexp(found, -exponent) - math.fsum(values))
    assert off <= rounding_of_sum(0, 3) + 2.0**-52 * 3


def test_a_range_that_is_too_small_wraps_around_and_tells_a_sum_modulo_the_ring_alone():
    parts = np.array([1.0, 3.0, -2.0])
    words = [whole_steps(each * 2.0**80, 20, 3).reshape(1).view(np.uint64) for each in parts]
    assert total(words)[0] == whole_steps(np.array(2.0 * 2.0**80), 20, 3)


def test_a_sum_of_ranges_tells_the_largest_power_of_two_and_is_uniform_below_it():
    """Kolmogorov-Smirnov over 1,000 words a try; below 1e-6 by chance in one of a million."""
    values = [3.0, 0.5, 1e-3]
    summed = total([exponent_words(each) for each in values])
    exponent = largest_exponent(summed)
    assert exponent == 2  # 2 <= 3 < 4
    told = np.flatnonzero(summed)
    shares = summed[told].view(np.uint64).astype(np.float64) / 2.0**64
    assert kstest(shares, "uniform").pvalue > 1e-6
    assert largest_exponent(total([exponent_words(0.0)] * 3)) < -1000


def test_rows_whose_squares_overflow_are_refused():
    with pytest.raises(InputError, match="squares that float64 can hold"):
        exponent_words(math.inf)


@pytest.mark.parametrize("solver", ["moment", "krylov"])
def test_each_upload_by_itself_is_uniform_and_their_sum_alone_is_not(solver):
    """Every silo's words of every sum, by Kolmogorov-Smirnov: 1e-6 by chance for one of about 30."""
    study = study_of(solver=solver, n_products=2)
    seen = []
    drive(coordinator_of(study, solver=solver), everybody(study), seen=seen)
    uploads = [each.body for each in seen if isinstance(each.body, MaskedSum)]
    assert len(uploads) == len(SIZES) * (4 if solver == "moment" else 5)
    for upload in uploads:
        shares = upload.words.astype(np.float64) / 2.0**64
        assert kstest(shares, "uniform").pvalue > 1e-6 / len(uploads)
    # The words of the mean, without masks: small numbers of steps beside the ring.
    last = [SILOS[name].n_rows * SILOS[name].mean() for name in SIZES]
    alone = whole_steps(np.array(last), 40, len(SIZES))
    assert np.abs(alone).max() < 2**62


def test_the_same_rows_give_other_words_in_another_run():
    study = study_of(solver="moment")
    runs = []
    for run in ("one", "two"):
        seen = []
        drive(coordinator_of(study, solver="moment", run=run), everybody(study), seen=seen)
        runs.append([each.body.words for each in seen if isinstance(each.body, MaskedSum)])
    for one, two in zip(*runs, strict=True):
        assert not (one == two).any()


def test_a_silo_lost_at_the_first_sum_is_left_out_of_the_next_roll():
    study = study_of()
    made = coordinator_of(study)
    found = drive(made, everybody(study), lost={(2, "west"), *((n, "west") for n in range(3, 99))})
    assert set(found.sizes) == {"north", "south", "east"}
    mean, _, vectors = pooled(found.sizes)
    assert found.center == pytest.approx(mean, rel=1e-14)
    assert sin_theta(found.vectors[:, :K], vectors[:, :K]) < 1e-10
    kinds = [each.kind for each in made.history]
    assert kinds.count("call-roll") == 2


def test_a_silo_lost_later_is_asked_to_a_new_roll_of_the_same_silos():
    study = study_of()
    made = coordinator_of(study)
    found = drive(made, everybody(study), lost={(6, "west")})
    assert found.sizes == SIZES
    rolls = [each for each in made.history if each.kind == "call-roll"]
    assert [set(each.asked) for each in rolls] == [set(SIZES)] * 2
    assert sin_theta(found.vectors[:, :K], pooled()[2][:, :K]) < 1e-10


def test_a_silo_lost_later_for_good_ends_the_run_and_no_sum_over_the_others_is_had():
    study = study_of()
    made = coordinator_of(study)
    with pytest.raises(ProtocolError, match="over the same silos to the end"):
        drive(made, everybody(study), lost={(number, "west") for number in range(6, 99)})
    later = [each for each in made.history[6:] if each.kind == "masked-sum"]
    assert all(set(each.asked) == set(SIZES) for each in later)


def ask(silo, body, *, run=RUN):
    message = Message(study=silo.study.digest, run=run, round=1, silo=silo.name, body=body)
    return silo.answer(message).body


def called(study, silos, attempt=0):
    presents = {name: ask(silo, CallRoll(attempt=attempt)) for name, silo in silos.items()}
    assert all(isinstance(each, Present) for each in presents.values())
    return roll_of(study, presents, attempt=attempt)


def asked(roll, index, label, **question):
    public = Question(**question).to_bytes()
    return AskSum(roll=roll.to_bytes(), index=index, label=label, public=public)


def test_a_coordinator_that_says_a_silo_is_gone_gets_no_second_sum_of_exact_numbers():
    study = study_of()
    silos = everybody(study)
    roll = called(study, silos)
    first = asked(roll, 0, MEAN_RANGE)
    assert all(isinstance(ask(each, first), MaskedSum) for each in silos.values())
    second = asked(roll, 1, MEAN, exponent=30)
    assert all(isinstance(ask(each, second), MaskedSum) for each in silos.values())
    fewer = {name: silos[name] for name in ("north", "south", "east")}
    smaller = called(study, fewer, attempt=1)
    for silo in fewer.values():
        assert isinstance(ask(silo, asked(smaller, 0, MEAN_RANGE)), MaskedSum)
        refusal = ask(silo, asked(smaller, 1, MEAN, exponent=30))
        assert isinstance(refusal, Refusal)
        assert "all be over the same silos" in refusal.reason


def test_the_last_question_again_gets_the_same_bytes_and_an_earlier_one_none():
    study = study_of()
    silos = everybody(study)
    roll = called(study, silos)
    silo = silos["north"]
    first, second = asked(roll, 0, MEAN_RANGE), asked(roll, 1, MEAN, exponent=30)
    once, again = ask(silo, first), ask(silo, first)
    assert np.array_equal(once.words, again.words)
    assert isinstance(ask(silo, second), MaskedSum)
    assert isinstance(ask(silo, first), KeyGone)
    other = ask(silo, asked(roll, 1, MEAN, exponent=31))
    assert "asked for with other numbers before" in other.reason
    ahead = ask(silo, asked(roll, 3, "product 1", center=np.zeros(D), block=np.eye(D)[:, :1]))
    assert "in the study's order" in ahead.reason


def test_a_silo_started_again_says_that_its_key_is_gone():
    study = study_of()
    roll = called(study, everybody(study))
    assert isinstance(ask(silo_of("north", study), asked(roll, 0, MEAN_RANGE)), KeyGone)


def test_nothing_but_a_sum_leaves_and_no_more_attempts_than_agreed():
    study = study_of(attempts=1)
    silos = everybody(study)
    assert "nothing but a secure sum leaves" in ask(silos["north"], AskMoment()).reason
    roll = called(study, silos)
    assert isinstance(ask(silos["north"], asked(roll, 0, MEAN_RANGE)), MaskedSum)
    assert "attempts at its secure sums" in ask(silos["north"], CallRoll(attempt=1)).reason


@pytest.mark.parametrize(
    "public",
    [
        b"",
        Question(center=np.zeros(D)).to_bytes()[:-8],
        Question(exponent=2000, center=np.zeros(D)).to_bytes(),
        Question(center=np.full(D, np.nan)).to_bytes(),
        Question().to_bytes(),
        Question(center=np.zeros(D), block=np.eye(D)[:, :1]).to_bytes(),
    ],
)
def test_a_question_that_is_none_is_refused(public):
    with pytest.raises(ProtocolError):
        own_words(SILOS["north"], study_of(), RANGE, public, 4)


@pytest.mark.parametrize("block", [2 * np.eye(D)[:, :1], np.eye(D)[:, : K + 2]])
def test_a_block_that_is_inflated_or_too_wide_is_refused(block):
    public = Question(center=np.zeros(D), block=block).to_bytes()
    with pytest.raises(ProtocolError):
        own_words(SILOS["north"], study_of(), "product 1", public, 4)


def test_a_narrower_block_has_as_many_words():
    study = study_of()
    block = orth(np.random.default_rng(0).standard_normal((D, 1)))
    public = Question(exponent=40, center=np.zeros(D), block=block).to_bytes()
    assert len(own_words(SILOS["north"], study, "product 1", public, 4)) == D * (K + 1) + 1


@pytest.mark.parametrize(("written", "rolls"), [(-1, 1), (-2, 2)])
def test_a_run_goes_on_from_the_rounds_that_were_written_down(written, rolls):
    """Silos that went on to the end keep their last upload alone: for an earlier one, a new roll."""
    study = study_of()
    silos, closed = everybody(study), []
    settings = ExactSumsSettings(study=study, rank=K, solver="krylov", tol=1e-12, run=RUN)

    def copied(each):
        closed.append(replace(each, answers=dict(each.answers)))

    made = Coordinator(
        exact_secure(settings, np.random.default_rng(0)), list(SIZES), study=study, run=RUN,
        min_silos=2, on_closed=copied,
    )  # fmt: skip
    whole = drive(made, silos)
    resumed = coordinator_of(study, recorded=closed[:written])
    assert resumed.n_replayed == len(closed) + written
    found = drive(resumed, silos)
    assert [each.kind for each in resumed.history].count("call-roll") == rolls
    assert sin_theta(found.vectors[:, :K], whole.vectors[:, :K]) < 1e-10


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sums": ()}, "must list its sums"),
        (
            {"sums": exact_sums(n_features=D, iteration_rank=1, center=True, n_products=2)[:1] * 2},
            "names",
        ),
    ],
)
def test_terms_that_cannot_be_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        study_of(**change)


def test_shares_of_a_budget_are_none_of_an_exact_study_s():
    shared = tuple(each._replace(share=0.1) for each in study_of(n_products=1).sums)
    with pytest.raises(InputError, match="share of the budget"):
        study_of(sums=shared)


def test_what_releases_exact_sums_has_no_ledger_and_is_taken_for_nothing_that_has():
    releases = silo_of("north", study_of()).releases
    assert not isinstance(releases, SecureReleases)
    assert releases.attempts_charged == 0


def test_a_silo_with_another_s_key_is_refused():
    with pytest.raises(InputError, match="must hold the identity that the study lists for it"):
        ExactSecureReleases("north", SILOS["north"], study_of(), identity=KEYS["south"])
