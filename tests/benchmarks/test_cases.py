"""Every benchmark runs with its quick sizes; peers finish, end at their limit, or fail in a sentence."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import runner
from benchmarks.__main__ import main
from benchmarks.clipped import CLEARLY, MOST_LOST, Point
from benchmarks.peer_process import UNFINISHED, run_peer

pytestmark = pytest.mark.benchmarks


@pytest.mark.parametrize("name", runner.load_cases())
def test_case_runs_with_quick_sizes(name, tmp_path):
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


def test_unknown_names_are_refused_known_ones_listed_and_results_belong_to_cases(capsys):
    main(["list"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("libraries", "fit_files", "secure", "growth"))
    with pytest.raises(SystemExit, match="got no_such_case"):
        main(["no_such_case"])
    assert {path.stem for path in runner.RESULTS.glob("*.json")} <= set(runner.CASES)


def test_auto_clips_where_it_gains_clearly_and_never_loses_where_the_moment_wins():
    """The constants of ``auto``'s prediction are held to what was rehearsed over the grid."""
    found, taken = runner.kept("clipped_auto")["measured"], []
    for each in found:
        point = Point(**{name: each[name] for name in Point.__dataclass_fields__})
        ratio = each["clipped"] / each["covariance"]
        taken.append(point.taken)
        assert ratio <= MOST_LOST or not point.taken, each
        assert ratio >= CLEARLY or point.taken, each
        assert point.taken == each["taken"], each
    assert 20 < sum(taken) < len(taken) - 20


OPENING = """
import json, sys, time
import numpy as np
task = np.load(sys.argv[1])
found = open(sys.argv[2], "w", buffering=1)
def fit(epsilon, seed):
    line = {"epsilon": epsilon, "seed": seed, "seconds": 0.0, "basis": task["rows"].tolist()}
    found.write(json.dumps(line) + "\\n")
"""


FITS = "for e in task['epsilons'].tolist():\n    for s in task['seeds'].tolist():\n        fit(e, s)\n"
HALF = "fit(0.5, 0)\nfound.write('half a li')\nfound.flush()\n"


@pytest.mark.parametrize(
    ("script", "ended", "finished"),
    [
        (FITS, "finished", [(0.5, 0), (0.5, 1), (1, 0), (1, 1)]),
        (f"{HALF}while True: pass", UNFINISHED, [(0.5, 0)]),
        (f"{HALF}time.sleep(10**6)", UNFINISHED, [(0.5, 0)]),
    ],
)
def test_a_peer_hands_over_what_it_fitted_before_its_limit(script, ended, finished, tmp_path):
    file, limit = tmp_path / "peer.py", 30.0 if ended == "finished" else 1.0
    file.write_text(OPENING + script)
    given = {"rows": np.eye(2), "rank": 1, "epsilons": (0.5, 1.0), "seeds": 2, "limit_s": limit}
    done = run_peer(Path(sys.executable), [file], **given)
    assert done.ended == ended
    assert [(fit["epsilon"], fit["seed"]) for fit in done.fits] == finished
    assert done.fits[0]["basis"] == [[1.0, 0.0], [0.0, 1.0]]
