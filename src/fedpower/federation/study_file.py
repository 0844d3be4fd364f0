"""The federation file, which says who takes part, and the study file, on which all parties agree."""

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from fedpower import toml
from fedpower.estimator.terms import ATTEMPTS, build_study, public_treatment
from fedpower.exceptions import InputError, is_showable, require
from fedpower.options import FLAT, Options, from_flat
from fedpower.protocol.solvers import SolverSettings
from fedpower.protocol.study import SolverChoice, Study, worst_epsilon
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import TableRules, table_rules
from fedpower.rules.treatment import RowTreatment
from fedpower.toml import Part, as_part, read_toml

COORDINATOR, RUNNER, AUTHORITY = "coordinator", "runner", "authority"
# Connections of the runner next to that of its run: FLARE keeps one connection for each name
VIEWERS = STATUS, PAGE = "runner.status", "runner.page"
# Names of federations, studies and silos: they become those of folders, certificates and hosts
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"({_LABEL}\.)*{_LABEL}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The parties between which studies run; a kit, with its certificate, is for one federation."""

    name: str
    silos: tuple[str, ...]
    host: str
    port: int

    def __post_init__(self) -> None:
        check_names("silos", self.silos)
        for name in (self.name, *self.silos):
            must = "at most 63 lower-case letters, digits and inner dashes"
            require(bool(_NAME.fullmatch(name)), "names of studies and silos", must, name)
        for name in self.silos:  # under which two parties would be one
            if name in (COORDINATOR, RUNNER, AUTHORITY, self.host):
                raise InputError(f"a silo's name must not be that of another party or the host, got {name!r}")
        require(1 <= self.port <= 65535, "port", "between 1 and 65535", self.port)
        require(bool(_HOST.fullmatch(self.host)), "host", "a host name or an address", self.host)

    @property
    def digest(self) -> str:
        parties = [self.name, *self.silos, self.host, self.port]
        return hashlib.sha256(msgspec.json.encode(parties)).hexdigest()

    @property
    def parties(self) -> tuple[str, ...]:
        """Who has a key."""
        return COORDINATOR, RUNNER, *self.silos

    def check(self, study: "StudyFile") -> None:
        """Refuse a study that cannot run in this federation."""
        others = [name for name in study.silos if name not in self.silos]
        if others:
            must = f"the silos of study {study.name!r} must be among those of federation {self.name!r}"
            raise InputError(f"{must}, {', '.join(self.silos)}, got {others[0]!r}")
        if (study.host, study.port) != (self.host, self.port):
            must = f"the coordinator of study {study.name!r} must be {self.host}:{self.port}, as in the kits"
            raise InputError(f"{must}, got {study.host}:{study.port}")

    def to_toml(self) -> str:
        coordinator = {"host": self.host, "port": self.port}
        return to_toml({"name": self.name, "silos": {"names": self.silos}, "coordinator": coordinator})


class _Silos(Part, frozen=True):
    names: tuple[str, ...]


class _Coordinator(Part, frozen=True):
    host: str
    port: int = 8002


class _File(Part, frozen=True):
    name: str
    silos: _Silos
    coordinator: _Coordinator


def read_federation(path: Path) -> Federation:
    """Return the federation in a file."""
    read = read_toml(path, _File, "the federation file")
    at = read.coordinator
    return Federation(name=read.name, silos=read.silos.names, host=at.host, port=at.port)


def check_names(what: str, names: Sequence[str]) -> None:
    require(bool(names) and all(names), what, "a list of names", names)
    for name, count in Counter(names).items():
        require(is_showable(name), what, "names without control characters", name)
        require(count == 1, what, "different names", name, "it occurs twice")


# --- studies ----------------------------------------------------------------------------------------

# Tables whose keys are parameters of FedPCA, except for those that only a network needs
_PARAMETERS = ("columns", "rows", "components", "privacy", "solver", "rounds")
# Types of parameters that have no rule, or more types than one
_TYPES: dict[str, Any] = {
    "n_components": int | float | str,
    "scale": list[float],
    "offset": list[float],
    "ranges": list[list[float]],
    "schedule": str | list[int],
    "random_state": int,
}


