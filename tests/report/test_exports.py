"""Every exported format gives back what the result holds, read by the tool it is meant for."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import onnx.reference
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_forms import annotated
from scipy import sparse
from test_results import CENTER, COLUMNS, FRAME, ROWS, SCALE

from benchmarks.fits import fed_pca
from fedpower import CodeBook, FedPCA, load
from fedpower.exceptions import InputError
from fedpower.files import as_text
from fedpower.report import Result
from fedpower.report.export import write_cells, write_loadings, write_onnx, write_plink
from fedpower.rows.opening import open_source

FITS = {
    "uncentred": {"center": False},
    "scaled": {"center": CENTER, "scale": SCALE},
    "normalised": {"normalize": True, "center": CENTER, "scale": SCALE},
    "private": {"epsilon": 2.0, "row_norm": 9.0},
}


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    @cache
    def fitted(kind: str) -> Result:
        given = {"epsilon": float("inf"), "standardize": False, "random_state": 0, **FITS[kind]}
        model = fed_pca(3, **given).fit_silos({"north": FRAME[:50], "south": FRAME[50:]})
        return load(model.save(tmp_path_factory.mktemp("fit") / "out"))

    return fitted


@pytest.fixture(params=FITS)
def result(request: pytest.FixtureRequest, fits: Any) -> Result:
    return fits(request.param)


def scored_by_the_table(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return the scores of ROWS by the formula that the table's documentation gives."""
    axes = np.column_stack([columns[f"pc{place}"] for place in (1, 2, 3)])
    if "center" not in columns:
        return (ROWS - columns["mean"]) / columns["scale"] @ axes
    moved = (ROWS - columns["center"]) / columns["scale"]
    return (moved / np.linalg.norm(moved, axis=1, keepdims=True) - columns["mean"]) @ axes


def test_tables_are_all_that_scoring_takes_and_hold_where_they_are_from(result, tmp_path):
    write_loadings(result, tmp_path / "t.csv", "csv")
    write_loadings(result, tmp_path / "t.parquet", "parquet")
    for table in (pl.read_csv(tmp_path / "t.csv"), pl.read_parquet(tmp_path / "t.parquet")):
        assert table["feature"].to_list() == list(COLUMNS)
        np.testing.assert_array_equal(table["pc2"], result.components[1])
        columns = {name: table[name].to_numpy() for name in table.columns[1:]}
        np.testing.assert_allclose(scored_by_the_table(columns), result.transform(FRAME), atol=1e-12)
    reported = json.loads(pl.read_parquet_metadata(tmp_path / "t.parquet")["fedpower"])
    assert reported["explained_variance"] == result.explained_variance.tolist()
    assert reported["private"] == result.run["privacy"]["private"]
    assert reported["study"] == result.run["study"]["hash"]


