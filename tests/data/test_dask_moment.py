"""Rows in Dask collections: NumPy's numbers, and no rows on their way to the client."""

import pickle
from typing import Any

import dask
import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
import pytest

from fedpower import CodeBook, FedPCA
from fedpower.exceptions import InputError
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import ClippedQuestion
from fedpower.sums.local import KernelChoice, LocalMoment, local_moment

NAMES = list("abcde")
RULES = [
    RowTreatment(),
    RowTreatment(center=np.arange(5.0), scale=np.arange(1.0, 6.0)),
    RowTreatment(row_norm=3.0),
    RowTreatment(normalize=True),
]


def sample(n_rows: int = 1003) -> Any:
    rng = np.random.default_rng(4)
    return rng.standard_normal((n_rows, 5)) * [1, 2, 0.5, 1, 3] + [0, 1, 0, 5, 0]


def array(rows: Any) -> Any:
    return dask.array.from_array(rows, chunks=(100, 2))


def frame(rows: Any) -> Any:
    return dask.dataframe.from_pandas(pd.DataFrame(rows, columns=NAMES), npartitions=7)


def kernels(source: Any, rule: RowTreatment) -> list[Any]:
    return [LocalMoment(source, rule, KernelChoice(kind=kind)) for kind in ("covariance", "product")]


def assert_alike(found: Any, plain: Any, center: Any = None) -> None:
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((5, 2)))[0]
    expected = plain.product(basis, center)
    np.testing.assert_allclose(found.product(basis, center), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.summary.mean, plain.summary.mean, rtol=1e-12, atol=1e-12)
    assert found.summary.trace(center) == pytest.approx(plain.summary.trace(center), rel=1e-12)
    assert (found.n_rows, found.n_clipped) == (plain.n_rows, plain.n_clipped)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("collection", [array, frame])
def test_dask_answers_as_numpy_does(rule, collection):
    rows = sample()
    found, plain = kernels(open_source(collection(rows)), rule), kernels(open_source(rows), rule)
    for one, other in zip(found, plain, strict=True):
        for center in (None, np.full(5, 0.2)):
            assert_alike(one, other, center)


@pytest.mark.slow
def test_workers_in_other_processes_answer_alike():
    rows = sample()
    with dask.config.set(scheduler="processes", num_workers=2):
        found = local_moment(open_source(array(rows)), RULES[2], rank=1, steps=10_000)
        assert_alike(found, local_moment(open_source(rows), RULES[2], rank=1, steps=10_000))


@pytest.mark.parametrize("center", [None, np.array([0.1, 0.0, -0.1, 0.0, 0.2])])
@pytest.mark.parametrize("collection", [array, frame])
def test_clipped_sums_over_dask_are_the_whole_numbers_of_arrays(collection, center):
    """Bit for bit, and nothing but sums comes back."""
    rows = sample(3000)
    came_back: list[int] = []

    def traced(graph: Any, keys: Any, **options: Any) -> Any:
        found = dask.get(graph, keys, **options)
        came_back.append(len(pickle.dumps(found)))
        return found

    asked = ClippedQuestion.of(np.eye(5, 2), 0.25, center)
    with dask.config.set(scheduler=traced):
        found, plain = (
            local_moment(open_source(given), RULES[2], rank=2, steps=2, rereads=True)
            for given in (collection(rows), rows)
        )
        for question in (asked, None):
            sums = [silo.clipped(question, kappa=1000) for silo in (found, plain)]
            assert np.array_equal(sums[0].total, sums[1].total)
            assert sums[0].squares == sums[1].squares
    assert max(came_back) < 2_000 < rows.nbytes / 50


def test_a_fit_over_dask_silos_is_the_fit_over_arrays():
    rows = sample(3000)
    plain = FedPCA(2, epsilon=float("inf")).fit_silos([rows[:1200], rows[1200:]])
    given = [array(rows[:1200]), array(rows[1200:])]
    found = FedPCA(2, epsilon=float("inf")).fit_silos(given)
    np.testing.assert_allclose(found.components_, plain.components_, rtol=0, atol=1e-11)
    private = FedPCA(2, epsilon=1.0, codebook=CodeBook(row_norm=10.0)).fit_silos(given)
    assert private.privacy_.is_private


def test_rows_at_dask_s_workers_are_not_prepared_and_the_sentence_names_the_ways_out():
    rows = sample(3000)
    refused = r"must be rows in memory, a file or a query to be prepared, got rows at Dask's"
    with pytest.raises(InputError, match=f"{refused} workers; give a code book, or row_norm"):
        FedPCA(2, epsilon=1.0).fit_silos([array(rows)])
    book = FedPCA(2, epsilon=1.0).prepare_silos([rows])
    found = FedPCA(2, epsilon=1.0, codebook=book).fit_silos([array(rows)]).codebook_
    assert found is not None
    assert found.treatment == book.treatment


def test_partitions_without_rows_do_not_matter():
    rows = sample(50)
    table = frame(rows)
    thin = table[table["a"] > 1.0]
    kept = rows[rows[:, 0] > 1.0]
    assert any(len(part) == 0 for part in dask.compute(*thin.to_delayed()))
    for found, plain in zip(
        kernels(open_source(thin), RULES[0]), kernels(open_source(kept), RULES[0]), strict=True
    ):
        assert_alike(found, plain)
    nobody = local_moment(open_source(table[table["a"] > 99], name="silo 'north'"), rank=1, steps=1)
    with pytest.raises(InputError, match="silo 'north' must have at least one row, got none"):
        nobody.prepare()


def test_rows_of_unknown_number_are_counted_and_bad_values_named_by_partition():
    source = open_source(frame(sample(300)).to_dask_array())
    assert source.n_rows is None
    assert local_moment(source, rank=1, steps=100).n_rows == 300
    rows = sample(250)
    rows[123, 1] = np.nan
    silo = local_moment(open_source(array(rows), name="silo 'north'"), rank=1, steps=100)
    with pytest.raises(InputError, match=r"column 2 of partition 2 of silo 'north' .* at row 24"):
        silo.prepare()


def test_what_is_no_table_of_rows_is_refused():
    with pytest.raises(InputError, match="must be a 2-d array of rows by columns, got 1-d"):
        open_source(dask.array.ones(5))
    with pytest.raises(InputError, match="must be a Dask array or data frame, got Delayed"):
        open_source(dask.delayed(sample)(5))
    with pytest.raises(InputError, match="columns must name each of the 5 columns"):
        open_source(array(sample(20)), columns=["a"])
    with pytest.raises(InputError, match="must have column names to select by name"):
        open_source(array(sample(20))).select(("a",))
    parts = [dask.delayed(sample)(5), dask.delayed(lambda: sample(5)[:, :4])()]
    lying = dask.array.concatenate(
        [dask.array.from_delayed(part, shape=(5, 5), dtype=float) for part in parts]
    )
    source = open_source(lying, columns=list("abcde"))
    with pytest.raises(InputError, match=r"partition 2 of .* must have 5 columns .*, got 4"):
        list(source.blocks(10))
