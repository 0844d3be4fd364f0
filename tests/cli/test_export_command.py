"""`fedpower export` writes what a format's tool reads, whole or not at all."""

from pathlib import Path

import anndata
import numpy as np
import onnx.reference
import pyarrow.parquet
import pytest
from hospitals import COLUMNS, EXACT, parts, succeed, table_of
from row_forms import write_h5ad

from fedpower import read_result


@pytest.fixture
def place(here: Path) -> Path:
    succeed("fit", "north.csv", "south.parquet", *EXACT, "-o", "out")
    write_h5ad(parts()["east"], here / "cells.h5ad", COLUMNS)
    ids = [f"p{number}" for number in range(40)]
    labelled = table_of(parts()["east"]).append_column("id", [ids])
    pyarrow.parquet.write_table(labelled, here / "ids.parquet")
    return here


def test_tables_have_a_line_a_feature(place: Path):
    said = succeed("export", "out", "--to", "csv", "-o", "t.csv")
    assert said.stdout == ""
    assert "5 features by 2 components" in said.stderr
    lines = Path("t.csv").read_text().splitlines()
    assert lines[0] == "feature,mean,scale,pc1,pc2"
    assert [line.split(",")[0] for line in lines[1:]] == list(COLUMNS)
    succeed("export", "out", "--to", "parquet", "-o", "t.parquet")
    table = pyarrow.parquet.read_table("t.parquet")
    np.testing.assert_array_equal(table["pc1"], read_result("out").components[0])


def test_a_graph_scores_rows(place: Path):
    succeed("export", "out", "--to", "onnx", "-o", "m.onnx")
    (found,) = onnx.reference.ReferenceEvaluator("m.onnx").run(None, {"rows": parts()["east"]})
    np.testing.assert_allclose(found, read_result("out").transform("east.csv"), atol=1e-12)


def test_plink_gets_two_files(place: Path):
    said = succeed("export", "out", "--to", "plink", "--rows", "ids.parquet", "--id-column", "id",
                   "-o", "east.v1")  # fmt: skip
    assert "40 samples" in said.stderr
    lines = Path("east.v1.eigenvec").read_text().splitlines()
    assert lines[0] == "#IID\tPC1\tPC2"
    assert lines[40].startswith("p39\t")
    assert len(Path("east.v1.eigenval").read_text().splitlines()) == 2
    numbered = succeed("export", "out", "--to", "plink", "--rows", "east.npy", "-o", "numbered")
    assert "numbered from 1" in numbered.stderr


def test_cells_get_the_result_beside_them(place: Path):
    succeed("export", "out", "--to", "anndata", "--rows", "cells.h5ad", "-o", "new.h5ad")
    found = anndata.read_h5ad("new.h5ad")
    scores = read_result("out").transform("east.csv")
    np.testing.assert_allclose(found.obsm["X_pca"], scores, atol=1e-12)
    succeed("export", "out", "--to", "anndata", "--rows", "new.h5ad", "-o", "new.h5ad", "--force")
    again = anndata.read_h5ad("new.h5ad")
    np.testing.assert_array_equal(again.obsm["X_pca"], found.obsm["X_pca"])
