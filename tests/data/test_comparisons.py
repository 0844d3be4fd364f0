"""Tables of comparisons: a public list of items makes signed rows of them; what is none is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedpower import CodeBook, FedMoment, comparisons, read_code_book, write_code_book
from fedpower.errors import CellError, InputError
from fedpower.rows.opening import open_source
from fedpower.rows.ruled import ruled
from fedpower.rules.rules import COMPARISON_BOUND, table_rules

BOOK = comparisons(["ash", "birch", "oak"])
MARGINS = comparisons(["ash", "birch", "oak"], winner="home", loser="away", margin="goals", range=(-5, 5))


def rows_of(table: pd.DataFrame, book: CodeBook) -> np.ndarray:
    assert book.rules is not None
    (block,) = ruled(open_source(table), book.rules).blocks(100)
    return np.asarray(block)


def test_a_comparison_is_the_winner_less_the_loser_and_the_outcome():
    table = pd.DataFrame({"loser": ["oak", "ash"], "winner": [" ash ", "birch"]})
    assert rows_of(table, BOOK).tolist() == [[1, 0, -1, 1], [-1, 1, 0, 1]]
    assert BOOK.columns == ("ash", "birch", "oak", "outcome")


def test_no_row_is_longer_than_the_bound():
    table = pd.DataFrame({"home": ["ash"] * 4, "away": ["oak"] * 4, "goals": [9, -9, 5, 0]})
    treated, _ = MARGINS.treatment.apply(rows_of(table, MARGINS))
    assert np.linalg.norm(treated, axis=1).max() < 1
    assert pytest.approx(3**0.5, rel=3e-5) == COMPARISON_BOUND
    assert COMPARISON_BOUND > 3**0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"winner": "yew"}, "must name items of the public list and nothing else, got others"),
        ({"winner": "oak"}, "must name two different items, got one twice"),
        ({"loser": None}, "must name an item each in every row, got nothing"),
        ({"points": None}, "must have a number in 'points', got nothing"),
    ],
)
def test_what_compares_nothing_is_refused_by_its_row_and_never_quoted(change, said):
    table = pd.DataFrame({"winner": ["ash"] * 3, "loser": ["oak"] * 3, "points": [1.0, 2.0, 3.0]})
    table.loc[1, list(change)] = list(change.values())
    book = comparisons(["ash", "birch", "oak"], margin="points", range=(0, 9))
    with pytest.raises(CellError, match=f"columns 'winner' and 'loser' of .* {said} at row 2") as no:
        FedMoment(epsilon=1.0, codebook=book).fit_silos([table])
    assert "yew" not in str(no.value)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"winner": {"items": ["a", "b"]}}, "must be the column of the item that lost"),
        ({"winner": {"items": ["a"], "against": "loser"}}, "must be the words that silos agree on"),
        (
            {"winner": {"kind": "comparison", "against": "x"}},
            "must be the words that silos agree on, got none",
        ),
        ({"winner": {"items": ["a", "b"], "against": "winner"}}, "must be another column"),
        (
            {"winner": {"items": ["a", "b"], "against": "loser", "margin": "m"}},
            "margin in .* must be given with range",
        ),
        (
            {"winner": {"items": ["a", "b"], "against": "loser", "range": [0, 1]}},
            "margin in .* must be given with range",
        ),
        (
            {"winner": {"items": ["a", "b"], "against": "loser"}, "age": "number"},
            "must have comparisons and no other column, got 'age'",
        ),
        (
            {"winner": {"items": ["a", "b"], "against": "loser"}, "loser": "drop"},
            "no other column, got 'loser'",
        ),
        ({"winner": {"items": ["a", "outcome"], "against": "loser"}}, "distinct column names"),
        ({"winner": {"items": ["a", "b"], "against": 3}}, "must have values of the right types"),
    ],
)
def test_wrong_rules_of_comparisons_are_refused(rules, said):
    with pytest.raises(InputError, match=said):
        table_rules(rules, "here")


def test_columns_beside_comparisons_are_refused_unless_they_are_dropped():
    table = pd.DataFrame({"winner": ["ash"], "loser": ["oak"], "day": [1.0]})
    with pytest.raises(InputError, match="no other column, got 'day'; drop it"):
        rows_of(table, BOOK)
    with pytest.raises(InputError, match="must have the column 'loser' that a rule reads"):
        rows_of(table[["winner"]], BOOK)
    said = {"winner": {"items": ["ash", "oak"], "against": "loser"}, "day": "drop"}
    assert rows_of(table, CodeBook(rules=table_rules(said, ""))).tolist() == [[1, -1, 1]]


def test_the_book_is_the_same_after_it_was_written_and_has_no_other_numbers(tmp_path: Path):
    path = write_code_book(MARGINS, tmp_path / "items.toml")
    again = read_code_book(path)
    assert again.rules == MARGINS.rules
    assert again.treatment.digest() == MARGINS.treatment.digest()
    assert not again.is_draft
    with pytest.raises(InputError, match="must have the numbers of its rule"):
        CodeBook(
            columns=BOOK.columns,
            offset=BOOK.offset,
            scale=BOOK.scale,
            low=BOOK.low,
            high=BOOK.high,
            bound=1.0,
            rules=BOOK.rules,
        )
