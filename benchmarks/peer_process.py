"""Peers in environments and processes of their own, ended when their time is over."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data_sets import CACHE

HERE = Path(__file__).parent / "peers"
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """The fits that a peer finished, and why there are no more of them.

    Attributes
    ----------
    fits
        Each with `epsilon`, `seed`, `seconds` and `basis`.
    ended
        ``"finished"``, ``"did not finish"`` within its time, or the last line of what went wrong.
    """

    fits: list[dict[str, Any]]
    ended: str


def run_peer(
    python: Path,
    script: Path,
    *,
    rows: NDArray[np.float64],
    rank: int,
    epsilons: tuple[float, ...],
    seeds: int,
    limit_s: float,
) -> PeerRun:
    """Return what the script finds with this interpreter in at most `limit_s` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        data, found = Path(folder) / "data.npz", Path(folder) / "found.jsonl"
        np.savez(data, rows=rows, rank=rank, epsilons=np.array(epsilons), seeds=np.arange(seeds))
        try:
            done = subprocess.run(
                [str(python), str(script), str(data), str(found)],
                timeout=limit_s,
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | ONE_THREAD | {"PYTHONPATH": ""},
            )
            ended = "finished" if done.returncode == 0 else _last_line(done.stderr)
        except subprocess.TimeoutExpired:
            ended = "did not finish"
        return PeerRun(fits=_whole_lines(found), ended=ended)


def peer_python(name: str, cache: Path = CACHE) -> Path:
    """Return the interpreter of a peer's environment, made at first use from its pinned list."""
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
    """Return the fits written down, without a line that was cut short."""
    if not found.exists():
        return []
    text = found.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f"failed: {lines[-1]}" if lines else "failed without a word"
