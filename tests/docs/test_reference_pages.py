"""Pages that list what the code or another file holds list all of it."""

import json
import re

import numpy as np
import pytest
from pages import PAGES, ROOT

from fedpower import CodeBook, FedPCA
from fedpower.report.result import FILES
from problems import spiked_rows

FOLDER = (ROOT / "docs" / "reference" / "result-folder.md").read_text(encoding="utf-8")
WORKS = (ROOT / "docs" / "reference" / "bibliography.md").read_text(encoding="utf-8")
BIBLIOGRAPHY = (ROOT / "docs" / "references.bib").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^@\w+\{(\w+),\s*title = \{(.+)\},$", BIBLIOGRAPHY, flags=re.MULTILINE)


def test_every_file_array_and_key_of_a_result_is_explained(tmp_path):
    model = FedPCA(2, codebook=CodeBook(row_norm=1.0, offset=np.zeros(6), scale=np.ones(6)))
    rows, written = spiked_rows(200, 6), tmp_path / "result"
    model.fit_silos([rows[:100], rows[100:]]).save(written)
    named = set(re.findall(r"`([\w.]+)`", FOLDER))
    assert {path.name for path in written.iterdir()} <= {*FILES, "moment.npz"} <= named
    with np.load(written / "components.npz") as stored:
        assert set(stored.files) <= named
    record = json.loads((written / "run.json").read_text())
    nested = (record["privacy"], *record["privacy"]["protections"], *record["silos"], *record["rounds"])
    for table in (record, record["solver"], *nested):
        assert set(table) <= named


@pytest.mark.parametrize("page", PAGES)
def test_every_work_that_a_page_cites_is_in_the_bibliography(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    cited = re.findall(r"[\[;] ?(FP|LocalPower|[A-Z][A-Za-z]*\d\d)(?=[\] ;])", text)
    assert set(cited) <= {key for key, _ in ENTRIES}
