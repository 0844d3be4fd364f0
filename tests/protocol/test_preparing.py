"""Preparation through the protocol: what is found, what is charged, replayed and refused."""

import math

import numpy as np
import pytest
from msgspec.structs import replace
from private_silos import ask_in_bytes as ask
from private_silos import private_study, refused

from federations import ASK_MOMENT
from fedpower.privacy.budget import shares_of
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol.messages import AskQuery, QueryAnswer
from fedpower.protocol.query import N_VECTORS, vectors_to_bytes
from fedpower.protocol.silo import assemble
from fedpower.protocol.solvers.preparation import choose_bound, octave_range, trimmed
from fedpower.protocol.solvers.sums import Total
from fedpower.protocol.study import PREPARED
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.survey import N_OCTAVES, NORM_EDGES, STAGES, Stage, Survey, octave_edges, octave_of

D = 4


def study(ranges=(None,) * D, **changed):
    n_open = sum(each is None for each in ranges)
    terms = {
        "treatment": PREPARED,
        "preparation": shares_of(n_rows=500, n_features=D, n_open=n_open, mu=0.24),
        "ranges": ranges,
        "mean_weight": 0.25,
    }
    return private_study(D, **terms | changed)


def rows(n=500, seed=0):
    return np.random.default_rng(seed).standard_normal((n, D)) * [1, 10, 0.1, 1e4] + [0, 5, 3, 1e5]


def silo(agreed, ledger, X=None, seed=1):
    survey = Survey(open_source(rows() if X is None else X))
    return assemble("north", survey, agreed, ledger=ledger, source=SeededNoiseForExperiments(seed))


LOW, HIGH = np.full(D, -1e6), np.full(D, 1e6)


def tally(stage, low=None, high=None, offset=None, scale=None):
    """The question of a stage, in a study that asks all of them."""
    index = STAGES.index(stage) if stage in STAGES else 0
    return AskQuery(index=index, label=stage, public=vectors_to_bytes((low, high, offset, scale)))


def prepared_moment(low, high, offset, scale, bound):
    return AskQuery(
        index=len(STAGES), label="covariance", public=vectors_to_bytes((low, high, offset, scale), bound)
    )


PREPARED_MOMENT = prepared_moment(LOW, HIGH, np.zeros(D), np.ones(D), 3.0)


def test_an_octave_holds_the_cells_between_its_edges():
    cells = np.array([[0.0, 1.0, 1.999, 2.0, -1.0, -3.0, 2.0**-45, 1e300, -1e300, 5e-324]])
    for cell, place in zip(cells[0], octave_of(cells)[0], strict=True):
        low, high = octave_edges(int(place))
        if 0 < place < N_OCTAVES - 1:
            assert low <= cell <= high
    assert octave_of(np.array([[0.0]]))[0, 0] == octave_of(np.array([[-(2.0**-45)]]))[0, 0]


def test_the_stages_and_the_moment_spend_the_studys_epsilon_and_nothing_more(ledger):
    agreed = study()
    party = silo(agreed, ledger)
    for body in (
        tally("octaves"),
        tally("bins", low=LOW, high=HIGH),
        tally("zoom", low=LOW, high=HIGH, offset=np.eye(D)[1]),
        tally("means", low=LOW, high=HIGH),
        tally("norms", low=LOW, high=HIGH, offset=np.zeros(D), scale=np.ones(D)),
    ):
        assert isinstance(ask(party, body), QueryAnswer)
    alone = ledger.spent()
    assert alone.n_releases == 5
    assert 0 < alone.epsilon < 0.55
    found = ask(party, PREPARED_MOMENT)
    assert np.array_equal(ask(silo(agreed, ledger, seed=2), PREPARED_MOMENT, run="other").words, found.words)
    assert ledger.spent().n_releases == 6
    assert ledger.spent().epsilon == pytest.approx(1.0, rel=1e-5)
    assert ledger.spent().epsilon <= 1.0 * (1 + 1e-9)


def test_a_coordinator_that_asks_a_stage_in_two_ways_is_refused_whatever_the_cap_allows():
    agreed = study()
    with Ledger.in_memory(50.0, 1e-6, silo="north") as rich:
        party = silo(agreed, rich)
        answers = [ask(party, tally("means", low=LOW - shift, high=HIGH)) for shift in range(14)]
    n_answered = sum(isinstance(each, QueryAnswer) for each in answers)
    assert n_answered <= math.floor(1 / agreed.preparation[3]) < len(answers)


MEANS = tally("means", low=LOW, high=HIGH)


