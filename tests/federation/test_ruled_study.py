"""Rules in a study: agreed on by hash, applied by each silo before it connects."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedpower import FedPCA
from fedpower.errors import CellError, InputError
from fedpower.federation.local import rehearsal_data
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.federation.study_file import read_study
from fedpower.rules.rules import table_rules

STUDY = """
name = "trial"
[columns]
names = ["age", "sex", "cd 4", "seen"]
[rules]
pid = "drop"
sex = { levels = ["F", "M"] }
"cd 4" = { kind = "number", range = [0, 1500], missing = "offset", indicator = true }
seen = { kind = "date", origin = 2000-01-01, unit = "years", range = [0, 30] }
[components]
n_components = 2
[privacy]
epsilon = inf
[rounds]
deadline = 60
[silos]
names = ["north", "south"]
[coordinator]
host = "localhost"
"""
FEATURES = ("age", "sex=F", "sex=M", "sex=other", "cd 4", "cd 4 missing", "seen")


def table(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        {
            "seen": rng.choice(["2001-01-01", "2004-12-31"], 60),
            "pid": np.arange(60),
            "sex": rng.choice(["F", "M"], 60),
            "age": rng.normal(50, 9, 60),
            "cd 4": rng.normal(400, 90, 60).round(),
        }
    )
    made.loc[::5, "cd 4"] = np.nan
    return made


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    (tmp_path / "study.toml").write_text(STUDY)
    table(1).to_csv(tmp_path / "north.csv", index=False)
    (tmp_path / "north.toml").write_text('silo = "north"\n[data]\npath = "north.csv"\n')
    return tmp_path


def test_a_silo_applies_the_rules_to_its_own_table(agreed: Path):
    study = read_study(agreed / "study.toml")
    assert study.columns == FEATURES
    assert study.terms()[0].groups == ((1, 2, 3),)
    with open_silo(study, read_silo(agreed / "north.toml")) as node:
        assert node.moment.n_rows == 60
        assert node.moment.source.columns == FEATURES
    silos = [table(1), table(2)]
    assert study.rules is not None
    model = FedPCA(2, epsilon=float("inf"), codebook=study.options.codebook).fit_silos(
        [each[["age", "sex", "cd 4", "seen"]] for each in silos]
    )
    assert tuple(model.feature_names_in_) == FEATURES


def test_rules_are_in_the_hash_and_travel_with_the_study(agreed: Path):
    study = read_study(agreed / "study.toml")
    (agreed / "moved.toml").write_text(study.with_coordinator("elsewhere.example", 9))
    again = read_study(agreed / "moved.toml")
    assert again.digest == study.digest
    assert again.rules == study.rules
    assert again.dropped == ("pid",)
    for old, new in (('"F", "M"', '"M", "F"'), ("range = [0, 1500]", "range = [0, 1600]")):
        (agreed / "other.toml").write_text(STUDY.replace(old, new))
        assert read_study(agreed / "other.toml").digest != study.digest


def test_what_no_rule_covers_is_refused_before_a_silo_connects(agreed: Path):
    bad = table(1).astype({"seen": str})
    bad.loc[3, "seen"] = "Zaphod"
    bad.loc[4, "age"] = np.nan
    bad.to_csv(agreed / "north.csv", index=False)
    study = read_study(agreed / "study.toml")
    with pytest.raises(CellError) as caught, open_silo(study, read_silo(agreed / "north.toml")):
        pass
    said = str(caught.value)
    assert "got 2 problems in 1 table" in said
    assert "column 'seen' must hold dates" in said
    assert "Zaphod" not in said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pid =", "height =", None),
        ('pid = "drop"', 'height = "number"', "must be of the columns in"),
        ('pid = "drop"', 'age = "drop"', "must be of the columns in"),
        ('"F", "M"', '"F", "other"', "must be words without 'other'"),
        ('["F", "M"]', "3", "must have values of the right types"),
    ],
)
def test_a_study_with_wrong_rules_is_refused(agreed: Path, old: str, new: str, said: str | None):
    (agreed / "study.toml").write_text(STUDY.replace(old, new))
    if said is None:
        assert read_study(agreed / "study.toml").dropped == ("height",)
        return
    with pytest.raises(InputError, match=said):
        read_study(agreed / "study.toml")


def test_rows_that_are_made_up_for_a_rehearsal_keep_to_the_rules(agreed: Path):
    study = read_study(agreed / "study.toml")
    made = rehearsal_data(study, 2, agreed / "rows", None, lambda _: None)
    for name, path in made.items():
        (agreed / f"{name}.toml").write_text(f'silo = "{name}"\n[data]\npath = "{path}"\n')
        with open_silo(study, read_silo(agreed / f"{name}.toml")) as node:
            assert node.moment.source.columns == FEATURES


def test_rules_without_any_column_to_match_are_the_same_rules():
    one = table_rules({"sex": ["F", "M"]}, "")
    assert one.digest == table_rules({"sex": {"levels": ["F", "M"]}}, "").digest
