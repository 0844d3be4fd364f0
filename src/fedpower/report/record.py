"""``Record``: everything about a run but its arrays. A result folder is one record plus arrays."""

import hashlib
import importlib.metadata
import json
import math
import platform
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from msgspec import Meta, structs

from fedpower.errors import InputError
from fedpower.privacy.budget import QueryTerms
from fedpower.privacy.statement import PrivacyStatement, Protection, counted_as
from fedpower.protocol.pooled import Clipping, told
from fedpower.protocol.schedule import Schedule
from fedpower.protocol.study import Study
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import TableRules, table_rules

FORMAT = "fedpower-record/1"
RUN, ARRAYS, MOMENT, PRIVACY, REPORT = (
    "run.json", "components.npz", "moment.npz", "privacy.txt", "report.html",
)  # fmt: skip
MOST_NAMES = 8  # of silos in one line
PACKAGES = ("fedpower", "numpy", "scipy", "scikit-learn", "polars")
UNREADABLE = (
    zipfile.BadZipFile, zlib.error, msgspec.MsgspecError, EOFError, OSError, ValueError, KeyError, TypeError,
)  # fmt: skip
"""What a damaged or foreign file may raise when it is read."""

Time = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$")]


class _Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a record: keys that it does not know are refused, and defaults are not written."""


class StudyTerms(_Part):
    """The terms of a study, and their hash."""

    hash: str
    terms: dict[str, Any]

    @property
    def agreed(self) -> Study:
        """The terms of the study; refused where they do not have the hash that the record gives."""
        try:
            terms = dict(self.terms)
            terms["epsilon"] = float(terms["epsilon"])
            terms["columns"] = None if terms["columns"] is None else tuple(terms["columns"])
            terms["design"] = tuple(QueryTerms(*entry) for entry in terms.get("design", ()))
            terms["preparation"] = tuple(terms.get("preparation", ()))
            for name in ("identities", "groups", "ranges"):
                terms[name] = tuple(None if x is None else tuple(x) for x in terms.get(name, ()))
            study = Study(**terms)
            whole = study.digest == self.hash
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise InputError(
                "the terms of a study must have the hash that run.json gives with them, got others; bring "
                "back the folder as it was written"
            )
        return study


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
    """What a silo's ledger states after the fit."""

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


class ProtectionRecord(_Part):
    """What one observer can learn at most; an infinite ε is None."""

    observer: str
    sees: str
    epsilon: float | None
    delta: float
    mu: float | None


class PrivacyRecord(_Part):
    """The privacy statement; an infinite ε is None."""

    private: bool
    unit: str
    neighbours: str
    mode: Annotated[str, Meta(pattern="^(none|moment|step|paper|clipped)$")]
    asked_epsilon: float | None
    delta: float
    protections: list[ProtectionRecord]
    public: list[str]
    leak: str | None
    notes: list[str]
    assumptions: list[str]

    @property
    def worst_epsilon(self) -> float:
        """The ε against the observer who sees most."""
        return float(max(finite_or_inf(row.epsilon) for row in self.protections))


class ClippingRecord(_Part):
    """What the bound did to the rows, by what was released."""

    bound: float
    rows: float
    rows_most: float
    energy: float
    energy_least: float
    energy_most: float
    uneven: float
    counted: bool

    @property
    def clipping(self) -> Clipping:
        """The same without the bound."""
        return Clipping(**{field.name: getattr(self, field.name) for field in fields(Clipping)})


class ScoreRecord(_Part):
    """Counts of rows on a grid over their scores; the grid reaches as far to either side of 0."""

    reach: tuple[float, float]
    noise_std: float
    counts: Annotated[dict[str, list[list[float]]], Meta(min_length=1)]


class FederationRecord(_Part):
    """The federation that a study ran over."""

    name: str
    agreement: str
    run: str
    silent: dict[str, int]
    rounds_resumed: int = 0
    set_aside: dict[str, str] = {}


