"""A new kind of query: registered by its label, listed in a study, noised and charged like any other."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from private_silos import DELTA, EPSILON, MOMENT, D, ask, bounded_rows, private_silo

from fedpower.errors import ProtocolError
from fedpower.privacy.budget import QueryTerms
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import Sensitivity, of_counts
from fedpower.protocol.messages import AskQuery, QueryAnswer
from fedpower.protocol.query import QUERIES, answers, query_of
from fedpower.protocol.receiving import problem_with
from problems import ArrayMoment

LABEL = "positives"
STUDY = replace(MOMENT, noise="clipped", design=(QueryTerms(LABEL, D, 1.0),))


class Rows(ArrayMoment):
    def __init__(self, rows):
        super().__init__(rows)
        self.rows = rows


@dataclass(frozen=True)
class Positives:
    """How many cells of each column are positive."""

    n_features: int
    label: str = LABEL
    public: bytes = b""

    @classmethod
    def parse(cls, study, label, public):
        if public:
            raise ProtocolError("positive cells are asked for with nothing beside them")
        return cls(study.n_features)

    @property
    def sensitivity(self) -> Sensitivity:
        return of_counts(self.n_features, counted=self.n_features)

    def evaluate(self, rows, exponents):
        return (rows.rows > 0).sum(axis=0, dtype=np.int64)


@pytest.fixture(autouse=True)
def registered():
    answers(LABEL)(Positives)
    yield
    del QUERIES[LABEL]


def test_a_registered_query_leaves_a_silo_with_noise_and_once():
    rows, question = bounded_rows(), AskQuery(index=0, label=LABEL)
    with Ledger.in_memory(EPSILON, DELTA) as ledger:
        silo = private_silo(STUDY, ledger, moment=Rows(rows), source=SeededNoiseForExperiments(1))
        answer = ask(silo, question)
        assert np.array_equal(ask(silo, question).words, answer.words)
        assert ledger.spent().n_releases == 1
        assert ledger.spent().epsilon == pytest.approx(EPSILON, rel=1e-6)
    noise = STUDY.budget.noise(LABEL, query_of(STUDY, LABEL).sensitivity, (len(rows),))
    off = noise.values(answer.words.view(np.int64)) - (rows > 0).sum(axis=0)
    assert 0 < np.abs(off).max() < 6 * noise.stds[0]
    assert problem_with(answer, question, STUDY, silo="north", run="run", n_rows=len(rows)) is None
    far = QueryAnswer(words=answer.words + np.uint64(2**40))
    assert "range" in problem_with(far, question, STUDY, silo="north", run="run", n_rows=len(rows))


def test_what_a_query_does_not_ask_for_is_refused_at_no_charge():
    with Ledger.in_memory(EPSILON, DELTA) as ledger:
        silo = private_silo(STUDY, ledger, moment=Rows(bounded_rows()))
        assert "nothing beside" in ask(silo, AskQuery(index=0, label=LABEL, public=b"1")).reason
        longer = replace(STUDY, design=(QueryTerms(LABEL, D + 1, 1.0),))
        silo = private_silo(longer, ledger, moment=Rows(bounded_rows()))
        assert "6 numbers" in ask(silo, AskQuery(index=0, label=LABEL)).reason
        assert ledger.spent().n_releases == 0
