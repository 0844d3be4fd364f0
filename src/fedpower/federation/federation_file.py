"""The federation file: who takes part, and where the coordinator listens; studies come and go in it."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fedpower.exceptions import InputError, is_showable, require
from fedpower.toml import Part, read_toml, to_toml

if TYPE_CHECKING:
    from fedpower.federation.study_file import StudyFile

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
