"""docs/approve.png: what `fedpower node approve` shows in a terminal of 80 columns.

The site has approve-dark.png in its place where the reader prefers dark pages.
"""

import contextlib
import io
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from report_picture import COLOURS, DOCS, run, shoot
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

SURVEY = DOCS.parent / "examples" / "data"
PICTURES = {
    "light": (DOCS / "approve.png", DEFAULT_TERMINAL_THEME),
    "dark": (DOCS / "site" / "static" / "approve-dark.png", SVG_EXPORT_THEME),
}
STUDY = ("--name", "survey-2026", "--silos", "north,south,east", "--codebook", "codebook.toml",
         "-k", "3", "--epsilon", "1", "--min-silos", "2", "--host", "coordinator.example.org")  # fmt: skip
SILO_FILE = """
silo = "north"
[data]
path = "../../north.csv"
"""
PAGE = """<!doctype html><meta charset="utf-8"><style>
{stylesheet}
body {{ margin: 18px; color: {foreground}; background: {background}; }}
pre {{ margin: 0; font: 15px/20px "DejaVu Sans Mono", monospace; }}
</style><pre>{code}</pre>"""


def main(columns: int = 80, width: int = 766) -> None:
    """Propose a study to a silo, and take both pictures of its screen."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        propose()
        words = ["node", "approve", "kits/north", "study.toml"]
        shown = screen([sys.executable, "-m", "fedpower", *words], columns)
        text = f"$ fedpower {' '.join(words)}\n{shown}"
        for scheme, (picture, theme) in PICTURES.items():
            drawn = Console(record=True, width=columns, file=io.StringIO())
            drawn.print(Text.from_ansi(text))
            Path("screen.html").write_text(drawn.export_html(theme=theme, code_format=PAGE))
            height = 36 + 20 * len(text.splitlines())
            shoot(Path("screen.html"), Path("screen.png"), width, height, dark=scheme == "dark")
            with Image.open("screen.png") as taken:
                taken.convert("L").quantize(COLOURS // 8, dither=Image.Dither.NONE).save(
                    picture, optimize=True
                )
            print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


def propose() -> None:
    """Write a study of the health survey, and north's kit, rows and ledger, into the working directory."""
    for file in ("north.csv", "codebook.toml"):
        shutil.copy(SURVEY / file, ".")
    run("study", "init", *STUDY)
    run("node", "ca-init", "study.toml", "-o", "kits", "--with-keys")
    Path("kits/north/silo.toml").write_text(SILO_FILE)
    run("ledger", "create", "kits/north/north.ledger", "--epsilon", "3", "--delta", "1e-6")
    earlier = ("-k", "2", "--epsilon", "0.5", "--codebook", "codebook.toml", "-o", "earlier")
    run("fit", "north.csv", *earlier, "--ledger", "kits/north/north.ledger")


def screen(command: list[str], columns: int) -> str:
    """Return what a command prints in a terminal before it waits for an answer."""
    ours, its = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "LINES": "45", "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    printed = b""
    while not printed.endswith(b"[y/N]: "):
        printed += os.read(ours, 4096)
    process.kill()
    process.wait()
    return printed.decode().replace("\r", "")


if __name__ == "__main__":
    main()
