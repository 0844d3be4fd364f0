"""The folders of a released moment and of what is derived from it: files, the promise and a page."""

import json
from pathlib import Path

from fedpower.privacy.statement import featured_as
from fedpower.report.account import Account, Table
from fedpower.report.atomic import new_folder
from fedpower.report.codebook_file import rendered
from fedpower.report.files import CODE_BOOK, PRIVACY, REPORT, as_text, write_csv
from fedpower.report.moment import MOMENT_FILES, Moment, write_moment
from fedpower.report.page.analysis import analysis_page
from fedpower.report.page.markup import count, number

RELEASED = (*MOMENT_FILES, CODE_BOOK, PRIVACY, REPORT)
"""All that the folder of a moment may hold."""

ANALYSIS = "analysis.json"

MOMENT_AND_COMMUNITIES = (
    *MOMENT_FILES, ANALYSIS, "communities.csv", "rates.csv", PRIVACY, REPORT,
)  # fmt: skip
"""All that the folder of `fedpower communities` may hold."""


def save_moment(moment: Moment, folder: Path, *, force: bool = False) -> Path:
    """Write a moment as a folder, whole or not at all, and return where it is."""
    with new_folder(folder, known=RELEASED, force=force) as place:
        write_release(place, moment)
    return folder


def write_release(place: Path, moment: Moment) -> None:
    """Write the files of a released moment into an existing folder."""
    write_moment(place, moment)
    book = moment.code_book
    if book is not None:
        (place / CODE_BOOK).write_text(rendered(book), encoding="utf-8")
    (place / PRIVACY).write_text(f"{moment.privacy}\n", encoding="utf-8")
    page = analysis_page(account_of(moment), moment)
    (place / REPORT).write_text(page, encoding="utf-8", newline="\n")


def account_of(moment: Moment) -> Account:
    """Return what is known of a moment by itself: means, deviations and how much of them is noise."""
    thing = featured_as(moment.record["parameters"])
    units, variances = moment.units, moment.covariance.diagonal()
    noise = moment.noise_std * units**2 * moment.divisor
    heads: tuple[str, ...] = (
        thing.capitalize(),
        "Mean",
        "Noise of the mean",
        "Variance",
        "Noise of the variance",
    )
    rows = zip(
        moment.names,
        moment.mean.tolist(),
        (moment.mean_noise_std * units).tolist(),
        variances.tolist(),
        noise.tolist(),
        strict=True,
    )
    if moment.noise_std == 0:
        said = "It is exact: no noise was added, and nothing is promised about the rows."
    else:
        said = (
            "Its noise is normal and known: each table gives its standard deviation beside the number. "
            f"In units of the bound it is {number(moment.noise_std, 3)} on the diagonal, √2 times less "
            "off it. A noised moment need not be positive: analyses floor its spectrum, and say so."
        )
    return Account(
        kind="moment",
        title=f"The pooled moment of {count(moment.n_features, thing)}",
        sentences=(
            "It was paid for once. Whatever is computed from it costs nothing more and keeps this "
            "promise: fedpower derive lists what can be.",
            said,
        ),
        tables=(Table(title="Means and variances", headings=heads, rows=tuple(rows), file="columns.csv"),),
        facts={
            "n_features": moment.n_features,
            "n_samples": moment.n_samples,
            "columns": list(moment.names),
            "noise_std": moment.noise_std,
            "mean_noise_std": moment.mean_noise_std,
            "centered": moment.centered,
        },
    )


def analysis_files(account: Account) -> tuple[str, ...]:
    """Return the names of the files of an analysis."""
    return (ANALYSIS, *(each.file for each in account.tables), PRIVACY, REPORT)


def save_analysis(account: Account, moment: Moment, folder: Path, *, force: bool = False) -> Path:
    """Write an analysis as a folder, whole or not at all, and return where it is."""
    with new_folder(folder, known=analysis_files(account), force=force) as place:
        _write_analysis(place, account, moment)
    return folder


def _write_analysis(place: Path, account: Account, moment: Moment) -> None:
    for each in account.tables:
        _write_table(place / each.file, each)
    text = json.dumps(account.facts, indent=2, allow_nan=False, ensure_ascii=False)
    (place / ANALYSIS).write_text(text + "\n", encoding="utf-8")
    (place / PRIVACY).write_text(f"{moment.privacy}\n", encoding="utf-8")
    page = analysis_page(account, moment)
    (place / REPORT).write_text(page, encoding="utf-8", newline="\n")


def save_moment_and_analysis(account: Account, moment: Moment, folder: Path, *, force: bool = False) -> Path:
    """Write a moment and what was found from it as one folder, and return where it is."""
    with new_folder(folder, known=MOMENT_AND_COMMUNITIES, force=force) as place:
        write_moment_and_analysis(place, account, moment)
    return folder


def write_moment_and_analysis(place: Path, account: Account, moment: Moment) -> None:
    """Write the files of both into an existing folder."""
    write_moment(place, moment)
    _write_analysis(place, account, moment)


def _write_table(path: Path, table: Table) -> None:
    rows = ([as_text("" if cell is None else cell) for cell in row] for row in table.rows)
    write_csv(path, [each.strip().lower().replace(" ", "_") for each in table.headings], rows)
