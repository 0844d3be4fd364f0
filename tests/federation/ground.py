"""A federation of separate processes on this machine, for tests: held up and killed at will."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from federation_apps import Held, NoiseByRound
from studies import COLUMNS as STUDY_COLUMNS
from studies import SIZES, content_with

from fedpower.cli import main
from fedpower.engines.inprocess import run_in_process
from fedpower.federation import processes
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.kits import Kit
from fedpower.federation.local import LEDGER_CAP, LocalFederation
from fedpower.federation.runner import Runner, open_session
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.federation.study_file import read_study, to_toml
from fedpower.privacy.ledger import Ledger

SILOS = ("north", "south", "east", "west")
COLUMNS = ("a", "b", "c", "d", "e", "f")
WAIT_S = 120.0
KINDS: dict[str, dict[str, Any]] = {
    "steps": {},
    "covariance": {"privacy": {"epsilon": 2.0, "delta": 1e-6, "noise": "covariance"}, "solver": {}},
    "secure": {"privacy": {"epsilon": 2.0, "delta": 1e-6, "aggregation": "secure"}, "solver": {}},
}
"""By name: tables of a study in place of those of one in which every step is noised."""


class Ground(LocalFederation):
    """A local federation whose parties can be held up and killed."""

    def __init__(
        self,
        folder: Path,
        kind: str = "steps",
        *,
        silos: Sequence[str] = SILOS,
        min_silos: int = 4,
        **rounds: float,
    ) -> None:
        content = content_with(
            name="faults",
            columns={"names": list(COLUMNS)},
            rows={"row_norm": 8.0, "center": False},
            components={"iteration_rank": 3},
            privacy={"epsilon": 2.0, "noise": "step"},
            solver={"solver": "fedpower", "n_steps": 4},
            rounds={"min_silos": min_silos, **rounds},
            silos={"names": list(silos)},
        )
        content |= KINDS[kind]
        if kind == "secure":
            content["identities"] = {name: str(place) * 64 for place, name in enumerate(silos)}
        path = folder / "agreed.toml"
        path.write_text(to_toml(content))
        self.rows = {}
        for place, name in enumerate(silos):
            rows = np.random.default_rng(place).normal(size=(400 + 50 * place, 6)) * [3, 2, 1, 1, 0.5, 0.5]
            self.rows[name] = folder / f"{name}.csv"
            np.savetxt(self.rows[name], rows, delimiter=",", header=",".join(COLUMNS), comments="")
        super().__init__(read_study(path), folder / "ground", self.rows)
        self.sentences: list[str] = []
        self.rounds: list[dict] = []

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def place(self, party: str) -> Path:
        return self.kits / party

    def hold(self, party: str, what: str) -> None:
        (self.place(party) / what).touch()

    def release(self, party: str, what: str) -> None:
        (self.place(party) / what).unlink()

    def reached(self, party: str, what: str) -> None:
        wait_for((self.place(party) / f"reached-{what}").exists, f"{party} at {what}")

    def closed(self, number: int) -> None:
        wait_for(lambda: any(closed["round"] == number for closed in self.rounds), f"round {number}")

    def kill(self, party: str) -> None:
        """Kill -9 a party's own process; a silo's node finds out by itself."""
        child = self.processes.pop(party)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def gone(self, party: str) -> None:
        """Wait until no process of a party is left; a node ends a moment after its vault was killed."""
        wait_for(lambda: not processes_naming(self.place(party)), f"the end of {party}")

    def charges(self, name: str) -> list[tuple]:
        return charges(self.ledger(name))

    def wait_until_connected(self, *silos: str) -> None:
        with open_session(Kit(self.runner), patience=WAIT_S) as session:
            wait_for(lambda: set(session.status()["connected"]) >= set(silos or self.silos), "the silos")

    def run(self, name: str, *, resume: bool = False) -> Callable[[], dict[str, np.ndarray]]:
        """Start a run in a thread of its own; return what waits for its arrays."""
        folder = self.folder / name
        folder.mkdir()
        say, on_round = self.sentences.append, self.rounds.append
        runner = Runner(kit=Kit(self.runner), study=self.study, patience=90.0, say=say, on_round=on_round)
        pool = ThreadPoolExecutor(1)
        running = pool.submit(runner.run, folder, resume=resume)
        pool.shutdown(wait=False)

        def result() -> dict[str, np.ndarray]:
            running.result(WAIT_S * 2)
            with np.load(folder / "components.npz") as arrays:
                return {name: arrays[name] for name in arrays.files}

        return result


@contextmanager
def running(folder: Path, **terms: Any) -> Iterator[Ground]:
    """Give a running federation whose parties can be held up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "PROGRAM", "federation_apps")
        here = str(Path(__file__).parent)
        patch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
        made = Ground(folder, **terms)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def charges(ledger: Path) -> list[tuple[Any, ...]]:
    """Return key, purpose, price and digest of every release in a ledger, in order."""
    if not ledger.exists():
        return []
    with Ledger.open(ledger, read_only=True) as opened:
        return [(each.key, each.purpose, each.mu, each.sha256) for each in opened.entries()]


def processes_naming(name: object) -> list[int]:
    """Return the processes that have a name in their command, or in the environment they began with."""
    naming = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:  # it has just ended
            continue
        if str(name).encode() in words:
            naming.append(int(folder.name))
    return naming


def wait_for(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)


def in_process(ground: Ground, folder: Path) -> tuple[StudyRun, dict[str, list]]:
    """Run the same study over the same rows and noise in this process; return it and its ledgers."""
    folder.mkdir()
    with ExitStack() as stack:
        silos = {}
        for name in SILOS:
            path = folder / f"{name}.toml"
            path.write_text((ground.place(name) / "silo.toml").read_text())
            epsilon, delta = LEDGER_CAP
            Ledger.create(folder / f"{name}.ledger", epsilon=epsilon, delta=delta, silo=name).close()
            noise = NoiseByRound(name)
            silo = stack.enter_context(open_silo(ground.study, read_silo(path), noise=noise))
            silos[name] = Held(silo, noise, folder)
        made = StudyRun(ground.study, run="0" * 16, checkpoint=folder / "rounds")
        run_in_process(made.coordinator, silos)
    return made, {name: charges(folder / f"{name}.ledger") for name in SILOS}


def fedpower(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """Run a command in this process: what it starts are processes of their own."""
    with chdir(cwd) if cwd is not None else nullcontext():
        done = CliRunner().invoke(main, list(words))
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def init_study(folder: Path, *words: str) -> None:
    """Write a study of three silos with `fedpower study init`."""
    made = fedpower(
        "study", "init", "study.toml", "--name=rehearsed", f"--silos={','.join(SIZES)}", "-k2",
        "--deadline=60", "--delta=1e-6", f"--columns={','.join(STUDY_COLUMNS)}", "--row-norm=12",
        *words, cwd=folder,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
