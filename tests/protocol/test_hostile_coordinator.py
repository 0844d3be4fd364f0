"""A silo against a coordinator that sends what it likes: what leaves, and what the ledger says.

The ledger is a file with the study's own budget as its cap.
"""

import hashlib
import logging
import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from ledgers import KILLED, die, run
from msgspec import structs
from private_silos import (
    COVARIANCE,
    DELTA,
    EPSILON,
    STEP,
    D,
    R,
    T,
    ask,
    basis,
    bounded_rows,
    message,
    private_silo,
    refused,
    steps,
)
from spoilt import NUMBERS, mutations

from federations import ASK_MOMENT
from fedpower.exceptions import LedgerError, ProtocolError
from fedpower.linalg import orth
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.messages import (
    AskMoment,
    AskSteps,
    Enrol,
    Enrolment,
    LocalSteps,
    Message,
    MomentPart,
    QueryAnswer,
    Refusal,
    decode,
    encode,
    read_only,
)
from fedpower.protocol.silo import NOT_YOURS, ExactReleases, Silo
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import local_moment
from problems import ArrayMoment

GOOD = basis(0)
both = pytest.mark.parametrize("study", [STEP, COVARIANCE], ids=["step", "covariance"])


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.db"
    Ledger.create(path, epsilon=EPSILON, delta=DELTA, silo="north").close()
    return path


@pytest.fixture
def ledger(path):
    with Ledger.open(path) as ledger:
        yield ledger


def sent(silo, body, **where):
    answer = silo.answer(message(silo.study, body, **where))
    return encode(structs.replace(answer, round=0, run=""))


def complex_basis():
    z = np.zeros((D, 1), dtype=complex)
    z[0], z[1] = np.cosh(1.0), 1j * np.sinh(1.0)
    return z


BAD_BASES = {
    "inflated": GOOD * 1000,
    "inflated a little": GOOD * (1 + 1e-5),
    "one column inflated": GOOD * [1.0, 2.0],
    "skewed": np.column_stack([GOOD[:, 0], (GOOD[:, 0] + GOOD[:, 1]) / np.sqrt(2)]),
    "the same column twice": GOOD[:, [0, 0]],
    "zero": np.zeros((D, R)),
    "NaN": np.full((D, R), np.nan),
    "infinite": np.where(np.eye(D, R) > 0, np.inf, 0.0),
    "too wide": np.eye(D),
    "too long": np.eye(D + 1)[:, :R],
    "too short": np.eye(D - 1)[:, :R],
    "empty": np.zeros((D, 0)),
    "flat": np.zeros(D),
    "deep": np.zeros((D, R, 1)),
    "overflowing": GOOD * 1e200,
    "complex": complex_basis(),
}


@both
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("name", BAD_BASES)
def test_a_bad_basis_is_refused_and_costs_nothing(study, ledger, name):
    silo = private_silo(study, ledger)
    assert refused(ask(silo, AskSteps(basis=BAD_BASES[name], n_local_steps=1)), "a basis")
    assert ledger.spent().n_releases == 0


def test_an_almost_orthonormal_basis_is_answered_as_the_orthonormal_one_it_stands_for(ledger):
    silo = private_silo(STEP, ledger)
    sloppy = GOOD * (1 + 3e-7)
    answers = [ask(silo, AskSteps(basis=read_only(each), n_local_steps=1)) for each in (sloppy, orth(sloppy))]
    assert np.array_equal(answers[0].product, answers[1].product)
    assert ledger.spent().n_releases == 1


@both
def test_a_replayed_question_gets_the_same_bytes_and_one_charge(study, path):
    """In another round or run, in another order of memory, and after a restart too."""
    with Ledger.open(path) as ledger:
        silo = private_silo(study, ledger)
        first = sent(silo, steps(0))
        assert {sent(silo, steps(0)) for _ in range(20)} == {first}
        assert sent(silo, steps(0), round=99) == first
        assert sent(silo, steps(0), run="another run") == first
        fortran = AskSteps(basis=np.asfortranarray(GOOD), n_local_steps=1)
        assert sent(silo, fortran) == first
    with Ledger.open(path) as ledger:
        assert sent(private_silo(study, ledger), steps(0)) == first
        assert ledger.spent().n_releases == 1


