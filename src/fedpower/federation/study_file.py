"""TOML files whose every key is known: what is missing, unknown or of another type is refused."""

import functools
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpower.errors import InputError, is_showable
from fedpower.estimator.terms import ATTEMPTS, build_study, prepares, public_treatment, rules_of
from fedpower.options import FLAT, Options, from_flat
from fedpower.protocol.choice import SolverChoice
from fedpower.protocol.solvers import SolverSettings
from fedpower.protocol.study import Study
from fedpower.report.codebook_file import as_toml, toml_key
from fedpower.rows.treatment import RowTreatment
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import TableRules, table_rules

NUMBER = (int, float)
_SPOKEN: dict[object, str] = {
    str: "text in quotes",
    int: "a whole number",
    float: "a number with a decimal point",
    NUMBER: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
Keys = Mapping[str, object]


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file; ``what`` is what sentences call it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{what} must exist, got no file at {path}; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{what} must be a file, got the folder {path}; give the file") from None
    except OSError as error:
        raise InputError(
            f"{what} {path} must be readable but is not ({error.strerror}); check its permissions"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{what} {path} must be TOML, got something else ({error}); correct that line"
        ) from None


def check_keys(where: str, table: Mapping[str, Any], keys: Keys, needed: tuple[str, ...]) -> None:
    """Refuse a table with a key that is not in ``keys``, of another type, or missing from ``needed``."""
    for name, value in table.items():
        if name not in keys:
            raise InputError(f"{where} must have only the keys {', '.join(keys)}, got {name!r}; remove it")
        kind = keys[name]
        allowed = kind if isinstance(kind, tuple) and kind is not NUMBER else (kind,)
        if not any(_is(value, each) for each in allowed):
            spoken = " or ".join(_SPOKEN[each] for each in allowed)
            raise InputError(f"{name} in {where} must be {spoken}, got {value!r}; change it")
    for name in needed:
        if name not in table:
            raise InputError(f"{where} must have {name!r}, got none; add it")


def _is(value: object, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind)


FORMAT = "fedpower-study/1"
_PORT = 8002
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""Names of studies and silos: they become those of folders, certificates and hosts."""

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"({_LABEL}\.)*{_LABEL}")

_NOT_PARAMETERS: dict[str, Keys] = {
    "columns": {"names": list, "center": list},
    "rules": {},
    "privacy": {"attempts": int},
    "rounds": {"grace": NUMBER},
    "silos": {"names": list},
    "identities": {},
    "coordinator": {"host": str, "port": int},
}
"""By table: what a consortium agrees on beside the parameters of a fit."""

KINDS: Keys = {
    "n_components": (int, float, str),
    "scale": list,
    "ranges": list,
    "offset": list,
    "schedule": (str, list),
    "random_state": int,
}
"""Of parameters whose values alone do not say what a file may give."""

_SECTIONS = (
    "columns",
    "rules",
    "rows",
    "components",
    "privacy",
    "solver",
    "rounds",
    "silos",
    "identities",
    "coordinator",
)
"""The tables, in the order in which they are written."""


def _tables() -> dict[str, Keys]:
    """Return the tables of a study file with their keys, those of the parameters among them."""
    found: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
    for name, spec in FLAT.items():
        if spec.section is not None:
            found[spec.section][name] = _kind(name)
    for section, keys in _NOT_PARAMETERS.items():
        found[section] |= keys
    return dict(found)


def _kind(name: str) -> object:
    """Return what a parameter may be in a study file."""
    kind = FLAT[name].kind
    return KINDS.get(name, NUMBER if kind is float else kind)


TABLES = _tables()
_NEEDED = {
    "columns": ("names",),
    "components": ("n_components",),
    "privacy": ("epsilon",),
    "rounds": ("deadline",),
    "silos": ("names",),
    "coordinator": ("host",),
}
_PARAMETERS = ("rows", "components", "privacy", "solver", "rounds")
"""Tables whose keys are parameters of FedPCA, but for those that only a network needs."""

_FLOATS = {key for keys in TABLES.values() for key, kind in keys.items() if kind is NUMBER}


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study that was read and found consistent."""

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
        terms: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "columns": self.columns,
            "silos": self.silos,
            "grace": self.grace,
            "identities": self.identities,
            "options": {
                name: value if isinstance(value, str | int | float | list | None) else repr(value)
                for name, value in sorted(self.options.flat().items())
                if name in FLAT and FLAT[name].section is not None
            },
        }
        if self.rules is not None:
            terms["rules"] = self.rules.digest
        if self.attempts != ATTEMPTS:  # studies from before it could be chosen keep their hash
            terms["attempts"] = self.attempts
        return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()

    @property
    def identities(self) -> dict[str, str]:
        """The silos' public keys for the roll call of a secure sum, in the order of the silos."""
        identities = self.content.get("identities", {})
        return {name: identities[name] for name in self.silos if name in identities}

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns that the silos' tables must have."""
        return self.columns if self.rules is None else self.rules.columns

    @property
    def dropped(self) -> tuple[str, ...]:
        """Columns that are left out of the silos' tables where they have them."""
        said = self.content.get("rules", {})
        return () if self.rules is None else table_rules(said, "the study").dropped

    @property
    def treatment(self) -> RowTreatment | None:
        """What is done to each row before it counts; None where the run finds it privately."""
        if prepares(self.options):
            return None
        return public_treatment(self.options, self.columns)

    @property
    def min_silos(self) -> int:
        """Fewest silos that a round may go on with."""
        return int(self.options.aggregation.min_silos or len(self.silos))

    @property
    def deadline(self) -> float:
        """Seconds after which a round goes on without the rest."""
        assert self.options.aggregation.deadline is not None, "a study file has one"
        return float(self.options.aggregation.deadline)

    def terms(self) -> tuple[Study, SolverSettings, SolverChoice]:
        """Return what silos hold questions against, how the coordinator iterates, and why so."""
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


