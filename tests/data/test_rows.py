"""Row treatment: the bound holds in floating point, sparse stays sparse, identity is canonical."""

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from fedpower import FedPCA
from fedpower.exceptions import FedpowerError, InputError, ProtocolError, is_showable
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.study import Study
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.values import public_vector

ANY = st.floats(allow_nan=False, allow_infinity=False)
BLOCKS = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=ANY)
MILD = arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.floats(-10, 10, allow_subnormal=False),
)


def dense(block: Any) -> Any:
    return block.toarray() if sparse.issparse(block) else block


@given(BLOCKS, st.floats(1e-3, 1e3), st.booleans())
@settings(max_examples=20)
def test_no_treated_row_is_longer_than_one(block, bound, normalize):
    rule = RowTreatment(row_norm=None if normalize else bound, normalize=normalize)
    if not normalize and np.abs(block).max() > bound * 1e305:
        return
    for form in (block, sparse.csr_array(block)):
        treated = dense(rule.apply(form)[0])
        assert (np.linalg.norm(treated, axis=1) <= 1).all()
        assert all(sum(Fraction(value) ** 2 for value in row) <= 1 for row in treated.tolist())


@given(MILD)
@settings(max_examples=20)
def test_only_rows_beyond_the_bound_are_clipped(block):
    treated, clipped = RowTreatment(row_norm=4.0).apply(block)
    norms = np.linalg.norm(block, axis=1) / 4
    assert clipped == np.count_nonzero(norms > 1 + 1e-14)
    expected = block / 4 / np.maximum(norms, 1)[:, None]
    np.testing.assert_allclose(treated, expected, rtol=1e-13, atol=1e-300)


def test_extreme_rows_keep_their_direction():
    block = np.array([[3e300, 4e300], [3e-300, 4e-300], [5e-324, 0]])
    np.testing.assert_allclose(RowTreatment(normalize=True).apply(block)[0][:2], [[0.6, 0.8]] * 2)
    treated, clipped = RowTreatment(row_norm=1.0).apply(block)
    assert clipped == 1
    np.testing.assert_allclose(np.asarray(treated)[0], [0.6, 0.8])
    with pytest.raises(InputError, match="must stay finite"):
        RowTreatment(scale=np.array([1e-100, 1.0])).apply(block)


@given(MILD, st.booleans(), st.booleans())
@settings(max_examples=20)
def test_sparse_and_dense_blocks_are_treated_alike(block, center, bounded):
    width = block.shape[1]
    rule = RowTreatment(
        center=np.arange(width) if center else None,
        scale=np.arange(1, width + 1),
        row_norm=2.0 if bounded else None,
    )
    expected, n_clipped = rule.apply(block)
    treated, also_clipped = rule.apply(sparse.csr_array(block))
    assert sparse.issparse(treated) == (not center)
    assert n_clipped == also_clipped
    np.testing.assert_allclose(dense(treated), expected, rtol=1e-13, atol=1e-13)


def test_equal_treatments_have_equal_digests_and_others_differ():
    rules = [
        RowTreatment(),
        RowTreatment(center=[0.0, 1.0]),
        RowTreatment(scale=[0.5, 1.0]),
        RowTreatment(row_norm=1.0),
        RowTreatment(normalize=True),
    ]
    assert len({rule.digest() for rule in rules}) == len(rules)
    assert RowTreatment(center=np.array([-0.0, 1])) == RowTreatment(center=[0, 1])
    assert hash(RowTreatment(row_norm=3)) == hash(RowTreatment(row_norm=3.0))
    assert RowTreatment().digest() == RowTreatment(normalize=False).digest()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"center": ["a"]}, "center must be a vector of finite numbers"),
        ({"row_norm": 0.0}, "row_norm must be a positive finite number, got 0.0"),
        ({"row_norm": "3"}, "row_norm must be a positive finite number, got '3'"),
        ({"row_norm": True}, "row_norm must be a positive finite number, got True"),
        ({"row_norm": 1e308}, "row_norm must be between 1e-150 and 1e.150, got 1e.308"),
        ({"row_norm": 1e-308}, "row_norm must be between 1e-150 and 1e.150, got 1e-308"),
        ({"row_norm": np.inf}, "row_norm must be a positive"),
        ({"row_norm": 1.0, "normalize": True}, "must not be given together"),
        ({"center": [1.0], "scale": [1.0, 2.0]}, "got 1 and 2"),
    ],
)
def test_bad_parameters_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        RowTreatment(**options)


