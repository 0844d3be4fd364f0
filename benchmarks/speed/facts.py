"""What a reader must know about the machine, its software and how busy it was."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import machine, version_of

LIBRARIES = ("scikit-learn", "dask", "torch", "pandas", "polars")
LOAD = "load at the start"

IDLE = 0.5
"""Load up to which a machine counts as quiet."""

BUSY = "The machine was busy with other work: these figures are to be taken again on a quiet one."


def about_machine() -> dict[str, Any]:
    """Return the facts that belong to all results of a run, taken before it."""
    return machine() | {
        **{name: version_of(name) for name in LIBRARIES},
        "BLAS": "; ".join(_blas()),
        "memory": f"{_memory_gb():.0f} GB",
        "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        LOAD: f"{os.getloadavg()[0]:.2f}",
    }


def is_busy(facts: dict[str, Any]) -> bool:
    """Return whether something else ran on this machine when the measurements began."""
    return float(facts[LOAD]) > IDLE


def _blas() -> list[str]:
    """Return the BLAS libraries that NumPy and SciPy bring."""
    import scipy.linalg
    import threadpoolctl

    del scipy
    return [
        f"{each['internal_api']} {each['version']} for {each['architecture']}, "
        f"{each['num_threads']} threads"
        for each in threadpoolctl.threadpool_info()
        if each["user_api"] == "blas"
    ]


def _memory_gb() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemTotal")) * 1024 / 1e9
