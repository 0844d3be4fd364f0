"""Every exported object has a docstring whose example runs."""

import doctest
import inspect
import subprocess
import sys
import time
from typing import Any

import pytest

import fedpower
from fedpower import analysis

EXPORTED: dict[str, Any] = {
    **{f"fedpower.{name}": getattr(fedpower, name) for name in fedpower.__all__ if name[0] != "_"},
    **{f"fedpower.analysis.{name}": getattr(analysis, name) for name in analysis.__all__},
}
OBJECTS = {name: thing for name, thing in EXPORTED.items() if not inspect.ismodule(thing)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OBJECTS)
def test_the_example_of_an_exported_object_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = OBJECTS[name]
    tests = [
        test
        for test in doctest.DocTestFinder(exclude_empty=True).find(thing, name, globs={})
        if test.examples
    ]
    assert any(test.name == name for test in tests), f"{name} must have an example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_importing_the_package_is_light():
    code = "import sys, fedpower; print(*sys.modules)"
    start = time.perf_counter()
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert time.perf_counter() - start < 2.0
    assert not {"numpy", "scipy", "sklearn", "polars", "msgspec"} & set(loaded.split())
