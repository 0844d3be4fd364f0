"""A silo's own file: its data, its ledger, and what it agrees to. The others decide none of it."""

import math
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fedpower.errors import InputError, LedgerError, ProtocolError
from fedpower.federation.study_file import NUMBER, Keys, StudyFile, check_keys, read_toml
from fedpower.privacy.data_version import DEFAULT_VERSION, DataVersion, check_label, columns_digest
from fedpower.privacy.ledger import Ledger, rounded_down
from fedpower.protocol.private_study import attempt_epsilon, worst_epsilon
from fedpower.protocol.roll import Identity
from fedpower.rows.networks import open_network
from fedpower.rows.opening import Reading, open_query, open_source
from fedpower.rows.source import RowSource
from fedpower.rows.sql.query import PostgresServer, parse_address
from fedpower.rows.units import by_unit
from fedpower.rules.ruled import ruled

DATA: Keys = {
    "path": str,
    "separator": str,
    "decimal": str,
    "encoding": str,
    "name": str,
    "version": str,
    "drop": list,
    "extra_columns": str,
}
QUERY: Keys = {
    "query": str,
    "database": str,
    "user": str,
    "password_env": str,
    "password_file": str,
    "name": str,
    "version": str,
    "drop": list,
    "extra_columns": str,
}
_NOT_ASKED = ("name", "version", "drop", "extra_columns")
"""Keys of ``[data]`` that say nothing about how a query is put."""

