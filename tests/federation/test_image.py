"""The real image, built from a bundle without a network, and the federation of compose.yaml that runs in it.

Debian's buildah runs containers where podman cannot: it needs no daemon, no cgroups and no registry.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.image

ROOT = Path(__file__).parents[2]
SILOS = ("north", "south", "east")
PARTIES = ("coordinator", *(f"{silo}-{part}" for silo in SILOS for part in ("vault", "node")))
NEEDED = ("buildah", "mmdebstrap", "unshare", "nsenter", "ip")
WAIT_S = 90.0


def run(*words: object, **options: Any) -> str:
    """Return what a command wrote; show all of it where the command failed."""
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Compose:
    """What `podman compose` does with compose.yaml, in one container of buildah at a time."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.folder, self.bundle, self.volumes = folder, bundle, folder / "volumes"
        storage = (f"--root={folder / 'root'}", f"--runroot={folder / 'run'}", "--storage-driver=vfs")
        self.buildah = ("buildah", *storage)
        self.services = yaml.safe_load((bundle / "compose.yaml").read_text(encoding="utf-8"))["services"]
        self.container = ""
        self.processes: list[subprocess.Popen[bytes]] = []
        # The network of all services that have one: nothing is in it but themselves.
        network = ["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep infinity"]
        self.network = subprocess.Popen(network)

    def build(self) -> None:
        """Build the image on Debian's packages, with the Python of the base that Containerfile names."""
        packages = self.folder / "base.tar"
        run("mmdebstrap", "--variant=minbase", "--include=python3,python3-venv", "trixie", packages)
        base = run(*self.buildah, "from", "scratch").strip()
        run(*self.buildah, "add", base, packages, "/")
        run(*self.buildah, "commit", "--rm", base, "base")
        packages.unlink()
        options = ("--isolation=chroot", "--build-arg=BASE=localhost/base", "--tag=fedpower")
        run("unshare", "--net", *self.buildah, "bud", *options, self.bundle)

    def up(self) -> None:
        """Start all parties in a new container of the image."""
        named = ("--pull-never", "--add-host=coordinator:127.0.0.1", "localhost/fedpower")
        self.container = run(*self.buildah, "from", *named).strip()
        self.place = Path(run(*self.buildah, "mount", self.container).strip())
        self.started = self.folder / self.container
        self.started.touch()
        self.run("example")
        for port, name in enumerate(PARTIES, start=8010):
            # Each container has a loopback of its own, and here they share one.
            health = ("--health", f"127.0.0.1:{port}") if name.endswith("-node") else ()
            self.start(name, *self.services[name]["command"], *health)

    def down(self) -> None:
        """Stop everything and remove the container; volumes stay."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(WAIT_S)
        self.processes.clear()
        if self.container:
            run(*self.buildah, "rm", self.container)
            self.container = ""

    def end(self) -> None:
        self.network.kill()
        self.network.wait()
        self.down()
        shutil.rmtree(self.folder / "root", ignore_errors=True)

    def command(self, name: str, *words: str, entrypoint: tuple[str, ...] = ("fedpower",)) -> list[str]:
        """Return the command that runs a service, or other words in its place."""
        service = self.services[name]
        mounts = [(self._volume(f"{name}-tmp", place), place, "rw") for place in service["tmpfs"]]
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            place = self.bundle / source if source.startswith(".") else self._volume(source, target)
            mounts.append((place, target, "ro" if mode and mode[0].startswith("ro") else "rw"))
        options = [f"--volume={place}:{target}:{mode}" for place, target, mode in mounts]
        connected = ("nsenter", f"--net=/proc/{self.network.pid}/ns/net")
        outside = ("unshare", "--net") if service.get("network_mode") == "none" else connected
        inside = (*service.get("entrypoint", entrypoint), *words)
        isolated = ("run", "--isolation=chroot", f"--user={service['user']}", *options, self.container, "--")
        return [*outside, *self.buildah, *isolated, *inside]

    def _volume(self, name: str, target: str) -> Path:
        """Return the folder of a volume, which has owner and mode of the image's folder at first."""
        folder, model = self.volumes / name, self.place / target.lstrip("/")
        if not folder.exists():
            folder.mkdir(parents=True)
            if model.exists():
                os.chown(folder, model.stat().st_uid, model.stat().st_gid)
                folder.chmod(model.stat().st_mode)
        return folder

    def run(self, name: str, *words: str) -> str:
        return run(*self.command(name, *words))

    def check_health(self, name: str) -> None:
        kind, *words = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        run(*self.command(name, *words, entrypoint=()))

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            command = self.command(name, *words)
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def study(self, name: str, result: str) -> None:
        """Run a study that north's operator approves, and others by their standing rules."""
        running = self.start("runner", "study", "run", name, "-o", result)
        ends = time.monotonic() + WAIT_S
        while (waiting := json.loads(self.run("north-vault", "node", "approve", "/silo", "--json"))) is None:
            waits = running.poll() is None and time.monotonic() < ends
            assert waits, self.log("runner").read_text()
        self.run("north-vault", "node", "approve", "/silo", waiting["study"], "--yes")
        assert running.wait(WAIT_S) == 0, self.log("runner").read_text()
        assert (self.volumes / "runner" / result / "report.html").is_file()

    def spent(self) -> list[float]:
        """Return what each silo has spent, from ledgers whose audit logs agree with them."""
        found = []
        for silo in SILOS:
            ledger = f"/ledger/{silo}.ledger"
            self.run(f"{silo}-vault", "ledger", "verify", ledger)
            shown = json.loads(self.run(f"{silo}-vault", "ledger", "show", ledger, "--json"))
            found.append(shown["spent"]["epsilon"])
        return found

    def written(self) -> str:
        """Return the files of the container that changed since its start: none if they are read-only."""
        return run("find", self.place, "-xdev", "-type", "f", "-newer", self.started)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offline") / "fedpower-bundle"
    run(ROOT / "scripts" / "bundle", folder, env={**os.environ, "PYTHON": sys.executable})
    return folder


