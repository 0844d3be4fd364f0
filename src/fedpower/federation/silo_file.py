"""A silo's own file: its data, its ledger, and what it agrees to. No other party decides any of it."""

import math
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

from msgspec import structs

from fedpower.engines.inprocess import declared, read_silos, survey_silos
from fedpower.exceptions import InputError, LedgerError, ProtocolError, require
from fedpower.federation.study_file import StudyFile
from fedpower.privacy.ledger import DEFAULT_VERSION, Ledger, check_label, rounded_down
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.secure import Identity
from fedpower.protocol.silo import Silo, assemble
from fedpower.protocol.study import attempt_epsilon, worst_epsilon
from fedpower.rows.networks import open_network
from fedpower.rows.opening import Columns, DataPlace, open_source, reading_of
from fedpower.rows.ruled import every_problem, ruled
from fedpower.rows.source import RowSource
from fedpower.rows.sql import parse_address
from fedpower.rows.units import by_unit, with_ranges
from fedpower.sums.local import LocalMoment
from fedpower.sums.survey import Survey
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
    path: str
    epsilon: float | None = None
    delta: float | None = None


class _Agrees(Part, frozen=True):
    study: str | None = None
    epsilon: float = math.inf
    delta: float = math.inf
    min_silos: int = 1


class _Identity(Part, frozen=True):
    path: str


class _Terms(Part, frozen=True, rename={"name": "silo", "signs_with": "identity"}):
    name: str
    data: Data
    columns: Columns = Columns()
    ledger: _Ledger | None = None
    agrees: _Agrees = _Agrees()
    signs_with: _Identity | None = None


class SiloFile(_Terms, frozen=True, kw_only=True):
    """A silo's own terms, and where its file is."""

    path: Path

    def identity(self) -> Identity:
        if self.signs_with is None:
            raise InputError(f"{self.path} must have an [identity] for a secure sum; see `fedpower node key`")
        return Identity.load(self.path.parent / self.signs_with.path)

    def secrets(self) -> list[Path]:
        """Return what only the vault may open: this file, rows, ledger, signing key, password."""
        database = None if self.data.database is None else parse_address(self.data.database).path
        named = [self.data.path, self.data.password_file, database]
        named += [table.path for table in (self.ledger, self.signs_with) if table is not None]
        secrets = [self.path, *(self.path.parent / name for name in named if name)]
        # Parts of a folder may be links to files elsewhere.
        parts = [part for path in secrets if path.is_dir() for part in path.rglob("*")]
        return [path.resolve() for path in (*secrets, *(part for part in parts if part.is_symlink()))]

    def check_agreed(self, study: StudyFile) -> None:
        who = f"silo {self.name!r}"
        if self.name not in study.silos:
            raise ProtocolError(f"{who} must be named in study {study.name!r}, got {', '.join(study.silos)}")
        agreed = study.digest if self.agrees.study is None else self.agrees.study
        if not _HASH.fullmatch(agreed):
            must = f"study in [agrees] of {self.path} must be the full hash of the study, 64 digits"
            hint = f'compare the full hash with the other parties and paste study = "{study.digest}"'
            raise ProtocolError(f"{must}, got {agreed!r}; {hint}")
        if agreed != study.digest:
            raise ProtocolError(
                f"{who} agreed to the study {agreed}, got the study {study.digest}; review it with "
                f"`fedpower study show` and change [agrees] in {self.path} if you agree"
            )
        terms, limits = study.terms()[0], self.agrees
        for name, wanted, least, most in (
            ("epsilon", terms.epsilon, -math.inf, limits.epsilon),
            ("delta", terms.delta, -math.inf, limits.delta),
            ("min_silos", study.min_silos, limits.min_silos, math.inf),
        ):
            if not least <= wanted <= most:
                limit = f"at most {most:g}" if wanted > most else f"at least {least:g}"
                raise ProtocolError(f"{who} agrees to {name} of {limit}, got a study with {wanted:g}")
        most, worst = limits.epsilon, worst_epsilon(terms)  # all attempts counted
        if worst > most:
            raise ProtocolError(
                f"{who} agrees to epsilon of at most {most:g}, got a study that can spend {worst:.4g}: "
                f"{terms.attempts} attempts at a secure sum of {terms.epsilon:g} each; agree on epsilon<="
                f"{rounded_down(attempt_epsilon(terms, most), 3)} or attempts = 1, or raise the limit"
            )

    def source(self, study: StudyFile) -> RowSource:
        name, data, folder = f"the data of silo {self.name!r}", self.data, self.path.parent
        if study.options.network is not None:
            return self._network(study, name)
        place = data.place(f"[data] of {self.path}", folder)
        source = open_source(place, name=name, **reading_of(data, self.columns))
        unit = study.options.person.column
        # The column of ids is read next to the study's columns, and is not one of them.
        source = open_source(source, name=name, drop=tuple(column for column in data.drop if column != unit))
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
        if self.ledger is None:
            raise InputError(f"a private study must have a ledger, got no [ledger] in {self.path}")
        path = self.path.parent / self.ledger.path
        cap = {name: getattr(self.ledger, name) for name in _CAP}
        if not path.exists():
            epsilon, delta = (name[0].upper() if cap[name] is None else f"{cap[name]:g}" for name in _CAP)
            owner = self.name if self.data.name is None else f"{self.name} --data {self.data.name}"
            must = f"silo {self.name!r} must have its ledger, got none at {path}"
            hint = "restore it or, if it never existed, create it with `fedpower ledger create"
            options = f"--silo {owner} --epsilon {epsilon} --delta {delta}"
            raise LedgerError(f"{must}; {hint} {shlex.quote(str(path))} {options}`")
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
    for key, label in (("name", data.name), ("version", data.version)):
        if label is not None:
            check_label(f"{key} in {where}", label)
    if ledger is not None and (ledger.epsilon is None) != (ledger.delta is None):
        raise InputError(f"[ledger] of {path} must have both epsilon and delta, or neither, got one of them")
    for name in _CAP:
        limit = getattr(terms.agrees, name)
        require(limit > 0, f"{name} in [agrees] of {path}", "above 0", limit)  # nan is not above 0 either
    return SiloFile(path=path, **structs.asdict(terms))


@contextmanager
def open_silo(
    study_file: StudyFile, silo_file: SiloFile, *, noise: NoiseSource | None = None
) -> Iterator[Silo]:
    """Give a silo that is ready to answer, its rows read; refuse before anything is charged."""
    silo_file.check_agreed(study_file)
    study, _, _ = study_file.terms()
    private, name, treatment = study.is_private, silo_file.name, study_file.treatment
    sources = {name: silo_file.source(study_file)}
    moment: LocalMoment | Survey
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