def _section(section: str, *fields: Any, needed: tuple[str, ...] = ()) -> Any:
    """Return the struct of a table: its own fields, and the parameters of its section."""
    types = {n: _TYPES.get(n, spec.kind) for n, spec in FLAT.items() if spec.section == section}
    parameters = [(n, t) if n in needed else (n, t | msgspec.UnsetType, UNSET) for n, t in types.items()]
    # msgspec takes keyword-only fields in any order.
    return msgspec.defstruct(section, [*fields, *parameters], bases=(Part,), kw_only=True, frozen=True)


TABLES: dict[str, Any] = {
    "columns": _section("columns", ("names", list[str])),
    "rows": _section("rows"),
    "components": _section("components", needed=("n_components",)),
    "privacy": _section("privacy", ("attempts", int | msgspec.UnsetType, UNSET), needed=("epsilon",)),
    "solver": _section("solver"),
    "rounds": _section("rounds", ("grace", float | msgspec.UnsetType, UNSET), needed=("deadline",)),
    "silos": _Silos,
    "coordinator": _Coordinator,
}
_OPTIONAL = ("rows", "solver")
_FIELDS: list[Any] = [
    ("name", str),
    *((key, t | msgspec.UnsetType, UNSET) if key in _OPTIONAL else (key, t) for key, t in TABLES.items()),
    ("rules", dict[str, Any] | msgspec.UnsetType, UNSET),
    ("identities", dict[str, str] | msgspec.UnsetType, UNSET),
]
_STUDY: Any = msgspec.defstruct("Study", _FIELDS, bases=(Part,), kw_only=True, frozen=True)
# The order in which a study is written
_ORDER = ("name", "columns", "rules", *_PARAMETERS[1:], "silos", "identities", "coordinator")


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study that was read and is consistent."""

    name: str
    columns: tuple[str, ...]
    silos: tuple[str, ...]
    options: Options = field(hash=False)
    grace: float | None
    attempts: int
    host: str
    port: int
    content: dict[str, Any] = field(hash=False, repr=False)
    rules: TableRules | None = None

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of everything that was agreed on."""
        agreed = ("name", "columns", "silos", "grace", "attempts", "identities")
        terms: dict[str, Any] = {key: getattr(self, key) for key in agreed}
        options = self.options.flat().items()
        terms["options"] = {key: repr(value) for key, value in options if key in FLAT and FLAT[key].section}
        terms["rules"] = self.rules and self.rules.digest
        return hashlib.sha256(msgspec.json.encode(terms, order="sorted")).hexdigest()

    @functools.cached_property
    def identities(self) -> dict[str, str]:
        """The silos' public keys for secure sums, in the order of the silos."""
        identities = self.content.get("identities", {})
        return {name: identities[name] for name in self.silos if name in identities}

    @property
    def federation(self) -> Federation:
        """The federation that this study would be the first of."""
        return Federation(name=self.name, silos=self.silos, host=self.host, port=self.port)

    @property
    def table_columns(self) -> tuple[str, ...]:
        return self.columns if self.rules is None else self.rules.columns

    @property
    def dropped(self) -> tuple[str, ...]:
        """Columns that are dropped from the silos' tables where they have them."""
        return () if self.rules is None else self.rules.dropped

    @property
    def treatment(self) -> RowTreatment | None:
        """How each row is prepared; None where the run estimates it privately."""
        return public_treatment(self.options, self.columns)

    @property
    def min_silos(self) -> int:
        return int(self.options.aggregation.min_silos or len(self.silos))

    @property
    def deadline(self) -> float:
        assert self.options.aggregation.deadline is not None, "a study file has one"
        return float(self.options.aggregation.deadline)

    def terms(self) -> tuple[Study, SolverSettings, SolverChoice]:
        """Return what silos check questions against, the solver's settings and why it was chosen."""
        return build_study(
            self.options,
            n_rows=None,
            n_features=len(self.columns),
            treatment=self.treatment,
            columns=self.columns,
            agreement=self.digest,
            identities=self.identities,
            attempts=self.attempts,
        )

    def with_parameters(self, given: Mapping[str, Any]) -> str:
        """Return the text of the study with other parameters: another study, with another hash."""
        content = msgspec.to_builtins(self.content)
        for name, value in given.items():
            section = FLAT[name].section
            assert section is not None, f"{name} is no part of a study"
            content.setdefault(section, {})[name] = value
        return to_toml(content)


