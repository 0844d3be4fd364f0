"""A silo's own file: its data, its ledger, and what it approves. No other party decides any of it."""

import math
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

from msgspec import structs

from fedpower.engines.inprocess import declared, read_silos, survey_silos
from fedpower.exceptions import InputError, LedgerError, ProtocolError, require
from fedpower.federation import IDENTITY
from fedpower.federation.events import log_folder
from fedpower.federation.study_file import StudyFile
from fedpower.privacy.ledger import DEFAULT_VERSION, Ledger, check_label
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.secure import Identity
from fedpower.protocol.silo import Silo, assemble
from fedpower.protocol.study import worst_epsilon
from fedpower.rows.files import TextForm
from fedpower.rows.networks import open_network
from fedpower.rows.opening import Columns, DataPlace, open_source, reading_of
from fedpower.rows.ruled import every_problem, ruled
from fedpower.rows.source import RowSource
from fedpower.rows.sql import parse_address
from fedpower.rows.units import by_unit, with_ranges
from fedpower.sums.survey import Rows
from fedpower.toml import Part, read_toml

# A study's whole hash: another study with the same beginning can be found by trying
_HASH = re.compile(r"[0-9a-f]{64}")
_CAP = ("epsilon", "delta")


class Data(DataPlace, frozen=True):
    """Where the rows are, and what else the silo decides about them."""

    name: str | None = None
    version: str = DEFAULT_VERSION
    drop: tuple[str, ...] = ()
    extra_columns: Literal["refuse", "drop"] = "refuse"

    def __repr__(self) -> str:
        return "Data(...)"  # where rows are is nobody else's

    @property
    def server(self) -> bool:
        return self.database is not None and parse_address(self.database).path is None


class _Ledger(Part, frozen=True):
    path: str | None = None
    epsilon: float | None = None
    delta: float | None = None


class _Approve(Part, frozen=True):
    """Standing rules; a study that meets all that are given is approved without the operator."""

    study: str | None = None
    epsilon: float | None = None
    min_silos: int = 1
    columns: tuple[str, ...] | None = None
    signed_by: tuple[str, ...] = ()
    until: date | None = None


class _Identity(Part, frozen=True):
    path: str = IDENTITY


class _Terms(Part, frozen=True, rename={"name": "silo", "signs_with": "identity"}):
    name: str
    data: Data
    columns: Columns = Columns()
    ledger: _Ledger = _Ledger()
    approve: _Approve | None = None
    signs_with: _Identity = _Identity()


class SiloFile(_Terms, frozen=True, kw_only=True):
    """A silo's own terms, and where its file is."""

    path: Path

    def identity(self) -> Identity:
        return Identity.load(self.path.parent / self.signs_with.path)

    def secrets(self) -> list[Path]:
        """Return what only the vault may open: this file, rows, ledger, signing key, password."""
        database = None if self.data.database is None else parse_address(self.data.database).path
        named = [self.data.path, self.data.password_file, database]
        named += [self.signs_with.path]
        secrets = [self.path, self.ledger_path, self.inbox, self.log]
        secrets += [self.path.parent / name for name in named if name]
        # Parts of a folder may be links to files elsewhere.
        parts = [part for path in secrets if path.is_dir() for part in path.rglob("*")]
        return [path.resolve() for path in (*secrets, *(part for part in parts if part.is_symlink()))]

    @property
    def ledger_path(self) -> Path:
        return self.path.parent / (self.ledger.path or f"{self.name}.ledger")

    @property
    def log(self) -> Path:
        """The folder of the audit log."""
        return log_folder(self.ledger_path)

    @property
    def inbox(self) -> Path:
        """The folder of studies that were proposed to this silo."""
        return self.log.with_suffix(".inbox")

    def objections(self, study: StudyFile, signed_by: Collection[str], delta: float) -> Iterator[str]:
        """Yield why the standing rules do not approve a study; prices are at the ledger's ``delta``."""
        rules, terms = self.approve, study.terms()[0]
        if rules is None:
            yield "there are no standing rules"
            return
        worst, today = worst_epsilon(terms, delta), datetime.now(UTC).date()
        if rules.study not in (None, study.digest):
            yield "it is another study than that of the rules"
        if rules.epsilon is not None and worst > rules.epsilon:
            spends = f"it can spend epsilon {worst:.4g} at delta {delta:g}"
            yield f"{spends}, and the rules allow {rules.epsilon:g}"
        if study.min_silos < rules.min_silos:
            yield f"it goes on with {study.min_silos} silos, and the rules need {rules.min_silos}"
        used = (*study.table_columns, *filter(None, [study.options.person.column]))
        others = [] if rules.columns is None else [name for name in used if name not in rules.columns]
        if others:
            yield f"the rules have no column {others[0]!r}"
        if any(key not in signed_by for key in rules.signed_by):
            yield "it is not signed by all that the rules name"
        if rules.until is not None and today > rules.until:
            yield f"the rules ended on {rules.until}"

    def source(self, study: StudyFile) -> RowSource:
        name, data, folder = f"the data of silo {self.name!r}", self.data, self.path.parent
        if study.options.network is not None:
            return self._network(study, name)
        place = data.place(f"[data] of {self.path}", folder)
        source = open_source(place, name=name, **reading_of(data, self.columns))
        unit = study.options.person.column
        if unit in data.drop:
            raise InputError(f"[data] of {self.path} must not drop the column of persons, got {unit!r}")
        # The column of ids is read next to the study's columns, and is not one of them.
        source = open_source(source, name=name, drop=data.drop)
        if unit is not None:
            source = by_unit(source, unit, study.options.person.rows)
        source = open_source(
            source,
            columns=study.table_columns,
            drop=tuple(name for name in study.dropped if name in (source.columns or ())),
            extra=data.extra_columns,
        )
        source = source if study.rules is None else ruled(source, study.rules)
        return with_ranges(source, study.options.agreed_ranges)

    def _network(self, study: StudyFile, name: str) -> RowSource:
        data, network = self.data, study.options.network
        if data.query or data.drop or data.extra_columns != "refuse" or self.columns != Columns():
            must = f"[data] of {self.path} must have the path of a network and its format"
            raise InputError(f"{must}, got a query, drop, extra_columns or [columns]")
        assert network is not None, "the study is one of networks"
        return open_network(
            self.path.parent / str(data.path),
            unit=network.name,
            nodes=study.columns,
            name=name,
            edge_weight=network.max_weight,
            **reading_of(data),
        ).select(study.columns)

    @contextmanager
    def open_ledger(self) -> Iterator[Ledger]:
        """Give the silo's ledger; refuse a missing one."""
        path = self.ledger_path
        cap = {name: getattr(self.ledger, name) for name in _CAP}
        if not path.exists():
            epsilon, delta = (name[0].upper() if cap[name] is None else f"{cap[name]:g}" for name in _CAP)
            owner = self.name if self.data.name is None else f"{self.name} --data {self.data.name}"
            must = f"silo {self.name!r} must have its ledger, got none at {path}"
            options = f"--silo {owner} --epsilon {epsilon} --delta {delta}"
            create = f"`fedpower ledger create {shlex.quote(str(path))} {options}`"
            hint = "look for it, but never restore an older copy; if there never was one, create it with"
            raise LedgerError(f"{must}; {hint} {create}")
        with Ledger.open(path) as ledger:
            ledger.check_owner(self.name, self.data.name)
            for name, given in cap.items():
                held = getattr(ledger.caps()[-1], name)
                if given is not None and not math.isclose(given, held):
                    must = f"{name} in {self.path} must be {held:g}, as in {path}"
                    raise InputError(f"{must}, got {given:g}")
            yield ledger


