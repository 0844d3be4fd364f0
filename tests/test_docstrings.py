"""Every exported object has a docstring whose example runs."""

import doctest

import pytest

import fedpower
from fedpower import analysis

OBJECTS = {
    f"{room.__name__}.{name}": getattr(room, name)
    for room in (fedpower, analysis)
    for name in room.__all__
    if name[0] != "_"
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OBJECTS)
def test_the_example_of_an_exported_object_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = OBJECTS[name]
    tests = [test for test in doctest.DocTestFinder().find(thing, name, globs={}) if test.examples]
    assert any(test.name == name for test in tests), f"{name} must have an example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
