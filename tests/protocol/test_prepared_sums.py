"""Private preparation through secure sums: what is summed, charged, replayed and refused."""

import math
import struct

import numpy as np
import pytest
from secure_silos import KEYS, RUN, SIZES, Party, called, session_of
from test_several_sums import ask, drive, refused

from fedpower.errors import ProtocolError
from fedpower.privacy.accounting import compose
from fedpower.privacy.budget import MOMENT, shares_of
from fedpower.privacy.ledger import Ledger
from fedpower.protocol import Coordinator
from fedpower.protocol.messages import AskMoment, Refusal
from fedpower.protocol.outcome import state_privacy
from fedpower.protocol.query import query_of
from fedpower.protocol.query import vectors_from_bytes as from_public
from fedpower.protocol.query import vectors_to_bytes as to_public
from fedpower.protocol.secure import total
from fedpower.protocol.silo import assemble
from fedpower.protocol.solvers import UploadSettings
from fedpower.protocol.study import PREPARED, Study, budget_of
from fedpower.rows.opening import open_source
from fedpower.sums.survey import STAGES, Stage, Survey

D = 4
LOW, HIGH = np.full(D, -1e6), np.full(D, 1e6)
MIDDLE, WIDTH = np.zeros(D), np.ones(D)
NOTHING = (None, None, None, None)
RANGED = (LOW, HIGH, None, None)
WHOLE = (LOW, HIGH, MIDDLE, WIDTH)
ZOOMED = (LOW, HIGH, np.eye(D)[0] + np.eye(D)[2], None)
PUBLICS = [to_public(each) for each in (NOTHING, RANGED, ZOOMED, RANGED, WHOLE)]
PUBLICS.append(to_public(WHOLE, 3.0))


def study_of(ranges=(None,) * D, **changes):
    n_open = sum(each is None for each in ranges)
    shares = shares_of(n_rows=800, n_features=D, n_open=n_open, mu=0.24)
    terms = {
        "columns": None,
        "n_features": D,
        "iteration_rank": D,
        "center": True,
        "treatment": PREPARED,
        "noise": "moment",
        "epsilon": 1.0,
        "delta": 1e-6,
        "preparation": shares,
        "ranges": ranges,
        "mean_weight": 0.25,
        "aggregation": "secure",
        "colluders": 1,
        "identities": tuple((name, KEYS[name].public) for name in SIZES),
        "min_silos": 2,
        "attempts": 3,
    }
    return Study(**{**terms, **changes})


STUDY = study_of()
KNOWN = study_of(((-10.0, 10.0),) * D)


def rows_of(name):
    rng = np.random.default_rng(list(SIZES).index(name))
    return rng.standard_normal((SIZES[name], D)) * [1, 10, 0.1, 1e4] + [0, 5, 3, 1e5]


def everybody(study=STUDY):
    made = {}
    for name in SIZES:
        ledger = Ledger.in_memory(30.0, 1e-5, silo=name)
        survey = Survey(open_source(rows_of(name)))
        made[name] = Party(assemble(name, survey, study, ledger=ledger, identity=KEYS[name]), ledger)
    return made


def asked(study, session, index, public):
    return ask(session, index, public, label=study.queries[index].label)


def uploads(there, session, index, public, study=STUDY):
    return {name: each.ask(asked(study, session, index, public)).words for name, each in there.items()}


def coordinator(study=STUDY):
    solver = UploadSettings(study=study, rank=2, run=RUN).solve(np.random.default_rng(0))
    return Coordinator(solver, list(SIZES), study=study, run=RUN, min_silos=study.min_silos)


@pytest.mark.parametrize("study", [STUDY, KNOWN], ids=["nothing known", "ranges known"])
def test_the_sums_have_the_shares_of_the_stages_and_together_cost_one_epsilon(study):
    budget = budget_of(study)
    plain = budget_of(
        study_of(study.ranges, aggregation="plain", colluders=0, identities=(), min_silos=0, attempts=1)
    )
    labels = [terms.label for terms in study.queries]
    assert labels == [*(STAGES if study is STUDY else STAGES[3:]), MOMENT]
    prices = [budget.price(label).mu for label in labels]
    assert compose(prices) == pytest.approx(budget.total_mu, rel=1e-12)
    assert compose(prices) <= budget.total_mu
    for label, price in zip(labels, prices, strict=True):
        assert (price / budget.total_mu) ** 2 == pytest.approx((plain.price(label).mu / plain.total_mu) ** 2)


