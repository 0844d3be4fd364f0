"""Every analysis gives the same numbers on a terminal, to a program and on a page that needs nothing."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from parsed_page import parsed, words

from fedpower.analyses import (
    AdjustedPCA,
    Completion,
    Correlations,
    FactorAnalysis,
    MeanTests,
    ProcessMonitor,
    Regression,
)
from fedpower.report.moment import Moment, save_analysis
from fedpower.report.page import analysis_page
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import table_rules
from fits import fed_moment
from sample_results import HOSTILE

MODELS: dict[str, Any] = {
    "factor": FactorAnalysis(2),
    "ridge": Regression(0, predictors=[1, 2, 3], alpha=200.0),
    "components": Regression(0, n_components=1),
    "adjusted": AdjustedPCA(2, covariates=[0]),
    "monitor": ProcessMonitor(2),
    "correlation": Correlations(),
    "means": MeanTests(1),
}


def rows(count: int = 4000) -> Any:
    rng = np.random.default_rng(6)
    return rng.standard_normal((count, 2)) @ rng.standard_normal((2, 10)) + rng.standard_normal((count, 10))


@pytest.fixture(scope="module", params=["private", "exact"])
def moment(request: pytest.FixtureRequest) -> Moment:
    terms: dict[str, Any] = {"epsilon": float("inf")}
    if request.param == "private":
        terms = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 10.0}
    silos = dict(zip(("north", "south"), np.split(rows(), 2), strict=True))
    frames = {name: pd.DataFrame(part, columns=HOSTILE) for name, part in silos.items()}
    return fed_moment(**terms).fit_silos(frames).moment_


@pytest.fixture(scope="module", params=["private", "exact"])
def rated(request: pytest.FixtureRequest) -> Moment:
    """A moment of ratings, a third of which are not there."""
    given = np.where(np.random.default_rng(3).random((4000, 10)) < 1 / 3, np.nan, rows())
    rules = {name: {"kind": "rating", "range": [-6, 6]} for name in HOSTILE}
    book = CodeBook(rules=table_rules(rules, "the test"))
    terms: dict[str, Any] = {"epsilon": float("inf")}
    if request.param == "private":
        terms = {"epsilon": 4.0, "delta": 1e-6, "normalize": True}
    frame = pd.DataFrame(given, columns=HOSTILE)
    return fed_moment(center=False, codebook=book, **terms).fit_silos({"north": frame}).moment_


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_of_a_completion_is_whole(rated: Moment, tmp_path: Path):
    check_page(Completion(3), rated, tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_page_is_whole_and_refers_to_nothing_outside(name: str, moment: Moment, tmp_path: Path):
    check_page(MODELS[name], moment, tmp_path)


def check_page(model: Any, moment: Moment, tmp_path: Path) -> None:
    account = model.fit(moment).account()
    folder = save_analysis(account, moment, tmp_path / "out")
    root = parsed((folder / "report.html").read_text(encoding="utf-8"))
    identities = [each.attributes["id"] for each in root.all() if "id" in each.attributes]
    assert len(identities) == len(set(identities))
    for node in root.all():
        assert not {"src", "style", "srcset", "action"} & set(node.attributes)
        if "href" in node.attributes:
            assert node.attributes["href"][1:] in identities
    assert len(root.every("script")) == 1
    for picture in root.every("svg", role="img"):
        assert picture.every("title")
        assert picture.every("desc")
    said = words(root.by_id("summary"))
    for sentence in account.sentences:
        assert " ".join(sentence.split()) in " ".join(said.split())
    stored = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(account.facts))
    for table in account.tables:
        with (folder / table.file).open(encoding="utf-8", newline="") as stream:
            assert len(list(csv.reader(stream))) == len(table.rows) + 1
    assert analysis_page(model.fit(moment).account(), moment.record) == analysis_page(account, moment.record)


def test_the_page_of_a_moment_shows_its_columns_and_the_promise(moment: Moment):
    root = parsed(analysis_page(moment.account(), moment.record))
    assert {each.text for each in root.every("bdi")} >= set(HOSTILE)
    assert root.by_id("privacy")
