"""Peers in environments and processes of their own, ended when their time is over."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import CACHE

HERE = Path(__file__).parent / "peers"
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
PATIENCE = 6
UNFINISHED = "did not finish"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """The fits that a peer finished (`epsilon`, `seed`, `seconds`, `basis`), and why there are no more."""

    fits: list[dict[str, Any]]
    ended: str


def run_peer(
    python: Path,
    script: Sequence[str | Path],
    *,
    rows: NDArray[np.float64],
    rank: int,
    epsilons: tuple[float, ...],
    seeds: int,
    limit_s: float,
) -> PeerRun:
    """Return what the script finds with this interpreter in `limit_s` seconds of a core.

    Processor time is what counts, so that a busy machine does not change the outcome; a script that
    waits instead of working is ended as well, after `PATIENCE` times as long.
    """
    with tempfile.TemporaryDirectory() as folder:
        data, found = Path(folder) / "data.npz", Path(folder) / "found.jsonl"
        np.savez(data, rows=rows, rank=rank, epsilons=np.array(epsilons), seeds=np.arange(seeds))
        bounded = ["sh", "-c", f'ulimit -S -t {math.ceil(limit_s)}; exec "$@"', "peer"]
        try:
            done = subprocess.run(
                [*bounded, str(python), *map(str, script), str(data), str(found)],
                timeout=PATIENCE * limit_s,
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | ONE_THREAD | {"PYTHONPATH": ""},
            )
            ended = _ending(done.returncode, done.stderr)
        except subprocess.TimeoutExpired:
            ended = UNFINISHED
        return PeerRun(fits=_whole_lines(found), ended=ended)


def peer_python(name: str, cache: Path = CACHE) -> Path:
    wanted = (HERE / f"{name}.txt").read_bytes()
    folder = cache / f"venv-{name}"
    stamp = folder / "installed"
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    digest = hashlib.sha256(wanted).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"making an environment for {name} in {folder}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(HERE / f"{name}.txt")], check=True)
        stamp.write_text(digest)
    return python


def _whole_lines(found: Path) -> list[dict[str, Any]]:
    if not found.exists():
        return []
    text = found.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _ending(status: int, errors: str) -> str:
    if status == 0:
        return "finished"
    if status == -signal.SIGXCPU:
        return UNFINISHED
    lines = errors.strip().splitlines()
    return f"failed: {lines[-1]}" if lines else f"failed with status {status}"
