"""``Covariance``: a released covariance, as an object and as a folder."""

import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.files import new_folder, write_csv
from fedpower.linalg import Array
from fedpower.privacy.statement import featured_as
from fedpower.protocol.pooled import Pooled
from fedpower.report.page import Account, Table, analysis_page
from fedpower.report.record import (
    CODE_BOOK,
    COVARIANCE,
    PRIVACY,
    REPORT,
    RUN,
    Released,
    read_folder,
    write_json,
    write_pages,
    write_record,
)
from fedpower.report.text import count, number
from fedpower.rules.treatment import RowTreatment
from fedpower.values import no_column

ANALYSIS = "analysis.json"
_NUMBERS = ("covariance", "total_variance", "noise_std", "mean_weight", "remarks", "present")
_TREATMENT = ("center", "scale", "low", "high", "row_norm", "normalize")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Covariance(Released):
    """A released covariance with its noise: ``release_`` of a fit, or what `fedpower.load` returns.

    Everything computed from it is free: it needs no further privacy budget.

    Attributes
    ----------
    covariance : ndarray of shape (n_features, n_features)
        The covariance, in the units of the columns.
    mean : ndarray of shape (n_features,)
        The mean.
    privacy : PrivacyStatement
        What the release guarantees, and to whom. Print it.
    names : tuple of str
        Names of the columns.
    pooled, treatment
        The numbers in units of the treated rows with the law of their noise, and how rows were treated.
    record
        The record of the run, as in ``run.json``.
    """

    pooled: Pooled
    treatment: RowTreatment

    def __repr__(self) -> str:
        return self._described(f"{self.n_features} columns")

    @property
    def centered(self) -> bool:
        """Whether the pooled mean was removed; otherwise this is the second moment."""
        return self.pooled.center is not None

    @property
    def units(self) -> Array:
        """By column: how much of the rows' own units one of the treated rows is."""
        scale = np.ones(self.n_features) if self.treatment.scale is None else self.treatment.scale
        return np.asarray((self.treatment.row_norm or 1.0) * scale)

    @property
    def divisor(self) -> float:
        """n/(n − 1) for a covariance about the pooled mean, else 1: as in `FedPCA.explained_variance_`."""
        return self.n_samples / (self.n_samples - 1) if self.centered else 1.0

    @property
    def covariance(self) -> Array:
        """The noised covariance in the rows' own units, divided by n − 1 where centred; not floored."""
        units = self.units
        return np.asarray(self.pooled.covariance * np.outer(units, units) * self.divisor)

    @property
    def mean(self) -> Array:
        """The noised mean in the rows' own units (of unit rows where they were normalised)."""
        middle = np.zeros(self.n_features) if self.pooled.center is None else self.pooled.center
        if self.treatment.normalize:
            return np.asarray(middle)
        public = 0.0 if self.treatment.center is None else self.treatment.center
        return np.asarray(public + middle * self.units)

    @property
    def noise_std(self) -> float:
        """σ of the noise, in units of the treated rows: σ² on the diagonal, σ²/2 off it."""
        return self.pooled.noise_std

    @property
    def mean_noise_std(self) -> float:
        """The noise of each entry of the mean, in units of the treated rows; 0 without either."""
        if not self.centered:
            return 0.0
        return self.noise_std / (math.sqrt(2.0) * self.pooled.mean_weight)

    def column(self, name: str | int) -> int:
        """Return the place of a column, given by name or place; another is refused."""
        if isinstance(name, int | np.integer) and not isinstance(name, bool):
            if 0 <= name < self.n_features:
                return int(name)
        elif name in self.names:
            return self.names.index(name)
        raise no_column("the covariance", [f"{name}"], self.names)

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the covariance as a folder with its page, as `Result.save` does, and return where it is."""
        return save_analysis(self.account(), self, Path(folder), force=force, released=True)

    def arrays(self) -> dict[str, Any]:
        """Return what the file of a covariance holds, by name."""
        return {
            **{name: getattr(self.pooled, name) for name in _NUMBERS},
            **{name: getattr(self.treatment, name) for name in _TREATMENT},
            "mean": self.pooled.center,
            "remarks": tuple(map(str, self.pooled.remarks)),
            "feature_names": self.feature_names,
        }

    def account(self) -> Account:
        """Return what is known of a covariance by itself: means, variances and how much of them is noise."""
        thing = featured_as(self.record.parameters)
        units = self.units
        columns = {
            thing.capitalize(): self.names,
            "Mean": self.mean,
            "Noise of the mean": self.mean_noise_std * units,
            "Variance": self.covariance.diagonal(),
            "Noise of the variance": self.noise_std * units**2 * self.divisor,
        }
        noise = "It is exact: no noise was added, and nothing is promised about the rows."
        if self.noise_std > 0:
            noise = (
                "Its noise is normal: each table gives its standard deviation. In units of "
                f"the bound on rows it is {number(self.noise_std, 3)} on the diagonal, and √2 times less off "
                "it. A noised covariance may have negative eigenvalues: analyses floor them, and report it."
            )
        facts = ("n_features", "n_samples", "noise_std", "mean_noise_std", "centered")
        return Account(
            kind="covariance",
            title=f"The pooled covariance of {count(self.n_features, thing)}",
            sentences=(
                "It was paid for once. Everything computed from it costs nothing more and keeps this "
                "promise: fedpower analyze lists what can be.",
                noise,
            ),
            tables=(Table("Means and variances", "columns.csv", columns),),
            facts={**{name: getattr(self, name) for name in facts}, "columns": list(self.names)},
        )


def save_analysis(
    account: Account, release: Covariance, folder: Path, *, force: bool = False, released: bool = False
) -> Path:
    """Write an analysis, and the covariance if it was released for it, as a folder, whole or not at all."""
    tables = {table.file: table for table in account.tables}
    known = (RUN, COVARIANCE, CODE_BOOK, ANALYSIS, PRIVACY, REPORT, *tables)
    with new_folder(folder, known=known, force=force) as place:
        if released:
            write_record(place, release.record, {COVARIANCE: release.arrays()})
        for name, table in tables.items():
            heads = [heading.strip().lower().replace(" ", "_") for heading in table.columns]
            write_csv(place / name, heads, table.rows)
        write_json(place / ANALYSIS, account.facts)
        write_pages(place, release.privacy, analysis_page(account, release.record))
    return folder


def read_covariance(folder: str | PathLike[str]) -> Covariance:
    """Return the covariance that a folder holds; anything else, or one that was changed, is refused."""
    record, arrays = read_folder(Path(folder), COVARIANCE, command="fit")
    return Covariance(
        pooled=Pooled(center=arrays.get("mean"), **{name: arrays.get(name) for name in _NUMBERS}),  # type: ignore[arg-type]
        treatment=RowTreatment(**{name: arrays.get(name) for name in _TREATMENT}),  # type: ignore[arg-type]
        feature_names=arrays.get("feature_names"),
        record=record,
    )
