"""Every pass over rows that feeds a release is over the rows that were enrolled, or refused."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from row_forms import FORMS, N_FEATURES, frame, write_zeros
from scipy import sparse

from fedpower.engines.inprocess import read_silos
from fedpower.exceptions import InputError
from fedpower.protocol.study import Study
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source, split_by_group
from fedpower.rows.source import Stopped, Watch
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import KernelChoice, LocalMoment, local_moment
from fedpower.sums.passes import Seen, digest_key, seen_in
from problems import Array

D = N_FEATURES
OTHERS = "must not change while it is in use"


def rows_of(n_rows, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, D))


BASIS = np.eye(D)[:, :2]


def moment_of(source, kind="product", **options):
    choice = KernelChoice(kind=kind, reason="as the test says")
    return LocalMoment(source, RowTreatment(row_norm=3.0), choice=choice, **options)


@pytest.mark.parametrize(
    "form", ["csv", "csv.gz", "parquet", "feather", "npy", "npz", "csr npz", "svmlight", "h5ad"]
)
def test_a_file_overwritten_between_two_passes_is_refused(tmp_path, form):
    """Another number of rows, as many others, or one cell off by a trillionth."""
    nearly = rows_of(50)
    nearly[17, 2] += 1e-12
    for other in (rows_of(2, seed=1), rows_of(50, seed=1), nearly):
        path = FORMS[form](rows_of(50), tmp_path)
        moment = moment_of(open_source(path))
        moment.prepare()
        first = moment.product(BASIS)
        assert np.array_equal(moment.product(BASIS), first)
        path.unlink()
        FORMS[form](other, tmp_path)
        with pytest.raises(InputError):
            moment.product(BASIS)


@pytest.mark.parametrize("kind", ["covariance", "product"])
@pytest.mark.parametrize("form", ["parquet", "feather", "h5ad", "svmlight"])
def test_a_file_replaced_between_opening_and_reading_is_refused(tmp_path, form, kind):
    """Its number of rows was read from the metadata at opening: noise would be made for that."""
    source = open_source(FORMS[form](rows_of(1000), tmp_path))
    FORMS[form](rows_of(50), tmp_path)
    assert source.n_rows == 1000
    with pytest.raises(InputError, match=OTHERS):
        moment_of(source, kind).prepare()


@pytest.mark.parametrize("kind", ["covariance", "product"])
def test_groups_of_a_file_replaced_after_they_were_counted_are_refused(tmp_path, kind):
    path = tmp_path / "all.parquet"
    frame(rows_of(1000)).assign(where=["a", "b"] * 500).to_parquet(path)
    sources = split_by_group(path, "where")
    frame(rows_of(1000)).assign(where=["a"] * 50 + ["b"] * 950).to_parquet(path)
    for source in sources.values():
        with pytest.raises(InputError, match=OTHERS):
            moment_of(source, kind).prepare()


def test_an_array_in_memory_that_lost_rows_is_refused():
    rows = rows_of(100).copy()
    moment = moment_of(open_source(rows))
    moment.prepare()
    rows.resize((2, D), refcheck=False)
    with pytest.raises(InputError, match=OTHERS):
        moment.product(BASIS)


def test_a_mapped_array_that_was_written_to_is_refused(tmp_path):
    np.save(tmp_path / "rows.npy", rows_of(100))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r+")
    moment = moment_of(open_source(mapped[10:]))
    moment.prepare()
    mapped[50, 1] = 3.0
    with pytest.raises(InputError, match=OTHERS):
        moment.product(BASIS)


def test_dask_rows_that_change_between_passes_are_refused(tmp_path):
    np.save(tmp_path / "rows.npy", rows_of(100))
    lazy = da.map_blocks(
        lambda block: np.load(tmp_path / "rows.npy")[: block.shape[0]],
        da.zeros((100, D), chunks=(100, D)),
        dtype=float,
    )
    moment = moment_of(open_source(lazy), "product", fingerprinted=True)
    moment.prepare()
    assert fingerprint(moment.source) == fingerprint(open_source(rows_of(100)))
    np.save(tmp_path / "rows.npy", rows_of(100, seed=1))
    with pytest.raises(InputError, match=OTHERS):
        moment.product(BASIS)


@pytest.mark.parametrize("form", ["csv", "parquet", "npy", "csr npz"])
@pytest.mark.parametrize("kind", ["covariance", "product"])
def test_the_fingerprint_is_of_the_very_file_that_was_summed(tmp_path, form, kind):
    """It is made when the first pass is done, so a file replaced afterwards is not what it names."""
    rows = rows_of(200)
    path = FORMS[form](rows, tmp_path)
    alone = fingerprint(open_source(path))
    moment = moment_of(open_source(path), kind, fingerprinted=True)
    with_others = moment_of(open_source(path), kind, fingerprinted=True)
    moment.prepare()
    path.unlink()
    assert fingerprint(moment.source) == alone
    FORMS[form](rows_of(200, seed=1), tmp_path)
    with pytest.raises(InputError, match=OTHERS):
        fingerprint(with_others.source)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5).map(float)


@given(
    rows=arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 5)), elements=NUMBERS),
    cuts=st.sets(st.integers(1, 11)),
    seed=st.integers(0, 9),
)
@settings(max_examples=20)
def test_a_digest_depends_on_the_rows_alone(rows, cuts, seed):
    """Not on blocks, memory, storage or order."""
    rows = rows + 0.0  # a sparse matrix has no −0
    key = digest_key(rows.shape[1])
    whole = seen_in(rows, key)
    parts = np.split(rows, sorted(cut for cut in cuts if cut < len(rows)))
    assert sum((seen_in(part, key) for part in parts), Seen(n_rows=0)) == whole
    assert seen_in(np.asfortranarray(rows), key) == whole
    assert seen_in(sparse.csr_array(rows), key) == whole
    assert seen_in(np.random.default_rng(seed).permutation(rows), key) == whole


@given(
    rows=arrays(np.float64, (6, 3), elements=NUMBERS),
    place=st.tuples(st.integers(0, 5), st.integers(0, 2)),
    other=st.tuples(st.integers(0, 5), st.integers(0, 2)),
    value=NUMBERS,
)
@settings(max_examples=20)
def test_a_digest_tells_rows_with_another_cell_or_two_cells_swapped_apart(rows, place, other, value):
    """Up to a chance of 2⁻⁴⁰ or so in each example."""
    key = digest_key(3)
    changed, swapped = rows.copy(), rows.copy()
    changed[place] = value
    swapped[place], swapped[other] = rows[other], rows[place]
    for altered in (changed, swapped):
        same = sorted(map(bytes, altered)) == sorted(map(bytes, rows))
        assert (seen_in(altered, key) == seen_in(rows, key)) == same


def watched(rows: Array, watch: Watch, steps: int) -> LocalMoment:
    return local_moment(open_source(rows), rank=1, steps=steps, watch=watch)


@pytest.mark.parametrize(("kind", "steps"), [("product", 1), ("covariance", 1000)])
def test_every_row_of_every_pass_is_told(kind, steps):
    seen: list[int] = []
    rows = np.random.default_rng(0).standard_normal((300, 400))
    moment = watched(rows, Watch(seen.append), steps)
    assert moment.choice.kind == kind
    moment.prepare()
    assert sum(seen) == 300
    moment.product(np.eye(400)[:, :1])
    passes = 2 if kind == "product" else 1
    assert sum(seen) == passes * 300
    fingerprint(moment.source, moment.watch)
    assert sum(seen) == (passes + 1) * 300


def test_a_stopped_pass_ends_and_no_handler_of_errors_takes_it_for_one():
    moment = watched(np.ones((10, 3)), Watch(), 5)
    moment.watch.stop()
    with pytest.raises(Stopped):
        moment.prepare()
    assert not issubclass(Stopped, Exception)
    other = watched(np.ones((10, 3)), Watch(), 5)  # a watch of its own
    other.prepare()


def test_ctrl_c_in_one_silo_s_reading_stops_the_others(tmp_path):
    """The first block raises as a signal would; the other silo's pass is far from its end then."""
    long = write_zeros(tmp_path / "long.npy", (50_000_000, 20))
    seen = {"short": 0, "long": 0}

    def on_rows(silo: str, count: int, total: int | None) -> None:
        seen[silo] += count
        if silo == "short":
            raise KeyboardInterrupt

    sources = {"short": open_source(np.ones((5, 20))), "long": open_source(long)}
    study = Study(columns=None, n_features=20, iteration_rank=1)
    with pytest.raises(KeyboardInterrupt):
        read_silos(study, sources, RowTreatment(), steps=50, n_jobs=2, on_rows=on_rows)
    assert seen["long"] < 25_000_000