_TEXT = ("separator", "decimal", "encoding")
COLUMNS: Keys = {"rename": dict, "factors": dict, "offsets": dict}
LEDGER: Keys = {"path": str, "epsilon": NUMBER, "delta": NUMBER}
AGREES: Keys = {"study": str, "epsilon": NUMBER, "delta": NUMBER, "min_silos": int}
CAP = ("epsilon", "delta")
_HASH = re.compile(r"[0-9a-f]{64}")
"""A study's hash: all of it, for another study with the same beginning can be found by trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloFile:
    """A silo's own terms."""

    name: str
    path: Path
    data: dict[str, Any] = field(repr=False)
    ledger: dict[str, Any]
    agrees: dict[str, Any]
    columns: dict[str, Any] = field(default_factory=dict)
    identity_path: Path | None = None

    def identity(self) -> Identity:
        """Return the key with which the silo signs at the roll call of a secure sum."""
        if self.identity_path is None:
            raise InputError(
                f"a secure sum must have this silo's identity, got no [identity] in {self.path}; make "
                "one with `fedpower identity new` and give its path"
            )
        return Identity.load(self.identity_path)

    def secrets(self) -> list[Path]:
        """Return what nobody but the vault may open: this file, rows, ledger, signing key, password."""
        folder = self.path.parent
        named = [self.data.get("path"), self.data.get("password_file"), self.ledger.get("path")]
        found = [self.path, *(folder / each for each in named if each)]
        if "database" in self.data:
            address = parse_address(self.data["database"])
            found += [] if isinstance(address, PostgresServer) else [folder / address.path]
        found += [] if self.identity_path is None else [self.identity_path]
        # Parts of a folder may be links to files elsewhere.
        parts = [part for each in found if each.is_dir() for part in each.rglob("*")]
        found += [part for part in parts if part.is_symlink()]
        return [each.resolve() for each in found]

    @property
    def uses_network(self) -> bool:
        """Whether rows come from a database server."""
        return "database" in self.data and isinstance(parse_address(self.data["database"]), PostgresServer)

    def check_agreed(self, study: StudyFile) -> None:
        """Refuse a study that this organisation did not agree to, in one sentence."""
        if self.name not in study.silos:
            raise ProtocolError(
                f"silo {self.name!r} must be named in study {study.name!r}, got the silos "
                f"{', '.join(study.silos)}; correct 'silo' in {self.path}"
            )
        self._check_hash(study)
        self._check_price(study)
        fewest = int(self.agrees.get("min_silos", 1))
        if study.min_silos < fewest:
            raise ProtocolError(
                f"silo {self.name!r} takes part with {fewest} silos at least, got a study that "
                f"goes on with {study.min_silos}; change the study or [agrees] in {self.path}"
            )

    def _check_hash(self, study: StudyFile) -> None:
        agreed = self.agrees.get("study", study.digest)
        if not _HASH.fullmatch(agreed):
            raise ProtocolError(
                f"study in [agrees] of {self.path} must be all 64 digits of its hash, got {agreed!r}; "
                "compare the whole hash with the other parties and paste "
                f'study = "{study.digest}"'
            )
        if agreed != study.digest:
            raise ProtocolError(
                f"silo {self.name!r} agreed to the study {agreed}, got the study {study.digest}; read it "
                f"with `fedpower study show` and change [agrees] in {self.path} if it is right"
            )

    def _check_price(self, study: StudyFile) -> None:
        """Refuse a study that could spend more than was agreed to, all its attempts counted."""
        terms, _, _ = study.terms()
        for name in CAP:
            most = float(self.agrees.get(name, math.inf))
            if getattr(terms, name) > most:
                raise ProtocolError(
                    f"silo {self.name!r} agrees to {name}={most:g} at most, got a study with "
                    f"{name}={getattr(terms, name):g}; change the study or [agrees] in {self.path}"
                )
        most, worst = float(self.agrees.get("epsilon", math.inf)), worst_epsilon(terms)
        if worst > most:
            fits = rounded_down(attempt_epsilon(terms, most), 3)
            raise ProtocolError(
                f"silo {self.name!r} agrees to epsilon={most:g} at most, got a study that can spend "
                f"{worst:.4g}, in {terms.attempts} attempts at a secure sum of {terms.epsilon:g} each; "
                f"agree on a study with epsilon<={fits} or with attempts = 1 in [privacy], or raise "
                f"epsilon in [agrees] of {self.path}"
            )

    def source(self, study: StudyFile) -> RowSource:
        """Return the silo's rows with the study's columns, in its order."""
        name = f"the data of silo {self.name!r}"
        if study.options.network is not None:
            return self._network(study, name)
        if "query" in self.data:
            asked = {key: value for key, value in self.data.items() if key not in _NOT_ASKED}
            columns = cast("Reading", self.columns)
            found = open_query(asked, name=name, folder=self.path.parent, **columns)
        else:
            form = {key: self.data[key] for key in _TEXT if key in self.data}
            place = self.path.parent / self.data["path"]
            found = open_source(place, name=name, **cast("Reading", {**form, **self.columns}))
        unit, most = study.options.person.column, study.options.person.rows
        # The column of ids is read beside the study's, and is none of them.
        drop = tuple(column for column in self.data.get("drop", ()) if column != unit)
        source = open_source(found, name=name, drop=drop)
        if unit is not None:
            source = by_unit(source, unit, most)
        source = open_source(
            source,
            columns=study.table_columns,
            drop=tuple(name for name in study.dropped if name in (source.columns or ())),
            extra=self.data.get("extra_columns", "refuse"),
        )
        return source if study.rules is None else ruled(source, study.rules)

    def _network(self, study: StudyFile, name: str) -> RowSource:
        """Return the silo's network on the study's nodes."""
        odd = [key for key in ("query", "drop", "extra_columns") if key in self.data]
        if odd or self.columns:
            raise InputError(
                f"[data] of {self.path} must have the path of a network and how it is written alone, got "
                f"{odd[0] if odd else 'a table [columns]'} too; leave it out"
            )
        form = {key: self.data[key] for key in _TEXT if key in self.data}
        network = study.options.network
        assert network is not None, "the study is one of networks"
        return open_network(
            self.path.parent / self.data["path"],
            unit=network.name,
            nodes=study.columns,
            name=name,
            edge_weight=network.max_weight,
            **cast("Reading", form),
        ).select(study.columns)

    def data_version(self, study: StudyFile, fingerprint: str, reading: str) -> DataVersion:
        """Return which rows these are, as this organisation declares them."""
        return DataVersion(
            silo=self.name,
            version=self.data.get("version", DEFAULT_VERSION),
            columns=columns_digest(study.columns, len(study.columns)),
            fingerprint=fingerprint,
            reading=reading,
            data_set=self.data.get("name"),
            declared_by=f"version in [data] of {self.path}",
        )

    def open_ledger(self) -> Ledger:
        """Return the silo's ledger; one that is missing is refused and never made."""
        if "path" not in self.ledger:
            raise InputError(
                f"a private study must be charged to a ledger, got no [ledger] in {self.path}; add its "
                "path, and its cap as epsilon and delta"
            )
        path = self.path.parent / self.ledger["path"]
        wanted = {name: float(self.ledger[name]) for name in CAP if name in self.ledger}
        if not path.exists():
            epsilon, delta = (f"{wanted[name]:g}" if wanted else name[0].upper() for name in CAP)
            named = f"{self.name} --data {self.data['name']}" if "name" in self.data else self.name
            command = f"fedpower budget init {shlex.quote(str(path))} --silo {named}"
            raise LedgerError(
                f"silo {self.name!r} must have its ledger, got none at {path}; put it back where it was "
                f"or, if there has never been one, make it with `{command} "
                f"--epsilon {epsilon} --delta {delta}`"
            )
        opened = Ledger.open(path)
        try:
            self._check_ledger(opened, path, wanted)
        except BaseException:
            opened.close()
            raise
        return opened

    def _check_ledger(self, opened: Ledger, path: Path, wanted: dict[str, float]) -> None:
        opened.check_owner(self.name, self.data.get("name"))
        for name, held in zip(CAP, opened.cap, strict=True):
            if not math.isclose(wanted.get(name, held), held):
                raise InputError(
                    f"the cap in {self.path} must be that of the ledger, got {name}={wanted[name]:g} "
                    f"where {path} has {held:g}; change the file, or the cap with `fedpower budget cap`"
                )


