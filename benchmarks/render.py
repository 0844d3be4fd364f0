"""Write the tables of ``benchmarks/README.md`` from ``results/*.json``; ``--check`` compares."""

import argparse
import json
import re
import sys
from pathlib import Path

from benchmarks.common import markdown

HERE = Path(__file__).parent
PLACE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Rewrite or check the page."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--check", action="store_true", help="fail where the page is out of date")
    options = made.parse_args()
    page = HERE / "README.md"
    old = page.read_text(encoding="utf-8")
    new = PLACE.sub(lambda found: found[1] + section(found[2]) + found[3], old)
    if options.check and new != old:
        sys.exit("benchmarks/README.md must match results/; run python -m benchmarks.render")
    page.write_text(new, encoding="utf-8")


def section(name: str) -> str:
    """Return one benchmark's table, notes, settings and machine."""
    found = json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
    table = markdown(found["table"]["columns"], found["table"]["rows"])
    settings = ", ".join(f"{key}: {_short(value)}" for key, value in found["settings"].items())
    machine = ", ".join(f"{key}: {value}" for key, value in found["machine"].items())
    notes = "".join(f"{note}\n\n" for note in found["notes"])
    more = "".join(
        f"{each['title']}\n\n{markdown(each['columns'], each['rows'])}\n\n"
        for each in found.get("more", ())
    )
    return f"\n{table}\n\n{notes}{more}<sub>{settings}. {machine}.</sub>\n\n"


def _short(value: object) -> str:
    if isinstance(value, list) and len(value) > 3 and value == list(range(len(value))):
        return f"0 to {value[-1]}"
    return str(value)


if __name__ == "__main__":
    main()
