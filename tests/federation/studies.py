"""A study of three silos on disk, with its parties' own files."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from carriers import drive, in_turn
from federations import ASK_MOMENT
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.kits import Authority, Kit, Request, accept, ask
from fedpower.federation.silo_file import SiloFile, open_silo, read_silo
from fedpower.federation.study_file import StudyFile, read_study, to_toml
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.messages import Message
from fedpower.protocol.secure import Identity
from fedpower.protocol.silo import Silo
from problems import Array, spiked_rows, split

COLUMNS = ("age", "bmi", "sbp", "dbp", "hdl")
SIZES = {"north": 60, "south": 50, "east": 40}
RUN = "0123456789abcdef"
EXACT: dict[str, Any] = {"epsilon": math.inf, "delta": None}
KEYS = {name: Identity.new() for name in SIZES}
CONTENT: dict[str, Any] = {
    "name": "heart-2026",
    "columns": {"names": list(COLUMNS)},
    "rows": {"row_norm": 10.0, "center": True, "standardize": False},
    "components": {"n_components": 2},
    "privacy": {"epsilon": 1.0, "delta": 1e-6},
    "rounds": {"deadline": 60.0},
    "silos": {"names": list(SIZES)},
    "coordinator": {"host": "localhost", "port": 8002},
}


def content_with(**tables: Any) -> dict[str, Any]:
    """Return the study's content with some tables' keys changed; None takes a key or a table out."""
    content = copy.deepcopy(CONTENT)
    for table, changes in tables.items():
        if not isinstance(changes, dict):
            content[table] = changes
        else:
            content[table] = {**content.get(table, {}), **changes}
            content[table] = {key: value for key, value in content[table].items() if value is not None}
    return {table: value for table, value in content.items() if value is not None}


def write_study(folder: Path, **tables: Any) -> StudyFile:
    path = folder / "study.toml"
    path.write_text(to_toml(content_with(**tables)), encoding="utf-8")
    return read_study(path)


def signed_kit(authority: Authority, party: str, kit: Path, **days: int) -> Kit:
    """Make a party's kit as it is made between organisations."""
    authority.sign(Request.read(ask(authority.federation, party, kit)), **days)
    return accept(kit, authority.signed(party))


def kit_of(study: StudyFile, party: str, folder: Path) -> Kit:
    """Return a party's kit, of an authority that is nobody else's."""
    return signed_kit(Authority.make(study.federation, folder / f"{party}-authority"), party, folder / party)


def question(agreed: StudyFile, body: Any = ASK_MOMENT, **changes: Any) -> Message:
    """Return a question to north, for its moment unless another body is given."""
    asked = Message(study=agreed.terms()[0].digest, run=RUN, round=0, silo="north", body=body)
    return structs.replace(asked, **changes)


def silo_rows(name: str) -> Array:
    rows = spiked_rows(sum(SIZES.values()), len(COLUMNS), rank=2, seed=3) + 1.0
    return dict(zip(SIZES, split(rows, list(SIZES.values())), strict=True))[name]


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_rows(path: Path, rows: Array, columns: tuple[str, ...] = COLUMNS) -> None:
    np.savetxt(path, rows, delimiter=",", header=",".join(columns), comments="")


def write_silo(folder: Path, name: str = "north", *, cap: float | None = 2.0, more: str = "") -> SiloFile:
    """Write a silo's rows and its own file, and make its ledger and key unless they are there.

    ``more`` is put at the file's end; without a ``cap`` no ledger is made.
    """
    write_rows(folder / f"{name}.csv", silo_rows(name))
    ledger = f'[ledger]\npath = "{name}.ledger"\n'
    ledger += "" if cap is None else f"epsilon = {cap}\ndelta = 1e-5\n"
    path, key = folder / f"{name}.toml", folder / f"{name}.pem"
    identity = f'[identity]\npath = "{name}.pem"\n'
    path.write_text(f'silo = "{name}"\n[data]\npath = "{name}.csv"\n{ledger}{identity}{more}\n')
    if not key.exists():
        KEYS[name].save(key)
    if cap is not None and not (folder / f"{name}.ledger").exists():
        Ledger.create(folder / f"{name}.ledger", epsilon=cap, delta=1e-5, silo=name).close()
    return read_silo(path)


def secure_tables(folder: Path, **privacy: Any) -> dict[str, Any]:
    """Return the tables of a study with secure sums, whose silos' keys are put into a folder."""
    for name, key in KEYS.items():
        if not (folder / f"{name}.pem").exists():
            key.save(folder / f"{name}.pem")
    identities = {name: key.public for name, key in KEYS.items()}
    return {"privacy": {"aggregation": "secure", **privacy}, "identities": identities}


class Counted:
    def __init__(self, silos: dict[str, Silo]) -> None:
        self.silos = silos
        self.ledgers = [getattr(silo.releases, "ledger", None) for silo in silos.values()]
        self.n = 0

    def charges(self) -> list[int]:
        return [0 if ledger is None else ledger.spent().n_releases for ledger in self.ledgers]

    def finish(self, run: StudyRun) -> None:
        def ask(questions):
            self.n += len(questions)
            return in_turn(self.silos)(questions)

        drive(run.coordinator, ask)


@contextmanager
def open_silos(
    study: StudyFile, folder: Path, *, cap: float = 5.0, write: Callable[[Path, str], None] | None = None
) -> Iterator[Counted]:
    """Give all silos as they start: rows and ledgers from disk, nothing of an earlier process."""
    with ExitStack() as stack:
        nodes = {}
        for name in study.silos:
            own = write_silo(folder, name, cap=cap)
            if write is not None:
                write(folder / str(own.data.path), name)
            nodes[name] = stack.enter_context(open_silo(study, own))
        yield Counted(nodes)


def run_study(study: StudyFile, folder: Path, **silos: Any) -> StudyRun:
    with open_silos(study, folder, **silos) as opened:
        done = StudyRun(study, run=RUN, checkpoint=folder / RUN)
        opened.finish(done)
        done.result.save(folder / "result", force=True)
    return done
