"""A silo's own file: its data, its ledger, and what it agrees to. The others decide none of it."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpower.data import RowSource, open_source
from fedpower.errors import InputError, ProtocolError
from fedpower.federation.study_file import StudyFile
from fedpower.federation.tables import NUMBER, Keys, check_keys, read_toml
from fedpower.privacy.ledger import Ledger

DATA: Keys = {"path": str, "drop": list, "extra_columns": str}
LEDGER: Keys = {"path": str, "epsilon": NUMBER, "delta": NUMBER}
AGREES: Keys = {"study": str, "epsilon": NUMBER, "delta": NUMBER, "min_silos": int}
CAP = ("epsilon", "delta")
FEWEST_DIGITS = 12
"""Of a study's hash in ``[agrees]``: too many to be met by chance or by trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloFile:
    """A silo's own terms.

    Attributes
    ----------
    name
        The silo's name in the study.
    path
        The file; paths in it are taken from its folder.
    data, ledger, agrees
        The tables as they were read.
    """

    name: str
    path: Path
    data: dict[str, Any] = field(repr=False)
    ledger: dict[str, Any]
    agrees: dict[str, Any]

    def check_agreed(self, study: StudyFile) -> None:
        """Refuse a study that this organisation did not agree to, in one sentence."""
        if self.name not in study.silos:
            raise ProtocolError(
                f"silo {self.name!r} must be named in study {study.name!r}, got the silos "
                f"{', '.join(study.silos)}; correct 'silo' in {self.path}"
            )
        told = str(self.agrees.get("study", ""))
        if told and not study.digest.startswith(told):
            raise ProtocolError(
                f"silo {self.name!r} agreed to the study {told[:FEWEST_DIGITS]}, got the study "
                f"{study.digest[:FEWEST_DIGITS]}; read it with `fedpower study show` and change "
                f"[agrees] in {self.path} if it is right"
            )
        terms, _, _ = study.terms()
        for name in ("epsilon", "delta"):
            most = float(self.agrees.get(name, math.inf))
            if getattr(terms, name) > most:
                raise ProtocolError(
                    f"silo {self.name!r} agrees to {name}={most:g} at most, got a study with "
                    f"{name}={getattr(terms, name):g}; change the study or [agrees] in {self.path}"
                )
        fewest = int(self.agrees.get("min_silos", 1))
        if study.min_silos < fewest:
            raise ProtocolError(
                f"silo {self.name!r} takes part with {fewest} silos at least, got a study that "
                f"goes on with {study.min_silos}; change the study or [agrees] in {self.path}"
            )

    def source(self, study: StudyFile) -> RowSource:
        """Return the silo's rows with the study's columns, in its order."""
        where = self.path.parent / self.data["path"]
        return open_source(
            where,
            name=f"the data of silo {self.name!r}",
            columns=study.columns,
            drop=tuple(self.data.get("drop", ())),
            extra=self.data.get("extra_columns", "refuse"),
        )

    def open_ledger(self, *, make: bool = True) -> Ledger:
        """Return the silo's ledger; made with the file's cap where there is none yet.

        With ``make=False`` none is made: a ledger in memory shows what a new one would say.
        """
        if "path" not in self.ledger:
            raise InputError(
                f"a private study must be charged to a ledger, got no [ledger] in {self.path}; add its "
                "path, and its cap as epsilon and delta"
            )
        path = self.path.parent / self.ledger["path"]
        wanted = {name: float(self.ledger[name]) for name in CAP if name in self.ledger}
        if not path.exists() and len(wanted) == len(CAP):
            if not make:
                return Ledger.in_memory(**wanted, silo=self.name)
            return Ledger.create(path, **wanted, silo=self.name)
        opened = Ledger.open(path)
        try:
            self._check_ledger(opened, path, wanted)
        except BaseException:
            opened.close()
            raise
        return opened

    def _check_ledger(self, opened: Ledger, path: Path, wanted: dict[str, float]) -> None:
        if opened.silo not in (None, self.name):
            raise InputError(
                f"ledger {path} must belong to silo {self.name!r}, got that of {opened.silo!r}; give "
                "each silo its own"
            )
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
    tables: dict[str, Keys] = {"data": DATA, "ledger": LEDGER, "agrees": AGREES}
    check_keys(where, content, {"silo": str, **dict.fromkeys(tables, dict)}, ("silo", "data"))
    needed = {"data": ("path",), "ledger": ("path",)}
    for name, keys in tables.items():
        if name in content:
            check_keys(f"[{name}] of {path}", content[name], keys, needed.get(name, ()))
    agrees = content.get("agrees", {})
    if 0 < len(agrees.get("study", "0" * FEWEST_DIGITS)) < FEWEST_DIGITS:
        raise InputError(
            f"study in [agrees] of {path} must be {FEWEST_DIGITS} digits of its hash at least, got "
            f"{agrees['study']!r}; copy it from `fedpower study show`"
        )
    return SiloFile(
        name=content["silo"],
        path=path.absolute(),
        data=content["data"],
        ledger=content.get("ledger", {}),
        agrees=agrees,
    )
