"""The demo of `make demo`: four organisations, one eigenspace, every command printed as it is run."""

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path("demo")
FEDPOWER = Path(sys.executable).with_name("fedpower")


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def run(*words: str) -> None:
    """Print a command and run it."""
    print(f"$ fedpower {' '.join(words)}", flush=True)
    subprocess.run([str(FEDPOWER), *words], check=True)  # noqa: S603


def main() -> None:
    """Simulate four organisations, fit with and without privacy, compare."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    files = [f"demo/silos/silo-0{number}.npy" for number in range(1, 5)]

    say("1. Four organisations hold 200,000 rows of the same 100 columns; four directions stand out.")
    drawn = ["paper.simulate", "spiked", "--rows", "200000", "-o", f"{FOLDER}/silos", "--quiet"]
    subprocess.run([sys.executable, "-m", *drawn], check=True)  # noqa: S603

    say("2. What pooled rows would give: exact, and therefore NOT private.")
    run("fit", *files, "-k", "4", "--epsilon", "inf", "-o", "demo/exact")

    say("3. The same with record-level privacy that each organisation enforces and books itself.")
    for number in range(1, 5):
        ledger = f"demo/ledgers/silo-0{number}.ledger"
        run("ledger", "create", ledger, "--epsilon", "2", "--delta", "1e-6")
    private = ["-k", "4", "--epsilon", "1", "--delta", "1e-6", "--row-norm", "1"]
    run("fit", *files, *private, "--ledger", "demo/ledgers", "-o", "demo/private")

    say("4. How far apart are the two? And what has the first organisation spent?")
    run("show", "demo/private", "--against", "demo/exact")
    run("ledger", "show", "demo/ledgers/silo-01.ledger")
    say("Everything is in demo/; `fedpower --help` lists the commands.")


if __name__ == "__main__":
    main()
