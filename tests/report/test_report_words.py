"""Numbers in a report read as people write them, and pictures' scales hold what they show."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from fedpower.report.charts import element, label_step, linear, logarithmic, printable
from fedpower.report.text import column, count, date_and_time, human_bytes, listed, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0915206, "0.09152"),
        (60000, "60,000"),
        (1e-6, "10⁻⁶"),
        (-1e-6, "−10⁻⁶"),
        (2.5e-12, "2.5×10⁻¹²"),
        (1234567.0, "1.235×10⁶"),
        (-0.25, "−0.25"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_a_number_is_short_and_without_computers_signs(value: float | None, text: str):
    assert number(value) == text


def test_numbers_of_a_column_line_up():
    assert column([12.3456, -0.5, None, 0.0]) == ["12.35", "−0.50", "–", "0.00"]
    assert column([0.09152, 0.00003]) == ["0.09152", "0.00003"]
    assert column([1e-15, 2e-15]) == ["10⁻¹⁵", "2×10⁻¹⁵"]
    assert column([]) == []


def test_shares_counts_lists_sizes_and_times_are_words():
    assert [percent(x) for x in (0.358, 0.0001, 0.0, math.nan)] == ["35.8%", "<0.1%", "0.0%", "–"]
    assert [count(n, "row") for n in (1, 2, 60000)] == ["1 row", "2 rows", "60,000 rows"]
    assert [listed(x) for x in ([], ["a"], ["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert [human_bytes(x) for x in (7, 13936, 2_500_000)] == ["7 B", "13.9 kB", "2.5 MB"]
    assert date_and_time("2026-11-16T01:04:20.759+01:00") == "2026-11-16, 00:04 UTC"


FINITE = st.floats(min_value=-1e12, max_value=1e12, allow_subnormal=False)


@given(st.lists(FINITE, min_size=1, max_size=20))
def test_a_linear_scale_holds_every_value_and_zero_and_has_few_ticks(values: list[float]):
    scale = linear(values)
    for value in (*values, 0.0, *(tick for tick, _ in scale.ticks)):
        assert -1e-9 <= scale.place(value) <= 1 + 1e-9
    assert 2 <= len(scale.ticks) <= 8
    places = [scale.place(tick) for tick, _ in scale.ticks]
    assert places == sorted(places, reverse=True)


@given(st.lists(st.floats(min_value=0, max_value=10), min_size=1, max_size=20))
def test_a_logarithmic_scale_holds_every_value_and_draws_zero_at_its_foot(values: list[float]):
    scale = logarithmic(values)
    for value in values:
        assert -1e-9 <= scale.place(value) <= 1 + 1e-9
    assert scale.place(0.0) == scale.place(1e-300)
    assert 2 <= len(scale.ticks) <= 7


@given(st.integers(1, 100_000))
def test_no_more_labels_are_written_than_there_is_room_for(how_many: int):
    assert how_many / label_step(how_many) <= 10


def test_content_is_escaped_once_and_markup_never():
    inner = element("b", '<&"', title="\"'>")
    assert inner == '<b title="&#34;&#39;&gt;">&lt;&amp;&#34;</b>'
    assert element("p", inner, ["x", None, 1], class_="y", id=None) == f'<p class="y">{inner}x1</p>'
    assert printable("\x00a\ud800\x85\n") == "\ufffda\ufffd\ufffd\n"
    assert isinstance(inner, Markup)
