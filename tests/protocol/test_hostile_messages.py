"""Ten thousand fuzzed messages: no traceback, nothing beyond the cap, no row content anywhere."""

import hashlib
import logging
import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from msgspec import structs
from private_silos import DELTA, EPSILON, MOMENT, STEP, D, R, basis, message, private_silo

from federations import ASK_MOMENT
from fedpower.errors import ProtocolError
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.messages import (
    MAGIC,
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
)
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import local_moment

MARKER = 12345.678
N_MESSAGES = 5_000  # of each mode

ODD_VALUES = [
    None, True, 0, -1, 1, 2, 3, 10**4, 10**12, 2**70, 0.0, -0.0, 1.5, 1e308, float("inf"),
    float("-inf"), float("nan"), "", "x", "north", "procrustes", "sign", "none", [], [1],
    {}, b"bytes", "é" * 50,
]  # fmt: skip


@pytest.fixture
def marked():
    rows = np.random.default_rng(0).normal(size=(200, D))
    rows[17] = MARKER
    return local_moment(open_source(rows), RowTreatment(row_norm=40_000.0), rank=R, steps=4)


def odd_array(rng):
    good = basis(rng.randrange(6), rng.choice([1, R, R, R, 3]))
    return rng.choice(
        [
            lambda: good,
            lambda: good,
            lambda: good * rng.choice([1 + 1e-9, 1 + 1e-7, 1 + 1e-5, 2, 1e9, 1e200, 1e-9, 0]),
            lambda: good[rng.randrange(D) :],
            lambda: good.T,
            good.ravel,
            lambda: good[np.newaxis],
            lambda: np.where(np.arange(good.size).reshape(good.shape) == 3, np.nan, good),
            lambda: np.where(np.arange(good.size).reshape(good.shape) == 3, np.inf, good),
            lambda: good.astype(np.float32),
            lambda: good.astype(np.complex128) * 1j,
            lambda: good.astype(object),
            lambda: good.astype(str),
            lambda: np.eye(D, R, dtype=int),
            lambda: np.eye(D, R, dtype=bool),
            lambda: np.zeros((0, 0)),
            lambda: np.asfortranarray(good),
            lambda: -good,
            lambda: good[:, ::-1],
            lambda: rng.choice(ODD_VALUES),
        ]
    )()


def odd_body(rng):
    odd = rng.choice
    steps = AskSteps(
        basis=odd_array(rng),
        n_local_steps=odd([1, 1, 1, 2, 3, 4, 5, odd(ODD_VALUES)]),
        center=odd([None, None, None, np.zeros(D), np.full(D, 1e200), odd_array(rng)]),
        shift=odd([0.0, 0.0, 0.0, 0.1, odd(ODD_VALUES)]),
        pooled=odd([None, None, None, None, odd_array(rng)]),
        align=odd([None, None, "procrustes", "sign", "identity", odd(ODD_VALUES)]),
    )
    return odd(
        [
            steps, steps, steps, steps, steps, steps, Enrol(), AskMoment(label="mean"), ASK_MOMENT,
            AskMoment(label="factor"), Enrolment(n_rows=1, n_features=2), MomentPart(values=odd_array(rng)),
            LocalSteps(product=odd_array(rng)), Refusal(reason="no"), QueryAnswer(words=odd_array(rng)),
            MomentPart(values=odd_array(rng), mean=odd_array(rng)), odd(ODD_VALUES),
        ]
    )  # fmt: skip


def odd_message(rng, study):
    made = message(study, odd_body(rng))
    for _ in range(rng.choice([0, 0, 0, 1])):
        field = rng.choice(["study", "run", "round", "silo"])
        made = structs.replace(made, **{field: rng.choice(ODD_VALUES)})
    return made


