"""The compiled loops put rows on the lattice as NumPy does, to the bit, and refuse what it refuses."""

import threading
from typing import Any

import numpy as np
import pytest
from compiled import both_ways, needs_loops
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpower.errors import InputError
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.lattice_rows import LatticeRows, RowLattice

pytestmark = needs_loops

RULES = ("loose", "tight", "tiny bound", "huge bound", "normalised", "moved", "moved, normalised")


def rule_of(name: str, width: int) -> RowTreatment:
    moved: dict[str, Any] = {
        "center": np.linspace(-3, 5, width),
        "scale": np.geomspace(0.01, 40, width),
        "low": np.where(np.arange(width) % 3, -np.inf, -1.5),
        "high": np.where(np.arange(width) % 4, np.inf, 2.5),
    }
    return {
        "loose": RowTreatment(row_norm=1e3),
        "tight": RowTreatment(row_norm=1.0),
        "tiny bound": RowTreatment(row_norm=1e-150),
        "huge bound": RowTreatment(row_norm=1e150),
        "normalised": RowTreatment(normalize=True),
        "moved": RowTreatment(row_norm=2.0, **moved),
        "moved, normalised": RowTreatment(normalize=True, **moved),
    }[name]


def adversarial(width: int) -> Any:
    """Rows of every length that float64 has, ties of rounding, and rows of exactly the bound."""
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((160, width)) * 10.0 ** rng.uniform(-3, 3, (160, 1))
    rows[10:20] *= 1e300
    rows[20:30] *= 1e-310
    rows[30:50] = (rng.integers(-9, 9, (20, width)) + 0.5) / 2**20
    rows[50:80] /= np.linalg.norm(rows[50:80], axis=1, keepdims=True)
    rows[80:84] = 0.0
    rows[84], rows[85], rows[86] = np.finfo(np.float64).max, 5e-324, -0.0
    rows[87], rows[88] = 1.0, -(2.0**-600)
    rows[90:100] = rng.integers(-1, 2, (10, width)) * 1e-140
    # Just above and below what is too long, and at the ends of cells of rounded norms.
    rows[100:130] /= np.linalg.norm(rows[100:130], axis=1, keepdims=True)
    rows[100:130] *= (1 + np.arange(-15, 15) * 2.0**-26)[:, None]
    return rows


def laid_out(rows: Any) -> dict[str, Any]:
    """The same rows as they may lie in memory."""
    wide = np.zeros((2 * rows.shape[0], 3 * rows.shape[1] + 1))
    wide[::2, 1::3] = rows
    turned = np.ascontiguousarray(rows[::-1])
    fixed = rows.copy()
    fixed.flags.writeable = False
    shifted = np.zeros(rows.nbytes + 4, dtype=np.uint8)[4:].view(np.float64).reshape(rows.shape)
    shifted[:] = rows
    return {
        "by rows": rows,
        "by columns": np.asfortranarray(rows),
        "apart": wide[::2, 1::3],
        "backwards": turned[::-1],
        "read-only": fixed,
        "out of line": shifted,
        "other end first": rows.astype(">f8"),
    }


def treated(rule: RowTreatment, rows: Any, bits: int = 20) -> tuple[Any, int, Any]:
    found, n_clipped, total = LatticeRows(rule, rows.shape[1], lattice=RowLattice(bits)).summed(rows)
    return found.copy(), n_clipped, total


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("width", [1, 2, 7, 64, 100, 4096])
def test_rows_become_the_same_integers_however_they_lie(width: int, name: str) -> None:
    rule, rows = rule_of(name, width), adversarial(width)
    one, (two, two_clipped, two_total) = both_ways(lambda: treated(rule, rows))
    assert np.array_equal(one[0], two)
    for how, lying in laid_out(rows).items() if width <= 100 else ():
        found, n_clipped, total = treated(rule, lying)
        assert np.array_equal(found, two), how
        assert n_clipped == two_clipped, how
        assert np.array_equal(total, two_total), how


@pytest.mark.parametrize("name", RULES)
def test_rows_of_float32_become_the_integers_of_the_same_float64(name: str) -> None:
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((300, 33)) * 10.0 ** rng.uniform(-30, 30, (300, 1))).astype(np.float32)
    rule = rule_of(name, 33)
    expected = treated(rule, rows.astype(np.float64))
    for lying in (rows, np.asfortranarray(rows), rows[::-1][::-1]):
        found = treated(rule, lying)
        assert np.array_equal(found[0], expected[0])
        assert found[1] == expected[1]


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(0, 20), st.integers(1, 9)),
        elements=st.one_of(
            st.floats(allow_nan=False, allow_infinity=False),
            st.sampled_from([0.0, -0.0, 5e-324, 2.2e-308, 1e-160, 1e308, 0.5, 1.0]),
            st.integers(-(2**21), 2**21).map(lambda n: (n + 0.5) / 2**20),
        ),
    ),
    st.sampled_from(RULES),
    st.sampled_from([8, 20, 22]),
)
def test_any_rows_become_the_same_integers(rows: Any, name: str, bits: int) -> None:
    rule = rule_of(name, rows.shape[1])
    one, two = both_ways(lambda: treated(rule, rows, bits))
    assert np.array_equal(one[0], two[0])
    assert one[1] == two[1]
    assert np.array_equal(one[2], two[2])
    assert all(int(row @ row) <= 4**bits for row in one[0].astype(np.int64))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_missing_or_infinite_value_is_refused_as_without_them(value: float) -> None:
    rows = np.ones((20, 5))
    rows[13, 3] = value

    def refused() -> str:
        with pytest.raises(InputError) as error:
            LatticeRows(RowTreatment(row_norm=1.0), 5).of_dense(rows)
        return str(error.value)

    one, two = both_ways(refused)
    assert one == two


def test_threads_that_treat_rows_at_once_do_not_disturb_each_other() -> None:
    rows = [adversarial(64) / (1 + number) for number in range(4)]
    rule = rule_of("tight", 64)
    expected = [treated(rule, each)[0] for each in rows]
    same = [False] * 4

    def work(number: int) -> None:
        mine = LatticeRows(rule, 64)
        same[number] = all(
            np.array_equal(mine.of_dense(rows[number])[0], expected[number]) for _ in range(50)
        )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same)
