"""One contract: the same rows give the same whole numbers, in any form and order and on any device."""

import functools
import pickle
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
from row_forms import FORMS, NAMES, forms, sample_rows

from fedpower.errors import InputError
from fedpower.rows.opening import open_source, split_by_group
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.device import open_device
from fedpower.sums.exact_moment import ExactMoments, exact_moment
from fedpower.sums.local import local_moment

WIDTH = len(NAMES)
RULES = {
    "none too long": RowTreatment(row_norm=1e6),
    "many clipped": RowTreatment(row_norm=100.0),
    "moved": RowTreatment(
        center=np.linspace(-3, 40, WIDTH), scale=np.geomspace(0.3, 300, WIDTH), row_norm=2.0
    ),
    "normalised": RowTreatment(normalize=True),
}
RULE = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


def sums(data: Any, rule: RowTreatment, **options: Any) -> ExactMoments:
    return local_moment(data, rule, rank=2, steps=3, on_lattice=True, **options).sums()


def extreme_rows() -> Any:
    """Rows of every length that float64 has, ties of rounding, and rows of exactly the bound."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((3000, WIDTH)) * 10.0 ** rng.uniform(-3, 3, (3000, 1))
    rows[100:200] *= 1e300
    rows[200:300] *= 1e-310
    rows[300:400] = rng.integers(-9, 9, (100, WIDTH)) / 2**21
    rows[400:500] /= np.linalg.norm(rows[400:500], axis=1, keepdims=True)
    rows[500:520] = 0.0
    rows[520] = np.finfo(np.float64).max
    rows[521] = 5e-324
    return rows


@RULE
@pytest.mark.parametrize("form", forms(FORMS))
def test_every_form_of_the_rows_gives_the_same_integers(
    form: str, rule: RowTreatment, tmp_path: Path
) -> None:
    rows = sample_rows()
    found = sums(open_source(FORMS[form](rows, tmp_path)), rule)
    assert found == exact_moment(open_source(rows), rule)
    assert found.to_bytes() == exact_moment(open_source(rows), rule).to_bytes()


@RULE
def test_order_block_size_and_threads_have_no_part_in_them(rule: RowTreatment) -> None:
    rows = extreme_rows()
    expected = exact_moment(open_source(rows), rule)
    turned = open_source(rows[np.random.default_rng(0).permutation(len(rows))])
    for source in (open_source(rows), turned):
        for block_rows, workers in ((1, 1), (7, 3), (2999, 2), (None, 1), (10**6, 4)):
            assert exact_moment(source, rule, block_rows=block_rows, workers=workers) == expected
        for workers in (1, 3):
            assert sums(source, rule, workers=workers) == expected


@RULE
def test_merged_parts_of_any_size_are_the_whole(rule: RowTreatment) -> None:
    rows = extreme_rows()
    cuts = np.sort(np.random.default_rng(1).choice(np.arange(1, len(rows)), 9, replace=False))
    parts = [sums(open_source(part), rule) for part in np.split(rows, cuts)]
    whole = exact_moment(open_source(rows), rule)
    assert functools.reduce(ExactMoments.merge, parts) == whole
    travelled = [pickle.loads(pickle.dumps(part)) for part in reversed(parts)]  # noqa: S301 - ours
    assert functools.reduce(ExactMoments.merge, travelled) == whole


@RULE
def test_groups_of_a_file_are_the_rows_of_each_group(rule: RowTreatment, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    rows, where = sample_rows(), np.arange(len(sample_rows())) % 3
    frame = pd.DataFrame(rows, columns=list(NAMES)).assign(where=[f"g{n}" for n in where])
    frame.to_parquet(tmp_path / "all.parquet")
    for place, source in enumerate(split_by_group(tmp_path / "all.parquet", "where").values()):
        assert sums(source, rule) == exact_moment(open_source(rows[where == place]), rule)


@RULE
@pytest.mark.parametrize("chunks", [1000, 77, (2999, 1)])
def test_dask_s_partitions_have_no_part_in_them(rule: RowTreatment, chunks: Any) -> None:
    rows = extreme_rows()
    spread = dask.array.from_array(rows, chunks=(chunks, 2))
    assert sums(open_source(spread), rule) == exact_moment(open_source(rows), rule)


@pytest.mark.slow
@RULE
@pytest.mark.parametrize("made", ["array", "tensor", "float32 tensor"])
def test_a_device_gives_the_processor_s_integers(rule: RowTreatment, made: str) -> None:
    torch = pytest.importorskip("torch")
    rows = extreme_rows()
    if made == "float32 tensor":
        rows = np.clip(rows, -3e38, 3e38).astype(np.float32)
    given = rows if made == "array" else torch.tensor(rows)
    device = open_device("cuda" if torch.cuda.is_available() else "cpu")
    found = sums(open_source(given), rule, device=device)
    assert found == exact_moment(open_source(rows), rule)
    assert found.n_clipped > 0 or rule.normalize


@pytest.mark.devices
def test_a_device_refuses_a_missing_value_by_its_place() -> None:
    torch = pytest.importorskip("torch")
    rows = extreme_rows()
    rows[123, 4] = np.nan
    for form in (rows, torch.tensor(rows)):
        with pytest.raises(InputError, match=r"column 5 of silo 'north' .* at row 124"):
            sums(open_source(form, name="silo 'north'"), RULES["moved"], device=open_device("cpu"))


def test_sums_are_not_made_of_rows_that_were_read_otherwise() -> None:
    silo = local_moment(open_source(sample_rows()), RULES["normalised"], rank=2, steps=3)
    with pytest.raises(InputError, match=r"must be read in whole numbers .* with on_lattice=True"):
        silo.sums()


def test_a_moment_that_does_not_fit_is_refused_before_a_row_is_read() -> None:
    silo = local_moment(
        open_source(sample_rows()), RULES["normalised"], rank=2, steps=3, on_lattice=True,
        memory_limit=10,
    )  # fmt: skip
    with pytest.raises(InputError, match="must fit in"):
        silo.prepare()
