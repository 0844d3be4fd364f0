"""A private PostgreSQL server on a free loopback port, in a temporary folder: for tests and figures."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpower.federation.local import free_port

START_SECONDS = 60
OWNER = "postgres"  # runs the server where we are root, which PostgreSQL refuses to run as


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A running server: everybody must give a password (SCRAM)."""

    programs: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        """The URL of the administrator's database, without its password."""
        return f"postgresql://{OWNER}@127.0.0.1:{self.port}/postgres"

    def sql(self, statements: str, *, rows: str | None = None) -> str:
        """Run statements as the administrator and return what they print; `rows` feed a COPY."""
        command = [self.programs / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.url]
        done = subprocess.run(
            [*command, "-c", statements],
            input=rows,
            env={**os.environ, "PGPASSWORD": self.password},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()


def find_programs() -> Path | None:
    """Return the folder with ``initdb`` and ``postgres``: on the path, or where Debian puts them."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


@contextmanager
def private_server(password: str) -> Iterator[PostgresServer]:
    """Yield a new server whose administrator has this password; it is stopped and removed at the end."""
    programs = find_programs()
    if programs is None:
        raise RuntimeError("PostgreSQL must be installed, got none; run scripts/install-postgres")
    folder = Path(tempfile.mkdtemp(prefix="fedpower-postgres-"))
    owner: dict[str, Any] = {}
    if os.geteuid() == 0:
        owner = {"user": OWNER, "group": OWNER, "extra_groups": []}
        shutil.chown(folder, OWNER, OWNER)
    try:
        secret = folder / "password"
        secret.write_text(password)
        data = folder / "data"
        _check([programs / "initdb", "-D", data, "-U", OWNER, "-A", "scram-sha-256", "--no-sync",
                "--locale=C", "-E", "UTF8", f"--pwfile={secret}"], folder, owner)  # fmt: skip
        port = free_port()
        command = [programs / "postgres", "-D", data, "-p", str(port), "-k", folder,
                   "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]  # fmt: skip
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, **owner)
        try:
            _wait(programs, port, server, folder / "log")
            yield PostgresServer(programs=programs, port=port, password=password)
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown: clients are sent away
            server.wait(timeout=START_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(command: list[Any], folder: Path, owner: dict[str, Any]) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **owner)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr}")


def _wait(programs: Path, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        if subprocess.run(ready, check=False).returncode == 0:
            return
        time.sleep(0.1)
    raise RuntimeError(f"the PostgreSQL server did not start: {log.read_text()}")
