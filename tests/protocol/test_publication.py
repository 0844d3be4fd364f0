"""What is published is a function of exact sums over all silos, or the public has no smaller epsilon."""

import json
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from scipy.special import ndtr

from benchmarks.fits import fed_pca
from budgets import priced
from fedpower.exceptions import ProtocolError
from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.budget import SCORES
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from fedpower.privacy.sensitivity import LEAST_SUMMED
from fedpower.protocol.coordinator import Round
from fedpower.protocol.messages import QueryAnswer
from fedpower.protocol.outcome import SUMMED
from fedpower.protocol.query import Tally, moment_of
from fedpower.protocol.silo import PrivateReleases
from fedpower.protocol.solvers.sums import Sums
from fedpower.sums.lattice import Words
from fedpower.sums.survey import STAGES, Stage
from problems import spiked_rows

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

TERMS = {"epsilon": 1.0, "delta": 1e-6}
SUMMED_FITS = {
    "bounded": {**TERMS, "row_norm": 1.0},
    "prepared": TERMS,
    "clipped": {**TERMS, "noise": "clipped", "normalize": True},
    "with scores": {**TERMS, "row_norm": 1.0, "scores_epsilon": 0.3},
}


def published(folder, terms, *, moved):
    """Return the files of a result whose first silo's answers have more, and whose second one's have less."""
    noise, drawn = SeededNoiseForExperiments(1), np.random.default_rng(2)
    added, answer = {}, PrivateReleases.query

    def answered(self, ask, *, run):
        body, silo = answer(self, ask, run=run), self.ledger.owner.silo
        if not moved or ask.label == SCORES or silo not in ("north", "south"):
            return body
        most = 3 if ask.label in STAGES else 2**30
        shift = added.setdefault(ask.index, drawn.integers(-most, most, body.words.size).view(np.uint64))
        return structs.replace(body, words=body.words + (shift if silo == "north" else -shift))

    rows = spiked_rows(150_000, 5, rank=2, seed=7) + 1.0  # sums beyond 2⁵³
    silos = dict(zip(("north", "south", "east"), np.split(rows, [80_000, 130_000]), strict=True))
    with (
        mock.patch.object(SystemNoise, "words", lambda _, n: noise.words(n)),
        mock.patch.object(PrivateReleases, "query", answered),
    ):
        model = fed_pca(2, random_state=0, n_jobs=1, **terms).fit_silos(silos)
    assert bool(added) == moved
    place = model.save(folder)
    files = {path.name: path.read_bytes() for path in place.iterdir() if path.name != "report.html"}
    record = json.loads(files.pop("run.json"))
    for name in ("started", "finished", "sha256"):
        record.pop(name)
    return files, record, model.privacy_.protections


@pytest.mark.parametrize("terms", SUMMED_FITS.values(), ids=SUMMED_FITS)
def test_two_splits_of_the_same_sums_are_published_as_the_same_bytes(terms, tmp_path):
    plain, moved = (published(tmp_path / f"{each}", terms, moved=each) for each in (False, True))
    assert plain == moved
    coordinator, public = plain[2]
    assert public.epsilon < 0.75 * coordinator.epsilon


def test_a_weighted_sum_shows_how_it_is_split_and_claims_nothing(tmp_path):
    terms = {**TERMS, "row_norm": 1.0, "weights": "noise"}
    plain, moved = (published(tmp_path / f"{each}", terms, moved=each) for each in (False, True))
    assert plain[0] != moved[0]
    coordinator, public = plain[2]
    assert (public.epsilon, public.mu) == (coordinator.epsilon, coordinator.mu)


@pytest.mark.parametrize("terms", SUMMED_FITS.values(), ids=SUMMED_FITS)
def test_the_public_s_mu_is_that_of_all_silos_noise_and_of_counts_as_they_are(terms):
    rows = spiked_rows(900, 5, rank=2, seed=7)
    model = fed_pca(2, **terms).fit_silos([rows[:700], rows[700:800], rows[800:850], rows[850:]])
    (coordinator, public), budget = model.privacy_.protections, model.study_.budget
    share = budget.share(SCORES)
    assert public.mu == pytest.approx(budget.total_mu * math.sqrt((1 - share) / 4 + share), rel=1e-12)
    slack = 5 * budget.slack_delta
    assert epsilon_of(public.mu, 1e-6) <= public.epsilon <= epsilon_of(public.mu, 1e-6 - slack)
    assert coordinator.epsilon == pytest.approx(1.0, rel=1e-6)
    assert SUMMED in model.privacy_.assumptions


