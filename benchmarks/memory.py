"""Peak memory of a FedPCA fit over silos larger than memory should be, each in a process of its own.

Files are made in a temporary folder and removed. Peaks are the kernel's high-water marks (VmHWM) of
the fitting process: getrusage would start from the parent's peak.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import parser, report

LIMIT_MB = 500
N_FEATURES = 100
CSV_BYTES_PER_VALUE = 20.1  # measured on these rows: enough to hit the size asked for


def main() -> None:
    """Measure every kind of file and fit."""
    options = _options()
    found = []
    bare = _child("bare")["peak_mb"]
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="fedpower-memory-") as name:
        folder = Path(name)
        for kind, gigabytes in (
            ("npy", options.gigabytes),
            ("parquet", options.gigabytes),
            ("parquet, 2²⁰-row groups", options.gigabytes),
            ("csv", options.csv_gigabytes),
        ):
            path = folder / f"silo.{kind.partition(',')[0]}"
            n_rows = _rows(kind, gigabytes)
            _child("make", str(path), str(n_rows), str(N_FEATURES), kind)
            for epsilon in ("inf", "1"):
                measured = _child("fit", str(path), epsilon)
                measured |= {
                    "kind": kind,
                    "epsilon": epsilon,
                    "file_gb": path.stat().st_size / 1e9,
                    "above_mb": measured["peak_mb"] - bare,
                }
                found.append(measured)
                print(
                    f"{kind}, epsilon {epsilon}: {measured['above_mb']:.0f} MB above the bare "
                    f"interpreter, {measured['seconds']:.0f} s",
                    flush=True,
                )
            path.unlink()
    report(
        options,
        name="memory",
        settings={
            "gigabytes": options.gigabytes,
            "csv_gigabytes": options.csv_gigabytes,
            "columns": N_FEATURES,
            "bare_interpreter_mb": round(bare, 1),
            "limit_mb": LIMIT_MB,
            "fit": "FedPCA(4, epsilon=..., row_norm=1.0, random_state=0).fit_silos([path])",
        },
        columns=[
            "file",
            "GB",
            "epsilon",
            "rows",
            "MB above the bare interpreter",
            "of which libraries",
        ],
        rows=[
            [
                each["kind"],
                f"{each['file_gb']:.1f}",
                each["epsilon"],
                f"{each['n_rows']:,}",
                f"{each['above_mb']:.0f}",
                f"{each['imports_mb'] - bare:.0f}",
            ]
            for each in found
        ],
        raw=found,
        notes=[
            f"The bound is {LIMIT_MB} MB above the bare interpreter ({bare:.0f} MB); the largest "
            f"seen is {max(each['above_mb'] for each in found):.1f} MB.",
            "2²⁰-row groups: Parquet as pyarrow and pandas write it unless told otherwise, with "
            "dictionaries. A reader then holds a dictionary and a page of every column, about 3 MB "
            "a column whatever the file's size; `fedpower simulate` writes 32 MiB groups without "
            "dictionaries.",
        ],
    )
    if max(each["above_mb"] for each in found) >= LIMIT_MB:
        sys.exit(f"a fit took {LIMIT_MB} MB or more")


def _rows(kind: str, gigabytes: float) -> int:
    per_value = CSV_BYTES_PER_VALUE if kind == "csv" else 8
    return int(gigabytes * 1e9 / (N_FEATURES * per_value))


def _child(task: str, *arguments: str) -> dict[str, Any]:
    """Return what a process of its own printed as JSON; this one stays small."""
    if task == "bare":
        command = [sys.executable, "-c", BARE]
    else:
        command = [sys.executable, "-m", "benchmarks.memory_task", task, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


BARE = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print('{"peak_mb": %f}' % (int(line.split()[1]) * 1024 / 1e6))
"""


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--gigabytes", type=float, default=4.0, help="size of .npy and Parquet files")
    made.add_argument("--csv-gigabytes", type=float, default=1.0, help="size of the CSV file")
    made.add_argument(
        "--folder", type=Path, help="where to make the files; the system's by default"
    )
    return made.parse_args()


if __name__ == "__main__":
    main()
