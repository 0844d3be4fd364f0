"""A year of one federation: twelve studies, and what happens to its parties between and during them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ground import fedpower, processes_naming, wait_for
from studies import COLUMNS, write_rows

import fedpower as package
from fedpower.federation import processes
from fedpower.federation.kits import Kit
from fedpower.federation.local import free_port
from fedpower.federation.runner import open_session
from fedpower.federation.study_file import COORDINATOR, Federation
from fedpower.linalg import sin_theta
from fedpower.privacy.ledger import Decision, Ledger, Release
from problems import spiked_rows, split

SILOS = ("north", "south", "east", "west")
EPSILON, CAP = 8.0, 60.0
ROWS = dict(zip(SILOS, split(spiked_rows(8000, len(COLUMNS), rank=2, seed=7), [2000] * 4), strict=True))


class Consortium:
    """A federation of processes, used as its operators do: with commands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kits = folder, folder / "kits"
        self.federation = Federation(name="cardio", silos=SILOS, host="localhost", port=free_port())
        (folder / "federation.toml").write_text(self.federation.to_toml())
        self.do("node", "ca-init", "federation.toml", "-o", "kits", "--with-keys")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        committee = self.do("node", "key", "committee.pem").strip()
        for name in SILOS:
            write_rows(folder / f"{name}.csv", ROWS[name])
            # North decides about each study; the others have a rule for what the runner's committee signed.
            rule = f'[approve]\nepsilon = {EPSILON}\nmin_silos = 2\nsigned_by = ["{committee}"]\n'
            rule = "" if name == "north" else rule
            text = f'silo = "{name}"\n[data]\npath = "../../{name}.csv"\n{rule}'
            (self.kits / name / "silo.toml").write_text(text)
            cap = ("--epsilon", str(CAP), "--delta", "1e-5")
            self.do("ledger", "create", f"kits/{name}/{name}.ledger", "--silo", name, *cap)

    def do(self, *words: str) -> str:
        done = fedpower(*words, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *names: str) -> None:
        for name in names:
            with (self.folder / f"{name}.log").open("ab") as log:
                words = ("node", "start", str(self.kits / name), "--no-health")
                self.running[name] = processes.start_party(*words, log=log)

    def stop(self, *names: str) -> None:
        processes.stop(*(self.running.pop(name) for name in names))

    def kill(self, name: str) -> None:
        child = self.running.pop(name)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def connected(self, *names: str) -> None:
        with open_session(Kit(self.kits / "runner"), patience=60.0) as session:
            wait_for(lambda: set(session.status()["connected"]) == set(names), f"{names} alone")

    def study(self, month: int, *more: str) -> str:
        """Write the study of a month; the same question again would be answered from the ledger."""
        name, norm = f"cardio-{month:02}", 12 + month / 100
        words = (
            "study", "init", f"{name}.toml", "--name", name, f"--silos={','.join(SILOS)}", "-k2",
            f"--columns={','.join(COLUMNS)}", f"--epsilon={EPSILON}", "--delta=1e-6", f"--row-norm={norm}",
            "--min-silos=2", "--deadline=30", "--grace=3", f"--port={self.federation.port}",
        )  # fmt: skip
        self.do(*words, *more)
        self.do("study", "sign", f"{name}.toml", "committee.pem")
        return name

    def begin(self, name: str, *, wait: int = 60) -> Callable[[], dict[str, Any]]:
        """Run a study; return what waits for its record."""
        words = ("study", "run", f"{name}.toml", "-o", name, "--wait", f"{wait}")
        run = subprocess.Popen(
            [sys.executable, "-m", "fedpower", *words],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

        def record() -> dict[str, Any]:
            _, said = run.communicate(timeout=120)
            assert run.returncode == 0, said
            read: dict[str, Any] = json.loads((self.folder / name / "run.json").read_text())
            return read

        return record

    def approve(self, name: str, *more: str) -> None:
        self.do("node", "approve", "kits/north", f"{name}.toml", *(more or ("--yes",)))

    def arrived(self, name: str) -> None:
        def waits() -> bool:
            shown = json.loads(self.do("node", "approve", "kits/north", "--json"))
            return shown is not None and shown["name"] == name

        wait_for(waits, f"{name} in the inbox")

    def ledger(self, name: str) -> Path:
        return self.kits / name / f"{name}.ledger"

    def decisions(self, name: str) -> list[Decision]:
        with Ledger.open(self.ledger(name), read_only=True) as opened:
            return opened.decisions()

    def n_charges(self, name: str) -> int:
        with Ledger.open(self.ledger(name), read_only=True) as opened:
            return opened.spent().n_releases


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    made = Consortium(tmp_path)
    try:
        yield made
    finally:
        made.stop(*made.running)


def upgraded(folder: Path) -> Path:
    """Return a copy of the package as a next version."""
    place = folder / "upgrade"
    shutil.copytree(Path(package.__file__).parent, place / "fedpower")
    text = (place / "fedpower" / "__init__.py").read_text()
    (place / "fedpower" / "__init__.py").write_text(
        text.replace(f'__version__ = "{package.__version__}"', '__version__ = "99.0"')
    )
    return place


@pytest.mark.federation
def test_a_year_of_studies_is_right_in_budgets_logs_and_results(consortium, tmp_path, monkeypatch):
    took_part: dict[str, list[str]] = {}

    def month(number: int, then: Callable[[str], dict[str, Any]] | None = None) -> None:
        """Run a month's study, and note who took part."""
        name = consortium.study(number)
        if then is None:
            consortium.approve(name)
            record = consortium.begin(name)()
        else:
            record = then(name)
        assert record["federation"]["name"] == name
        with np.load(tmp_path / name / "components.npz") as arrays:
            found = arrays["components"]
        present = [silo["name"] for silo in record["silos"]]
        took_part[name] = present
        pooled = np.vstack([ROWS[silo] for silo in present])
        pooled = pooled / pooled.std(axis=0)
        expected = np.linalg.svd(pooled - pooled.mean(axis=0), full_matrices=False)[2][:2]
        assert sin_theta(found.T, expected.T) < 0.3

    def without_one(name: str) -> dict[str, Any]:
        consortium.approve(name)
        return consortium.begin(name, wait=4)()

    consortium.start(COORDINATOR, *SILOS)
    consortium.connected(*SILOS)
    month(1)
    consortium.stop(*SILOS, COORDINATOR)
    consortium.start(*SILOS, COORDINATOR)  # in another order
    consortium.connected(*SILOS)
    month(2)
    consortium.stop("east")
    month(3, without_one)
    month(4, without_one)
    consortium.stop(*consortium.running)
    with monkeypatch.context() as patch:
        old = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(upgraded(tmp_path)), old]))
        consortium.start(COORDINATOR, *SILOS)
        consortium.connected(*SILOS)
        month(5)
        consortium.stop(*consortium.running)
    consortium.start(COORDINATOR, *SILOS)
    consortium.connected(*SILOS)

    def refused(name: str) -> dict[str, Any]:
        record = consortium.begin(name)
        consortium.arrived(name)
        consortium.approve(name, "--refuse", "not in July")
        return record()

    def late(name: str) -> dict[str, Any]:
        record = consortium.begin(name)
        consortium.arrived(name)
        time.sleep(3.0)
        assert consortium.n_charges("south") == 7, "nobody is asked before all have decided"
        consortium.approve(name)
        return record()

    def killed(name: str) -> dict[str, Any]:
        record = consortium.begin(name)
        consortium.arrived(name)
        consortium.kill("north")  # what waits is on disk
        consortium.kill(COORDINATOR)
        consortium.start("north", COORDINATOR)
        consortium.approve(name)
        return record()

    def renewed(name: str) -> dict[str, Any]:
        record = consortium.begin(name)
        consortium.arrived(name)
        kit, signed = "kits/north", "kits/authority/signed/north.crt"
        consortium.do("node", "request", f"{kit}/federation.toml", "north", "-o", kit, "--renew")
        consortium.do("node", "renew", "kits/authority", f"{kit}/north.csr")
        consortium.do("node", "accept", kit, signed)
        consortium.approve(name)
        return record()

    month(6, renewed)
    month(7, refused)
    month(8, late)
    month(9, killed)
    consortium.do("node", "revoke", "kits/authority", "west")
    for party in (COORDINATOR, "runner", "north", "south", "east"):
        consortium.do("node", "accept", f"kits/{party}", "kits/authority/revoked.crl")
    consortium.connected("north", "south", "east")  # west runs on with its key, and is refused
    for number in (10, 11, 12):
        month(number, without_one)
    everybody = set(consortium.running)
    consortium.stop(*everybody)

    assert took_part["cardio-03"] == took_part["cardio-04"] == ["north", "south", "west"]
    assert took_part["cardio-07"] == ["south", "east", "west"]
    assert all(took_part[f"cardio-{n}"] == ["north", "south", "east"] for n in (10, 11, 12))
    assert all(took_part[f"cardio-{n:02}"] == list(SILOS) for n in (1, 2, 5, 6, 8, 9))
    for silo in SILOS:
        months = [name for name, present in took_part.items() if silo in present]
        assert consortium.n_charges(silo) == len(months), "once for each study"
        with Ledger.open(consortium.ledger(silo), read_only=True) as opened:
            assert 0 < opened.spent().epsilon < CAP
        checked = json.loads(consortium.do("ledger", "verify", str(consortium.ledger(silo)), "--json"))
        assert checked["entries_without_line"] == 0
        shown = consortium.do("ledger", "show", str(consortium.ledger(silo)))
        assert all(name in shown for name in months), "charges are shown with the names of studies"
    lines = [
        json.loads(line)
        for file in (consortium.kits / "north" / "north.log").iterdir()
        for line in file.open()
    ]
    events = [line["event"] for line in lines]
    assert events.count("renewed") == 1
    assert [events.count(event) for event in ("approved", "refused", "charged")] == [11, 1, 11]
    assert len({line["study"] for line in lines if line["event"] == "arrived"}) == 12
    assert events.count("started") == 5
    by_north = consortium.decisions("north")
    assert [one.name for one in by_north if not one.approved] == ["cardio-07"]
    assert {one.by for one in by_north} == {"operator"}
    assert {one.by for one in consortium.decisions("south")} == {"rule"}
    assert len(by_north) == len(consortium.decisions("south")) == 12
    assert processes_naming(consortium.kits) == []