def test_every_attempt_is_charged_as_one_epsilon_and_its_result_has_a_code_book():
    there, made = everybody(), coordinator()
    solution = drive(made, there)
    budget = budget_of(STUDY)
    for each in there.values():
        entries = each.ledger.entries()
        assert [entry.purpose.split(", ")[0] for entry in entries] == [terms.label for terms in STUDY.queries]
        assert compose([entry.mu for entry in entries]) == pytest.approx(budget.total_mu, rel=1e-12)
        assert each.ledger.spent().epsilon <= 1.0 * (1 + 1e-9)
    assert solution.code_book.n_rows == sum(SIZES.values())
    assert solution.code_book.mu == pytest.approx(budget.total_mu * math.sqrt(sum(STUDY.preparation)))
    told = state_privacy(STUDY, budget, SIZES, made.history[1:])
    assert told.protections[1].epsilon == pytest.approx(1.0, rel=1e-6)
    assert "found privately, out of the same epsilon" in str(told)


def test_a_silo_that_vanishes_between_stages_costs_the_attempt_and_all_is_prepared_anew():
    there, made = everybody(), coordinator()
    solution = drive(made, there, lost={(4, "east")})
    assert solution.code_book.n_rows == sum(SIZES.values()) - SIZES["east"]
    assert {name: each.charges for name, each in there.items()} == {
        "north": 9, "south": 9, "east": 2, "west": 9,
    }  # fmt: skip
    told = state_privacy(STUDY, budget_of(STUDY), SIZES, made.history[1:])
    assert told.protections[1].mu == pytest.approx(math.sqrt(2) * budget_of(STUDY).total_mu)


def test_what_is_summed_are_the_tallies_of_all_rows():
    """Within 7 standard deviations in each of some 750 numbers; fails by chance below 1e-8."""
    there = everybody()
    session = called(STUDY, there)
    pooled = np.vstack([rows_of(name) for name in SIZES])
    for index, kind in enumerate(STAGES):
        vectors, _ = from_public(PUBLICS[index])
        stage = Stage(
            kind=kind,
            n_features=D,
            open_columns=np.arange(D),
            **dict(zip(("low", "high", "offset", "scale"), vectors, strict=True)),
        )
        query = query_of(STUDY, kind, PUBLICS[index])
        noise = budget_of(STUDY).noise(kind, query.sensitivity, tuple(SIZES.values()))
        spread = np.repeat(noise.stds, [group.length for group in noise.sensitivity.groups])
        told = noise.values(total(uploads(there, session, index, PUBLICS[index]).values()))
        assert np.abs((told - stage.tally(pooled)) / spread).max() < 7
        assert told.size == STUDY.queries[index].size


def test_the_same_question_gets_the_same_bytes_and_one_charge():
    there = everybody()
    session = called(STUDY, there)
    sent = [uploads(there, session, index, public) for index, public in enumerate(PUBLICS)]
    for index in (0, 5, 2):
        again = uploads(there, session, index, PUBLICS[index])
        assert all(np.array_equal(again[name], sent[index][name]) for name in SIZES)
    assert all(each.charges == 6 for each in there.values())
    other = to_public((LOW, HIGH + 1, None, None))
    assert refused(there["north"].ask(asked(STUDY, session, 3, other)), "once in a session")


NAN = np.full(D, math.nan)
HOSTILE = {
    "no ranges": PUBLICS[0],
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
    there = everybody(KNOWN)
    session = called(KNOWN, there)
    told = there["north"].ask(asked(KNOWN, session, 0, public))
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
    there = everybody(KNOWN)
    session = called(KNOWN, there)
    for index in (0, 1):
        uploads(there, session, index, PUBLICS[index + 3], KNOWN)
    told = there["north"].ask(asked(KNOWN, session, 2, public))
    assert isinstance(told, Refusal)
    assert "operator" not in told.reason
    assert there["north"].charges == 2


def test_a_tally_does_not_leave_such_a_silo_in_any_other_way():
    north = everybody()["north"]
    assert refused(north.ask(AskMoment()), "nothing but a secure sum")
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


def test_a_session_without_all_who_are_on_it_tells_nothing_of_a_stage():
    there = everybody()
    presents = {name: each.present() for name, each in there.items()}
    session = session_of(STUDY, presents)
    sent = uploads(there, session, 0, PUBLICS[0])
    part = total([sent[name] for name in ("north", "south", "east")])
    assert np.abs(part.astype(float)).max() > 2.0**60
    assert np.abs(total(sent.values()).astype(float)).max() < 2.0**50
