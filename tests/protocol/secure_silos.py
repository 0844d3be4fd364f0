"""Silos of a secure sum in a test's hand, with their ledgers and every byte they let out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpower.exceptions import ProtocolError
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.coordinator import Coordinator, Round
from fedpower.protocol.messages import (
    AskQuery,
    Member,
    Message,
    OpenSession,
    QueryAnswer,
    Refusal,
    Session,
    SessionKey,
    decode,
    encode,
)
from fedpower.protocol.query import vectors_to_bytes
from fedpower.protocol.secure import Identity
from fedpower.protocol.silo import Silo
from fedpower.protocol.solvers import SolverSettings, start
from fedpower.protocol.study import PREPARED, Study
from fedpower.rows.opening import open_source
from fedpower.sums.survey import Survey
from problems import Array, ArrayMoment, silo_of, spiked_rows

D, K = 6, 2
EPSILON, DELTA = 1.0, 1e-6
SIZES = {"north": 300, "south": 150, "east": 250, "west": 100}
RUN = "run"
KEYS = {name: Identity.new() for name in SIZES}


def study_of(names: Iterable[str] = SIZES, **changes: Any) -> Study:
    listed = tuple((name, KEYS[name].public) for name in names)
    return replace(
        Study(
            columns=None,
            n_features=D,
            iteration_rank=K,
            noise="covariance",
            epsilon=EPSILON,
            delta=DELTA,
            aggregation="secure",
            colluders=1,
            identities=listed,
            min_silos=2,
            attempts=3,
        ),
        **changes,
    )


def rows_of(name: str) -> Array:
    place = list(SIZES).index(name)
    rows = spiked_rows(n_rows=SIZES[name], n_features=D, rank=2, seed=place)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).max()


def cap(attempts: int) -> tuple[float, float]:
    return 10.0 * EPSILON * attempts, DELTA


def masked_moment(session: Any) -> AskQuery:
    return AskQuery(index=0, label="covariance", session=session)


@dataclass
class Party:
    silo: Silo
    ledger: Ledger
    rows: Any

    def ask(self, body: Any, *, run: str = RUN) -> Any:
        question = Message(study=self.silo.study.digest, run=run, round=1, silo=self.silo.name, body=body)
        try:
            question = decode(encode(question))
        except ProtocolError as error:  # no such message reaches a silo
            return Refusal(reason=str(error))
        return self.silo.answer(question).body

    def present(self, attempt: int = 0, *, run: str = RUN) -> SessionKey:
        answer = self.ask(OpenSession(attempt=attempt), run=run)
        assert isinstance(answer, SessionKey), answer
        return answer

    def upload(self, session: Session, *, run: str = RUN) -> Any:
        return self.ask(masked_moment(session), run=run)

    @property
    def charges(self) -> int:
        return self.ledger.spent().n_releases


def party(name: str, study: Study, *, ledger: Ledger | None = None, attempts: int = 3, **how: Any) -> Party:
    kept = ledger or Ledger.in_memory(*cap(attempts), silo=name)
    rows = Survey(open_source(rows_of(name))) if study.preparation else ArrayMoment(rows_of(name))
    silo = silo_of(name, rows, study, ledger=kept, identity=KEYS[name], **how)
    return Party(silo, kept, rows)


def parties(study: Study, **options: Any) -> dict[str, Party]:
    return {name: party(name, study, **options) for name, _ in study.identities}


def session_of(study: Study, presents: dict[str, SessionKey], *, attempt: int = 0, run: str = RUN) -> Session:
    members = tuple(
        Member(silo=name, n_rows=each.n_rows, key=each.key, signature=each.signature)
        for name, each in ((name, presents[name]) for name, _ in study.identities if name in presents)
    )
    return Session(study=study.digest, run=run, attempt=attempt, members=members)


def called(study: Study, there: dict[str, Party], *, attempt: int = 0, run: str = RUN) -> Session:
    presents = {name: each.present(attempt, run=run) for name, each in there.items()}
    return session_of(study, presents, attempt=attempt, run=run)


def words_of(answer: Any) -> np.ndarray:
    assert isinstance(answer, QueryAnswer), answer
    return answer.words


def coordinator_of(
    study: Study, *, min_silos: int | None = None, run: str = RUN, recorded: Sequence[Round] = ()
) -> Coordinator:
    return Coordinator(
        start(SolverSettings(study=study, rank=K), np.random.default_rng(0), run),
        [name for name, _ in study.identities],
        study=study,
        run=run,
        min_silos=min_silos or study.min_silos,
        recorded=recorded,
    )


LOW, HIGH, MIDDLE = np.full(D, -1.0), np.full(D, 1.0), np.zeros(D)
NOTHING, RANGED, ALL = (None,) * 4, (LOW, HIGH, None, None), (LOW, HIGH, MIDDLE, HIGH)
ZOOMED = (LOW, HIGH, np.eye(D)[0] + np.eye(D)[2], None)
OTHERS = (vectors_to_bytes((LOW, 2 * HIGH, None, None)), vectors_to_bytes((LOW, HIGH, MIDDLE, 2 * HIGH)))
PUBLICS = {
    1: (b"",),
    3: (vectors_to_bytes(RANGED), vectors_to_bytes(ALL), vectors_to_bytes(ALL, 1.0)),
    6: (*map(vectors_to_bytes, (NOTHING, RANGED, ZOOMED, RANGED, ALL)), vectors_to_bytes(ALL, 1.0)),
}
"""What the sums of a study of so many are asked with; and other questions for the first and the second."""

STUDY = study_of()
SEVERAL = study_of(preparation=(0.0, 0.0, 0.0, 0.1, 0.1), ranges=((-1.0, 1.0),) * D, treatment=PREPARED)


def query_for(study: Study, session: Session, index: int = 0, public: bytes | None = None) -> AskQuery:
    public = PUBLICS[len(study.queries)][index] if public is None else public
    return AskQuery(session=session, index=index, label=study.queries[index].label, public=public)


def uploads(study: Study, there: dict[str, Party], session: Session, index: int = 0) -> dict[str, np.ndarray]:
    asked = query_for(study, session, index)
    return {name: words_of(each.ask(asked)) for name, each in there.items()}
