"""The result folder: written from a result, read back as one, and its page made anew."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.report.atomic import new_file
from fedpower.report.files import ARRAYS, REPORT, RUN, require_whole
from fedpower.report.page import page
from fedpower.report.record import FORMAT
from fedpower.report.result import Result
from fedpower.report.stored import UNREADABLE, Stored

_RESULT = Stored(what="a result", command="fit", arrays=ARRAYS, record=RUN, format=FORMAT)


def write_result(
    folder: str | PathLike[str],
    model: Any,
    *,
    command: Sequence[str] | None = None,
    silos: Mapping[str, Mapping[str, Any]] | None = None,
    started: datetime | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write a result as a folder, whole or not at all, and return its record.

    Parameters
    ----------
    folder
        A new or empty folder.
    model
        A fitted `FedPCA`, or a `Result`.
    command, silos, started
        Where the fit came from, for the record: see `Result.with_origin`.
    force
        Whether an earlier result in the folder is replaced.
    """
    found = getattr(model, "result_", model)
    if not isinstance(found, Result):
        raise InputError(
            f"a folder must be written from a fitted FedPCA or a Result, got {type(model).__name__} "
            "without a result; fit it first"
        )
    complete = found.with_origin(command=command, silos=silos, started=started)
    complete.save(folder, force=force)
    return complete.run


def write_report(folder: str | PathLike[str]) -> Path:
    """Write the report of the result in a folder, from that folder alone, and return its path."""
    place = Path(folder)
    result = read_whole(place)
    with new_file(place / REPORT, force=True) as made:
        made.write_text(page(result), encoding="utf-8", newline="\n")
    return place / REPORT


def read_whole(folder: str | PathLike[str]) -> Result:
    """Return the result that a folder holds, its record looked over too, for what tells of the fit."""
    place = Path(folder)
    result = read_result(place)
    require_whole(result.run, place / RUN)
    return result


def read_result(folder: str | PathLike[str]) -> Result:
    """Return the result that a folder holds; anything else is refused in one sentence."""
    place = Path(folder)
    arrays, run = _RESULT.opened(place)
    try:
        result = _result(arrays, run)
    except UNREADABLE:
        raise _RESULT.damaged(place, ARRAYS) from None
    if not _fits_together(result):
        raise _RESULT.damaged(place, ARRAYS)
    return result


def _result(stored: dict[str, Any], run: dict[str, Any]) -> Result:
    def numbers(key: str) -> Any:
        values = np.asarray(stored[key], dtype=np.float64)
        values.flags.writeable = False
        return values

    names = stored.get("feature_names")
    return Result(
        components=numbers("components"),
        explained_variance=numbers("explained_variance"),
        explained_variance_ratio=numbers("explained_variance_ratio"),
        singular_values=numbers("singular_values"),
        mean=numbers("mean"),
        feature_names=None if names is None else tuple(str(name) for name in names),
        scale=numbers("scale") if "scale" in stored else None,
        normalize=bool(stored["normalize"]),
        center=numbers("center") if "center" in stored else None,
        spectrum=numbers("spectrum") if "spectrum" in stored else None,
        run=run,
    )


def _fits_together(result: Result) -> bool:
    if result.components.ndim != 2 or result.components.size == 0:
        return False
    count, width = result.components.shape
    per_component = (result.explained_variance, result.explained_variance_ratio, result.singular_values)
    per_column = [x for x in (result.mean, result.scale, result.center) if x is not None]
    return (
        all(values.shape == (count,) for values in per_component)
        and all(values.shape == (width,) for values in per_column)
        and (result.feature_names is None or len(result.feature_names) == width)
        and all(bool(np.isfinite(values).all()) for values in (result.components, *per_column))
        and bool(np.isfinite(result.explained_variance).all())
        and (result.spectrum is None or _is_spectrum(result.spectrum))
    )


def _is_spectrum(values: Any) -> bool:
    return values.ndim == 1 and bool(np.isfinite(values).all())
