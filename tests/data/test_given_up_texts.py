"""A text that is given up half-way lets its process end, whatever its encoding."""

import subprocess
import sys
from pathlib import Path

import pytest

HALF = """
import sys
from dataclasses import replace
from pathlib import Path
from fedpower.rows.files import TextForm, csv_reader

table = csv_reader(Path(sys.argv[1]), "rows", TextForm(encoding=sys.argv[2]))
rows = replace(table, block_bytes=2**18).batches(table.columns, 1000)
next(rows)
raise SystemExit(3)  # while Arrow reads ahead
"""


@pytest.mark.programs
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_a_process_ends_while_arrow_reads_ahead(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("größe,b,c\n" + "1.25,2.5,-3.75\n" * 400_000, encoding=encoding)
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", HALF, str(path), encoding],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (ended.returncode, ended.stderr) == (3, "")