@pytest.fixture
def compose(bundle: Path, tmp_path: Path) -> Iterator[Compose]:
    if os.geteuid() != 0 or not all(map(shutil.which, NEEDED)):
        pytest.skip(f"the image is built by root, with {', '.join(NEEDED)}; `make test-image` installs them")
    made = Compose(tmp_path, bundle)
    try:
        yield made
    finally:
        made.end()


def test_a_federation_runs_in_the_image_and_outlives_it(compose):
    compose.build()
    compose.up()
    sound = compose.run("north-vault", "doctor")
    for what in ("ledger", "compiled loops", "isolation", "extra flare"):
        assert re.search(rf"^{what} +sound ", sound, flags=re.MULTILINE), sound
    compose.study("study.toml", "result")
    spent = compose.spent()
    assert all(0 < each <= 1 for each in spent)
    compose.check_health("coordinator")
    assert compose.written() == ""

    # An upgrade is a new container with the same volumes.
    kits = {path: path.read_bytes() for path in compose.volumes.glob("*/tls/*")}
    compose.down()
    compose.up()
    assert kits == {path: path.read_bytes() for path in kits}
    assert compose.spent() == spent
    work = compose.volumes / "runner"
    (work / "next.toml").write_text((work / "study.toml").read_text().replace('"survey"', '"survey-2"'))
    compose.run("runner", "study", "sign", "next.toml", "committee.pem")
    compose.study("next.toml", "result-2")
    assert all(after > before for after, before in zip(compose.spent(), spent, strict=True))


def test_the_files_that_the_image_copies_are_enough(tmp_path):
    """Also where no image can be built: a wheel is made of them, and a federation runs in it."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, flags=re.MULTILINE):
        for name in set(line.split()) - {"wheel[s]"}:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, source / name)
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, source)
    fedpower = (sys.executable, "-m", "fedpower")
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(site)}}
    where = run(sys.executable, "-c", "import fedpower; print(fedpower.__file__)", **options)
    assert where.startswith(str(site))
    data = ROOT / "examples" / "data"
    words = ("--name=survey", f"--silos={','.join(SILOS)}", f"--codebook={data / 'codebook.toml'}", "-k2")
    run(*fedpower, "study", "init", *words, "--epsilon=1", **options)
    run(*fedpower, "study", "run", "study.toml", "--local=3", f"--data={data}", **options)
    assert (tmp_path / "result" / "report.html").is_file()
