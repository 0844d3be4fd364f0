"""``Record``: everything about a run but its arrays. A folder is one record plus arrays."""

import hashlib
import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from msgspec import Meta, structs

from fedpower.exceptions import InputError
from fedpower.privacy.statement import PrivacyStatement, counted_as
from fedpower.protocol.pooled import Clipping
from fedpower.protocol.solvers.shared import ScoreRecord
from fedpower.protocol.study import SolverChoice, Study
from fedpower.report.text import and_more
from fedpower.rows.ruled import ruled
from fedpower.rows.source import RowSource, columns_of_fit
from fedpower.rows.units import features_of
from fedpower.rules.codebook import CodeBook, CodeBookFile, rendered
from fedpower.rules.rules import TableRules, table_rules
from fedpower.toml import Part

FORMAT = "fedpower-record/1"
RUN, ARRAYS, COVARIANCE = "run.json", "components.npz", "covariance.npz"
PRIVACY, REPORT, CODE_BOOK = "privacy.txt", "report.html", "codebook.toml"
PACKAGES = ("fedpower", "numpy", "scipy", "scikit-learn", "polars")
Time = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$")]


class StudyTerms(Part, frozen=True):
    """The terms of a study; they must have the hash that the record gives."""

    hash: str
    terms: Study

    def __post_init__(self) -> None:
        if self.terms.digest != self.hash:
            raise ValueError("the terms of the study do not have their hash")


class AngleRecord(Part, frozen=True):
    """Angles to the components of the rows, in degrees, and variances without noise."""

    confidence: float
    components: Annotated[list[float], Meta(min_length=1)]
    subspaces: list[float]
    determined: list[bool]
    noise_components: list[float]
    noise_subspaces: list[float]
    variances: list[float]
    variance_ratios: list[float | None]


class BudgetRecord(Part, frozen=True):  # of a silo's ledger, after the fit
    spent: float | None
    left: float
    cap: float
    delta: float
    used: float


class SiloRecord(Part, frozen=True):  # of one whose rows are in the result
    name: str
    rows: int | None = None
    source: str | None = None
    budget: BudgetRecord | None = None
    kernel: str | None = None


class RoundRecord(Part, frozen=True):
    round: int
    kind: str
    step: int
    local_steps: int
    participants: tuple[str, ...]
    n_participants: int
    bytes_down: int
    bytes_up: int
    change: float | None
    misalignment: float | None


class FederationRecord(Part, frozen=True):
    name: str
    agreement: str
    run: str
    silent: dict[str, int]
    rounds_resumed: int = 0
    set_aside: dict[str, str] = msgspec.field(default_factory=dict)


class Record(Part, frozen=True):
    """Everything about a run but its arrays, as ``run.json`` holds it."""

    format: str
    command: list[str] | None
    started: Time | None
    finished: Time
    versions: dict[str, str]
    study: StudyTerms
    parameters: dict[str, Any]
    solver: SolverChoice
    n_components: int
    n_features: int
    n_samples: int
    n_steps: int
    remarks: list[str]
    silos: Annotated[list[SiloRecord], Meta(min_length=1)]
    n_rounds: int
    bytes_up: int
    bytes_down: int
    rounds: list[RoundRecord]
    privacy: PrivacyStatement
    angles: AngleRecord | None = None
    absent: list[str] = msgspec.field(default_factory=list)
    unused: dict[str, str] = msgspec.field(default_factory=dict)  # columns without a rule, and why
    row_bound: float | None = None
    clipping: Clipping | None = None
    scores: ScoreRecord | None = None
    code_book: CodeBookFile | None = None
    rules: dict[str, Any] | None = None
    federation: FederationRecord | None = None
    sha256: dict[str, str] = msgspec.field(default_factory=dict)
    """Of each file of arrays together with this record: only in a folder."""

    @classmethod
    def of(cls, content: Mapping[str, Any], name: object = "the record of a result") -> Self:
        """Return the record that JSON's types give; error messages call it ``name``."""
        try:
            return msgspec.convert(content, cls, strict=False)  # "inf" is a number
        except msgspec.ValidationError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{name} must be as fedpower wrote it, got another ({reason})") from None

    def as_dict(self) -> dict[str, Any]:
        """Return the record in JSON's types."""
        content: dict[str, Any] = plain(msgspec.to_builtins(self, enc_hook=str))  # sentences become text
        return {**content, "privacy": plain(self.privacy.as_dict())}

    @property
    def counted(self) -> str:
        """What ``n_samples`` counts: row, person or network."""
        return counted_as(self.parameters)

    @property
    def without(self) -> str:
        """Which silos are missing, as the end of a sentence; empty where none is."""
        return f", without {', '.join(and_more(self.absent))}" if self.absent else ""

    @property
    def standardized(self) -> bool:
        """Whether the columns were brought to variance 1."""
        given = self.parameters
        return bool(given.get("standardize")) and not (given.get("normalize") or given.get("network"))

    @property
    def clipping_summary(self) -> str | None:
        """What the bound did to the rows, in a sentence; None where that is unknown."""
        if self.clipping is None or self.row_bound is None:
            return None
        return self.clipping.summary(self.row_bound, by_person=bool(self.parameters.get("unit")))

    @property
    def table_rules(self) -> TableRules | None:
        """The rules of the run's tables; None where it had none."""
        return None if self.rules is None else table_rules(self.rules, "the record of the fit")

    @property
    def book(self) -> CodeBook | None:
        """The code book that the run found or was given; None where there was none."""
        return None if self.code_book is None else self.code_book.book("in the record", self.table_rules)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Released:
    """What a result and a released covariance share: names of columns and the record of their run."""

    feature_names: tuple[str, ...] | None
    record: Record

    def _described(self, contents: str) -> str:
        promise = f"epsilon={self.privacy.asked_epsilon:g}" if self.privacy.is_private else "not private"
        rows = f"{self.n_samples} {self.record.counted}s{self.record.without}"
        return f"<{type(self).__name__}: {contents}, {rows}, {promise}>"

    @property
    def n_features(self) -> int:
        """The number of columns, d."""
        return self.record.n_features

    @property
    def n_samples(self) -> int:
        """The number of rows, of all silos together."""
        return self.record.n_samples

    @property
    def silo_sizes(self) -> dict[str, int]:
        """Rows by silo, of those whose rows counted."""
        return {silo.name: silo.rows for silo in self.record.silos if silo.rows is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns: x0, x1, ... where they have none."""
        return self.feature_names or tuple(f"x{place}" for place in range(self.n_features))

    @property
    def privacy(self) -> PrivacyStatement:
        """The privacy statement; print it."""
        return self.record.privacy

    @property
    def study(self) -> Study:
        """The terms of the study."""
        return self.record.study.terms

    @property
    def code_book(self) -> CodeBook | None:
        """Offsets, scales, ranges and bound that were found or given; None where there were none."""
        return self.record.book

    def matched(self, source: RowSource) -> RowSource:
        """Return a source of new rows with the columns of the fit: by name where both have names.

        The cells of a table become numbers by the rules of the fit, if it had any; one whose columns are
        the features already is taken as it is.
        """
        book, names = self.code_book, source.columns
        rules = self.record.table_rules if book is None else book.table_rules
        if rules is not None and names is not None:  # columns without a name are features, in their order
            features = set(self.feature_names or ()) <= set(names) and not set(rules.columns) <= set(names)
            if not features:
                source = features_of(ruled(columns_of_fit(source, rules.columns, len(rules.columns)), rules))
        return columns_of_fit(source, self.feature_names, self.n_features)

    def with_record(self, **changed: Any) -> Self:
        """Return the same numbers with other entries in the record of their run."""
        return replace(self, record=structs.replace(self.record, **changed))


@cache
def versions() -> dict[str, str]:
    installed = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **installed}


def plain(value: Any) -> Any:
    """Return a value in JSON's types: infinity as ``"inf"``, NaN as None, arrays as lists."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    elif is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    elif isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    elif hasattr(value, "to_dict"):  # a labelled vector
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset | list | tuple):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else (None if math.isnan(value) else str(value))
    return value if value is None or isinstance(value, bool | int | str) else repr(value)


