"""docs/report.png: the report of a private fit of the health survey in examples/data, as Chromium shows it.

The site shows report-dark.png in its place where the reader prefers a dark page.
"""

import contextlib
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from fedpower.cli import main as fedpower

ROOT = Path(__file__).parent.parent
DATA = ROOT / "examples" / "data"
PICTURES = {"light": ROOT / "docs" / "report.png", "dark": ROOT / "docs/site/static/report-dark.png"}
COLOURS = 256


def main(width: int = 900, height: int = 1500) -> None:
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
    """Write ledgers into the working directory, and the result of a fit."""
    silos = [DATA / f"{name}.csv" for name in ("north", "south", "east")]
    for silo in silos:
        run("ledger", "create", f"ledgers/{silo.stem}.ledger", "--epsilon", "3", "--delta", "1e-6")
    book = ["--codebook", str(DATA / "codebook.toml")]
    run("fit", *map(str, silos), *book, "-k", "2", "--epsilon", "1", "--ledger", "ledgers")


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
