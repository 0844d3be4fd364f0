"""DuckDB files: read as they are, never written, and their words about cells kept back."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from row_forms import read_all, sample_rows

from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from fedpower.rows.sql import Address, SqlQuery, parse_address

ROWS = sample_rows()
CELL = "4711z"


@pytest.fixture
def visits(tmp_path: Path) -> str:
    with duckdb.connect(str(tmp_path / "w.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT range::INTEGER AS age, (range * 1.25)::DECIMAL(9, 2) AS dose, "
            f"range::HUGEINT AS large, range % 2 = 0 AS even, '{CELL}' AS word FROM range(4)"
        )
    return f"duckdb:///{tmp_path / 'w.duckdb'}"


def refused(query: str, database: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_all(open_source(SqlQuery(query, database), **options))
    assert CELL not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_number_type_is_read_and_text_is_refused(visits: str) -> None:
    found = read_all(open_source(SqlQuery("SELECT age, dose, large, even FROM visits;", visits)))
    expected = [[n, 1.25 * n, n, n % 2 == 0] for n in range(4)]
    np.testing.assert_array_equal(found[found[:, 0].argsort()], np.array(expected, dtype=float))
    assert "column 'word' of the query must hold numbers" in refused("SELECT * FROM visits", visits)


def test_nothing_but_a_query_runs_and_the_file_stays_as_it_is(visits: str, tmp_path: Path) -> None:
    before = (tmp_path / "w.duckdb").read_bytes()
    for text in ("SELECT 1; DROP TABLE visits", "WITH a AS (SELECT 1) DELETE FROM visits"):
        assert "must be a query that its database can run" in refused(text, visits)
    read_all(open_source(SqlQuery("SELECT age FROM visits", visits)))
    assert (tmp_path / "w.duckdb").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.duckdb"]


def test_what_duckdb_says_of_a_query_is_told_and_of_a_cell_is_not(visits: str) -> None:
    assert "Table with name nope does not exist" in refused("SELECT * FROM nope", visits)
    failing = "SELECT CAST(word AS INTEGER) AS a, age FROM visits"
    assert "got an error from the database" in refused(failing, visits)


def test_addresses_are_files_without_a_login(tmp_path: Path) -> None:
    assert parse_address("duckdb:///a%20b.duckdb") == Address(kind="duckdb", path=Path("a b.duckdb"))
    assert parse_address("duckdb:////srv/a.duckdb") == Address(kind="duckdb", path=Path("/srv/a.duckdb"))
    with pytest.raises(InputError, match="a duckdb database must be named without user"):
        SqlQuery("SELECT 1", "duckdb:///a.duckdb", user="me")
    with pytest.raises(InputError, match="database must be duckdb:///path"):
        SqlQuery("SELECT 1", "duckdb://a.duckdb")
    assert "got none at" in refused("SELECT 1", f"duckdb:///{tmp_path / 'none.duckdb'}")
    (tmp_path / "text.duckdb").write_text("no database" * 1000)
    assert "must be able to reach" in refused("SELECT 1", f"duckdb:///{tmp_path / 'text.duckdb'}")