def rendered(content: Mapping[str, Any]) -> str:
    """Return the text of a TOML file with this content: numbers, texts, lists of them, tables."""
    in_order = dict.fromkeys((*TABLES, *content))  # a study's in the order of the reference
    tables = [key for key in in_order if isinstance(content.get(key), Mapping)]
    lines = [f"{key} = {as_toml(value)}" for key, value in content.items() if key not in tables]
    for table in tables:
        lines += ["", f"[{table}]"]
        lines += [f"{toml_key(key)} = {as_toml(value)}" for key, value in content[table].items()]
    return "\n".join(lines) + "\n"


def varied(study: StudyFile, given: Mapping[str, Any]) -> str:
    """Return the study's text with other parameters: another study, with another hash."""
    content = {key: dict(v) if isinstance(v, Mapping) else v for key, v in study.content.items()}
    for name, value in given.items():
        section = FLAT[name].section
        assert section is not None, f"{name} is no part of a study"
        content.setdefault(section, {})[name] = value
    return rendered(content)


def moved(study: StudyFile, host: str, port: int, identities: Mapping[str, str] | None = None) -> str:
    """Return the study's text with the coordinator elsewhere; what was agreed on stays the same."""
    changed: dict[str, Any] = {"coordinator": {"host": host, "port": port}}
    if identities:
        changed["identities"] = dict(identities)
    return rendered({**study.content, **changed})


def read_study(path: Path) -> StudyFile:
    """Return the study that a file describes; whatever is wrong with it is said in one sentence."""
    content = read_toml(path, "the study file")
    check_keys(
        f"the study file {path}", content, {"name": str, **dict.fromkeys(TABLES, dict)}, ("name", *_NEEDED)
    )
    for table, keys in TABLES.items():
        where = f"[{table}] of {path}"
        known = dict.fromkeys(content["silos"]["names"], str) if table == "identities" else keys
        if table == "rules":  # each is looked over by itself
            known = dict.fromkeys(content.get(table, {}), (str, list, dict))
        check_keys(where, content.get(table, {}), known, _NEEDED.get(table, ()))
    columns = _names("columns", content["columns"]["names"])
    silos = _names("silos", content["silos"]["names"])
    rules = None
    if "rules" in content:
        rules = _rules(path, content["rules"], columns)
        columns = rules.features
    for name in (content["name"], *silos):
        if not NAME.fullmatch(name):
            raise InputError(
                "names of studies and silos must be lower-case letters, digits and inner dashes, "
                f"63 at most, got {name!r}; rename it"
            )
    given = {key: value for table in _PARAMETERS for key, value in content.get(table, {}).items()}
    public = {key: value for key, value in content["columns"].items() if key != "names"}
    if "center" in given and "center" in public:
        raise InputError(
            "center must be given once, got it in [rows] and in [columns]; leave one of them out"
        )
    given |= public
    grace, attempts = given.pop("grace", None), given.pop("attempts", ATTEMPTS)
    if "attempts" in content["privacy"] and given.get("aggregation") != "secure":
        raise InputError(
            f'attempts in [privacy] of {path} must go with aggregation = "secure", got it without; '
            "leave it out"
        )
    meant = {"random_state": 0, **{key: _meant(key, value) for key, value in given.items()}}
    if "center" in public:
        if "offset" in public:
            raise InputError(
                "center in [columns] must stand without offset, which it is, uncentred, got both; leave "
                "center out"
            )
        meant |= {"offset": meant["center"], "center": False}
    if rules is not None:
        meant["codebook"] = CodeBook(rules=rules)
    options = from_flat(meant)
    study = StudyFile(
        name=content["name"],
        columns=columns,
        silos=silos,
        options=options,
        grace=None if grace is None else float(grace),
        attempts=attempts,
        host=content["coordinator"]["host"],
        port=content["coordinator"].get("port", _PORT),
        content=content,
        rules=rules_of(options),
    )
    _check(study)
    return study


