"""The result folder: arrays and tables, the record, the promise and the report; no pickle."""

import csv
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpower.errors import InputError
from fedpower.report.atomic import new_file, new_folder
from fedpower.report.page import page
from fedpower.report.page.shape import lacks
from fedpower.report.record import FORMAT, run_record
from fedpower.report.result import Result
from fedpower.report.spreadsheet import as_text

if TYPE_CHECKING:  # reading a result takes no estimator with it
    from fedpower.estimator import FedPCA

ARRAYS, COMPONENTS, EIGENVALUES, RUN, PRIVACY, REPORT = (
    "components.npz",
    "components.csv",
    "eigenvalues.csv",
    "run.json",
    "privacy.txt",
    "report.html",
)
FILES = (ARRAYS, COMPONENTS, EIGENVALUES, RUN, PRIVACY, REPORT)
"""All that a result folder holds."""

_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, TypeError)


def write_result(
    folder: str | PathLike[str],
    model: "FedPCA",
    *,
    command: Sequence[str] | None = None,
    silos: Mapping[str, Mapping[str, Any]] | None = None,
    started: datetime | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write a fitted model as a folder, whole or not at all, and return its record.

    Parameters
    ----------
    folder
        A new or empty folder.
    model, command, silos, started
        See `run_record`.
    force
        Whether an earlier result in the folder is replaced.
    """
    with new_folder(Path(folder), known=FILES, force=force) as place:
        return write_files(
            place, model, run_record(model, command=command, silos=silos, started=started)
        )


def write_files(place: Path, model: "FedPCA", record: dict[str, Any]) -> dict[str, Any]:
    """Write the files of a result into an existing folder and return the record."""
    rule, names = model._treatment(), model._columns()
    optional = {"feature_names": names, "scale": rule.scale, "center": rule.center}
    arrays = {
        "format": np.array(FORMAT),
        "components": model.components_,
        "explained_variance": model.explained_variance_,
        "explained_variance_ratio": model.explained_variance_ratio_,
        "singular_values": model.singular_values_,
        "spectrum": model.spectrum_,
        "mean": model.mean_,
        "normalize": np.array(bool(model.normalize)),
        **{key: np.asarray(value) for key, value in optional.items() if value is not None},
    }
    np.savez(place / ARRAYS, **arrays)  # strings and numbers only, so nothing is pickled
    features = names or [f"x{place}" for place in range(model.n_features_in_)]
    places = range(1, model.n_components_ + 1)
    _write_csv(
        place / COMPONENTS,
        ["feature", *(f"pc{number}" for number in places)],
        zip(map(as_text, features), *model.components_.tolist(), strict=True),
    )
    ratios = model.explained_variance_ratio_.tolist()
    _write_csv(
        place / EIGENVALUES,
        ["component", "explained_variance", "explained_variance_ratio", "singular_value"],
        zip(
            (f"pc{number}" for number in places),
            model.explained_variance_.tolist(),
            ("" if np.isnan(ratio) else ratio for ratio in ratios),
            model.singular_values_.tolist(),
            strict=True,
        ),
    )
    text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False)
    (place / RUN).write_text(text + "\n", encoding="utf-8")
    (place / PRIVACY).write_text(f"{model.privacy_}\n", encoding="utf-8")
    write_report(place)
    return record


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
    lacking = lacks(result.run)
    if lacking is not None:
        raise InputError(
            f"{place / RUN} must be as `fedpower fit` wrote it, got none or another kind of {lacking}; "
            "fit again or bring back the folder"
        )
    return result


def read_result(folder: str | PathLike[str]) -> Result:
    """Return the result that a folder holds; anything else is refused in one sentence."""
    place = Path(folder)
    if not place.is_dir():
        raise InputError(
            f"{place} must be a folder that `fedpower fit` wrote, got "
            f"{'a file' if place.exists() else 'nothing there'}; check the path"
        )
    absent = [name for name in (ARRAYS, RUN) if not (place / name).is_file()]
    if absent:
        raise InputError(
            f"{place} must be a folder that `fedpower fit` wrote, got one without {absent[0]}; "
            "check the path"
        )
    try:
        run = json.loads((place / RUN).read_text(encoding="utf-8"))
        found = run["format"]
    except _UNREADABLE:
        raise _damaged(place, RUN) from None
    if found != FORMAT:
        raise InputError(
            f"{place} must be a result of format {FORMAT!r}, got {found!r}; read it with the "
            "fedpower that wrote it"
        )
    try:
        with np.load(place / ARRAYS, allow_pickle=False) as stored:
            result = _result({key: stored[key] for key in stored.files}, run)
    except _UNREADABLE:
        raise _damaged(place, ARRAYS) from None
    if not _fits_together(result):
        raise _damaged(place, ARRAYS)
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
    per_component = (
        result.explained_variance,
        result.explained_variance_ratio,
        result.singular_values,
    )
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


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _damaged(place: Path, name: str) -> InputError:
    return InputError(
        f"{place / name} must be as `fedpower fit` wrote it, got a damaged or foreign file; "
        "fit again or bring back the folder"
    )
