"""Sentences speak of options, and leave the user's own names alone."""

import pytest

from fedpower.cli.words import in_options
from fedpower.data.columns import without


@pytest.mark.parametrize(
    ("sentence", "reported"),
    [
        ("n_steps must be 1, got 0", "--n-steps must be 1, got 0"),
        ("between n_components=3 and 9", "between -k=3 and 9"),
        (f"drop it ({without('sex')}) or", "drop it (--drop 'sex') or"),
        (
            'leave them out with extra_columns="drop" (extra="drop" of open_source)',
            "leave them out with --extra drop",
        ),
        ("name them with open_source(data, columns=[...])", "name them with --columns a,b,..."),
        ("column 'n_steps' of x.csv", "column 'n_steps' of x.csv"),
        ("/data/row_norm.csv must exist", "/data/row_norm.csv must exist"),
        ("row_norm.csv must exist", "row_norm.csv must exist"),
        ("pass center=False", "pass --no-center"),
        ("to min(n_samples, n_features)=6 or", "to the smaller of rows and columns, 6, or"),
    ],
)
def test_parameters_become_options(sentence: str, reported: str):
    assert in_options(sentence) == reported


def test_a_command_is_told_of_no_option_that_it_lacks():
    sentence = f"drop the column ({without('sex')}) or turn it into numbers"
    assert in_options(sentence, "transform") == "drop the column or turn it into numbers"
    reported = in_options(sentence, "silo")
    assert (
        reported
        == "drop the column (drop = ['sex'] in [data] of the silo file) or turn it into numbers"
    )
    surplus = 'leave them out with extra_columns="drop" (extra="drop" of open_source)'
    assert in_options(surplus, "silo").endswith('extra_columns = "drop" in [data] of the silo file')