@pytest.mark.parametrize(
    "body",
    [
        ASK_MOMENT,
        tally("everything"),
        tally("bins"),
        tally("octaves", low=LOW, high=HIGH),
        tally("zoom", low=LOW, high=HIGH),
        tally("zoom", low=LOW, high=HIGH, offset=np.zeros(D)),
        tally("zoom", low=LOW, high=HIGH, offset=np.full(D, 0.5)),
        tally("means", low=LOW, high=LOW),
        tally("means", low=HIGH, high=LOW),
        tally("means", low=np.zeros(D), high=np.full(D, 5e-324)),
        tally("means", low=LOW[:2], high=HIGH[:2]),
        tally("means", low=LOW, high=np.full(D, np.inf)),
        tally("means", low=LOW, high=np.full(D, np.nan)),
        tally("means", low=LOW, high=HIGH, offset=np.zeros(D)),
        *(
            replace(MEANS, public=public)
            for public in (
                vectors_to_bytes((LOW, HIGH, None, None), 3.0),
                b"",
                MEANS.public + b"\0",
                MEANS.public[:-1],
                MEANS.public[8:],
                (2**63).to_bytes(8, "little") + MEANS.public[8:],
            )
        ),
        tally("norms", low=LOW, high=HIGH, offset=LOW, scale=np.zeros(D)),
        *(prepared_moment(LOW, HIGH, LOW, HIGH, bound) for bound in (None, 0.0, math.nan)),
        prepared_moment(LOW, HIGH, LOW, np.zeros(D), 3.0),
        prepared_moment(LOW, HIGH, None, None, 3.0),
        replace(PREPARED_MOMENT, public=b""),
    ],
    ids=lambda body: f"{body.kind}-{getattr(body, 'label', '')}",
)
def test_a_question_that_is_none_is_refused_in_a_sentence_and_charged_nothing(body, ledger):
    answer = ask(silo(study(), ledger), body)
    assert refused(answer)
    assert "operator" not in answer.reason
    assert ledger.spent().n_releases == 0


def test_columns_with_a_range_are_asked_for_no_octaves(ledger):
    party = silo(study(ranges=((0.0, 1.0),) * D), ledger)
    assert refused(ask(party, tally("octaves")))
    assert isinstance(ask(party, replace(MEANS, index=0)), QueryAnswer)


def test_the_moment_is_that_of_rows_clipped_to_their_ranges_centred_scaled_and_bounded():
    X = rows(60)
    low, high = np.percentile(X, [20, 80], axis=0)
    treatment = RowTreatment(center=X.mean(0), scale=X.std(0), row_norm=1.5, low=low, high=high)
    by_hand = (np.clip(X, low, high) - X.mean(0)) / X.std(0) / 1.5
    by_hand /= np.maximum(np.linalg.norm(by_hand, axis=1), 1.0)[:, None]
    found = Survey(open_source(X)).treated(treatment).moment()
    assert np.abs(found - by_hand.T @ by_hand / 60).max() < 1e-5
    assert np.abs(np.asarray(treatment.apply(X)[0]) - by_hand).max() < 1e-12


def range_of(counts, std, n_cells, n_tests=2000):
    return octave_range(counts, std, n_tests=n_tests, n_cells=float(n_cells))


def test_noise_alone_makes_no_octave_of_an_empty_column_certain_and_some_range():
    """With probability 0.98 by the union bound; the seed is one of them, and stays so."""
    noise = np.random.default_rng(3).normal(0, 50, (20, N_OCTAVES))
    counts = noise.copy()
    counts[:, octave_of(np.array([[3.0]]))[0, 0]] += 5_000
    for column, empty in zip(counts, noise, strict=True):
        low, high, outside = range_of(column, 50.0, 5_000, n_tests=counts.size)
        assert outside == 0
        assert 1.0 <= low < high <= 8.0
        low, high, outside = range_of(empty, 50.0, 400, n_tests=N_OCTAVES * 1000)
        assert low < high
        assert 0.0 <= outside <= 1.0


@pytest.mark.parametrize(
    ("held", "std", "kept"),
    [
        ({6: 5_000, 7: 5_000}, 1.0, (6, 7)),
        ({6: 5_000, 7: 5_000}, 500.0, (0, 15)),
        # 14 of 16 bins go for 6%·(14/16)³ = 4.0% of the rows at most, and 9 for 1.1%
        ({2: 100, 7: 4_850, 8: 4_850, 13: 200}, 1.0, (7, 8)),
        ({2: 300, 7: 4_700, 8: 4_700, 13: 300}, 1.0, (2, 13)),
    ],
)
def test_ends_of_a_range_are_cut_where_they_are_empty_for_certain_and_only_there(held, std, kept):
    """What is cut at both ends is held against the rows that may lie there together."""
    counts = np.zeros(16)
    counts[list(held)] = list(held.values())
    assert trimmed(counts, std, 10_000) == kept


