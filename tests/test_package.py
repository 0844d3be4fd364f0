"""The package as a whole: what importing it costs, one version everywhere, and examples that run."""

import doctest
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import fedpower
from fedpower import analysis


def full_modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def modules_after(statement: str) -> set[str]:
    return {name.split(".")[0] for name in full_modules_after(statement)}


def test_importing_the_package_takes_nothing_with_it():
    heavy = {"numpy", "scipy", "sklearn", "pyarrow", "pandas", "matplotlib", "click", "rich"}
    assert not modules_after("import fedpower") & heavy
    tables = {"sklearn", "pyarrow", "pandas", "adbc_driver_manager"}
    assert not modules_after("import fedpower.rows.opening") & tables


@pytest.mark.slow
def test_the_estimator_takes_no_engine_plotting_or_command_line_library_with_it():
    loaded = modules_after("from fedpower import FedPCA")
    assert "sklearn" in loaded
    assert not loaded & {"nvflare", "torch", "dask", "matplotlib", "click", "rich"}
    own = loaded - modules_after("import sklearn.base, scipy.linalg")  # scikit-learn has its own
    assert not own & {"pandas", "pyarrow"}


OF_COMMAND = "from fedpower.cli import main; main.get_command(None, {!r})"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "needed", "heavy"),
    [
        *(
            (OF_COMMAND.format(command), "numpy", set())
            for command in ("node", "study", "transform", "analyze")
        ),
        ("import fedpower.federation.coordinator", "nvflare", {"torch", "matplotlib"}),
    ],
)
def test_what_fits_nothing_does_not_wait_for_scikit_learn(statement, needed, heavy):
    loaded = modules_after(statement)
    assert needed in loaded
    assert not loaded & {"sklearn", "pandas", *heavy}


@pytest.mark.slow
def test_the_node_takes_nothing_with_it_that_reads_or_computes():
    """It is the silo's one process that talks to the network."""
    loaded = full_modules_after("import fedpower.federation.node, fedpower.federation.links")
    assert "nvflare.fuel.f3.sfm.conn_manager" in loaded
    for name in ("numpy", "pyarrow", "scipy", "sklearn", "pandas", "torch", "sqlite3"):
        assert name not in loaded
    own = {name for name in loaded if name.startswith("fedpower.")}
    parts = ("certificates", "isolation", "links", "node", "processes")
    allowed = {
        "fedpower.exceptions",
        "fedpower.federation",
        *(f"fedpower.federation.{part}" for part in parts),
    }
    assert own <= allowed


def test_the_version_is_the_same_everywhere():
    version, root = importlib.metadata.version("fedpower"), Path(__file__).parents[1]
    assert fedpower.__version__ == version
    assert f"\n## {version} " in (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text(encoding="utf-8")


def test_public_names_exist_and_unknown_ones_are_refused():
    assert set(fedpower.__all__) <= set(dir(fedpower))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedpower.nothing  # noqa: B018


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
