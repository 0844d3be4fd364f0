"""Sentences speak of options, and leave the user's own names alone."""

import pytest

from fedpower.cli.words import in_options


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("n_steps must be 1, got 0", "--n-steps must be 1, got 0"),
        ("between n_components=3 and 9", "between -k=3 and 9"),
        ("drop it (drop=['sex']) or", "drop it (--drop 'sex') or"),
        ('leave them out with extra_columns="drop"', "leave them out with --extra drop"),
        ("column 'n_steps' of x.csv", "column 'n_steps' of x.csv"),
        ("/data/row_norm.csv must exist", "/data/row_norm.csv must exist"),
        ("row_norm.csv must exist", "row_norm.csv must exist"),
        ("pass center=False", "pass --no-center"),
        ("to min(n_samples, n_features)=6 or", "to the smaller of rows and columns, 6, or"),
    ],
)
def test_parameters_become_options(sentence: str, told: str):
    assert in_options(sentence) == told
