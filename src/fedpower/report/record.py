"""``Record``: everything about a run but its arrays. A result folder is one record plus arrays."""

import hashlib
import importlib.metadata
import json
import math
import platform
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from msgspec import Meta, structs

from fedpower.errors import InputError
from fedpower.privacy.statement import PrivacyStatement, counted_as
from fedpower.protocol.pooled import Clipping, told
from fedpower.protocol.study import Study
from fedpower.report.codebook_file import CodeBookFile
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import TableRules, table_rules

FORMAT = "fedpower-record/1"
RUN, ARRAYS, MOMENT, PRIVACY, REPORT = (
    "run.json",
    "components.npz",
    "moment.npz",
    "privacy.txt",
    "report.html",
)
MOST_NAMES = 8  # of silos in one line
PACKAGES = ("fedpower", "numpy", "scipy", "scikit-learn", "polars")
# What a damaged or foreign file may raise when it is read
UNREADABLE = (
    zipfile.BadZipFile, zlib.error, msgspec.MsgspecError, EOFError, OSError, ValueError, KeyError, TypeError,
    AttributeError,
)  # fmt: skip
Time = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$")]


class _Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a record: unknown keys are refused, defaults are not written."""


class StudyTerms(_Part):
    """The terms of a study; they must have the hash that the record gives."""

    hash: str
    terms: Study

    def __post_init__(self) -> None:
        if self.terms.digest != self.hash:
            raise ValueError("the terms of the study do not have their hash")


class SolverChoiceRecord(_Part):
    """The solver and the reason for it."""

    solver: str
    reason: str


class AngleRecord(_Part):
    """How far components may be off, in degrees, and their variances without what noise adds."""

    confidence: float
    components: Annotated[list[float], Meta(min_length=1)]
    subspaces: list[float]
    determined: list[bool]
    noise_components: list[float]
    noise_subspaces: list[float]
    variances: list[float]
    variance_ratios: list[float | None]


class BudgetRecord(_Part):
    """The state of a silo's ledger after the fit."""

    spent: float | None
    left: float
    cap: float
    delta: float
    used: float


class SiloRecord(_Part):
    """A silo whose rows are in the result."""

    name: str
    rows: int | None = None
    source: str | None = None
    budget: BudgetRecord | None = None
    kernel: str | None = None


class RoundRecord(_Part):
    """A round of questions."""

    round: int
    kind: str
    step: int
    local_steps: int
    participants: list[str]
    n_participants: int
    bytes_down: int
    bytes_up: int
    change: float | None
    misalignment: float | None


class ScoreRecord(_Part):
    """Counts of rows on a grid over their scores; the grid reaches as far to either side of 0."""

    reach: tuple[float, float]
    noise_std: float
    counts: Annotated[dict[str, list[list[float]]], Meta(min_length=1)]


class FederationRecord(_Part):
    """The federation that ran a study."""

    name: str
    agreement: str
    run: str
    silent: dict[str, int]
    rounds_resumed: int = 0
    set_aside: dict[str, str] = {}