@pytest.mark.parametrize("place", [0, 7, 15])
@pytest.mark.parametrize("drift", [-25.0, 0.0, 25.0])
def test_a_column_that_lies_in_one_bin_keeps_that_one_though_noise_adds_up_over_the_others(place, drift):
    """Fifteen bins with noise of 41 have 159 together, beside 4.9% of 7,000 rows; one full bin has 41."""
    counts = np.full(16, drift)
    counts[place] += 7_000
    assert trimmed(counts, 41.0, 7_000) == (place, place)


def bound_of(counts, n_rows, *, d, std, noise):
    return choose_bound(Total(values=counts, stds=(noise,), n_rows=n_rows), n_features=d, std=std)


def test_the_bound_is_lower_where_there_is_more_noise_and_where_rows_are_alike():
    def bound(norms, std):
        counts = np.bincount(np.searchsorted(NORM_EDGES, norms), minlength=NORM_EDGES.size + 1)
        return bound_of(counts.astype(float), norms.size, d=1, std=std, noise=1.0)

    spread = np.abs(np.random.default_rng(0).standard_t(3, 20_000))
    assert bound(spread, 0.3) < bound(spread, 1e-4)
    assert bound(np.full(20_000, 2.0), 1e-4) < bound(spread * 2.0, 1e-4)


def octave_counts(values, std, seed=0):
    exact = np.bincount(octave_of(values[:, np.newaxis]).ravel().astype(int), minlength=N_OCTAVES)
    return exact + std * np.random.default_rng(seed).standard_normal(N_OCTAVES)


def test_a_column_around_zero_keeps_both_its_signs_where_no_octave_is_certain():
    """500 cells under noise of 40 a count: neither sign's octaves stand out, both together do."""
    both = 0
    for seed in range(20):
        values = np.random.default_rng(seed).standard_normal(500)
        low, high, _ = range_of(octave_counts(values, 40.0, seed), 40.0, 500)
        both += low < -0.4 and high > 0.4
    assert both >= 15


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_column_on_one_side_of_zero_is_rarely_mirrored(sign):
    """The chance is 1e-3 for each draw of the noise; more than 1 of 20 has one of 2e-4."""
    mirrored = 0
    for seed in range(20):
        values = sign * np.random.default_rng(seed).uniform(1.0, 6.0, 3000)
        low, high, _ = range_of(octave_counts(values, 40.0, seed), 40.0, 3000)
        assert low <= values.min() <= values.max() <= high
        mirrored += low < 0 < high
    assert mirrored <= 1


@pytest.mark.parametrize(
    ("times", "of_noise", "reached"), [(2.0**20, 5.0, False), (2.0**20, 8.0, True), (4.0, 5.0, True)]
)
def test_a_range_goes_far_only_where_rows_are_there_for_certain(times, of_noise, reached):
    """Noise makes a count of 5 standard deviations somewhere in one fit of a hundred, and none of 8."""
    counts = octave_counts(np.random.default_rng(0).uniform(1.0, 3.9, 3000), 0.0)
    far = octave_counts(np.array([-3.0 * times]), 0.0)
    _, high, _ = range_of(counts, 40.0, 3000)
    low, same, _ = range_of(counts + of_noise * 40.0 * far, 40.0, 3000)
    assert same == high
    assert (low <= -3.0 * times) is reached


def test_a_far_bin_that_noise_filled_does_not_make_the_bound_larger():
    """Rows of norms about √d: 2.5 standard deviations of noise at 16 times as much are no rows."""
    counts, bounds = np.zeros(NORM_EDGES.size + 1), []
    middle = int(np.searchsorted(NORM_EDGES, 1.0))
    counts[middle - 2 : middle + 3] = [200.0, 600.0, 800.0, 500.0, 200.0]
    for far in (0.0, 2.5, 10.0):
        counts[-1] = far * 20.0
        bounds.append(bound_of(counts, 2_300, d=25, std=0.02, noise=20.0))
    assert bounds[0] == bounds[1] < bounds[2]


def test_preparation_and_its_ranges_are_part_of_a_study_s_hash():
    agreed = [study(), study(ranges=((0.0, 1.0),) * D), study(ranges=((0.0, 2.0),) * D)]
    assert len({each.digest for each in agreed} | {each.moment_terms for each in agreed}) == 6


@pytest.mark.parametrize("kind", STAGES)
def test_a_tally_does_not_depend_on_blocks_of_rows(kind):
    X = rows(300)
    X[::7, 1] = np.nan
    given = (LOW, HIGH, np.eye(D)[1] if kind == "zoom" else np.zeros(D), np.ones(D))
    vectors = dict(zip(("low", "high", "offset", "scale"), given[: N_VECTORS[kind]], strict=False))
    stage = Stage(kind=kind, n_features=D, open_columns=np.arange(D), **vectors)
    whole = stage.tally(X)
    assert np.array_equal(sum(stage.tally(part) for part in np.array_split(X, 17)), whole)
    assert np.array_equal(Survey(open_source(X)).tally(stage), whole)