def read_silo(path: Path) -> SiloFile:
    terms, path = read_toml(path, _Terms, "the silo file"), path.absolute()
    data, ledger, where = terms.data, terms.ledger, f"[data] of {path}"
    data.place(where, path.parent)  # which refuses what is neither a path nor a query
    try:
        TextForm(separator=data.separator, decimal=data.decimal, encoding=data.encoding)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for key, label in (("name", data.name), ("version", data.version)):
        if label is not None:
            check_label(f"{key} in {where}", label)
    if (ledger.epsilon is None) != (ledger.delta is None):
        raise InputError(f"[ledger] of {path} must have both epsilon and delta, or neither, got one of them")
    if (rules := terms.approve) is not None:
        table = f"[approve] of {path}"
        if rules.study is None and (rules.epsilon is None or not rules.signed_by):
            must = "study, the hash of one, or both epsilon and signed_by"
            raise InputError(f"{table} must have {must}; who can propose must not choose what is approved")
        for key, given in (("study", rules.study), *(("signed_by", one) for one in rules.signed_by)):
            is_whole = given is None or _HASH.fullmatch(given) is not None
            require(is_whole, f"{key} in {table}", "64 digits", given)
        within = rules.epsilon is None or rules.epsilon > 0  # nan is not either
        require(within, f"epsilon in {table}", "above 0", rules.epsilon)
    return SiloFile(path=path, **structs.asdict(terms))


@contextmanager
def open_silo(
    study_file: StudyFile, silo_file: SiloFile, *, noise: NoiseSource | None = None
) -> Iterator[Silo]:
    """Give a silo that is ready to answer, its rows read; refuse before anything is charged."""
    if silo_file.name not in study_file.silos:
        must = f"silo {silo_file.name!r} must be named in study {study_file.name!r}"
        raise ProtocolError(f"{must}, got {', '.join(study_file.silos)}")
    study, _, _ = study_file.terms()
    private, name, treatment = study.is_private, silo_file.name, study_file.treatment
    sources = {name: silo_file.source(study_file)}
    moment: Rows
    with every_problem(sources.values(), gaps=treatment is None):
        if treatment is None:
            moment = survey_silos(sources, fingerprinted=private)[name]
        else:
            moment = read_silos(study, sources, treatment, fingerprinted=private)[name]
    data = None
    if private:
        own, by = silo_file.data, f"version in [data] of {silo_file.path}"
        data = declared(name, moment, study, own.version, data_set=own.name, declared_by=by)
    identity = silo_file.identity() if study.is_secure else None
    with silo_file.open_ledger() if private else nullcontext() as ledger:
        yield assemble(name, moment, study, ledger=ledger, identity=identity, source=noise, data=data)
