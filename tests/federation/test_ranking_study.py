"""Comparisons in a study: items agreed on by hash, ranked from what it leaves, plain and secure."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from studies import SIZES, run_study, secure_tables, write_silo, write_study

from fedpower import FedMoment, comparisons, read_moment
from fedpower.analyses import Ranking
from fedpower.errors import CellError
from fedpower.federation.local import rehearsal_data
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.federation.study_file import StudyFile

ITEMS = ["ash", "birch", "cedar", "oak"]
BOOK = comparisons(ITEMS)
TABLES: dict[str, Any] = {
    "columns": {"names": ["winner", "loser"]},
    "rules": {"winner": {"items": ITEMS, "against": "loser"}},
    "rows": {"row_norm": None},
    "components": {"n_components": 1, "keep_moment": True},
}


def games(name: str, rows: int = 1200) -> pd.DataFrame:
    rng = np.random.default_rng(list(SIZES).index(name))
    first = rng.integers(0, 4, rows)
    second = (first + rng.integers(1, 4, rows)) % 4
    won = rng.random(rows) < 1 / (1 + np.exp((first - second) / 2))
    names = np.asarray(ITEMS)
    return pd.DataFrame(
        {"winner": names[np.where(won, first, second)], "loser": names[np.where(won, second, first)]}
    )


def ranked(study: StudyFile, folder: Path) -> Ranking:
    """Return the ranking of what a run of the study leaves in its result."""
    run_study(study, folder, write=lambda path, name: games(name).to_csv(path, index=False))
    return Ranking().fit(read_moment(folder / "result"))


def test_an_exact_study_ranks_as_a_release_in_one_process_does(tmp_path: Path):
    study = write_study(tmp_path, **TABLES, privacy={"epsilon": float("inf"), "delta": None})
    found = ranked(study, tmp_path)
    alone = FedMoment(epsilon=float("inf"), codebook=BOOK).fit_silos(
        {name: games(name) for name in study.silos}
    )
    assert np.allclose(found.scores_, Ranking().fit(alone.moment_).scores_, atol=1e-12)
    assert study.columns == (*ITEMS, "outcome")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_a_private_study_ranks_within_its_intervals(tmp_path: Path, aggregation: str):
    """Fails with probability below 1e-6: four scores within 5.5 of their standard errors."""
    tables = secure_tables(tmp_path) if aggregation == "secure" else {}
    found = ranked(write_study(tmp_path, **TABLES, **tables), tmp_path)
    exact = FedMoment(epsilon=float("inf"), codebook=BOOK).fit_silos([games(x) for x in SIZES])
    wanted = Ranking().fit(exact.moment_).scores_
    unsampled = Ranking(sampling=False).fit(found.moment_)
    assert unsampled.determined_
    assert (np.abs(unsampled.scores_ - wanted) < 5.5 * unsampled.standard_error_).all()


def test_items_are_part_of_the_agreement_and_others_are_refused_before_a_silo_connects(tmp_path: Path):
    agreed = write_study(tmp_path, **TABLES)
    more = {"rules": {"winner": {"items": [*ITEMS, "yew"], "against": "loser"}}}
    assert write_study(tmp_path, **{**TABLES, **more}).digest != agreed.digest
    own = write_silo(tmp_path, "north", cap=1.5)
    games("north").replace("oak", "yew").to_csv(tmp_path / str(own.data.path), index=False)
    with (
        pytest.raises(CellError, match="must name items of the public list and nothing else"),
        open_silo(agreed, own),
    ):
        pass


def test_comparisons_that_are_made_up_for_a_rehearsal_keep_to_the_rule(tmp_path: Path):
    rule = {"items": ITEMS, "against": "loser", "margin": "points", "range": [-3, 9]}
    names = ["points", "winner", "loser"]
    tables = {**TABLES, "columns": {"names": names}, "rules": {"winner": rule}}
    study = write_study(tmp_path, **tables, privacy={"epsilon": float("inf"), "delta": None})
    for name, path in rehearsal_data(study, 3, tmp_path / "rows", None, lambda _: None).items():
        (tmp_path / f"{name}.toml").write_text(f'silo = "{name}"\n[data]\npath = "{path}"\n')
        with open_silo(study, read_silo(tmp_path / f"{name}.toml")) as node:
            assert node.moment.source.columns == (*ITEMS, "points")
