"""Write the tables of the pages that show results from ``results/*.json``; ``--check`` compares."""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import markdown, read_json

HERE = Path(__file__).parent
PAGES = (HERE / "README.md", HERE.parent / "docs" / "federation.md")
PLACE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Rewrite or check the pages."""
    for page in PAGES:
        settle(
            page,
            lambda old: PLACE.sub(lambda found: found[1] + section(found[2]) + found[3], old),
            description=__doc__,
            command="python -m benchmarks.render",
        )


def settle(page: Path, made: Callable[[str], str], *, description: str | None, command: str) -> None:
    """Rewrite a page from its old text or, with ``--check``, fail where that would change it."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--check", action="store_true", help="fail where the page is out of date")
    check = options.parse_args().check
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    new = made(old)
    if check and new != old:
        sys.exit(f"{page.parent.name}/{page.name} must match the results; run {command}")
    if not check:
        page.write_text(new, encoding="utf-8")


def kept(name: str) -> dict[str, Any]:
    """Return what a benchmark left in ``results/``."""
    found: dict[str, Any] = read_json(_results(name))
    return found


def section(name: str) -> str:
    """Return one benchmark's tables, notes, settings and machine, or that it has not been run."""
    if not _results(name).exists():
        return "\nNot measured yet.\n\n"
    found = kept(name)
    table = markdown(found["table"]["columns"], found["table"]["rows"])
    notes = "".join(f"{note}\n\n" for note in found["notes"])
    more = "".join(
        f"{each['title']}\n\n{markdown(each['columns'], each['rows'])}\n\n" for each in found.get("more", ())
    )
    return f"\n{table}\n\n{notes}{more}{small_print(found)}\n\n"


def small_print(found: dict[str, Any]) -> str:
    """Return a benchmark's settings and machine."""
    settings = ", ".join(f"{key}: {_short(value)}" for key, value in found["settings"].items())
    machine = ", ".join(f"{key}: {value}" for key, value in found["machine"].items())
    return f"<sub>{settings}. {machine}.</sub>"


def _results(name: str) -> Path:
    return HERE / "results" / f"{name}.json"


def _short(value: object) -> str:
    if isinstance(value, list) and len(value) > 3 and value == list(range(len(value))):
        return f"0 to {value[-1]}"
    return str(value)


if __name__ == "__main__":
    main()
