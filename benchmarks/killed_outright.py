"""Killed outright at many moments between start and result: what is left running, and what was charged.

A rehearsal (`fedpower run --local 3`) is one process that a user sees; separate parties are a
coordinator, three silos and a runner, each a process that a user sees. At each moment these, and nothing
that they started, are killed with SIGKILL. Ten seconds later no process of theirs may be there, every
ledger must open and hold no release twice; separate parties are then started again, must end with a
result, and must have been charged what an undisturbed run is charged.
"""

import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.runner import Table, case, say, scratch
from fedpower.federation.local import LocalFederation, rehearsal_data
from fedpower.federation.study_file import read_study, to_toml
from fedpower.privacy.ledger import Ledger

SILOS = ("north", "south", "east")
LONGEST_S = 300.0
MARK = "PYTHON_KILLED_OUTRIGHT"
"""In the environment of all that is started here, and so of all that it starts: a silo's node inherits
few variables, those of Python among them."""

PROGRAM = (sys.executable, "-m", "fedpower")
"""What starts fedpower in a process of its own, wherever it is installed."""

N_RELEASES = 4
"""What the study takes from each silo: one release a step."""


def study_content(name: str, silos: Sequence[str], *, epsilon: float, **rounds: Any) -> dict[str, Any]:
    """Return a study of so many silos in which every step is noised, as its file holds it."""
    return {
        "name": name,
        "columns": {"names": list("abcdef")},
        "rows": {"row_norm": 8.0, "center": False, "standardize": False},
        "components": {"n_components": 2, "iteration_rank": 3},
        "privacy": {"epsilon": epsilon, "delta": 1e-6, "noise": "step"},
        "solver": {"solver": "fedpower", "n_steps": N_RELEASES},
        "rounds": rounds,
        "silos": {"names": list(silos)},
        "coordinator": {"host": "localhost", "port": 8002},
    }


def charges(ledger: Path) -> list[tuple[Any, ...]]:
    """Return key, purpose, price and digest of every release in a ledger, in order."""
    if not ledger.exists():
        return []
    with sqlite3.connect(ledger) as database:
        wanted = "SELECT key, purpose, mu, sha256 FROM release ORDER BY seq"
        return database.execute(wanted).fetchall()


@dataclass(frozen=True, kw_only=True)
class Killed:
    """What was found after one kill: processes before and after, releases by silo, ledgers that are wrong.

    ``charged_again`` counts the releases in all ledgers after a second run with a result; -1 for none.
    """

    how: str
    after: float
    n_ended: int
    n_left: int
    charged: tuple[int, ...]
    n_unsound: int
    n_twice: int
    charged_again: int = -1


@case(
    "killed_outright",
    about="parties killed outright at many moments: what is left running, and what was charged",
    quick={"moments": 1, "settle_s": 20.0, "kinds": ("rehearsal",), "whole_s": 3.0},
)
def killed_outright(
    *,
    moments: int = 20,
    settle_s: float = 10.0,
    kinds: tuple[str, ...] = ("rehearsal", "parties"),
    whole_s: float | None = None,
) -> Table:
    """Kill at moments evenly between start and result; ``whole_s`` spares the run that measures this time."""
    with scratch() as folder:
        agreed = folder / "agreed.toml"
        agreed.write_text(
            to_toml(study_content("killed", SILOS, epsilon=1.0, deadline=60.0)), encoding="utf-8"
        )
        found = []
        for kind in kinds:
            end = (
                KINDS[kind](folder / f"{kind}-whole", agreed, None, settle_s).after
                if whole_s is None
                else whole_s
            )
            for place in range(moments):
                after = end * (place + 0.5) / moments
                found.append(KINDS[kind](folder / f"{kind}-{place}", agreed, after, settle_s))
                say(str(asdict(found[-1])))
    if any(each.n_left or each.n_unsound or each.n_twice for each in found):
        raise RuntimeError("something was left running, or a ledger is not as it must be")
    return Table(
        columns=[
            "killed", "moments", "from, to s", "processes then", f"left after {settle_s:g} s",
            "releases booked then, of 12", "booked twice, unsound", "reruns with a result and 12 booked",
        ],
        rows=[
            _row(how, [each for each in found if each.how == how])
            for how in dict.fromkeys(each.how for each in found)
        ],
        measured=[asdict(each) for each in found],
        settings={"releases": N_RELEASES},
    )  # fmt: skip


def rehearsal(folder: Path, agreed: Path, after: float | None, settle_s: float) -> Killed:
    """Return what a rehearsal leaves when it is killed; undisturbed where ``after`` is None."""
    folder.mkdir()
    own = folder / "tmp"
    own.mkdir()
    words = ["run", str(agreed), "--local", "3", "-o", str(folder / "result")]
    with _Killing("rehearsal", folder, after, settle_s, own) as killing:
        killing.start("run", words)
    ledgers = sorted(own.glob("fedpower-*/kits/*/*.ledger"))
    return killing.reported(ledgers)