@both
def test_a_new_version_is_a_new_question_and_a_new_charge(study, tmp_path):
    with Ledger.create(tmp_path / "wide.db", epsilon=10.0, delta=DELTA) as ledger:
        first = sent(private_silo(study, ledger), steps(0))
        other = {"rows": bounded_rows(seed=1), "fingerprint": "other rows"}
        with pytest.raises(LedgerError, match="must match version '1' in its ledger"):
            private_silo(study, ledger, **other)
        changed = private_silo(study, ledger, **other, version="2")
        assert sent(changed, steps(0)) != first
        assert ledger.spent().n_releases == 2


@both
def test_threads_that_ask_at_once_get_the_same_bytes_and_one_charge(study, ledger):
    silo, barrier = private_silo(study, ledger), threading.Barrier(8)

    def body(_: int) -> bytes:
        barrier.wait()
        return sent(silo, steps(0))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(body, range(8)))) == 1
    assert ledger.spent().n_releases == 1


@both
def test_killed_between_charge_and_answer_the_same_bytes_come_after_a_restart(study, path):
    def body() -> None:
        ledger = Ledger.open(path)
        charge = ledger.release
        ledger.release = lambda **release: (charge(**release), die())
        ask(private_silo(study, ledger), steps(0))

    def stored(ledger):
        return ledger.entries(), ledger._query("SELECT payload FROM entry WHERE payload IS NOT NULL")

    assert run(body) == [KILLED]
    with Ledger.open(path) as ledger:
        charged, (kept,) = stored(ledger)
        assert len(charged) == 1
        first = sent(private_silo(study, ledger), steps(0))
        assert stored(ledger) == (charged, [kept])
    with Ledger.open(path) as ledger:
        assert sent(private_silo(study, ledger), steps(0)) == first


@both
@pytest.mark.parametrize("change", [{"epsilon": 9.0}, {"delta": 1e-3}, {"n_steps": 400}, {"noise": "paper"}])
def test_a_study_that_changes_mid_run_is_refused_and_costs_nothing(study, ledger, change):
    silo = private_silo(study, ledger)
    assert isinstance(ask(silo, steps(0)), LocalSteps)
    spent, other = ledger.spent(), replace(study, **{"n_steps": T, **change})
    assert refused(silo.answer(message(other, steps(1))).body, "must belong to the study")
    assert ledger.spent() == spent


def test_more_steps_than_agreed_are_refused_with_what_is_left(ledger):
    silo = private_silo(STEP, ledger)
    for seed in range(T - 1):
        assert isinstance(ask(silo, steps(seed)), LocalSteps)
    before = ledger.spent()
    assert refused(ask(silo, steps(50, 2)), "but silo 'north' has 0.4")
    assert ledger.spent() == before
    assert isinstance(ask(silo, steps(T)), LocalSteps)
    assert refused(ask(silo, steps(T + 1)), "but silo 'north' has 0 left")
    assert ledger.spent().n_releases == T
    assert ledger.spent().epsilon <= EPSILON * (1 + 1e-9)


@pytest.mark.parametrize("n_local_steps", [T + 1, 10_000, 10_001, 10**18, 2**70, 0, -3])
def test_a_huge_number_of_local_steps_is_refused_and_costs_nothing(ledger, n_local_steps):
    words = "left" if T < n_local_steps <= 10_000 else "local steps"
    assert refused(ask(private_silo(STEP, ledger), steps(0, n_local_steps)), words)
    assert ledger.spent().n_releases == 0


@both
def test_what_a_study_has_no_price_for_is_refused(study, ledger):
    silo = private_silo(study, ledger)
    enrolment = ask(silo, Enrol())  # which says only what is public
    assert (enrolment.n_rows, enrolment.n_features) == (300, D)
    assert refused(ask(silo, AskMoment(label="mean")))
    assert refused(ask(silo, steps(0, center=read_only(np.zeros(D)))))
    for body in (steps(0, gains=np.full(D, 2.0)), AskMoment(label="variances"), AskMoment(label="factor")):
        assert refused(ask(silo, body), "private study")
    if study is STEP:
        assert refused(ask(silo, ASK_MOMENT))
        assert refused(ask(silo, steps(0, shift=1e9)))
        assert refused(ask(silo, steps(0, pooled=GOOD)), "one more release")
        with pytest.raises(ProtocolError, match="drift-corrected"):  # the silo's check apart
            silo.releases.steps(steps(0, pooled=GOOD), run="run")
    assert ledger.spent().n_releases == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [1e3, 1e80, 1e160, 1e300])
