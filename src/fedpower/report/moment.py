"""``Moment``: a pooled, noised moment that is paid for once, as an object and as two files."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.privacy.statement import PrivacyStatement, counted_as
from fedpower.protocol.pooled import Pooled
from fedpower.protocol.study import PREPARED, Study
from fedpower.report.codebook_file import code_book_of_record, rules_of_record
from fedpower.report.record import privacy_of, study_of, without
from fedpower.report.stored import UNREADABLE, Stored
from fedpower.rows.treatment import RowTreatment
from fedpower.rules.codebook import CodeBook

Array = NDArray[np.float64]

FORMAT = "fedpower-moment/1"
MOMENT, RELEASE = "moment.npz", "moment.json"
MOMENT_FILES = (MOMENT, RELEASE)
"""What a folder holds that has a released moment in it: that of `fedpower release`, or of a result."""

_MOMENT = Stored(what="a moment", command="release", arrays=MOMENT, record=RELEASE, format=FORMAT)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Moment:
    """The pooled moment of rows that silos hold, with the noise that was paid for: see `FedMoment`.

    Whatever is computed from it is post-processing: it costs no budget, and the statement stays as it is.

    Attributes
    ----------
    pooled
        The numbers, in units of the treated rows, and the law of their noise.
    treatment
        What was done to each row before.
    feature_names
        Names of the columns in order; None where they have none.
    record
        Of the run that released it: what ``run.json`` holds of a result, in JSON's types.
    """

    pooled: Pooled
    treatment: RowTreatment
    feature_names: tuple[str, ...] | None
    record: dict[str, Any]

    def __repr__(self) -> str:
        asked = self.privacy.asked_epsilon
        promise = f"epsilon={asked:g}" if self.privacy.is_private else "not private"
        things = f"{counted_as(self.record['parameters'])}s"
        rows = f"{self.n_samples} {things}{without(self.record)}"
        return f"<Moment: {self.n_features} columns, {rows}, {promise}>"

    @property
    def n_features(self) -> int:
        """The number of columns, d."""
        return int(self.pooled.moment.shape[0])

    @property
    def n_samples(self) -> int:
        """The number of rows, of all silos together."""
        return int(self.record["n_samples"])

    @property
    def silo_sizes(self) -> dict[str, int]:
        """Rows by silo."""
        return {each["name"]: each["rows"] for each in self.record["silos"] if each.get("rows")}

    @property
    def names(self) -> tuple[str, ...]:
        """What the columns are called: x0, x1, ... where they have no names."""
        return self.feature_names or tuple(f"x{place}" for place in range(self.n_features))

    @property
    def privacy(self) -> PrivacyStatement:
        """What is promised about the rows; print it."""
        return privacy_of(self.record)

    @property
    def study(self) -> Study:
        """The terms of the release, held against the hash that the record gives."""
        return study_of(self.record)

    @property
    def code_book(self) -> CodeBook | None:
        """Offsets, scales, ranges and bound of the columns; None where rows had no such treatment."""
        rules = rules_of_record(self.record)
        if rules is not None and rules.comparison is not None:
            return CodeBook(rules=rules)
        found = code_book_of_record(self.record)
        rule = self.treatment
        if found is not None or rule.low is None or rule.high is None or rule.row_norm is None:
            return found
        width = self.n_features
        return CodeBook(
            columns=self.feature_names,
            offset=np.zeros(width) if rule.center is None else rule.center,
            scale=np.ones(width) if rule.scale is None else rule.scale,
            low=rule.low,
            high=rule.high,
            bound=rule.row_norm,
            found=("given",) * width,
        )

    @property
    def centered(self) -> bool:
        """Whether it is a moment about the pooled mean: a covariance."""
        return self.pooled.center is not None

    @property
    def units(self) -> Array:
        """By column: how much of the rows' own units one of the treated rows is."""
        rule = self.treatment
        scale = np.ones(self.n_features) if rule.scale is None else rule.scale
        return np.asarray((rule.row_norm or 1.0) * scale)

    @property
    def divisor(self) -> float:
        """n/(n − 1) for a moment about the pooled mean, else 1: as in `FedPCA.explained_variance_`."""
        return self.n_samples / (self.n_samples - 1) if self.centered else 1.0

    @property
    def covariance(self) -> Array:
        """The noised moment in the rows' own units, divided by n − 1 where centred; not floored."""
        units = self.units
        return np.asarray(self.pooled.moment * np.outer(units, units) * self.divisor)

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
        """Return the place of a column, given by name or place; another is refused in one sentence."""
        if isinstance(name, int | np.integer) and not isinstance(name, bool):
            if 0 <= name < self.n_features:
                return int(name)
        elif name in self.names:
            return self.names.index(name)
        listed = ", ".join(self.names[:8]) + (", ..." if self.n_features > 8 else "")
        raise InputError(f"a column must be one of the moment's, got {name!r}; it has {listed}")

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the moment as a folder, whole or not at all, with its page, and return where it is.

        Parameters
        ----------
        folder
            A new or empty folder.
        force
            Whether an earlier moment in the folder is replaced.
        """
        from fedpower.report.moment_folder import save_moment  # noqa: PLC0415 - pages are made of moments

        return save_moment(self, Path(folder), force=force)


def write_moment(place: Path, moment: Moment) -> None:
    """Write the two files of a moment into an existing folder."""
    pooled, rule = moment.pooled, moment.treatment
    optional = {
        "mean": pooled.center,
        "center": rule.center,
        "scale": rule.scale,
        "low": rule.low,
        "high": rule.high,
        "row_norm": rule.row_norm,
        "feature_names": moment.feature_names,
        "present": pooled.present,
    }
    arrays = {
        "moment": pooled.moment,
        "total_variance": np.array(pooled.total_variance),
        "noise_std": np.array(pooled.noise_std),
        "mean_weight": np.array(pooled.mean_weight),
        "normalize": np.array(rule.normalize),
        **{key: np.asarray(value) for key, value in optional.items() if value is not None},
    }
    np.savez(place / MOMENT, **arrays)  # type: ignore[arg-type]  # strings and numbers only
    content = {"format": FORMAT, "remarks": [str(each) for each in pooled.remarks], "run": moment.record}
    text = {**content, "sha256": _digest(arrays, content)}
    (place / RELEASE).write_text(
        json.dumps(text, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def read_moment(folder: str | PathLike[str]) -> Moment:
    """Return the moment that a folder holds; anything else, or one that was changed, is refused.

    Parameters
    ----------
    folder
        What `fedpower release` wrote, or the result of a fit that noised the covariance.
    """
    place = Path(folder)
    if (place / "run.json").is_file() and not all((place / name).is_file() for name in MOMENT_FILES):
        raise InputError(
            f"{place} must hold a released moment, got a result that was fitted without keeping it; fit "
            "with --solver moment, or use `fedpower release`"
        )
    arrays, content = _MOMENT.opened(place)
    claimed = content.pop("sha256", None)
    if claimed != _digest(arrays, content):
        raise InputError(
            f"{place} must be as `fedpower release` wrote it, got files that were changed since; bring "
            "back the folder, or release again: with the same ledgers that costs nothing"
        )
    try:
        moment = _moment(arrays, content)
        whole = _fits_together(moment)
    except UNREADABLE:
        whole = False
    if not whole:
        raise _MOMENT.damaged(place, MOMENT)
    return moment


def _moment(arrays: Mapping[str, Any], content: Mapping[str, Any]) -> Moment:
    def numbers(key: str) -> Any:
        if key not in arrays:
            return None
        values = np.asarray(arrays[key], dtype=np.float64)
        values.flags.writeable = False
        return values

    names, bound = arrays.get("feature_names"), arrays.get("row_norm")
    return Moment(
        pooled=Pooled(
            moment=numbers("moment"),
            center=numbers("mean"),
            total_variance=float(arrays["total_variance"]),
            noise_std=float(arrays["noise_std"]),
            mean_weight=float(arrays["mean_weight"]),
            remarks=tuple(content["remarks"]),
            present=numbers("present"),
        ),
        treatment=RowTreatment(
            center=numbers("center"),
            scale=numbers("scale"),
            row_norm=None if bound is None else float(bound),
            normalize=bool(arrays["normalize"]),
            low=numbers("low"),
            high=numbers("high"),
        ),
        feature_names=None if names is None else tuple(str(name) for name in names),
        record=content["run"],
    )


def _fits_together(moment: Moment) -> bool:
    """Return whether the numbers are those of the study on record."""
    values, study = moment.pooled.moment, moment.study
    vectors = [
        each
        for each in (moment.pooled.center, moment.treatment.center, moment.treatment.scale)
        if each is not None
    ]
    return (
        values.shape == (study.n_features, study.n_features)
        and bool(np.isfinite(values).all())
        # Centring rounds the two triangles apart by a last digit.
        and bool(np.abs(values - values.T).max() <= 1e-12 * np.abs(values).max())
        and all(each.shape == (study.n_features,) for each in vectors)
        and (moment.pooled.center is not None) == study.center
        and (moment.pooled.noise_std > 0) == study.is_private
        and moment.feature_names == study.columns
        and study.treatment in (PREPARED, moment.treatment.digest())
    )


def _digest(arrays: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return SHA-256 of all that the two files hold: it tells a change, not who made it."""
    digest = hashlib.sha256(b"fedpower moment 1")
    for key in sorted(arrays):
        each = np.ascontiguousarray(arrays[key])
        for part in (key, each.dtype.str, str(each.shape)):
            digest.update(f"{part}\0".encode())
        digest.update(each.tobytes())
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def of_run(moment: Moment, run: dict[str, Any]) -> Moment:
    """Return the moment with the record of its run as it is now."""
    return replace(moment, record=run)
