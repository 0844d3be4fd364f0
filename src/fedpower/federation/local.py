"""A whole federation on one machine: every party a process of its own, mutual TLS on the loopback."""

import contextlib
import csv
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.exceptions import InputError
from fedpower.federation import IDENTITY, SILO_FILE
from fedpower.federation.kits import make_kits
from fedpower.federation.processes import start_party, stop
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.federation.study_file import COORDINATOR, RUNNER, Federation, StudyFile, read_study, to_toml
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.secure import Identity
from fedpower.rows.ruled import made_up

OwnTables = Mapping[str, Mapping[str, Any]]  # tables of a silo's own file, by name
MADE_UP_ROWS = 1000
LEDGER_CAP = (1e3, 1e-3)  # a rehearsal's ledgers are thrown away with it; they must not be what stops it


class LocalFederation:
    """Processes of a federation on this machine."""

    def __init__(
        self,
        study: StudyFile,
        folder: Path,
        data: Mapping[str, Path],
        own: Mapping[str, OwnTables] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.kits, self.silos = folder, folder / "kits", tuple(data)
        self.runner = self.kits / RUNNER
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        place: dict[str, Any] = {"host": "localhost", "port": free_port()}
        make_kits(Federation(name=study.name, silos=study.silos, **place), self.kits)
        keys = {name: Identity.load(self.kits / name / IDENTITY).public for name in study.identities}
        content = {**study.content, "coordinator": place, **({"identities": keys} if keys else {})}
        (folder / "study.toml").write_text(to_toml(content), encoding="utf-8")
        self.study = read_study(folder / "study.toml")
        for name, path in data.items():
            terms: dict[str, Any] = {"silo": name, **(own or {}).get(name, {})}
            terms["data"] = {"path": str(path.absolute()), **terms.get("data", {})}
            terms["ledger"] = {"path": f"{name}.ledger"}
            terms.setdefault("approve", {"study": self.study.digest})
            (self.kits / name / SILO_FILE).write_text(to_toml(terms), encoding="utf-8")
            self.make_ledger(name)

    def ledger(self, name: str) -> Path:
        return self.kits / name / f"{name}.ledger"

    def make_ledger(self, name: str) -> None:
        epsilon, delta = LEDGER_CAP
        Ledger.create(self.ledger(name), epsilon=epsilon, delta=delta, silo=name).close()

    def start(self, *names: str) -> None:
        names = names or (COORDINATOR, *self.silos)
        for name in set(names) - {COORDINATOR}:
            with open_silo(self.study, read_silo(self.kits / name / SILO_FILE)):
                pass
        for name in names:
            kit = (self.kits / name).absolute()
            own = [] if name == COORDINATOR else [str(kit / SILO_FILE)]
            with (self.folder / f"{name}.log").open("ab") as log:
                self.processes[name] = start_party("node", "start", str(kit), *own, "--no-health", log=log)

    def stop(self, *names: str) -> None:
        stop(*(self.processes.pop(name) for name in names or tuple(self.processes)))


@contextlib.contextmanager
def local_federation(
    study: StudyFile, folder: Path, data: Mapping[str, Path], own: Mapping[str, OwnTables] | None = None
) -> Iterator[LocalFederation]:
    federation = LocalFederation(study, folder, data, own)
    try:
        federation.start()
        yield federation
    finally:
        federation.stop()


def rehearsal_data(
    study: StudyFile, n_silos: int, folder: Path, given: Path | None, say: Callable[[str], None]
) -> dict[str, Path]:
    """Return the data of the first ``n_silos`` silos: files with their names, or simulated rows."""
    if not study.min_silos <= n_silos <= len(study.silos):
        most = len(study.silos)
        wanted = f"{study.min_silos} to {most}" if study.min_silos < most else f"all {most}"
        raise InputError(f"a rehearsal must have {wanted} silos of the study, got {n_silos}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for place, name in enumerate(study.silos[:n_silos]):
        matches = [] if given is None else [*given.glob(f"{name}.*"), *given.glob(name)]
        if given is not None and len(matches) != 1:
            hint = f"name it {name}.csv, or put its parts into the folder {name}"
            raise InputError(f"{given} must hold one file for silo {name!r}, got {len(matches)}; {hint}")
        paths[name] = matches[0] if matches else _made_up(study, folder, name, place)
    if given is None:
        say(f"the rows are simulated: {MADE_UP_ROWS} per silo; give --data DIR to use real rows")
    return paths


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _made_up(study: StudyFile, folder: Path, name: str, place: int) -> Path:
    """Write simulated rows with a decaying spectrum within the study's bound, or a simulated network."""
    rng, nodes = np.random.default_rng(place), study.columns
    if study.options.network is not None:  # of two communities
        side = np.arange(len(nodes)) * 2 // len(nodes)
        chance = np.where(side[:, np.newaxis] == side, 0.5, 0.1)
        edges = np.argwhere(np.triu(rng.random(chance.shape) < chance, 1))
        header, cells = ["source", "target"], [[nodes[end] for end in ends] for ends in edges.T.tolist()]
    else:
        header, cells = list(study.table_columns), _made_up_cells(study, rng)
        if study.options.person.column is not None:  # two rows per person
            header.append(study.options.person.column)
            cells.append([str(row // 2) for row in range(MADE_UP_ROWS)])
    path = folder / f"{name}.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(zip(*cells, strict=True))
    return path


def _made_up_cells(study: StudyFile, rng: np.random.Generator) -> list[list[Any]]:
    width = len(study.table_columns)
    rows = rng.normal(size=(MADE_UP_ROWS, width)) * 0.8 ** np.arange(width)
    bound = study.treatment.row_norm if study.treatment is not None else None
    rows *= (bound or 1.0) / np.linalg.norm(rows, axis=1).max()
    if study.rules is None:
        return list(rows.T.tolist())
    items = () if study.rules.long is None else study.rules.long[-1].items
    # A rule of several columns makes all of them from the numbers of one.
    rules = zip(study.rules.kept, rows.T, strict=False)
    return [list(column) for rule, values in rules for column in made_up(rule, values, items)]
