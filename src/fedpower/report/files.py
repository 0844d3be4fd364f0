"""The files of a result folder: arrays and tables, the record, the promise and the report; no pickle."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.report.codebook_file import rendered
from fedpower.report.moment import MOMENT_FILES, of_run, write_moment
from fedpower.report.page import page
from fedpower.report.page.summary import schema_error
from fedpower.report.record import FORMAT
from fedpower.report.result import Result

ARRAYS, COMPONENTS, EIGENVALUES, RUN, PRIVACY, REPORT = (
    "components.npz",
    "components.csv",
    "eigenvalues.csv",
    "run.json",
    "privacy.txt",
    "report.html",
)
CODE_BOOK = "codebook.toml"
SCORE_COUNTS = "score_counts.csv"
FILES = (ARRAYS, COMPONENTS, EIGENVALUES, RUN, PRIVACY, REPORT)
"""What every result folder holds."""

KNOWN = (*FILES, CODE_BOOK, SCORE_COUNTS, *MOMENT_FILES)
"""All that one may hold: a code book where the fit found one, counts of scores where it was to have
them, the moment where it was to be kept.
"""


def write_files(place: Path, result: Result) -> None:
    """Write the files of a result into an existing folder."""
    require_whole(result.run, "the record of a result")
    optional = {
        "spectrum": result.spectrum,
        "feature_names": result.feature_names,
        "scale": result.scale,
        "center": result.center,
    }
    arrays: dict[str, Any] = {
        "format": np.array(FORMAT),
        "components": result.components,
        "explained_variance": result.explained_variance,
        "explained_variance_ratio": result.explained_variance_ratio,
        "singular_values": result.singular_values,
        "mean": result.mean,
        "normalize": np.array(result.normalize),
        **{key: np.asarray(value) for key, value in optional.items() if value is not None},
    }
    np.savez(place / ARRAYS, **arrays)  # strings and numbers only, so nothing is pickled
    features = result.feature_names or [f"x{column}" for column in range(result.n_features)]
    write_csv(
        place / COMPONENTS,
        ["feature", *result.score_names],
        zip(map(as_text, features), *result.components.tolist(), strict=True),
    )
    ratios = result.explained_variance_ratio.tolist()
    write_csv(
        place / EIGENVALUES,
        ["component", "explained_variance", "explained_variance_ratio", "singular_value"],
        zip(
            result.score_names,
            result.explained_variance.tolist(),
            ("" if np.isnan(ratio) else ratio for ratio in ratios),
            result.singular_values.tolist(),
            strict=True,
        ),
    )
    text = json.dumps(result.run, indent=2, allow_nan=False, ensure_ascii=False)
    (place / RUN).write_text(text + "\n", encoding="utf-8")
    book = result.code_book
    if book is not None:
        (place / CODE_BOOK).write_text(rendered(book), encoding="utf-8")
    counts = result.score_counts
    if counts is not None:
        write_csv(
            place / SCORE_COUNTS,
            ["silo", "pc1_from", "pc1_to", "pc2_from", "pc2_to", "count"],
            ((as_text(name), *cell) for name in counts.counts for cell in counts.cells(name)),
        )
    if result.moment is not None:
        write_moment(place, of_run(result.moment, result.run))
    (place / PRIVACY).write_text(f"{result.privacy}\n", encoding="utf-8")
    (place / REPORT).write_text(page(result), encoding="utf-8", newline="\n")


def require_whole(record: Any, name: object) -> None:
    """Refuse a record that does not hold what tells of the fit; ``name`` is what the refusal calls it."""
    lacking = schema_error(record)
    if lacking is not None:
        raise InputError(
            f"{name} must be as `fedpower fit` wrote it, got none or another kind of {lacking}; "
            "fit again or bring back the folder"
        )


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table as text that reads back to the same numbers."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that spreadsheets run."""


def as_text(cell: Any) -> Any:
    """Return a cell that no spreadsheet runs: text that begins as formulas do gets an apostrophe first."""
    if not isinstance(cell, str) or not cell.lstrip("'").startswith(_FORMULAS) or _is_number(cell):
        return cell
    return f"'{cell}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