class Record(_Part):
    """Everything about a run but its arrays, as ``run.json`` holds it."""

    format: str
    command: list[str] | None
    started: Time | None
    finished: Time
    versions: dict[str, str]
    study: StudyTerms
    parameters: dict[str, Any]
    solver: SolverChoiceRecord
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
    angles: AngleRecord
    absent: list[str] = []
    row_bound: float | None = None
    clipping: Clipping | None = None
    scores: ScoreRecord | None = None
    code_book: CodeBookFile | None = None
    rules: dict[str, Any] | None = None
    federation: FederationRecord | None = None
    moment_sha256: str | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any], name: object = "the record of a result") -> Self:
        """Return the record that JSON's types give; error messages call it ``name``."""
        try:
            record = msgspec.convert(content, cls, strict=False)  # "inf" is a number
            if not record.rounds:
                raise msgspec.ValidationError("Expected at least one round - at `$.rounds`")
        except msgspec.ValidationError as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{name} must be as fedpower wrote it, got another ({reason}); restore it, or fit again"
            ) from None
        return record

    def as_dict(self) -> dict[str, Any]:
        """Return the record in JSON's types."""
        content: dict[str, Any] = plain(_builtins(self))
        return {**content, "privacy": plain(self.privacy.as_dict())}

    def with_origin(
        self,
        *,
        command: Sequence[str] | None = None,
        silos: Mapping[str, Mapping[str, Any]] | None = None,
        started: datetime | None = None,
    ) -> Self:
        """Return the record with the origin of its run; what is left out stays as it is."""
        more = silos or {}
        known = [{**_builtins(silo), **more.get(silo.name, {})} for silo in self.silos]
        return structs.replace(
            self,
            command=self.command if command is None else list(command),
            started=self.started if started is None else started.astimezone(UTC).isoformat(),
            silos=msgspec.convert(known, list[SiloRecord]),
        )

    @property
    def counted(self) -> str:
        """What ``n_samples`` counts: row, person or network."""
        return counted_as(self.parameters)

    @property
    def without(self) -> str:
        """Which silos are missing, as the end of a sentence; empty where none is."""
        more = [f"{len(self.absent) - MOST_NAMES} more"] if len(self.absent) > MOST_NAMES else []
        return f", without {', '.join([*self.absent[:MOST_NAMES], *more])}" if self.absent else ""

    @property
    def standardized(self) -> bool:
        """Whether the columns were brought to variance 1."""
        given = self.parameters
        asked = given.get("standardize")
        if asked is None:  # then those of a code book are
            asked = self.code_book is not None or given.get("codebook") is not None
        return bool(asked) and not given.get("normalize") and not given.get("network")

    @property
    def summed_securely(self) -> bool:
        """Whether masked sums left the silos."""
        return bool(self.parameters.get("aggregation") == "secure")

    @property
    def clipping_summary(self) -> str | None:
        """What the bound did to the rows, in a sentence; None where that is unknown."""
        if self.clipping is None:
            return None
        bounded = {"bound": self.row_bound, **asdict(self.clipping)}
        return told(bounded, by_person=bool(self.parameters.get("unit")))

    @property
    def table_rules(self) -> TableRules | None:
        """The rules of the run's tables; None where it had none."""
        return None if self.rules is None else table_rules(self.rules, "the record of the fit")

    @property
    def book(self) -> CodeBook | None:
        """The code book that the run found; None where it found none."""
        return None if self.code_book is None else self.code_book.book("in the record", self.table_rules)


def _builtins(part: _Part) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(part, enc_hook=str)  # sentences become plain text
    return content


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of what a fit computes with."""
    installed = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **installed}


def plain(value: Any) -> Any:
    """Return a value in JSON's types: infinity as ``"inf"``, NaN as None, arrays as lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else list(value)
        return [plain(item) for item in items]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else (None if math.isnan(value) else str(value))
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.to_builtins(value))
    if hasattr(value, "to_dict"):  # a labelled vector
        return plain(value.to_dict())
    return value if value is None or isinstance(value, bool | int | str) else repr(value)


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON for people and programs."""
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write numbers and texts without a pickle; None is left out."""
    stored: dict[str, Any] = {
        key: np.array(value, dtype=str if isinstance(value, tuple) else None)
        for key, value in arrays.items()
        if value is not None
    }
    np.savez(path, **stored)


def read_folder(place: Path, arrays: str, *, command: str) -> tuple[Record, dict[str, Any]]:
    """Return the record and the arrays of a folder: texts as tuples, numbers as read-only float64."""
    wanted = f"{place} must be a folder that `fedpower {command}` wrote, got"
    if not place.is_dir():
        raise InputError(f"{wanted} {'a file' if place.exists() else 'nothing there'}; check the path")
    absent = [name for name in (arrays, RUN) if not (place / name).is_file()]
    if absent:
        raise InputError(f"{wanted} one without {absent[0]}; check the path")
    try:
        content = msgspec.json.decode((place / RUN).read_bytes())
        written = content["format"]
    except UNREADABLE:
        raise damaged(place / RUN) from None
    if written != FORMAT:
        raise InputError(
            f"{place} must be of format {FORMAT!r}, got {written!r}; read it with the fedpower that wrote it"
        )
    record = Record.of(content, place / RUN)
    try:
        with np.load(place / arrays, allow_pickle=False) as stored:
            return record, {key: _value(stored[key]) for key in stored.files}
    except UNREADABLE:
        raise damaged(place / arrays) from None


def _value(stored: Any) -> Any:
    if stored.dtype.kind == "U":
        return tuple(stored.tolist())
    if stored.ndim == 0:
        return stored.item()
    numbers = stored.astype(np.float64)
    numbers.flags.writeable = False
    return numbers


def damaged(path: Path) -> InputError:
    """Return the error for a file that is not as it was written."""
    return InputError(
        f"{path} must be as fedpower wrote it, got a damaged or foreign file; fit again or restore the folder"
    )


def signature(arrays: Path, record: Record) -> str:
    """Return SHA-256 of a file of arrays and of their record: it shows a change, not who made it."""
    content = structs.replace(record, moment_sha256=None).as_dict()
    return hashlib.sha256(arrays.read_bytes() + json.dumps(content, sort_keys=True).encode()).hexdigest()
