"""Ten thousand fuzzed messages: no traceback, nothing beyond the cap, no row content anywhere."""

import hashlib
import logging
import random

import numpy as np
import pytest
from msgspec import structs
from private_silos import DELTA, EPSILON, MOMENT, STEP, D, R, basis, message, private_silo
from spoilt import NUMBERS, mutations

from federations import ASK_MOMENT
from fedpower.errors import ProtocolError
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
)
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import local_moment

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
        open_source(rows), RowTreatment(row_norm=40_000.0), rank=R, steps=4, on_lattice=study is MOMENT
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
@pytest.mark.parametrize("study", [STEP, MOMENT], ids=["step", "moment"])
def test_five_thousand_fuzzed_messages_get_nothing_that_was_not_agreed(study, marked, tmp_path, caplog):
    rng = random.Random(study.digest)
    caplog.set_level(logging.WARNING)
    answered, refusals, unreadable = [], set(), 0
    with Ledger.create(tmp_path / "l.db", epsilon=EPSILON, delta=DELTA, silo="north") as ledger:
        silo = private_silo(study, ledger, moment=marked, fingerprint="marked")
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


@pytest.mark.parametrize("study", [STEP, MOMENT], ids=["step", "moment"])
def test_only_the_operator_s_exception_log_may_hold_details(study, marked, caplog):
    with Ledger.in_memory(EPSILON, DELTA) as ledger:
        silo = private_silo(study, ledger, moment=marked)
        silo.answer(message(study, AskSteps(basis=basis(0), n_local_steps="many")))  # type: ignore[arg-type]
    (record,) = caplog.records
    assert record.exc_info
    assert record.getMessage() == "silo 'north' could not answer round 1"
