"""Every registered case runs with its quick sizes and gives a table and its measurements."""

import json
from pathlib import Path

import pytest

from benchmarks import runner
from benchmarks.__main__ import main

pytestmark = pytest.mark.benchmarks


@pytest.mark.parametrize("name", runner.load_cases())
def test_case_runs_with_quick_sizes(name: str, tmp_path: Path) -> None:
    try:
        table = runner.run_case(runner.CASES[name], tmp_path, quick=True)
    except runner.MissingError as why:
        pytest.skip(str(why))
    record = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert record["benchmark"] == name
    assert record["measured"]
    assert {"cpu", "cores", "commit", "load at the start"} <= set(record["machine"])
    assert record["table"]["rows"]
    for columns, rows in [(table.columns, table.rows), *(more[1:] for more in table.more)]:
        assert all(len(row) == len(columns) for row in rows)


def test_every_result_belongs_to_a_case() -> None:
    assert {path.stem for path in runner.RESULTS.glob("*.json")} <= set(runner.CASES)


def test_unknown_names_are_refused_and_known_ones_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list"])
    shown = capsys.readouterr().out
    for name in ("fit_memory", "fit_files", "secure", "growth"):
        assert name in shown
    with pytest.raises(SystemExit, match="got no_such_case"):
        main(["no_such_case"])