def to_toml(content: Mapping[str, Any]) -> str:
    """Return the text of a file with this content, the tables of a study in the order of the reference."""
    return toml.to_toml({key: content[key] for key in (*_ORDER, *content) if key in content})


class _Kind(Part, frozen=True, forbid_unknown_fields=False):
    columns: Any = None


def read_parties(path: Path) -> Federation:
    """Return the federation in a file: a federation file, or a study file, which names its parties too."""
    is_study = read_toml(path, _Kind, "the file").columns is not None
    return read_study(path).federation if is_study else read_federation(path)


def read_study(path: Path) -> StudyFile:
    """Return the study in a file; any problem is reported in one sentence."""
    return _study(read_toml(path, _STUDY, "the study file"), str(path))


def proposed_study(content: Mapping[str, Any]) -> StudyFile:
    """Return the study that another party sent; nobody else's TOML is parsed, which may take hours."""
    return _study(as_part(content, _STUDY, "the study"), "the study")


def _study(decoded: Any, where: str) -> StudyFile:
    content: dict[str, Any] = msgspec.to_builtins(decoded)
    columns, silos = (tuple(content[key]["names"]) for key in ("columns", "silos"))
    check_names("columns", columns)
    at = decoded.coordinator
    Federation(name=content["name"], silos=silos, host=at.host, port=at.port)  # which checks them
    for name in content.get("identities", {}):
        if name not in silos:
            raise InputError(f"[identities] of {where} must name the study's silos, got {name!r}")
    given = {key: value for table in _PARAMETERS for key, value in content.get(table, {}).items()}
    del given["names"]
    grace, attempts = given.pop("grace", None), given.pop("attempts", None)
    if attempts is not None and given.get("aggregation") != "secure":
        raise InputError(f'attempts in [privacy] of {where} must be used with aggregation = "secure"')
    if "ranges" in given:
        given["ranges"] = [bounds or None for bounds in given["ranges"]]
    if "rules" in content:
        rules = _rules(where, content["rules"], columns)
        given["codebook"], columns = CodeBook(rules=rules), rules.features
    options = from_flat({"random_state": 0, **given})
    study = StudyFile(
        name=content["name"],
        columns=columns,
        silos=silos,
        options=options,
        grace=grace,
        attempts=ATTEMPTS if attempts is None else attempts,
        host=at.host,
        port=at.port,
        content=content,
        rules=options.rules,
    )
    _check(study)
    return study


def _rules(where: str, content: dict[str, Any], columns: tuple[str, ...]) -> TableRules:
    rules = table_rules(content, where)
    kept, dropped = set(columns), set(rules.dropped)
    for name in (*rules.columns, *rules.dropped):
        fits = (name in kept) is not (name in dropped)
        require(fits, f"[rules] of {where}", "for columns in [columns], or drop others", name)
    completed = rules.completed(columns)
    check_names("columns", completed.features)
    return completed


def _check(study: StudyFile) -> None:
    options, treatment = study.options, study.treatment
    require(0 <= options.random_state < 2**32, "random_state", "from 0 to 2**32 - 1", options.random_state)
    for name in ("n_participants", "min_silos"):
        count = options.flat().get(name)
        require((count or 1) <= len(study.silos), name, f"at most the {len(study.silos)} silos", count)
    if treatment is not None:
        if options.is_private and not treatment.bounded:
            must = "a private study with public offsets, scales or solver settings must bound row norms"
            raise InputError(f"{must}, got neither row_norm nor normalize in [rows]")
        treatment.check_width(len(study.columns))
    require(study.deadline < float("inf"), "deadline", "finite", study.deadline)
    within = study.grace is None or 0 <= study.grace <= study.deadline
    require(within, "grace", f"between 0 and the deadline of {study.deadline:g} s", study.grace)
    worst_epsilon(study.terms()[0])  # which refuses privacy that no noise can give
