"""Peers in processes of their own: finished, ended at their limit, or failed in a sentence."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peer_process import UNFINISHED, PeerRun, run_peer

pytestmark = pytest.mark.benchmarks

OPENING = """
import json, sys, time
import numpy as np
task = np.load(sys.argv[1])
found = open(sys.argv[2], "w", buffering=1)
def fit(epsilon, seed):
    line = {"epsilon": epsilon, "seed": seed, "seconds": 0.0, "basis": task["rows"].tolist()}
    found.write(json.dumps(line) + "\\n")
"""


def run(folder: Path, script: str, limit_s: float = 30.0) -> PeerRun:
    file = folder / "peer.py"
    file.write_text(OPENING + script)
    return run_peer(
        Path(sys.executable), [file], rows=np.eye(2), rank=1, epsilons=(0.5, 1.0), seeds=2, limit_s=limit_s
    )


def test_a_peer_that_finishes_hands_over_every_fit(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "for e in task['epsilons'].tolist():\n    for s in task['seeds'].tolist():\n        fit(e, s)\n",
    )
    assert done.ended == "finished"
    assert [(fit["epsilon"], fit["seed"]) for fit in done.fits] == [(0.5, 0), (0.5, 1), (1, 0), (1, 1)]
    assert done.fits[0]["basis"] == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("forever", ["while True: pass", "time.sleep(10**6)"])
def test_a_peer_at_its_limit_did_not_finish_and_keeps_what_it_had(tmp_path: Path, forever: str) -> None:
    done = run(tmp_path, f"fit(0.5, 0)\nfound.write('half a li')\nfound.flush()\n{forever}", 1.0)
    assert done.ended == UNFINISHED
    assert [fit["seed"] for fit in done.fits] == [0]
