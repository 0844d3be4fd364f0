"""``python -m benchmarks NAME… [--quick] [--set KEY=VALUE …]``, or ``list``, ``render``, ``pictures``."""

import argparse
import sys
from pathlib import Path

from benchmarks import results_page, runner


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    if options.names == ["render"]:
        stale = results_page.render(check=options.check)
        if stale and options.check:
            sys.exit(f"{', '.join(stale)} must match benchmarks/results; run python -m benchmarks render")
        return
    if options.names == ["pictures"]:
        from benchmarks.pictures import draw_all

        draw_all()
        return
    cases = runner.load_cases()
    if options.names == ["list"]:
        for each in cases.values():
            sizes = " ".join(
                f"{key}={value}" for key, value in each.parameters().items() if value is not None
            )
            print(f"{each.name:22} {each.about}\n{'':22} {sizes}")
        return
    names = list(cases) if options.names == ["all"] else options.names
    if unknown := [name for name in names if name not in cases]:
        sys.exit(f"cases must be of those that `python -m benchmarks list` shows, got {', '.join(unknown)}")
    chosen = dict(each.split("=", 1) for each in options.set)
    folder = options.results or (runner.CACHE / "quick" if options.quick else runner.RESULTS)
    for name in names:
        print(f"{name}: {cases[name].about}\n", flush=True)
        try:
            runner.run_case(cases[name], folder, quick=options.quick, options=chosen)
        except runner.MissingError as why:
            print(f"{name} is left out: {why}", file=sys.stderr)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    made.add_argument("names", nargs="+", metavar="NAME", help="cases, or list, all, render, pictures")
    made.add_argument("--quick", action="store_true", help="small sizes in one process: does it run?")
    made.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="parameters of cases"
    )
    made.add_argument(
        "--results", type=Path, metavar="FOLDER", help="where JSON goes; benchmarks/results by default"
    )
    made.add_argument(
        "--check", action="store_true", help="with render: fail where a document is out of date"
    )
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
