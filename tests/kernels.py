"""Triton's kernels in tests: on a GPU where there is one, else by Triton's interpreter."""

import pytest

torch = pytest.importorskip("torch")

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def import_kernel(module: str) -> None:
    """Import a module of kernels, or leave its tests out without Triton."""
    with pytest.MonkeyPatch.context() as patch:  # whether it is interpreted is settled on import
        _interpret(patch)
        pytest.importorskip("triton")
        pytest.importorskip(module)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpret kernels in every test of a module that has this."""
    _interpret(monkeypatch)


def _interpret(patch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        patch.setenv("TRITON_INTERPRET", "1")
