"""Numbers of a text by the compiled loop: the nearest doubles, or Arrow is left to say what they are."""

import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from compiled import both_ways, needs_loops
from hypothesis import example, given
from hypothesis import strategies as st

from fedpower.rows.files import _Cells
from fedpower.rows.opening import open_source
from fedpower.rows.tables import NotPlainError

pytestmark = needs_loops

COMMA = ord(",")


def one_column() -> _Cells:
    return _Cells(COMMA, 1, np.arange(1))


def read(texts: list[str]) -> Any:
    return one_column()._in_one_go("".join(f"{text}\n" for text in texts).encode())


def require_nearest(texts: list[str]) -> None:
    found = read(texts)
    assert found is not None
    assert found.tobytes() == np.array([float(text) for text in texts]).tobytes()


def halfway(value: float) -> str:
    """The number in the middle of a double and the next one, written out."""
    middle = (Fraction(value) + Fraction(math.nextafter(value, math.inf))) / 2
    digits = 0
    while middle.denominator != 1:
        middle, digits = middle * 10, digits + 1
    text = str(middle.numerator).rjust(digits + 1, "0")
    return f"{text[:-digits]}.{text[-digits:]}" if digits else text


def test_numbers_as_they_are_usually_written_are_the_nearest_doubles() -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(20_000) * 10.0 ** rng.uniform(-30, 30, 20_000)).tolist()
    require_nearest([repr(value) for value in values])
    for digits in (1, 3, 9, 15, 16, 17, 18):
        require_nearest([f"{value:.{digits}e}" for value in values])
        require_nearest([f"{value:.{digits}f}" for value in values if abs(value) < 8])


def test_numbers_at_the_middle_of_two_doubles_go_to_the_even_one() -> None:
    rng = np.random.default_rng(1)
    whole = (rng.integers(2**53, 2**62, 2000) | 1).tolist()
    texts = [str(value) for value in whole]
    texts += [halfway(float(value)) for value in rng.integers(2**52, 2**55, 2000)]
    texts += [halfway(float(value) / 4) for value in rng.integers(2**52, 2**53, 2000)]
    short = [text for text in texts if len(text.replace(".", "").lstrip("0")) <= 19]
    assert len(short) > 4000
    require_nearest(short)
    for text in short[::50]:
        digits = text.replace(".", "")
        require_nearest([f"{digits}e{power}" for power in range(-22, 23)])


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,22})?(e[+-]?[0-9]{1,3})?", fullmatch=True))
@example("-0")
@example("0.0e60")
@example("9999999999999999999")
@example("0.00000000000000000009999999999999999999")
@example("18446744073709551615e10")
@example("9007199254740993e0")
def test_what_is_read_at_all_is_the_nearest_double(text: str) -> None:
    found = read([text])
    if found is not None:
        assert struct.pack("d", found[0, 0]) == struct.pack("d", float(text))


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", ".5", "1.", "+1", "00", "1e", "1e-", "1E5", "1_0", "0x1", "nan", "inf", "1 ", " 1"),
        *("1.2.3", "1\r\r", "1,5", "12345678901234567890", "0.12345678901234567890"),
        *("1e61", "5e-324", "1e308"),
    ],
)
def test_what_is_not_plain_is_left_to_arrow(text: str) -> None:
    assert read([text]) is None
    assert read(["1.5", text, "2.5"]) is None


def test_a_text_without_the_end_of_its_last_line_is_left_alone() -> None:
    assert one_column()._in_one_go(b"1.5\n2.5") is None
    assert one_column()._in_one_go(b"") is None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("wanted", [[0, 1, 2], [1], [0, 2], [2]])
def test_wanted_columns_are_found_as_by_numpy(wanted: list[int], end: str) -> None:
    lines = "".join(f"{i},-{i}.25,{i / 7!r}{end}" for i in range(50)).encode()
    cells = _Cells(COMMA, 3, np.array(wanted))
    one, two = both_ways(lambda: cells.numbers(lines))
    assert np.array_equal(one, two)
    assert cells._in_one_go(lines) is not None


@pytest.mark.parametrize("lines", [b"1,2\n3\n", b"1,2\n3,4,5\n", b"1,2\n\n3,4\n"])
def test_a_line_of_another_length_is_refused_by_both(lines: bytes) -> None:
    cells = _Cells(COMMA, 2, np.arange(2))
    assert cells._in_one_go(lines) is None
    with pytest.raises(NotPlainError):
        cells._bounds(lines)


def test_a_file_gives_the_same_rows_with_and_without_it(tmp_path: Any) -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((500, 4)) * 10.0 ** rng.uniform(-80, 80, (500, 1))
    path = tmp_path / "rows.csv"
    text = "\n".join(",".join(map(repr, row)) for row in rows.tolist())
    path.write_text(f"a,b,c,d\n{text}")
    one, two = both_ways(lambda: np.vstack(list(open_source(path).blocks(100))))
    assert np.array_equal(one, rows)
    assert np.array_equal(two, rows)
