"""Score plots of a fit: the counts, what they cost and what the report shows of them."""

import math

import numpy as np
import pytest

from benchmarks.fits import fed_pca
from fedpower import load
from fedpower.estimator.plan import planned
from fedpower.estimator.terms import options_of
from fedpower.exceptions import InputError
from fedpower.report.page import result_page
from sample_results import with_run

pytestmark = pytest.mark.filterwarnings("ignore")

EXACT = {"epsilon": math.inf, "scores_epsilon": math.inf}
PRIVATE = {"epsilon": 4.0, "delta": 1e-6, "scores_epsilon": 1.0}
BOUNDED = {"row_norm": 8.0}
COVARIANCES = {"standardize": False}
"""What noised products need, for they have no diagonal."""


def silos(seed=0, sizes=(300, 400, 500)):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal((n, 6)) * [3, 2, 1, 0.5, 0.4, 0.3]
        for name, n in zip(("north", "south", "east"), sizes, strict=False)
    }


def histogram(model, rows):
    """Return NumPy's own counts of the scores, what lies beyond the grid in its outermost places."""
    edges = model.score_counts_.edges
    scores = model.transform(rows)
    inside = [np.clip(scores[:, axis], edges[axis, 0], edges[axis, -1]) for axis in (0, 1)]
    return np.histogram2d(*inside, bins=edges)[0]


WAYS = [
    {"standardize": False},
    {"row_norm": 4.0},
    {"normalize": True},
    {"center": False},
    {"offset": np.ones(6), "scale": np.arange(1.0, 7.0)},
    {"solver": "krylov"},
    {"solver": "fedpower"},
]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_without_noise_the_counts_are_those_of_the_scores_that_transform_gives(way):
    model = fed_pca(3, random_state=0, **EXACT, **way).fit_silos(silos())
    found = model.score_counts_
    assert found.noise_std == 0
    for name, rows in silos().items():
        assert np.array_equal(found.counts[name], histogram(model, rows))
    assert np.array_equal(found.pooled, histogram(model, np.vstack(list(silos().values()))))
    assert "exact and NOT differentially private" in str(model.privacy_)
    assert "scores_epsilon=" in result_page(model.result_)


@pytest.mark.slow
def test_persons_count_once_and_fractions_are_explained_by_what_makes_them(tmp_path):
    rng = np.random.default_rng(1)
    ids = np.repeat(np.arange(200), rng.integers(1, 6, 200))
    found = fed_pca(2, **EXACT).fit(rng.standard_normal((len(ids), 3)), units=ids).score_counts_
    assert 200 * (1 - 5 / 4096) < found.pooled.sum() <= 200
    assert "all rows of a person count for one" in found.fractions
    model = fed_pca(2, aggregation="secure", **BOUNDED, **PRIVATE).fit_silos(silos())
    assert "its share of the noise in steps finer than a row" in model.score_counts_.fractions
    page = (model.save(tmp_path / "out") / "report.html").read_text()
    assert model.score_counts_.fractions in page


NOISED = [
    BOUNDED,
    {**BOUNDED, **COVARIANCES, "noise": "clipped"},
    {**BOUNDED, **COVARIANCES, "noise": "step"},
    {"normalize": True},
    {"aggregation": "secure"},
    {"aggregation": "secure", **BOUNDED, **COVARIANCES, "noise": "clipped"},
]


@pytest.mark.slow
@pytest.mark.parametrize("way", NOISED)
def test_with_noise_the_counts_are_off_by_as_much_as_is_said(way):
    """The largest of at most 432 draws is beyond 6 standard deviations with a chance below 1e-6."""
    model = fed_pca(2, random_state=0, **PRIVATE, **way).fit_silos(silos())
    found = model.score_counts_
    pooled = histogram(model, np.vstack(list(silos().values())))
    std = found.noise_std * math.sqrt(len(found.counts))
    assert 0.5 * std < np.std(found.pooled - pooled) < 1.7 * std
    assert np.abs(found.pooled - pooled).max() < 6 * std + 2  # an edge is float32
    assert model.privacy_.protections[0].epsilon <= 4.0 * (1 + 1e-9)
    assert any("counted by their scores" in note for note in model.privacy_.notes)


def test_a_result_folder_gives_the_counts_back_and_its_report_draws_them(tmp_path):
    model = fed_pca(2, row_norm=8.0, random_state=0, **PRIVATE).fit_silos(silos())
    result = load(model.save(tmp_path / "result"))
    back = result.score_counts
    assert list(back.counts) == ["north", "south", "east"]
    for name, counts in back.counts.items():
        assert np.array_equal(counts, model.score_counts_.counts[name])
    assert np.array_equal(back.edges, model.score_counts_.edges)
    page = (tmp_path / "result" / "report.html").read_text(encoding="utf-8")
    assert "Scores of all silos" in page
    assert "standard deviation 6" in page
    lines = (tmp_path / "result" / "score_counts.csv").read_text().splitlines()
    assert lines[0] == "silo,pc1_from,pc1_to,pc2_from,pc2_to,count"
    assert len(lines) == 1 + 3 * 36
    scores = {"counts": {"a": [[1]]}, "reach": [1, 1], "noise_std": 0}
    for changed in ({"counts": {}}, {"reach": [1]}, {"counts": {"a": [["x"]]}}):
        with pytest.raises(InputError, match="must be as fedpower wrote it"):
            _ = with_run(result, {**result.run, "scores": {**scores, **changed}}).score_counts


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [{}, {"aggregation": "secure"}, {"noise": "clipped", **BOUNDED, **COVARIANCES}]
)
def test_a_plan_counts_the_round_of_scores(way):
    terms = {"epsilon": 1.0, "delta": 1e-6, "scores_epsilon": 0.1, **way}
    without = {**terms, "scores_epsilon": None}
    facts = {"sizes": [3000] * 3, "n_features": 6, "spectrum": [0.5, 0.2, 0.01, 0.01, 0.01, 0.01]}
    one, other = (
        next(each for each in planned(options_of(fed_pca(2, **given)), **facts).candidates if each.chosen)
        for given in (terms, without)
    )
    assert one.rounds == other.rounds + 1
    assert one.bytes_up > other.bytes_up
    assert one.bytes_down > other.bytes_down