def separate_parties(folder: Path, agreed: Path, after: float | None, settle_s: float) -> Killed:
    """Return what parties of their own leave when they are killed, and what a second run then costs."""
    study = read_study(agreed)
    data = rehearsal_data(study, 3, folder / "rows", None, say=lambda _: None)
    made = LocalFederation(study, folder, data)
    ledgers = [made.ledger(name) for name in SILOS]
    with _Killing("separate parties", folder, after, settle_s) as killing:
        _start_all(killing, made, "result")
    first = killing.reported(ledgers)
    if after is None:
        return first
    with _Killing("separate parties", folder, None, settle_s) as second:
        _start_all(second, made, "result-again")
    if not (folder / "result-again" / "components.npz").is_file():
        raise RuntimeError(f"no second result in {folder}")
    again = second.reported(ledgers)
    if again.charged != (N_RELEASES,) * len(SILOS) or again.n_twice or again.n_unsound:
        raise RuntimeError(f"ledgers are not as they must be after a second run: {again}")
    return Killed(**{**asdict(first), "charged_again": sum(again.charged)})


KINDS = {"rehearsal": rehearsal, "parties": separate_parties}


def _start_all(killing: "_Killing", made: LocalFederation, result: str) -> None:
    kits = made.kits
    killing.start("coordinator", ["coordinator", str(kits / "coordinator")])
    for name in SILOS:
        killing.start(name, ["silo", str(kits / name), str(kits / name / "silo.toml")])
    words = [str(made.folder / "study.toml"), "--kit", str(made.runner), "-o", str(made.folder / result)]
    killing.start("run", ["run", *words])


class _Killing:
    """Commands that run until ``run`` ends or until they are killed, all at once."""

    def __init__(
        self, how: str, folder: Path, after: float | None, settle_s: float, own: Path | None = None
    ) -> None:
        self.how, self.folder, self.after, self.settle_s = how, folder, after, settle_s
        self.mark = secrets.token_hex(8)
        self.own = own
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.n_ended = 0

    def __enter__(self) -> "_Killing":
        self.began = time.monotonic()
        return self

    def start(self, name: str, words: Sequence[str]) -> None:
        environment = {**os.environ, MARK: self.mark}
        if self.own is not None:
            environment["TMPDIR"] = str(self.own)
        with (self.folder / f"{name}.out").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*PROGRAM, *words],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def __exit__(self, *failed: object) -> None:
        run = self.running["run"]
        try:
            left = LONGEST_S if self.after is None else self.after - (time.monotonic() - self.began)
            code = run.wait(max(left, 0.0))
            if code and self.after is None:
                raise RuntimeError(f"run ended with {code}; see {self.folder}/run.out")
        except subprocess.TimeoutExpired:
            if self.after is None:
                raise
        finally:
            self.after = time.monotonic() - self.began if self.after is None else self.after
            self.n_ended = len(marked(self.mark))
            for each in self.running.values():
                if each.poll() is None:
                    os.kill(each.pid, signal.SIGKILL)
            for each in self.running.values():
                each.wait()
        ends = time.monotonic() + self.settle_s
        while marked(self.mark) and time.monotonic() < ends:
            time.sleep(0.1)

    def reported(self, ledgers: Sequence[Path]) -> Killed:
        """Return what is left; end it, where anything is, so that it disturbs nothing else."""
        left = marked(self.mark)
        for each in left:
            print("left:", each.pid, " ".join(each.cmdline())[:200], flush=True)
            each.kill()
        charged, unsound, twice = [], 0, 0
        for path in ledgers:
            try:
                if path.exists():
                    Ledger.open(path).close()
            except Exception as error:
                print("unsound:", path, error, flush=True)
                unsound += 1
                continue
            keys = [key for key, *_ in charges(path)]
            charged.append(len(keys))
            twice += len(keys) - len(set(keys))
        assert self.after is not None
        return Killed(
            how=self.how, after=self.after, n_ended=self.n_ended, n_left=len(left),
            charged=tuple(charged), n_unsound=unsound, n_twice=twice,
        )  # fmt: skip


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that descend from what was started under a mark, zombies aside."""
    found = []
    for each in psutil.process_iter():
        try:
            if each.environ().get(MARK) == mark and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except psutil.Error:
            continue
    return found


def _row(how: str, found: Sequence[Killed]) -> list[object]:
    afters = [each.after for each in found]
    ended = [each.n_ended for each in found]
    booked = [sum(each.charged) for each in found]
    again = [each.charged_again for each in found if each.charged_again >= 0]
    return [
        how,
        len(found),
        f"{min(afters):.1f}, {max(afters):.1f}",
        f"{min(ended)} to {max(ended)}",
        sum(each.n_left for each in found),
        ", ".join(f"{n}: {booked.count(n)}×" for n in sorted(set(booked))),
        f"{sum(each.n_twice for each in found)}, {sum(each.n_unsound for each in found)}",
        f"{again.count(N_RELEASES * len(SILOS))} of {len(again)}" if again else "–",
    ]
