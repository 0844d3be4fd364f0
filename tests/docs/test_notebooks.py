"""Notebooks run from top to bottom, and are kept without the outputs of somebody's machine."""

import nbclient
import nbformat
import pytest
from pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_notebooks_are_kept_without_outputs():
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells]
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.pages
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    outputs = [each for cell in notebook.cells if cell.cell_type == "code" for each in cell.outputs]
    assert any("image/png" in each.get("data", {}) for each in outputs)
    assert not [each for each in outputs if each.get("name") == "stderr"]
