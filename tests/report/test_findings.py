"""What a bound cut off and how far that may turn components; and why a fit found nothing."""

import logging
import re
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from parsed_page import parsed, words

from benchmarks.fits import fed_pca
from fedpower import CodeBook, FedPCA, load
from fedpower.exceptions import NoiseWarning
from fedpower.report.page import result_page as page

Array = NDArray[np.float64]
KNOWN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "standardize": False}


def visits(n_rows: int = 8_600) -> Array:
    """Return standardised rows as of a survey of health: counts with long tails, flags, amounts.

    The counts go together, and have most of the length of the rows that are long.
    """
    rng = np.random.default_rng(3)
    ill = rng.gamma(0.6, 1.0, n_rows)
    counts = rng.poisson(3.0 * ill[:, None] * [1.0, 0.7, 0.4, 0.3])
    flags = rng.random((n_rows, 3)) < [0.5, 0.1, 0.05]
    rich = rng.standard_normal(n_rows)
    amounts = 0.7 * rich[:, None] + rng.standard_normal((n_rows, 5))
    rows = np.hstack([counts, flags, amounts]).astype(float)
    return np.asarray((rows - rows.mean(0)) / rows.std(0))


def cut(rows: Array, bound: float) -> tuple[float, float]:
    squared = np.sum(rows**2, axis=1)
    return float(np.mean(squared > bound**2)), float(
        1.0 - np.minimum(squared, bound**2).sum() / squared.sum()
    )


def fitted(rows: Any, **given: Any) -> FedPCA:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fed_pca(7, **{**KNOWN, **given}).fit_silos([rows])


def test_what_a_tight_bound_does_is_in_the_angles_and_in_words():
    """A fifth of the rows is clipped."""
    rows = visits()
    share, energy = cut(rows, 4.0)
    assert 0.1 < share < 0.3
    result = fitted(rows, row_norm=4.0, epsilon=2.0).result_
    angles = result.run["angles"]
    whole, noise = (np.array(angles[name])[:4] for name in ("components", "noise_components"))
    assert np.all(whole > noise + 0.5)
    clipping = result.run["clipping"]
    assert share <= clipping["rows_most"] <= 1.0
    assert clipping["rows"] == pytest.approx(share, abs=0.15)
    assert clipping["energy_least"] <= energy <= clipping["energy_most"]
    assert result.record.clipping_summary.startswith("About ")
    shown = parsed(page(result))
    assert result.record.clipping_summary in words(shown.by_id("components"))
    rest = r"clipping, which removed about \d+% of the variance, accounts for the rest\."
    assert re.search(rf"Noise accounts for \d+° of the \d+° of pc1; {rest}", words(shown.by_id("summary")))


@pytest.mark.slow
@pytest.mark.parametrize("law", ["normal", "t5", "alike", "counts"])
@pytest.mark.parametrize("bound", [2.5, 4.0, 6.0, 9.0])
@pytest.mark.parametrize("standardize", [False, True])
def test_the_share_cut_off_is_in_the_range_given(law, bound, standardize):
    rng = np.random.default_rng(1)
    rows = visits() if law == "counts" else rng.standard_normal((20_000, 12))
    if law == "t5":
        rows = rows / np.sqrt(rng.chisquare(5, len(rows)) / 5)[:, None]
    if law == "alike":
        rows = np.sign(rows)
        bound = max(bound, 4.0)  # at their common length no trace tells what is cut
    result = fitted(rows, row_norm=bound, standardize=standardize).result_
    share, energy = cut(rows, bound)
    clipping = result.run["clipping"]
    assert share <= clipping["rows_most"] + 0.01
    assert clipping["energy_least"] - 0.01 <= energy <= clipping["energy_most"] + 0.01


def test_a_computed_bound_is_described_by_the_counts_of_norms(tmp_path):
    rows = visits()
    seen: dict[str, tuple[int, int]] = {}
    model = fed_pca(3, **KNOWN).fit_silos({"north": rows}, on_clipped=seen.update)
    clipping = model.result_.run["clipping"]
    assert clipping["counted"]
    assert clipping["rows"] == pytest.approx(seen["north"][0] / seen["north"][1], abs=0.1)
    assert model.result_.record.clipping_summary.endswith("(estimated with noise).")
    assert load(model.save(tmp_path / "out")).run == model.result_.run
    model.codebook_.save(tmp_path / "book.toml")
    book = CodeBook.load(tmp_path / "book.toml")
    assert book.clipped == model.codebook_.clipped is not None
    again = fed_pca(3, codebook=book, **KNOWN).fit_silos({"north": rows}).result_
    assert again.record.clipping_summary == model.result_.record.clipping_summary


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_log_of_a_silo_has_the_share_of_rows_that_a_computed_bound_shortens(aggregation, caplog):
    silos = dict(zip(("north", "south", "east"), np.array_split(visits(3_000), 3), strict=True))
    seen: dict[str, tuple[int, int]] = {}
    with caplog.at_level(logging.INFO, logger="fedpower.protocol.silo"):
        fed_pca(2, aggregation=aggregation, **KNOWN).fit_silos(silos, on_clipped=seen.update)
    lines = [record.getMessage() for record in caplog.records if "were clipped" in record.getMessage()]
    assert len(lines) == len(silos)
    for name, (count, total) in seen.items():
        wanted = f"{100 * count / total:.1f}% of the rows of silo {name!r} ({count} of {total})"
        assert sum(line.startswith(wanted) for line in lines) == 1


def normal(n_rows: int, n_columns: int = 5) -> Array:
    return np.random.default_rng(0).standard_normal((n_rows, n_columns))


CAUSES: list[tuple[Array, dict[str, float], str]] = [
    (normal(20_000), {"row_norm": 300.0}, "the likely cause is the bound"),
    (normal(20_000) * 0.01 + 10, {"row_norm": 30.0}, "the likely cause is the offset"),
    (normal(30, 20), {"row_norm": 6.0}, "the likely cause is the number of rows, 30,"),
    (normal(30, 20), {}, "the likely cause is the number of rows, 30,"),
    (np.zeros((70, 4)), {}, "of 4 columns is below the noise; add rows, drop constant columns"),
    (normal(6_000) * 0.1, {"row_norm": 1.0, "epsilon": 0.01}, "the likely cause is ε = 0.01"),
]


@pytest.mark.parametrize(("data", "terms", "cause"), CAUSES)
@pytest.mark.usefixtures("seeded")
def test_the_warning_names_the_cause(data, terms, cause):
    """Noise counts as a component with probability 1% at most by the rule: the noise is seeded."""
    with pytest.warns(NoiseWarning, match=cause):
        fed_pca(2, **{"epsilon": 0.5, "delta": 1e-6, **terms}).fit(data)