# --- where nothing is claimed ---------------------------------------------------------------------


def hides(budget, query, sizes, *, answered=None, weights="rows"):
    """Return whether a sum over silos of these sizes, of which some answered, may be claimed to hide them."""
    names = [f"silo {place}" for place in range(len(sizes))]
    sums = Sums(study=budget.study, sizes=dict(zip(names, sizes, strict=True)))
    asking = sums.total(query, weights=weights)
    next(asking)
    answer = QueryAnswer(words=np.zeros(query.sensitivity.size, dtype=np.uint64))
    answers = dict.fromkeys(names[:answered], answer)
    with pytest.raises(StopIteration):
        asking.send(Round(number=1, kind=query.label, step=1, asked=tuple(names), answers=answers))
    return sums.hides_silos


@pytest.mark.parametrize(
    ("claimed", "sizes", "changed"),
    [
        (True, [100, 20, 3000], {}),
        (True, [2**23, 2**23], {}),
        (False, [100, 2**23], {}),  # whose lattice is coarser
        (False, [100, 20, 3000], {"answered": 2}),
        (False, [100, 20, 3000], {"weights": "noise"}),
    ],
    ids=["all", "large silos", "two lattices", "a silo is missing", "weights"],
)
def test_only_an_exact_sum_over_all_silos_on_one_lattice_hides_them(claimed, sizes, changed):
    budget = priced(center=True)
    assert hides(budget, moment_of(budget.study), sizes, **changed) == claimed


@pytest.mark.parametrize(("epsilon", "claimed"), [(1.0, True), (10.0, True), (50.0, False)])
def test_noise_of_few_steps_claims_nothing(epsilon, claimed):
    budget = priced(epsilon=epsilon, preparation=(0.02,) * 5)
    stage = Stage(kind="octaves", n_features=20, open_columns=np.arange(2))
    query = Tally(stage=stage)
    scales = budget.noise("octaves", query.sensitivity, (100,)).scales
    assert (min(scales) >= LEAST_SUMMED) == claimed
    assert hides(budget, query, [100, 100]) == claimed


def test_a_silo_that_misses_one_stage_takes_the_claim_away():
    rows = spiked_rows(900, 5, rank=2, seed=7)
    answer = PrivateReleases.query

    def answered(self, ask, *, run):
        if ask.label == "norms" and self.ledger.owner.silo == "silo-3":
            raise ProtocolError("a test must go on without this silo")
        return answer(self, ask, run=run)

    with mock.patch.object(PrivateReleases, "query", answered):
        model = fed_pca(2, min_silos=2, **TERMS).fit_silos(np.split(rows, 3))
    coordinator, public = model.privacy_.protections
    assert len(model.silo_sizes_) == 2
    assert public.epsilon == coordinator.epsilon


# --- the lemmas -----------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), min_size=3, max_size=3), min_size=1, max_size=9))
def test_integers_are_added_exactly_and_rounded_once(rows):
    exact = [sum(column) for column in zip(*rows, strict=True)]
    found = Words.sum_of(np.array(row, dtype=np.int64) for row in rows)
    assert found.to_ints().tolist() == exact
    assert found.to_float().tolist() == [float(each) for each in exact]


@pytest.mark.parametrize("scale", [0.4, 0.6, 0.8, 1.0])
def test_a_sum_of_rounded_normals_is_as_near_to_a_rounded_sum_as_the_lemma_says(scale):
    """Of two, whose laws have closed forms; at scales that are far too small to be claimed."""
    edges = (np.arange(-60, 62) - 0.5) / scale
    one = np.diff(ndtr(edges))
    both = np.convolve(one, one)
    std = scale * math.sqrt(2.0)
    places = np.arange(-121, 122) / std
    integral = places * ndtr(places) + np.exp(-(places**2) / 2) / math.sqrt(2 * math.pi)
    ideal = std * np.diff(integral, 2)
    distance = np.abs(both - ideal).sum() / 2
    assert 1e-9 < distance < (160 * std + 2 + 2) * 3 * 2 * math.exp(-((math.pi * scale) ** 2) / 2)