class MomentRecord(_Part):
    """What ``moment.npz`` needs besides its arrays: remarks on them, and the hash of everything."""

    remarks: list[str]
    sha256: str


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
    privacy: PrivacyRecord
    angles: AngleRecord
    absent: list[str] = []
    clipping: ClippingRecord | None = None
    scores: ScoreRecord | None = None
    code_book: dict[str, Any] | None = None
    rules: dict[str, Any] | None = None
    federation: FederationRecord | None = None
    moment: MomentRecord | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any], name: object = "the record of a result") -> Self:
        """Return the record that JSON's types give; others are refused, as ``name``, in one sentence."""
        try:
            record = msgspec.convert(content, cls)
            if not record.rounds:
                raise msgspec.ValidationError("Expected at least one round - at `$.rounds`")
        except msgspec.ValidationError as error:
            raise InputError(
                f"{name} must be as fedpower wrote it, got another ({error}); fit again or bring back the "
                "folder"
            ) from None
        return record

    def as_dict(self) -> dict[str, Any]:
        """Return the record in JSON's types."""
        return _builtins(self)

    def with_origin(
        self,
        *,
        command: Sequence[str] | None = None,
        silos: Mapping[str, Mapping[str, Any]] | None = None,
        started: datetime | None = None,
    ) -> Self:
        """Return the record with where its run came from; what is left out stays as it is."""
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
        """Whether what left the silos were masked sums."""
        return bool(self.parameters.get("aggregation") == "secure")

    @property
    def clipping_summary(self) -> str | None:
        """What the bound did to the rows, in a sentence; None where nothing is known of it."""
        if self.clipping is None:
            return None
        return told(_builtins(self.clipping), by_person=bool(self.parameters.get("unit")))

    @property
    def statement(self) -> PrivacyStatement:
        """The privacy statement."""
        content = _builtins(self.privacy)
        private = content.pop("private")
        if not private:
            del content["assumptions"]  # nothing is promised, so none are listed
        rows = [
            Protection(**{key: finite_or_inf(cell) for key, cell in row.items()})
            for row in content["protections"]
        ]
        tuples = {key: tuple(entry) for key, entry in content.items() if isinstance(entry, list)}
        asked = finite_or_inf(content["asked_epsilon"])
        return PrivacyStatement(**{**content, **tuples, "protections": tuple(rows), "asked_epsilon": asked})

    @property
    def table_rules(self) -> TableRules | None:
        """The rules of the run's tables; None where it had none."""
        return None if self.rules is None else table_rules(self.rules, "the record of the fit")

    @property
    def book(self) -> CodeBook | None:
        """The code book that the run found; None where it found none."""
        if self.code_book is None:
            return None
        content: dict[str, Any] = {
            key: tuple(value) if key in ("columns", "found", "clipped") and value is not None else value
            for key, value in self.code_book.items()
        }
        return CodeBook(**content, rules=self.table_rules)


def _builtins(part: _Part) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(part, enc_hook=str)  # sentences become plain text
    return content


def finite_or_inf(value: Any) -> Any:
    """Return a number of a statement, in which None is infinite."""
    return math.inf if value is None else value


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of what a fit computes with."""
    found = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **found}


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
    if isinstance(value, Schedule):
        return plain(asdict(value))
    if hasattr(value, "to_dict"):  # a labelled vector
        return plain(value.to_dict())
    return value if value is None or isinstance(value, bool | int | str) else repr(value)


def write_record(place: Path, record: Record) -> None:
    """Write the record into an existing folder."""
    write_json(place / RUN, Record.of(record.as_dict()).as_dict())


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON for people and programs."""
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def read_folder(place: Path, arrays: str, *, command: str) -> tuple[Record, dict[str, Any]]:
    """Return the record and the arrays of a folder; anything else is refused in one sentence."""
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
            return record, {key: stored[key] for key in stored.files}
    except UNREADABLE:
        raise damaged(place / arrays) from None


def damaged(path: Path) -> InputError:
    """Return the error for a file that is not as it was written."""
    return InputError(
        f"{path} must be as fedpower wrote it, got a damaged or foreign file; fit again or bring back the "
        "folder"
    )


def numbers(arrays: Mapping[str, Any], key: str) -> Any:
    """Return stored numbers as float64 that nobody writes to; None where there are none."""
    if key not in arrays:
        return None
    values = np.asarray(arrays[key], dtype=np.float64)
    values.flags.writeable = False
    return values


def digest_of(arrays: Mapping[str, Any], content: Any) -> str:
    """Return SHA-256 of arrays and of what JSON holds: it shows a change, not who made it."""
    digest = hashlib.sha256(b"fedpower arrays 1")
    for key in sorted(arrays):
        values = np.ascontiguousarray(arrays[key])
        for part in (key, values.dtype.str, str(values.shape)):
            digest.update(f"{part}\0".encode())
        digest.update(values.tobytes())
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()
