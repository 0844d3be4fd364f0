"""Model II's communities: every line is run by the product, written and drawn."""

import csv
from pathlib import Path

import pytest

from paper.communities import main


@pytest.mark.reproduce
def test_every_line_is_in_the_table_and_in_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["--quick", "--repetitions", "1", "-o", str(tmp_path)])
    with (tmp_path / "communities.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    exact = [row for row in rows if row["epsilon"] == "inf"]
    assert [float(row["share"]) for row in exact] == [1.0, 1.0]
    private = {(row["unit"], row["aggregation"]) for row in rows if row["epsilon"] == "1.0"}
    assert len(private) == 4
    assert (tmp_path / "communities.svg").read_text().startswith("<?xml")
    assert "At ε = 1: a row protected, noise at each silo 0." in capsys.readouterr().out