def test_a_far_away_centre_is_paid_for_with_noise_or_refused(tmp_path, size):
    study = replace(STEP, center=True)
    with Ledger.create(tmp_path / "l.db", epsilon=EPSILON, delta=DELTA) as ledger:
        silo = private_silo(study, ledger)
        answer = ask(silo, steps(0, center=read_only(np.full(D, size))))
        if isinstance(answer, Refusal):
            assert ledger.spent().n_releases == 0
        else:
            assert ledger.spent().n_releases == 1
            exact = silo.releases.rows.product(GOOD, np.full(D, size))
            assert np.abs(answer.product - exact).max() > size**2 / 1e3


EXACT = replace(STEP, noise="none", epsilon=math.inf, delta=0.0, n_steps=None)


def exact_silo(study=EXACT, releases=ExactReleases):
    return Silo("north", study, releases(ArrayMoment(bounded_rows()), study))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (AskSteps(basis=GOOD * 10, n_local_steps=1), "orthonormal"),
        (AskSteps(basis=np.eye(D), n_local_steps=1), "got shape (6, 6)"),
        (steps(0, 0), "between 1 and"),
        (steps(0, 10**9), "between 1 and"),
        (steps(0, shift=-1.0), "shift"),
        (steps(0, shift=math.nan), "shift"),
        (steps(0, center=np.zeros(D)), "must be left out"),
        (steps(0, align="other"), "alignment"),
        (steps(0, gains=np.ones(D - 1)), "gains must be 6 positive"),
        (steps(0, gains=np.zeros(D)), "gains must be 6 positive"),
        (steps(0, gains=np.full(D, np.inf)), "gains must be 6"),
        (steps(0, 2, pooled=np.ones((D, 3))), "a pooled product must be finite"),
        (steps(0, 2, pooled=np.full((D, R), np.inf)), "a pooled product must be finite"),
        (AskMoment(label="mean"), "where the study centres"),
        (Refusal(reason="x"), "must be sent a question"),
    ],
)
def test_what_an_exact_study_does_not_allow_is_refused(body, sentence):
    silo = exact_silo()
    assert refused(ask(silo, body), sentence)
    assert isinstance(ask(silo, Enrol()), Enrolment)
    assert refused(silo.answer(message(replace(EXACT, iteration_rank=1), Enrol())).body, "the study")
    assert refused(silo.answer(message(EXACT, Enrol(), silo="south")).body, "must name it")


def test_an_unforeseen_failure_leaves_no_detail_in_the_answer(caplog):
    class Broken(ExactReleases):
        def moment(self, ask, *, run):
            raise RuntimeError("row 17 holds 42.0")

    silo = exact_silo(replace(EXACT, center=True), Broken)
    assert ask(silo, AskMoment(label="mean")) == Refusal(reason=NOT_YOURS)
    assert "row 17" in caplog.text  # the operator's own log has it


def test_the_study_s_hash_changes_with_any_of_its_terms():
    terms = {
        "columns": tuple("abcdef"),
        "n_features": 7,
        "iteration_rank": 3,
        "center": True,
        "treatment": "x",
    }
    private = {"epsilon": 1.1, "delta": 1e-7, "noise": "covariance", "n_steps": 11}
    studies = [EXACT, STEP, *(replace(STEP, **{name: value}) for name, value in (terms | private).items())]
    assert len({study.digest for study in studies}) == len(studies)


# Ten thousand fuzzed messages: no traceback, nothing beyond the cap, no row content anywhere

MARKER = 12345.678
N_MESSAGES = 5_000  # of each mode
BASES = [
    lambda z: z * (1 + 1e-7),
    lambda z: z * (1 + 1e-5),
    lambda z: z * 1e9,
    lambda z: z.T,
    lambda z: z[:, ::-1],
    np.asfortranarray,
    lambda z: z.astype(np.float32),
    lambda z: z.astype(np.complex128) * 1j,
    lambda z: z.astype(object),
    lambda z: z.astype(str),
    lambda z: np.eye(D, R, dtype=bool),
]


