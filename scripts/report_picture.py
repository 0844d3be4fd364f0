"""docs/report.png: the report of a private fit over six simulated hospitals, as Chromium shows it.

The site has report-dark.png in its place where the reader prefers dark pages.
"""

import contextlib
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from fedpower.cli import main as fedpower

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = {"light": DOCS / "report.png", "dark": DOCS / "site" / "static" / "report-dark.png"}
COLUMNS = (
    "age", "body mass index", "systolic pressure", "diastolic pressure", "heart rate", "hdl", "ldl",
    "triglycerides", "glucose", "hba1c", "creatinine", "haemoglobin",
)  # fmt: skip
SILOS = {"north": 9000, "south": 14000, "east": 7000, "west": 5000, "coast": 11000, "isles": 2500}
EPSILON, CAP, ROW_NORM = "0.5", "2", "6"
COLOURS = 128


def main(width: int = 900, height: int = 2250) -> None:
    """Fit, and take both pictures."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        fit()
        for scheme, picture in PICTURES.items():
            shoot(Path("result/report.html"), Path("report.png"), width, height, dark=scheme == "dark")
            with Image.open("report.png") as taken:
                few = taken.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            few.save(picture, optimize=True)
            print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


def fit() -> None:
    """Write hospitals and their ledgers into the working directory, and the result of a fit."""
    rng = np.random.default_rng(7)
    directions = np.linalg.qr(rng.standard_normal((len(COLUMNS), 3)))[0] * [1.6, 1.1, 0.8]
    for name, n_rows in SILOS.items():
        hidden = rng.standard_normal((n_rows, 3)) @ directions.T
        rows = hidden + 0.3 * rng.standard_normal((n_rows, len(COLUMNS)))
        pd.DataFrame(rows, columns=COLUMNS).to_parquet(f"{name}.parquet")
        run("ledger", "create", f"ledgers/{name}.ledger", "--epsilon", CAP, "--delta", "1e-6")
    files = [f"{name}.parquet" for name in SILOS]
    run("fit", *files, "-k", "3", "--epsilon", EPSILON, "--row-norm", ROW_NORM, "--ledger", "ledgers")


def run(*words: str) -> None:
    """Run a command as the command line would."""
    status = fedpower(list(words), standalone_mode=False)
    assert not status, words


def shoot(page: Path, picture: Path, width: int, height: int, *, dark: bool) -> None:
    """Write what a window of this size shows of a page."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
                "--no-first-run", "--disable-background-networking", "--disable-component-update",
                "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}",
                f"--window-size={width},{height}", f"--screenshot={picture.absolute()}",
                *(["--force-dark-mode"] if dark else []), page.absolute().as_uri(),
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