COLUMNS = ("a", "b", "c")


@pytest.mark.parametrize(
    ("values", "columns", "sentence"),
    [
        (pd.Series({"a": 1.0, "b": 2.0}), COLUMNS, "got 'c' on one side only"),
        (pd.Series([1.0, 2, 3, 4], index=list("abca")), COLUMNS, "got a name twice"),
        (pd.Series({"a": 1.0}), None, "without labels where columns have no names"),
        ([1.0, np.nan, 2.0], COLUMNS, "must be finite in every column, got nan for column 'b'"),
        ([1.0, np.inf], None, "must be finite in every column, got inf for column 2"),
        ([1.0, 0.0, 2.0], COLUMNS, "must be positive in every column, got 0 for column 'b'"),
        ([1.0, 1e200], None, "must be between 1e-150 and 1e+150 in every column, got 1e+200"),
        ([[1.0]], None, "must be a vector of finite numbers"),
    ],
)
def test_what_fits_no_column_is_refused(values, columns, sentence):
    with pytest.raises(InputError) as caught:
        public_vector("scale", values, columns=columns, positive=True)
    assert sentence in str(caught.value)


BAD = ["\x1b[2Jage", "a\nb", "\x7f", "safe\u202egnp", "\ufeffage", "zero\u200bwidth", "a\x00b", "\x85"]
ROWS = np.random.default_rng(0).standard_normal((20, 2))


def test_what_people_call_columns_can_be_shown():
    names = ["age", "Körpergröße (cm)", "体重", "naïve B", "a\N{NO-BREAK SPACE}b", "µg/l", "émission – CO₂"]
    assert all(map(is_showable, names))
    assert not any(map(is_showable, BAD))


@pytest.mark.parametrize("bad", BAD)
def test_columns_of_tables_and_of_python_are_refused(bad, tmp_path):
    table = pd.DataFrame(ROWS, columns=["x", bad])
    pyarrow.parquet.write_table(pa.table({"x": ROWS[:, 0], bad: ROWS[:, 1]}), tmp_path / "t.parquet")
    uses = [
        lambda: open_source(table).n_features,
        lambda: open_source(tmp_path / "t.parquet").n_features,
        lambda: open_source(ROWS, columns=["x", bad]),
        lambda: FedPCA(1, epsilon=float("inf")).fit(table),
        lambda: FedPCA(1, epsilon=float("inf")).fit_silos([table]),
        lambda: Study(columns=("x", bad), n_features=2, iteration_rank=1),
    ]
    for use in uses:
        with pytest.raises(InputError, match="control characters") as reported:
            use()
        assert str(reported.value).isprintable()


@pytest.mark.parametrize("bad", BAD)
def test_silos_are_refused(bad):
    with pytest.raises(FedpowerError, match="control characters"):
        FedPCA(1, epsilon=float("inf")).fit_silos({bad: ROWS})
    with pytest.raises(FedpowerError, match="control characters"):
        FedPCA(1, epsilon=float("inf")).fit(ROWS, groups=[bad] * 10 + ["b"] * 10)
    terms = Study(columns=None, n_features=2, iteration_rank=1)
    with pytest.raises(ProtocolError, match="control characters"):
        Coordinator(iter(()), [bad], study=terms, run="r")  # type: ignore[arg-type]
