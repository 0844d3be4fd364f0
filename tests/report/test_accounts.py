"""Every analysis gives the same numbers on a terminal, to a program and on a page that needs nothing."""

import csv
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from parsed_page import check_whole, parsed, words

from benchmarks.fits import fed_covariance
from fedpower.analysis import (
    AdjustedPCA,
    Completion,
    Correlations,
    FactorAnalysis,
    MeanTests,
    ProcessMonitor,
    Regression,
)
from fedpower.report.covariance import Covariance, save_analysis
from fedpower.report.page import analysis_page
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import table_rules
from sample_results import HOSTILE

MODELS: dict[str, Any] = {
    "factor": FactorAnalysis(2),
    "unrotated": FactorAnalysis(1, rotation="none"),
    "ridge": Regression(0, predictors=[1, 2, 3], alpha=200.0),
    "components": Regression(0, n_components=1),
    "adjusted": AdjustedPCA(2, covariates=[0]),
    "monitor": ProcessMonitor(2),
    "correlation": Correlations(),
    "means": MeanTests(1),
    "completion": Completion(3),
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module", params=["private", "exact"])
def moments(request: pytest.FixtureRequest) -> tuple[Covariance, Covariance]:
    """A moment of rows, and one of ratings, a third of which are not there."""
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((2000, 2)) @ rng.standard_normal((2, 10)) + rng.standard_normal((2000, 10))
    private, exact = request.param == "private", {"epsilon": float("inf")}
    terms = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 10.0} if private else exact
    silos = dict(zip(("north", "south"), np.split(rows, 2), strict=True))
    frames = {name: pd.DataFrame(part, columns=HOSTILE) for name, part in silos.items()}
    given = pd.DataFrame(np.where(rng.random(rows.shape) < 1 / 3, np.nan, rows), columns=HOSTILE)
    rules = {name: {"kind": "rating", "range": [-6, 6]} for name in HOSTILE}
    rated = {"epsilon": 4.0, "delta": 1e-6, "normalize": True} if private else exact
    rated = {**rated, "codebook": CodeBook(rules=table_rules(rules, "the test"))}
    return (
        fed_covariance(**terms).fit_silos(frames).release_,
        fed_covariance(center=False, **rated).fit_silos({"north": given}).release_,
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_page_is_whole_and_holds_what_a_program_gets(name, moments, tmp_path):
    release = moments[name == "completion"]
    if release.noise_std == 0 and name in ("unrotated", "ridge", "components", "correlation", "means"):
        return  # their pages say nothing else of exact numbers
    account = MODELS[name].fit(release).account()
    folder = save_analysis(account, release, tmp_path / "out")
    page = (folder / "report.html").read_text(encoding="utf-8")
    root = parsed(page)
    check_whole(root)
    said = words(root.by_id("summary"))
    for sentence in account.sentences:
        assert " ".join(sentence.split()) in said
    stored = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(account.facts))
    for table in account.tables:
        with (folder / table.file).open(encoding="utf-8", newline="") as stream:
            assert len(list(csv.reader(stream))) == len(table.rows) + 1
    assert analysis_page(account, release.record) == page
    own = parsed(analysis_page(release.account(), release.record))
    assert {each.text for each in own.every("bdi")} >= set(HOSTILE)
    assert own.by_id("privacy")