def read_silo(path: Path) -> SiloFile:
    """Return a silo's own terms; whatever is wrong with them is said in one sentence."""
    content = read_toml(path, "the silo file")
    where = f"the silo file {path}"
    asks = "query" in content.get("data", {})
    tables: dict[str, Keys] = {
        "data": QUERY if asks else DATA,
        "columns": COLUMNS,
        "ledger": LEDGER,
        "agrees": AGREES,
        "identity": {"path": str},
    }
    check_keys(where, content, {"silo": str, **dict.fromkeys(tables, dict)}, ("silo", "data"))
    needed = {"data": ("query", "database") if asks else ("path",)}
    needed |= dict.fromkeys(("ledger", "identity"), ("path",))
    for name, keys in tables.items():
        if name in content:
            check_keys(f"[{name}] of {path}", content[name], keys, needed.get(name, ()))
    made = SiloFile(
        name=content["silo"],
        path=path.absolute(),
        data=content["data"],
        columns=content.get("columns", {}),
        ledger=content.get("ledger", {}),
        agrees=content.get("agrees", {}),
        identity_path=path.absolute().parent / content["identity"]["path"] if "identity" in content else None,
    )
    _check(made)
    return made


def _check(silo: SiloFile) -> None:
    """Refuse values that mean nothing, or that would let through what they are to keep out."""
    drop, extra = silo.data.get("drop", []), silo.data.get("extra_columns", "refuse")
    if not all(isinstance(name, str) for name in drop):
        raise InputError(
            f"drop in [data] of {silo.path} must be names of columns, got {drop!r}; put them in quotes"
        )
    if extra not in ("refuse", "drop"):
        raise InputError(
            f"extra_columns in [data] of {silo.path} must be 'refuse' or 'drop', got {extra!r}; choose one"
        )
    for key in ("name", "version"):
        if key in silo.data:
            check_label(f"{key} in [data] of {silo.path}", silo.data[key])
    given = [name for name in CAP if name in silo.ledger]
    if len(given) == 1:
        raise InputError(
            f"the cap in [ledger] of {silo.path} must be epsilon and delta together, got {given[0]} "
            "alone; add the other or leave both out"
        )
    for name in CAP:
        if not silo.agrees.get(name, 1) > 0:  # nor is nan
            raise InputError(
                f"{name} in [agrees] of {silo.path} must be above 0, got {silo.agrees[name]}; give "
                "the most that one study may spend"
            )