@pytest.mark.federation
def test_parties_that_are_killed_at_random_moments_release_nothing_twice_or_without_approval(consortium):
    """Silos and the coordinator, while a study is proposed, approved and asked in several rounds."""
    rng = np.random.default_rng(11)
    parties = [COORDINATOR, *SILOS]
    consortium.start(*parties)
    for month in (1, 2):
        steps = ("--noise=step", "--solver=fedpower", "--n-steps=5", "--no-standardize")
        name = consortium.study(month, *steps, "--min-silos=4")
        record = consortium.begin(name, wait=90)
        for place in range(4):
            time.sleep(rng.uniform(0.2, 2.5))
            party = parties[rng.integers(len(parties))]
            consortium.kill(party)
            wait_for(lambda: not processes_naming(consortium.kits / party), f"the end of {party}")  # noqa: B023
            consortium.start(party)
            if place == 1:
                consortium.approve(name)
        record()
    consortium.stop(*consortium.running)
    for silo in SILOS:
        with Ledger.open(consortium.ledger(silo), read_only=True) as opened:
            keys = [entry.key for entry in opened.entries()]
            assert len(keys) == len(set(keys))
            opened.check_releases()
            recorded = [entry for _, _, entry in opened.sealed()]
        releases = [place for place, entry in enumerate(recorded) if isinstance(entry, Release)]
        approvals = [place for place, entry in enumerate(recorded) if isinstance(entry, Decision)]
        assert len(approvals) == 2
        assert [sum(one < place for one in approvals) for place in releases[:: len(releases) - 1]] == [1, 2]
        consortium.do("ledger", "verify", str(consortium.ledger(silo)))
    assert processes_naming(consortium.kits) == []
