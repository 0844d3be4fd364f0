"""A private PostgreSQL server on a free loopback port, in a temporary folder: for tests and figures."""

import os
import shutil
import subprocess
import tempfile
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
    secret, data, port = folder / "password", folder / "data", free_port()
    secret.write_text(password)

    def run(program: str, *words: object) -> None:
        log = folder / "output"  # a pipe would be held open by the server
        with log.open("a") as file:
            done = subprocess.run(
                [programs / program, "-D", data, *map(str, words)], cwd=folder, stdout=file, stderr=file,
                check=False, **owner,
            )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} failed: {log.read_text()}")

    try:
        run("initdb", "-U", OWNER, "-A", "scram-sha-256", "--no-sync", "--locale=C", "-E", "UTF8",
            f"--pwfile={secret}")  # fmt: skip
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "start", "-w", "-t", START_SECONDS, "-o", options)
        try:
            yield PostgresServer(programs=programs, port=port, password=password)
        finally:
            run("pg_ctl", "stop", "-w", "-m", "fast")  # clients are sent away
    finally:
        shutil.rmtree(folder, ignore_errors=True)
