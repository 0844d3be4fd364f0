"""Every benchmark can still be run: what it takes from the product is there."""

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks

pytestmark = pytest.mark.benchmarks

ROOT = Path(__file__).parents[2]

OF_ANOTHER_ENVIRONMENT = "benchmarks.peers."
"""Programs for a peer's own virtual environment, with its own libraries."""

MODULES = [
    found.name
    for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
    if not found.name.startswith(OF_ANOTHER_ENVIRONMENT) and not found.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_finds_all_that_it_takes_from_the_product(name: str):
    assert importlib.import_module(name).__doc__


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("model1_modes", "--rows 2000 --silos 4 --seeds 1"),
        ("memory", "--gigabytes 0.001 --csv-gigabytes 0.001"),
        ("secure", "--rows 2000 --nodes 200 --seeds 1 --columns 8 --silos 3 --fits 3 --repeats 1"),
        ("persons", "--persons 200 --columns 5 --seeds 1 --timed-rows 500 --timed-persons 50 --repeats 1"),
        ("completion", "--persons 60 --seeds 1 --releases 1 --part simulated --part coverage"),
        ("clipped", "--cost cold warm --columns 60 --rows 500"),
        ("ranking", "--releases 2 --seeds 0"),
        ("preparation_ranges", "--rows 600 --fits 2"),
        ("columns", "--fits 1"),
        ("parallel_silos", "--rows 200 --features 8 --repetitions 1"),
        ("federation", "--rounds 3 --d 12 --r 4 --silos 2 --skip-whole"),
    ],
)
def test_a_benchmark_runs_in_the_small_and_prints_a_table(name: str, options: str, tmp_path: Path):
    command = [sys.executable, "-m", f"benchmarks.{name}", *options.split()]
    command += ["--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "|--" in done.stdout
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["table"]["rows"]
