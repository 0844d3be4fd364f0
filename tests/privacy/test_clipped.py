"""How far one row moves a clipped product, and how a budget is divided among such products."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpower.errors import InputError, ProtocolError
from fedpower.linalg import orth
from fedpower.privacy.budget import Outlook
from fedpower.privacy.sensitivity import clipped_sensitivity, of_clipped_product
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import CLIP_SIDE, SIDE, ClippedQuestion
from fedpower.sums.local import local_moment

clips = st.floats(0.02, 1.0)
seeds = st.integers(0, 2**32 - 1)


def moved(x, y, clip, width):

    def part(row):
        p = row[:width]
        norm = np.linalg.norm(p)
        return np.outer(row, p * min(1.0, clip / norm) if norm else p)

    return float(np.linalg.norm(part(x) - part(y)))


@pytest.mark.slow
def test_a_search_for_the_worst_rows_reaches_the_bound_and_not_beyond():
    for clip in (0.1, 0.5, 1 / math.sqrt(3), 0.65, 1 / math.sqrt(2), 0.9, 1.0):
        worst = 0.0
        inside = np.array([clip, 0.0])
        outside = math.sqrt(1 - clip**2)
        for angle in np.linspace(0, math.pi, 2001):
            turned = clip * np.array([math.cos(angle), math.sin(angle)])
            for sign in (-1.0, 1.0):
                x, y = np.append(inside, outside), np.append(turned, sign * outside)
                worst = max(worst, moved(x, y, clip, 2))
        assert worst == pytest.approx(clipped_sensitivity(clip, 2), rel=1e-6)


def test_two_columns_move_further_than_the_formula_of_one_beyond_a_third():
    clip = 0.65
    assert clipped_sensitivity(clip, 2) > 2 * clip * math.sqrt(1 - clip**2)
    assert clipped_sensitivity(clip, 1) == 2 * clip * math.sqrt(1 - clip**2)
    for none in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(InputError, match="clip must lie above 0"):
            clipped_sensitivity(none, 2)


def sums_of(rows, question):
    moment = local_moment(open_source(rows), RowTreatment(row_norm=1.0), rank=2, steps=3)
    kappa = of_clipped_product(question.clip, question.basis.shape[1], len(question.basis))[1]
    found = moment.clipped(question, kappa=kappa)
    return np.append(found.total.reshape(-1), found.squares)


@settings(max_examples=30)
@given(clip=st.floats(0.02, 1.0), width=st.integers(1, 3), seed=seeds, centred=st.booleans())
def test_whole_numbers_of_neighbours_are_no_further_apart_than_noise_is_made_for(clip, width, seed, centred):
    rng = np.random.default_rng(seed)
    d = width + 3
    basis = orth(rng.standard_normal((d, width)))
    center = None
    if centred:
        center = rng.standard_normal(d)
        center *= rng.uniform(0, 1) / np.linalg.norm(center)
    question = ClippedQuestion.of(basis, clip, center)
    assert question.is_orthonormal
    rows = rng.standard_normal((4, d))
    other = rows.copy()
    along = basis @ rng.standard_normal(width)
    rows[-1] = clip * along / np.linalg.norm(along) + 3 * rng.standard_normal() * rng.standard_normal(d)
    other[-1] = -rows[-1] if rng.integers(2) else rng.standard_normal(d)
    apart = np.linalg.norm((sums_of(rows, question) - sums_of(other, question)).astype(float))
    most, _ = of_clipped_product(clip, width, d)
    assert apart <= float(most.squared) ** 0.5


def test_the_order_of_rows_and_the_size_of_blocks_have_no_part_in_the_sums():
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((3000, 40))
    question = ClippedQuestion.of(orth(rng.standard_normal((40, 3))), 0.2, np.full(40, 0.01))
    one = sums_of(rows, question)
    assert np.array_equal(one, sums_of(rows[::-1].copy(), question))
    halves = [sums_of(part, question) for part in (rows[:1234], rows[1234:])]
    assert np.array_equal(one, halves[0] + halves[1])


def test_sums_are_those_of_the_real_rows_to_the_width_of_the_lattice():
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((500, 30))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    basis = orth(rng.standard_normal((30, 3)))
    question = ClippedQuestion.of(basis, 0.3)
    p = rows @ basis
    p *= np.minimum(1.0, 0.3 / np.linalg.norm(p, axis=1))[:, np.newaxis]
    found = sums_of(rows, question)[:-1].reshape(30, 3) * (0.3 / (SIDE * CLIP_SIDE))
    assert np.abs(found - rows.T @ p).max() < 500 * 2.0**-16


def test_a_question_that_the_noise_is_not_made_for_is_refused():
    rng = np.random.default_rng(7)
    basis = orth(rng.standard_normal((9, 2)))
    good = ClippedQuestion.of(basis, 0.2).to_bytes()
    terms = {"n_features": 9, "width": 2, "center": False}
    assert np.array_equal(
        ClippedQuestion.from_bytes(good, **terms).basis, ClippedQuestion.of(basis, 0.2).basis
    )
    for public, more, sentence in (
        (ClippedQuestion.of(1.01 * basis, 0.2).to_bytes(), {}, "orthonormal"),
        (good[:-4], {}, "a clipped product must be asked for"),
        (good, {"center": True}, "a clipped product must be asked for"),
        (ClippedQuestion.of(basis, 1.5).to_bytes(), {}, "a clip between"),
    ):
        with pytest.raises(ProtocolError, match=sentence):
            ClippedQuestion.from_bytes(public, **terms | more)


FACTS = {"n_features": 1000, "rank": 4, "multiplier": 4.22}


def test_a_gain_is_predicted_where_leading_directions_hold_little_and_not_where_they_hold_much():
    assert Outlook(n_rows=100_000, energy=0.015, **FACTS).gains_by_clipping()
    assert not Outlook(n_rows=100_000, energy=0.5, **FACTS).gains_by_clipping()
    assert not Outlook(n_rows=None, energy=0.015, **FACTS).gains_by_clipping()
    assert not Outlook(n_rows=100_000, energy=0.8, **FACTS | {"n_features": 20}).gains_by_clipping()


@pytest.mark.parametrize(
    ("n_rows", "share", "n_steps"), [(20_000, 0.0, 6), (50_000, 0.4, 8), (100_000, 0.3, 6)]
)
def test_a_moment_that_shows_little_gets_more_of_the_budget_and_wide_bases_more_steps(n_rows, share, n_steps):
    design = Outlook(n_rows=n_rows, **FACTS).design(center=False)
    assert (design.moment_share, len(design.widths)) == (share, n_steps)
    for rows, center in itertools.product((None, n_rows, 10**6), (False, True)):
        design = Outlook(n_rows=rows, energy=0.015, **FACTS).design(center=center)
        shares = [terms.share for terms in design.queries(1000, center=center)]
        assert math.fsum(shares) == pytest.approx(1.0, rel=1e-15)
        assert all(width >= 4 for width in design.widths)