def test_an_onnx_graph_gives_the_scores(result, tmp_path):
    write_onnx(result, tmp_path / "m.onnx")
    run = onnx.reference.ReferenceEvaluator(str(tmp_path / "m.onnx"))
    rows = np.vstack([ROWS, np.zeros(6)])
    (found,) = run.run(None, {"rows": rows})
    np.testing.assert_allclose(found, result.transform(rows), rtol=1e-12, atol=1e-12)
    reported = {each.key: each.value for each in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert json.loads(reported["feature_names"]) == list(COLUMNS)
    assert json.loads(reported["fedpower"])["private"] == result.run["privacy"]["private"]


def scores(result: Result, ids: list[object]) -> Iterator[pl.DataFrame]:
    labelled = pa.table({**{name: FRAME[name] for name in COLUMNS}, "id": ids})
    return result.scored(open_source(labelled), "id")


def eigenvectors(path: Path) -> tuple[list[str], np.ndarray]:
    heading, *lines = path.read_text().splitlines()
    assert heading == "#IID\tPC1\tPC2\tPC3"
    cells = [line.split("\t") for line in lines]
    return [each[0] for each in cells], np.array([each[1:] for each in cells], float)


def test_silos_parts_are_the_plink_files_of_pooled_genotypes(tmp_path):
    """Of genotypes standardised by public allele frequencies, against the relationship matrix."""
    rng = np.random.default_rng(5)
    frequency = rng.uniform(0.1, 0.9, (3, 40))
    genotypes = rng.binomial(2, frequency[rng.integers(0, 3, 90)]).astype(float)
    public = frequency.mean(axis=0)
    offset, scale = 2 * public, np.sqrt(2 * public * (1 - public))
    given = {"epsilon": float("inf"), "center": False, "standardize": False}
    model = FedPCA(3, **given, codebook=CodeBook(offset=offset, scale=scale))
    silos = {"north": genotypes[:50], "south": genotypes[50:]}
    result, found = model.fit_silos(silos).result_, []
    for part in silos.values():
        targets = {kind: tmp_path / kind for kind in ("eigenvec", "eigenval")}
        count = write_plink(result, result.scored(open_source(part)), **targets)
        names, vectors = eigenvectors(tmp_path / "eigenvec")
        assert names == [str(number) for number in range(1, count + 1)]
        found.append(vectors)
    standard = (genotypes - offset) / scale
    values, vectors = np.linalg.eigh(standard @ standard.T / 40)
    np.testing.assert_allclose(np.abs(np.vstack(found)), np.abs(vectors[:, ::-1][:, :3]), atol=1e-8)
    written = [float(line) for line in (tmp_path / "eigenval").read_text().splitlines()]
    np.testing.assert_allclose(written, values[::-1][:3], rtol=1e-9)


def test_ids_are_the_iids_and_those_that_plink_cannot_read_are_refused_unquoted(fits, tmp_path):
    result, targets = fits("uncentred"), {"eigenvec": tmp_path / "a", "eigenval": tmp_path / "b"}
    ids: list[Any] = [f"NA{number:05d}" for number in range(120)]
    assert write_plink(result, scores(result, ids), **targets) == 120
    names, vectors = eigenvectors(tmp_path / "a")
    assert names == ids
    write_plink(result, result.scored(open_source(FRAME)), **targets)
    np.testing.assert_allclose(vectors, eigenvectors(tmp_path / "a")[1], atol=1e-12)
    for odd in ("two words", "", "0", None, ids[0], "tab\there"):
        with pytest.raises(InputError, match="at row 12") as refusal:
            write_plink(result, scores(result, [*ids[:11], odd, *ids[12:]]), **targets)
        assert not odd or odd == "0" or odd not in str(refusal.value)


def cells(kind: type = np.asarray) -> anndata.AnnData:
    """Return cells with two genes that were no part of the fit, and the fit's in another order."""
    wide = np.column_stack([np.ones(120), ROWS[:, ::-1], np.ones(120)])
    return annotated(kind(wide), ("first", *COLUMNS[::-1], "last"))


def check_annotations(found: anndata.AnnData, result: Result) -> None:
    np.testing.assert_allclose(found.obsm["X_pca"], result.transform(FRAME), atol=1e-12)
    loadings = pd.DataFrame(found.varm["PCs"], index=list(found.var_names))
    np.testing.assert_array_equal(loadings.loc[list(COLUMNS)].to_numpy(), result.components.T)
    assert not loadings.loc[["first", "last"]].to_numpy().any()
    np.testing.assert_array_equal(found.uns["pca"]["variance"], result.explained_variance)
    np.testing.assert_array_equal(found.uns["pca"]["variance_ratio"], result.explained_variance_ratio)
    centred = result.run["parameters"]["center"] is not False
    assert found.uns["pca"]["params"]["zero_center"] == centred
    assert json.loads(found.uns["fedpower"])["private"] == result.run["privacy"]["private"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
def test_anndata_reads_a_file_with_the_result_in_it(fits, tmp_path, kind):
    before, result = cells(kind), fits("scaled")
    before.obsm["X_pca"] = np.zeros((120, 50))
    before.uns["pca"] = {"variance": np.ones(50), "old": 1}
    before.obs["n_counts"] = 7
    before.write_h5ad(tmp_path / "cells.h5ad")
    original = (tmp_path / "cells.h5ad").read_bytes()
    assert write_cells(result, tmp_path / "cells.h5ad", tmp_path / "new.h5ad") == 120
    assert (tmp_path / "cells.h5ad").read_bytes() == original
    found = anndata.read_h5ad(tmp_path / "new.h5ad")
    check_annotations(found, result)
    assert "old" not in found.uns["pca"]
    assert list(found.obs["n_counts"]) == [7] * 120
    stored = found.X if kind is np.asarray else found.X.toarray()
    np.testing.assert_array_equal(stored[:, 1:7], ROWS[:, ::-1])


def test_an_object_in_memory_gets_the_same(result):
    adata = cells()
    assert result.to_anndata(adata) is adata
    check_annotations(adata, result)


def test_cells_that_lack_a_gene_of_the_fit_are_refused(fits, tmp_path):
    result = fits("uncentred")
    cells()[:, :4].copy().write_h5ad(tmp_path / "few.h5ad")
    with pytest.raises(InputError, match="lacks 3 columns of the fit"):
        write_cells(result, tmp_path / "few.h5ad", tmp_path / "new.h5ad")
    assert not (tmp_path / "new.h5ad").exists()
    with pytest.raises(InputError, match=r"must be in an .h5ad file"):
        write_cells(result, tmp_path / "components.csv", tmp_path / "new.h5ad")


NAMES = ["=HYPERLINK(1)", "+cmd", "-dose", "@sum", "'=quoted", "age", "-5", "+1e3"]
SHOWN = ["'=HYPERLINK(1)", "'+cmd", "'-dose", "'@sum", "''=quoted", "age", "-5", "+1e3"]


@given(st.text("=+-@'\t\r .e15aß\n\0"))
def test_a_cell_begins_with_nothing_that_is_run_and_comes_back_by_one_apostrophe(name):
    shown = as_text(name)
    if shown == name:
        try:
            float(name)
        except ValueError:
            assert not name.lstrip("'").startswith(("=", "+", "-", "@", "\t", "\r"))
    else:
        assert shown == f"'{name}"
    assert [as_text(cell) for cell in (-1.5, 3, None, "-1.5", "")] == [-1.5, 3, None, "-1.5", ""]


def test_components_exports_and_scores_hold_such_names_as_text(tmp_path):
    rows = np.random.default_rng(0).standard_normal((40, len(NAMES)))
    folder = FedPCA(2, epsilon=float("inf")).fit(pd.DataFrame(rows, columns=NAMES)).save(tmp_path / "out")
    result = load(folder)
    assert list(result.feature_names or ()) == NAMES
    write_loadings(result, folder / "loadings.csv", "csv")
    for name in ("components.csv", "loadings.csv"):
        table = pl.read_csv(folder / name)
        assert table["feature"].to_list() == SHOWN
        np.testing.assert_array_equal(table.select("pc1", "pc2").to_numpy(), result.components.T)
