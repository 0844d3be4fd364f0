"""Rows held in a PyTorch tensor, on the CPU or on a device."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpower.data.checks import require_matrix
from fedpower.data.positional import PositionalSource
from fedpower.data.source import Block
from fedpower.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorSource(PositionalSource):
    """The rows of a 2-d tensor of any real dtype, wherever it is.

    Kernels on a device use `tensor` where it lies (`device_blocks`); everything else reads it in
    float64 blocks, like any source.
    """

    tensor: Any

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield slices as float64 arrays: views where the tensor is such on the CPU, copies elsewhere."""
        for start in range(0, self.tensor.shape[0], max_rows):
            part = self.tensor[start : start + max_rows]
            block = np.ascontiguousarray(part.double().cpu().numpy()).view()
            block.flags.writeable = False
            yield block


def is_tensor(data: Any) -> bool:
    """Whether the object is a PyTorch tensor, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def tensor_source(tensor: Any, name: str) -> TensorSource:
    """Return the source of a tensor's rows; its gradients play no part."""
    if tensor.layout is not sys.modules["torch"].strided:
        raise InputError(
            f"{name} must be a dense tensor, got layout {tensor.layout}; give tensor.to_dense() or a "
            "SciPy sparse matrix"
        )
    kind = "c" if tensor.is_complex() else "f"
    require_matrix(name, tuple(tensor.shape), np.dtype(f"{kind}8"))
    rows, width = tensor.shape
    wide = not tensor.is_floating_point() and tensor.element_size() > 4
    return TensorSource(name=name, width=width, n_rows=rows, tensor=tensor.detach(), wide=wide)