def write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_pages(place: Path, privacy: PrivacyStatement, page: str) -> None:
    write_text(place / PRIVACY, f"{privacy}\n")
    write_text(place / REPORT, page)


def write_record(place: Path, record: Record, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Write files of numbers and texts without a pickle, None left out, and the record with their hashes."""
    written, hashes = Record.of(structs.replace(record, sha256={}).as_dict()), {}
    for name, arrays in files.items():
        stored: dict[str, Any] = {
            key: np.array(value, dtype=str if isinstance(value, tuple) else None)
            for key, value in arrays.items()
            if value is not None
        }
        np.savez(place / name, **stored)
        hashes[name] = _hash(place / name, written)
    if record.book is not None:
        write_text(place / CODE_BOOK, rendered(record.book))
    write_json(place / RUN, structs.replace(written, sha256=hashes).as_dict())


def read_folder(place: Path, name: str, *, command: str) -> tuple[Record, dict[str, Any]]:
    """Return the record of a folder, and one of its files: texts as tuples, numbers as read-only float64."""
    if not place.is_dir():
        raise InputError(f"no result folder at {place}")
    absent = [file for file in (name, RUN) if not (place / file).is_file()]
    if absent:
        must = f"a folder that `fedpower {command}` wrote"
        raise InputError(f"{place} must be {must}, got one without {absent[0]}; check the path")
    try:
        content = msgspec.json.decode((place / RUN).read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError:
        got = "a damaged or foreign file; fit again or restore the folder"
        raise InputError(f"{place / RUN} must be as fedpower wrote it, got {got}") from None
    if content.get("format") != FORMAT:
        raise InputError(f"{place} must be of format {FORMAT!r}, got {content.get('format')!r}")
    signed = Record.of(content, place / RUN)
    record = structs.replace(signed, sha256={})
    if signed.sha256.get(name) != _hash(place / name, record):
        got = "files that were changed since; restore the folder, or release again with its ledgers for free"
        raise InputError(f"{place / name} must be as written with {RUN}, got {got}")
    with np.load(place / name, allow_pickle=False) as stored:
        return record, {key: _value(stored[key]) for key in stored.files}


def _value(stored: Any) -> Any:
    if stored.dtype.kind == "U":
        return tuple(stored.tolist())
    if stored.ndim == 0:
        return stored.item()
    numbers = stored.astype(np.float64)
    numbers.flags.writeable = False
    return numbers


def _hash(arrays: Path, record: Record) -> str:
    """Return SHA-256 of a file of arrays and of their record: it shows a change, not who made it."""
    content = json.dumps(record.as_dict(), sort_keys=True).encode()
    return hashlib.sha256(arrays.read_bytes() + content).hexdigest()
