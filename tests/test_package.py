"""The package as a whole: what importing it costs, and that its version is told once."""

import importlib.metadata
import subprocess
import sys

import pytest

import fedpower


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in run.stdout.split()}


def test_importing_the_package_takes_nothing_with_it() -> None:
    heavy = {"numpy", "scipy", "sklearn", "pyarrow", "pandas", "matplotlib", "click", "rich"}
    assert not modules_after("import fedpower") & heavy


@pytest.mark.slow
def test_the_estimator_takes_no_engine_plotting_or_command_line_library_with_it() -> None:
    loaded = modules_after("from fedpower import FedPCA")
    assert "sklearn" in loaded
    assert not loaded & {"nvflare", "torch", "dask", "matplotlib", "click", "rich"}
    own = loaded - modules_after("import sklearn.base, scipy.linalg")  # scikit-learn has its own
    assert not own & {"pandas", "pyarrow", "cryptography"}


def test_the_version_is_told_once() -> None:
    assert fedpower.__version__ == importlib.metadata.version("fedpower")


def test_public_names_exist_and_unknown_ones_are_refused() -> None:
    for name in fedpower.__all__:
        assert getattr(fedpower, name) is not None
    assert set(fedpower.__all__) <= set(dir(fedpower))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedpower.nothing  # noqa: B018
