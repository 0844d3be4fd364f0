"""A silo answers its own study's questions and refuses everything else in one sentence."""

from dataclasses import replace

import numpy as np
import pytest
from private_silos import refused

from fedpower.linalg import orth
from fedpower.protocol import Silo, Study
from fedpower.protocol.messages import AskMoment, AskSteps, Enrol, Enrolment, Message, MomentPart, Refusal
from fedpower.protocol.silo import NOT_YOURS, ExactReleases
from problems import ArrayMoment, spiked_rows

STUDY = Study(columns=None, n_features=12, iteration_rank=3)
GOOD = orth(np.random.default_rng(1).standard_normal((12, 3)))


def ask(body: object, *, study: str = STUDY.digest, silo: str = "north") -> object:
    north = Silo("north", STUDY, ExactReleases(ArrayMoment(spiked_rows()), STUDY))
    return north.answer(Message(study=study, run="r", round=3, silo=silo, body=body)).body  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (AskSteps(basis=GOOD * 10, n_local_steps=1), "orthonormal"),
        (AskSteps(basis=np.eye(12), n_local_steps=1), "got shape (12, 12)"),
        (AskSteps(basis=GOOD, n_local_steps=0), "between 1 and"),
        (AskSteps(basis=GOOD, n_local_steps=10**9), "between 1 and"),
        (AskSteps(basis=GOOD, n_local_steps=1, shift=-1.0), "shift"),
        (AskSteps(basis=GOOD, n_local_steps=1, shift=float("nan")), "shift"),
        (AskSteps(basis=GOOD, n_local_steps=1, center=np.zeros(12)), "does not centre"),
        (AskSteps(basis=GOOD, n_local_steps=1, align="other"), "alignment"),  # type: ignore[arg-type]
        (AskSteps(basis=GOOD, n_local_steps=1, gains=np.ones(11)), "gains must be 12 positive"),
        (AskSteps(basis=GOOD, n_local_steps=1, gains=np.zeros(12)), "gains must be 12 positive"),
        (AskSteps(basis=GOOD, n_local_steps=1, gains=np.full(12, np.inf)), "gains must be 12"),
        (AskMoment(label="mean"), "does not centre"),
        (Refusal(reason="x"), "must be sent a question"),
    ],
)
def test_what_the_study_does_not_allow_is_refused(body: object, sentence: str) -> None:
    assert refused(ask(body), sentence)
    assert isinstance(ask(Enrol()), Enrolment)
    assert refused(ask(Enrol(), study=replace(STUDY, iteration_rank=2).digest), "the study")
    assert refused(ask(Enrol(), silo="south"), "must name it")


def test_an_unforeseen_failure_leaves_no_detail_in_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ExactReleases):
        def moment(self, ask: AskMoment, *, run: str) -> MomentPart:
            raise RuntimeError("row 17 holds 42.0")

    study = replace(STUDY, center=True)
    north = Silo("north", study, Broken(ArrayMoment(spiked_rows()), study))
    message = Message(study=study.digest, run="r", round=0, silo="north", body=AskMoment(label="mean"))
    assert north.answer(message).body == Refusal(reason=NOT_YOURS)
    assert "row 17" in caplog.text  # the operator's own log has it


def test_the_study_s_hash_changes_with_any_of_its_terms() -> None:
    changes = [
        replace(STUDY, columns=tuple("abcdefghijkl")),
        replace(STUDY, n_features=13),
        replace(STUDY, iteration_rank=4),
        replace(STUDY, center=True),
        replace(STUDY, treatment="x"),
        replace(STUDY, noise="step", epsilon=1.0, delta=1e-6, n_steps=10),
        replace(STUDY, noise="step", epsilon=1.1, delta=1e-6, n_steps=10),
        replace(STUDY, noise="step", epsilon=1.0, delta=1e-7, n_steps=10),
        replace(STUDY, noise="moment", epsilon=1.0, delta=1e-6, n_steps=10),
        replace(STUDY, noise="step", epsilon=1.0, delta=1e-6, n_steps=11),
    ]
    assert len({STUDY.digest, *(study.digest for study in changes)}) == len(changes) + 1