def odd_bytes(rng, study):
    raw = encode(message(study, AskSteps(basis=basis(rng.randrange(6)), n_local_steps=1)))
    content = bytearray(raw[:-32])
    kind = rng.randrange(4)
    if kind == 0:  # bits
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == 1:  # length
        content = content[: rng.randrange(len(content))] + bytes(rng.randrange(40))
    else:  # header
        start = len(MAGIC)
        length = int.from_bytes(content[start : start + 4], "little")
        header = msgspec.msgpack.decode(content[start + 4 : start + 4 + length])
        where = rng.choice([header, header["body"]])
        where[rng.choice([*where, "center", "surprise"])] = rng.choice([v for v in ODD_VALUES if v != 2**70])
        if rng.random() < 0.3 and isinstance(header["body"], dict):
            shapes = [D, R, -1], [-1, R], [10**9, 10**9], [2**63, 2], [R, D], [D, 1], "x", [], 7
            header["body"]["basis"] = ["<f8", rng.choice(shapes)]
        text = msgspec.msgpack.encode(header)
        content = content[:start] + len(text).to_bytes(4, "little") + text + content[start + 4 + length :]
    right = rng.random() < 0.9
    return bytes(content) + (hashlib.sha256(content).digest() if right else raw[-32:])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("study", [STEP, MOMENT], ids=["step", "moment"])
def test_five_thousand_fuzzed_messages_get_nothing_that_was_not_agreed(study, marked, tmp_path, caplog):
    rng = random.Random(study.digest)
    caplog.set_level(logging.WARNING)
    answered, refusals, unreadable = [], set(), 0
    with Ledger.create(tmp_path / "l.db", epsilon=EPSILON, delta=DELTA, silo="north") as ledger:
        silo = private_silo(study, ledger, moment=marked, fingerprint="marked")
        for _ in range(N_MESSAGES):
            if rng.random() < 0.5:
                question = odd_message(rng, study)
            else:
                try:
                    question = decode(odd_bytes(rng, study))
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
    assert spent.n_releases <= (4 if study is STEP else 1)
    assert not [text for text in refusals if not text or "\n" in text or len(text) > 400]
    reported = [*refusals, *(record.getMessage() for record in caplog.records)]
    assert not [text for text in reported if "12345" in text or "Traceback" in text]
    for body in answered:
        assert_only_noise_of(body, spent)


def assert_only_noise_of(body, spent):
    for name in ("product", "basis", "mean", "values", "words"):
        array = getattr(body, name, None)
        if array is not None:
            assert np.isfinite(array).all()
            assert not np.any(np.isclose(np.abs(array), MARKER, rtol=1e-3))
    if not isinstance(body, Enrolment):
        assert spent.n_releases > 0
    assert isinstance(body, Enrolment | LocalSteps | MomentPart | QueryAnswer)


@pytest.mark.parametrize("study", [STEP, MOMENT], ids=["step", "moment"])
def test_only_the_operator_s_exception_log_may_hold_details(study, marked, caplog):
    with Ledger.in_memory(EPSILON, DELTA) as ledger:
        silo = private_silo(study, ledger, moment=marked)
        silo.answer(message(study, AskSteps(basis=basis(0), n_local_steps="many")))  # type: ignore[arg-type]
    (record,) = caplog.records
    assert record.exc_info
    assert record.getMessage() == "silo 'north' could not answer round 1"


def test_a_clipped_row_is_nowhere_in_what_leaves():
    rows = np.random.default_rng(1).normal(size=(200, D))
    rows[:17] /= 100  # not clipped
    held = local_moment(open_source(rows), RowTreatment(row_norm=0.5), rank=R, steps=4)
    assert held.n_clipped == 183
    for study in (STEP, MOMENT, replace(MOMENT, center=True)):
        with Ledger.in_memory(EPSILON, DELTA) as ledger:
            silo = private_silo(study, ledger, moment=held)
            for body in (Enrol(), AskMoment(label="mean"), AskSteps(basis=basis(0), n_local_steps=1)):
                text = repr(silo.answer(message(study, body)))
                assert "clip" not in text
                assert " 183" not in text.replace("n_rows=200", "")


@pytest.mark.parametrize(
    "header",
    [b"\x91" * 200_000, b"\x81\xa4body" * 100_000, b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"],
    ids=["deep list", "deep object", "endless object", "endless bytes"],
)
def test_a_header_made_to_break_the_reader_is_refused(header):
    content = MAGIC + len(header).to_bytes(4, "little") + header
    with pytest.raises(ProtocolError):
        decode(content + hashlib.sha256(content).digest())