@pytest.fixture
def marked(study):
    rows = np.random.default_rng(0).normal(size=(200, D))
    rows[17] = MARKER
    return local_moment(
        open_source(rows), RowTreatment(row_norm=40_000.0), rank=R, steps=4, on_lattice=study is COVARIANCE
    )


def odd_message(rng, study):
    good = basis(rng.randrange(6), rng.choice([1, R, R, R, 3]))
    steps = AskSteps(
        basis=rng.choice([*BASES, *[lambda z: z] * 8])(good),
        n_local_steps=rng.choice([1, 1, 1, 2, 3, 4, 5]),
        center=rng.choice([None, None, np.zeros(D), np.full(D, 1e200)]),
        align=rng.choice([None, "procrustes", "sign", "identity"]),
    )
    body = rng.choice([steps, steps, steps, Enrol(), AskMoment(label="mean"), ASK_MOMENT, Refusal(reason="")])
    for _ in range(rng.choice([0, 1, 1, 2])):
        body = rng.choice(mutations(body))
    made = message(study, body)
    if rng.random() < 0.2:
        made = structs.replace(made, **{rng.choice(["study", "run", "round", "silo"]): rng.choice(NUMBERS)})
    return made


def odd_bytes(rng, study):
    content = bytearray(
        encode(message(study, AskSteps(basis=basis(rng.randrange(6)), n_local_steps=1)))[:-32]
    )
    if rng.random() < 0.5:
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    else:
        content = content[: rng.randrange(len(content))] + bytes(rng.randrange(40))
    return bytes(content) + hashlib.sha256(content).digest()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("study", [STEP, COVARIANCE], ids=["step", "covariance"])
def test_five_thousand_fuzzed_messages_get_nothing_that_was_not_agreed(study, marked, tmp_path, caplog):
    rng = random.Random(study.digest)
    caplog.set_level(logging.WARNING)
    answered, refusals, unreadable = [], set(), 0
    with Ledger.create(tmp_path / "l.db", epsilon=EPSILON, delta=DELTA, silo="north") as ledger:
        silo = private_silo(study, ledger, rows=marked, fingerprint="marked")
        for _ in range(N_MESSAGES):
            try:
                question = odd_message(rng, study) if rng.random() < 0.5 else decode(odd_bytes(rng, study))
            except ProtocolError as error:
                unreadable += 1
                refusals.add(str(error))
                continue
            answer = silo.answer(question)
            assert isinstance(answer, Message)
            if isinstance(answer.body, Refusal):
                refusals.add(answer.body.reason)
            else:
                answered.append(answer.body)
        spent = ledger.spent()
    assert len(answered) > 50  # the fuzz does get through, or it would show nothing
    assert unreadable > 500
    assert spent.epsilon <= EPSILON * (1 + 1e-9)
    assert 0 < spent.n_releases <= (4 if study is STEP else 1)
    assert not [text for text in refusals if not text or "\n" in text or len(text) > 600]
    reported = [*refusals, *(record.getMessage() for record in caplog.records)]
    assert not [text for text in reported if "12345" in text or "Traceback" in text]
    for body in answered:
        assert isinstance(body, Enrolment | LocalSteps | MomentPart | QueryAnswer)
        arrays = [getattr(body, name, None) for name in ("product", "basis", "mean", "values", "words")]
        for array in (each for each in arrays if each is not None):
            assert np.isfinite(array).all()
            assert not np.any(np.isclose(np.abs(array), MARKER, rtol=1e-3))


@pytest.mark.parametrize("study", [STEP, COVARIANCE], ids=["step", "covariance"])
def test_only_the_operator_s_exception_log_may_hold_details(study, marked, caplog):
    with Ledger.in_memory(EPSILON, DELTA) as ledger:
        silo = private_silo(study, ledger, rows=marked)
        silo.answer(message(study, AskSteps(basis=basis(0), n_local_steps="many")))  # type: ignore[arg-type]
    (record,) = caplog.records
    assert record.exc_info
    assert record.getMessage() == "silo 'north' could not answer round 1"
