"""`fedpower compare`: how far apart two subspaces are."""

import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fedpower.cli.console import console, print_json, table
from fedpower.cli.paths import AXES
from fedpower.errors import InputError
from fedpower.linalg import orth, principal_angles
from fedpower.report import read_result

Array = NDArray[np.float64]

SMALL_DEGREES, LOW_COSINE = 15.0, 0.9
"""In subspaces so close, components less alike than that (26 degrees) have turned among themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """Directions to compare: d×k with columns of norm 1; names and units of the d columns, if known."""

    name: str
    directions: Array
    columns: tuple[str, ...] | None
    standardized: bool | None = None
    scale: Array | None = None


@click.command()
@click.argument("a", type=AXES)
@click.argument("b", type=AXES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def compare(a: Path, b: Path, as_json: bool) -> None:
    """Show the principal angles between the subspaces of A and B.

    Each is a folder that `fedpower fit` wrote, or a .npz or .npy file with an array `components`
    (k×d) or `basis` (d×k), such as the truth.npz of `fedpower simulate`, which is of
    covariances. Results must be of the same kind: correlations (--standardize) or covariances in the
    same units.
    """
    first, second = _same_columns(_read_axes(a), _read_axes(b))
    _check_units(first, second)
    angles = principal_angles(orth(first.directions), orth(second.directions))
    sines = np.sin(angles)
    shared = min(first.directions.shape[1], second.directions.shape[1])
    cosines = np.abs(np.einsum("ij,ij->j", first.directions[:, :shared], second.directions[:, :shared]))
    cosines = np.minimum(cosines, 1.0)
    if as_json:
        record: dict[str, Any] = {
            "a": first.name,
            "b": second.name,
            "n_features": first.directions.shape[0],
            "n_components": [first.directions.shape[1], second.directions.shape[1]],
            "angles_degrees": np.degrees(angles).tolist(),
            "sines": sines.tolist(),
            "sin_theta": float(sines[-1]),
            "component_cosines": cosines.tolist(),
        }
        print_json(record)
        return
    headings = ("", "angle (degrees)", "sin θ", "|cosine| of the components")
    shown = table(None, *headings, numbers=headings)
    for number, (angle, sine, cosine) in enumerate(zip(angles, sines, cosines, strict=True), 1):
        shown.add_row(str(number), f"{np.degrees(angle):.4g}", f"{sine:.3e}", f"{cosine:.6f}")
    out = console()
    out.print(shown)
    out.print(
        f"The subspaces of {first.name} and {second.name} are {np.degrees(angles[-1]):.4g} degrees "
        f"apart (largest principal angle; sin θ = {sines[-1]:.3e}).",
        soft_wrap=True,
    )
    if np.degrees(angles[-1]) < SMALL_DEGREES and cosines.min() < LOW_COSINE:
        out.print(
            "Components of nearly equal variance may turn within the plane that they span: the angles "
            "are what counts.",
            soft_wrap=True,
        )


def _read_axes(path: Path) -> _Axes:
    """Return the directions that a result folder or an array file holds."""
    if path.suffix.lower() not in (".npz", ".npy") or path.is_dir():
        result = read_result(path)
        return _Axes(
            name=str(path),
            directions=_unit(path, result.components.T),
            columns=result.feature_names,
            standardized=result.standardized,
            scale=np.ones(result.n_features) if result.scale is None else result.scale,
        )
    if not path.is_file():
        raise InputError(f"{path} must be a file that exists, got none there; check the path")
    try:
        values: Any = None
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            key, values = "", loaded
        else:
            with loaded:
                key = next((key for key in ("components", "basis") if key in loaded.files), "")
                values = loaded[key] if key else None
        if values is None:
            raise InputError(
                f"{path} must hold an array 'components' (k×d) or 'basis' (d×k), got "
                f"{', '.join(loaded.files) or 'nothing'}; save one of them"
            )
        values = np.asarray(values, dtype=np.float64)
    except InputError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise InputError(
            f"{path} must be an array file that NumPy wrote, got a damaged or foreign one; "
            "save it again with numpy.savez"
        ) from None
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise InputError(
            f"{path} must hold a matrix of finite numbers, got shape {values.shape}; save it again"
        )
    lies = key == "components" or (key == "" and values.shape[0] < values.shape[1])
    return _Axes(name=str(path), directions=_unit(path, values.T if lies else values), columns=None)


def _unit(path: Path, directions: Array) -> Array:
    """Return the columns scaled to norm 1; dependent ones span no subspace of their number."""
    norms = np.linalg.norm(directions, axis=0)
    dependent = directions.shape[1] > directions.shape[0] or not (norms > 0).all()
    if dependent or np.linalg.matrix_rank(directions / norms) < directions.shape[1]:
        raise InputError(
            f"{path} must hold independent directions, got dependent ones of shape "
            f"{directions.shape}; give a basis"
        )
    return np.asarray(directions / norms)


def _same_columns(first: _Axes, second: _Axes) -> tuple[_Axes, _Axes]:
    """Return both over the same columns in the same order, or refuse them."""
    widths = first.directions.shape[0], second.directions.shape[0]
    if first.columns and second.columns and set(first.columns) != set(second.columns):
        odd = sorted(set(first.columns) ^ set(second.columns))[0]
        only = first.name if odd in first.columns else second.name
        raise InputError(
            f"two results must have the same columns to be compared, got {odd!r} in {only} only; "
            "fit both over the same columns"
        )
    if widths[0] != widths[1]:
        raise InputError(
            f"two results must have equally many columns to be compared, got {widths[0]} in "
            f"{first.name} and {widths[1]} in {second.name}; fit both over the same columns"
        )
    if first.columns and second.columns and first.columns != second.columns:
        order = [second.columns.index(column) for column in first.columns]
        moved = second.directions[order]
        scale = None if second.scale is None else second.scale[order]
        return first, replace(second, directions=moved, columns=first.columns, scale=scale)
    return first, second


def _check_units(first: _Axes, second: _Axes) -> None:
    """Refuse results whose columns are in different units: their components answer other questions."""
    if first.standardized is None or second.standardized is None:
        return
    if first.standardized != second.standardized:
        whole, other = (first, second) if first.standardized else (second, first)
        raise InputError(
            "two results must be both of correlations or both of covariances to be compared, got "
            f"correlations in {whole.name} and covariances in {other.name}; fit one of them again with "
            "the other's --standardize or --no-standardize"
        )
    if first.standardized or first.scale is None or second.scale is None:
        return
    if not np.allclose(first.scale, second.scale, rtol=1e-9, atol=0.0):
        raise InputError(
            "two results of covariances must have their columns in the same units to be compared, got "
            f"other scales in {first.name} than in {second.name}; fit one of them again with the other's "
            "--scale-file, or both with --standardize"
        )