def _rules(path: Path, said: Any, columns: tuple[str, ...]) -> TableRules:
    """Return a rule for each of the study's columns."""
    given = table_rules(said, str(path))
    odd = [name for name in given.columns if name not in columns] or [
        name for name in given.dropped if name in columns
    ]
    if odd:
        raise InputError(
            f"[rules] of {path} must be of the columns in [columns], or drop others, got {odd[0]!r}; "
            "correct one of the two"
        )
    own = given.completed(columns)
    _names("columns", list(own.features))
    return own


def _meant(key: str, value: Any) -> Any:
    """Return a value as it counts: 1 is 1.0 where a number is meant, and columns' values are numbers."""
    if key == "ranges":
        return [each or None for each in value]
    if isinstance(value, list) and key in TABLES["columns"]:
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
            raise InputError(
                f"{key} in [columns] must be a list of numbers, got {value!r}; give one a column"
            )
        return [float(each) for each in value]
    return float(value) if key in _FLOATS else value


def _check(study: StudyFile) -> None:
    """Refuse what contradicts itself, as a fit would refuse it."""
    options = study.options
    seed, drawn = options.random_state, getattr(options.solver, "n_participants", None) or 1
    if not 0 <= seed < 2**32:
        raise InputError.about(
            "random_state", must="be from 0 to 2**32 - 1", got=str(seed), advice="choose another"
        )
    if drawn > len(study.silos):
        raise InputError.about(
            "n_participants",
            must="be at most the {silos} silos",
            got=str(drawn),
            advice="lower it",
            silos=len(study.silos),
        )
    treatment = study.treatment
    if treatment is not None:
        if options.is_private and not treatment.bounded:
            raise InputError(
                "a private study that is given centres, scales or settings of its own must bound the "
                "norm of a row, got neither row_norm nor normalize in [rows]; agree on one, or leave all "
                "of them out"
            )
        treatment.check_width(len(study.columns))
    if study.min_silos > len(study.silos):
        raise InputError.about(
            "min_silos",
            must="be at most the {silos} silos",
            got=str(study.min_silos),
            advice="lower it",
            silos=len(study.silos),
        )
    if study.grace is not None and not 0 <= study.grace <= study.deadline:
        raise InputError(
            f"grace must lie between 0 and the deadline of {study.deadline:g} s, got "
            f"{study.grace:g}; change one of them"
        )
    if not 1 <= study.port <= 65535:
        raise InputError(f"port must lie between 1 and 65535, got {study.port}; choose one")
    if not _HOST.fullmatch(study.host):
        raise InputError(
            f"host must be a host name or an address, got {study.host!r}; give the coordinator's"
        )
    study.terms()


def _names(what: str, names: list[Any]) -> tuple[str, ...]:
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{what} must be a list of names, got {names!r}; name one at least")
    for name in names:
        if not is_showable(name):
            raise InputError(f"{what} must have names without control characters, got {name!a}; rename it")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(f"{what} must have different names, got {sorted(twice)[0]!r} twice; rename one")
    return tuple(names)
