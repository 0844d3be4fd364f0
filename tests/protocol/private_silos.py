"""A private silo in a test's hand, with the ledger it charges."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedpower.privacy.ledger import Ledger
from fedpower.protocol.messages import AskSteps, Message, Refusal, decode, encode, read_only
from fedpower.protocol.silo import Silo
from fedpower.protocol.study import Study
from problems import Array, silo_of, spiked_rows

D, R, T = 6, 2, 4
EPSILON, DELTA = 1.0, 1e-6

STEP = Study(
    columns=None, n_features=D, iteration_rank=R, noise="step", epsilon=EPSILON, delta=DELTA, n_steps=T
)
COVARIANCE = replace(STEP, noise="covariance", n_steps=None)
PAPER = replace(STEP, noise="paper")


def private_study(d: int, /, **terms: Any) -> Study:
    """Return a study of a moment about the mean, with all components."""
    usual = {"n_features": d, "iteration_rank": d, "center": True}
    return replace(COVARIANCE, **usual | terms)


def bounded_rows(n_rows: int = 300, seed: int = 0) -> Array:
    rows = spiked_rows(n_rows=n_rows, n_features=D, rank=2, seed=seed)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).max()


def private_silo(study: Study, ledger: Ledger, *, rows: Any = None, name: str = "north", **how: Any) -> Silo:
    return silo_of(name, bounded_rows() if rows is None else rows, study, ledger=ledger, **how)


def basis(seed: int, columns: int = R) -> Array:
    turned = np.linalg.qr(np.random.default_rng(seed).standard_normal((D, columns)))[0]
    return read_only(turned)


def message(study: Study, body: Any, *, round: int = 1, run: str = "run", silo: str = "north") -> Message:
    return Message(study=study.digest, run=run, round=round, silo=silo, body=body)


def steps(seed: int, n_local_steps: int = 1, **changes: Any) -> AskSteps:
    return AskSteps(basis=basis(seed), n_local_steps=n_local_steps, **changes)


def ask(silo: Silo, body: Any, **where: Any) -> Any:
    return silo.answer(message(silo.study, body, silo=silo.name, **where)).body


def ask_in_bytes(silo: Silo, body: Any, **where: Any) -> Any:
    question = message(silo.study, body, silo=silo.name, **where)
    return silo.answer(decode(encode(question))).body


def refused(answer: Any, *words: str) -> bool:
    """Assert that an answer is a refusal in one sentence that has these words."""
    assert isinstance(answer, Refusal), answer
    assert "\n" not in answer.reason
    assert all(word in answer.reason for word in words), answer.reason
    return True
