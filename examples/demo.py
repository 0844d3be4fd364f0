"""The demo of `make demo`: three hospitals, one health survey, every command printed as it is run."""

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path("demo")
FEDPOWER = Path(sys.executable).with_name("fedpower")
SILOS = [f"examples/data/{name}.csv" for name in ("north", "south", "east")]
BOOK = ("--codebook", "examples/data/codebook.toml")


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def run(*words: str) -> None:
    """Print a command and run it."""
    print(f"$ fedpower {' '.join(words)}", flush=True)
    subprocess.run([str(FEDPOWER), *words], check=True)  # noqa: S603


def main() -> None:
    """Fit a survey of three hospitals with privacy, and compare with the exact components."""
    shutil.rmtree(FOLDER, ignore_errors=True)

    say("1. Three hospitals hold the same health survey of different people.")
    run("inspect", SILOS[2])

    say("2. Each hospital decides how much privacy it may ever spend: ε = 3.")
    for silo in SILOS:
        run("ledger", "create", f"{FOLDER}/{Path(silo).stem}.ledger", "--epsilon", "3", "--delta", "1e-6")

    say("3. They fit principal components at ε = 1. Rows stay where they are.")
    spend = ("--epsilon", "1", "--aggregation", "secure", "--ledger", str(FOLDER))
    run("fit", *SILOS, *BOOK, "-k", "2", *spend, "-o", f"{FOLDER}/private")

    say("4. What pooled rows would give, for comparison: exact, and therefore not private.")
    run("fit", *SILOS, *BOOK, "-k", "2", "--epsilon", "inf", "-o", f"{FOLDER}/exact")
    run("show", f"{FOLDER}/private", "--against", f"{FOLDER}/exact")

    say("5. What the result is made of, and more from it at no further cost.")
    run("analyze", "correlate", f"{FOLDER}/private", "-o", f"{FOLDER}/correlations")

    say("6. What the first hospital has left.")
    run("ledger", "show", f"{FOLDER}/north.ledger")
    say(f"Open {FOLDER}/private/report.html in a browser. `fedpower --help` lists all commands.")


if __name__ == "__main__":
    main()
