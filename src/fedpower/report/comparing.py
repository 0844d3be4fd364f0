"""Two results, or a result and known directions: the same columns in the same order."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.exceptions import InputError
from fedpower.linalg import Array
from fedpower.report.result import Result, read_result
from fedpower.rows.opening import existing


def read_axes(path: Path) -> tuple[Array, Result | None]:
    """Return directions, as columns of norm 1, of a result folder or an array file; the result too."""
    if path.suffix.lower() not in (".npz", ".npy") or path.is_dir():
        result = read_result(path)
        return result.components.T, result
    existing(path)
    axes: Array | None = None
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        arrays = {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        key = next(key for key in ("", "components", "basis") if key in arrays)
        axes = np.asarray(arrays[key], dtype=np.float64)
        axes = axes.T if key == "components" or (not key and len(axes) < axes.shape[1]) else axes
    except (ValueError, OSError, EOFError, IndexError, StopIteration, zipfile.BadZipFile):
        pass
    if axes is None or axes.ndim != 2 or not axes.size or not np.isfinite(axes).all():
        raise InputError(f"{path} must hold a matrix 'components' or 'basis' of finite numbers, got none")
    norms = np.linalg.norm(axes, axis=0)
    if not (norms > 0).all() or np.linalg.matrix_rank(axes / norms) < axes.shape[1]:
        raise InputError(f"{path} must contain independent directions, got shape {axes.shape}")
    return axes / norms, None


def column_order(both: str, one: Array, other: Array, result: Result | None, earlier: Result | None) -> Any:
    """Return the second's columns in the order of the first's; refuse what answers another question."""
    order, reason = list(range(len(other))), None
    names, others = (found and found.feature_names for found in (result, earlier))
    if names and others:
        odd = set(names) ^ set(others)
        reason = f"column {min(odd)!r} in one of them only" if odd else None
        order = [] if odd else [others.index(name) for name in names]
    elif len(one) != len(other):
        reason = f"{len(one)} and {len(other)} columns"
    if result is not None and earlier is not None and reason is None:
        scales = [np.ones(len(one)) if each.scale is None else each.scale for each in (result, earlier)]
        kinds = result.record.standardized, earlier.record.standardized
        if kinds[0] != kinds[1]:
            reason = "correlations in one and covariances in the other; see --standardize"
        elif not kinds[0] and not np.allclose(scales[0], scales[1][order], rtol=1e-9, atol=0.0):
            reason = "covariances of columns in other units; see --scale-file"
    if reason is not None:
        raise InputError(f"{both} must be comparable, got {reason}")
    return order
