"""A confined process opens no secret, by whatever way, and still does what a node or a vault has to.

Each test starts real processes that confine themselves, as the user of the tests and as one without any
privilege. What they try is tried unconfined too, where it must succeed: a refusal alone tells nothing.
"""

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedpower
from fedpower.federation import isolation
from fedpower.federation.isolation import check_confined, landlock_abi, node_reads

pytestmark = pytest.mark.programs

needs_landlock = pytest.mark.skipif(
    not isolation.available(), reason="this kernel has no Landlock or seccomp"
)
NOBODY = 65534
PACKAGES = [str(Path(fedpower.__file__).parents[1]), str(Path(pytest.__file__).parents[1])]
SECRET = b"the rows of a silo"

PRELUDE = """
import ctypes, errno, json, os, platform, signal, socket, struct, subprocess, sys, threading
from pathlib import Path
from fedpower.exceptions import InputError
from fedpower.federation.isolation import *

ground, how = Path(sys.argv[1]), sys.argv[2]
kit, work, vault = ground / "kit", ground / "work", ground / "vault"
rows, ledger = vault / "rows.csv", vault / "ledger.db"
libc = ctypes.CDLL(None, use_errno=True)
outcomes = {}

def confine(*more):
    if how != "open":
        confine_files(read=[*node_reads(kit), *more], write=[work])
        drop_capabilities()
    if how == "node":
        forbid_sockets(socket.AF_UNIX)

def attempt(name, act):
    try:
        said = act()
        outcomes[name] = said if isinstance(said, str) else "done"
    except OSError as error:
        outcomes[name] = errno.errorcode[error.errno]

def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result

def program(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "ermission denied" in done.stderr:
        raise PermissionError(errno.EACCES, "")
    return done.stdout or "done"
"""


def start(python: str, user: int | None, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", *words],
        env={"PYTHONPATH": ":".join(PACKAGES), "OWN": SECRET.decode()},
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


@functools.cache
def interpreter(user: int | None) -> str | None:
    """Return a Python like this one that a user can start."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            done = start(python, user, "import sys, ctypes, grpc; print(sys.version_info[:2])")
        except PermissionError:
            continue
        if done.stdout.strip() == str(sys.version_info[:2]):
            return python
    return None


class Ground:
    """A folder of a user's with a kit, a folder to work in, and a vault with secrets."""

    def __init__(self, folder: Path, user: int | None) -> None:
        self.folder, self.user, self.vault = folder, user, folder / "vault"
        for name in ("kit/tls", "work", "vault"):
            (folder / name).mkdir(parents=True)
        for name in ("kit/federation.toml", "kit/silo.toml", "vault/rows.csv", "vault/ledger.db"):
            (folder / name).write_bytes(SECRET)
        self.sockets = [
            socket.socket(socket.AF_UNIX, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        ]
        for made, name in zip(self.sockets, ("socket", "log"), strict=True):
            made.bind(str(folder / name))
        self.sockets[0].listen()
        for path in (folder, *folder.rglob("*")):
            os.chown(path, os.getuid() if user is None else user, -1)

    def outcomes(self, how: str, code: str, **more: Any) -> dict[str, str]:
        python, end = interpreter(self.user), "\nprint(json.dumps(outcomes), flush=True)"
        if python is None:
            pytest.skip("no Python here that an unprivileged user can start")
        done = start(python, self.user, PRELUDE + code + end, str(self.folder), how, **more)
        assert done.returncode == 0, done.stderr
        found: dict[str, str] = json.loads(done.stdout)
        return found


@pytest.fixture(params=["as it is", "nobody"])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    if request.param == "nobody" and os.getuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # tmp_path is closed to other users
    made = Ground(folder, NOBODY if request.param == "nobody" else None)
    yield made
    for each in made.sockets:
        each.close()
    shutil.rmtree(folder)


def others(found: dict[str, str], *expected: str) -> dict[str, str]:
    """Return the attempts that ended otherwise than expected."""
    return {name: said for name, said in found.items() if said not in expected}


# The sockets are outside of what is confined, so they can be reached by all but a filter.
LOCAL = """
def connect(name):
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(name)

def of_datagrams():
    near, far = socket.socketpair(type=socket.SOCK_DGRAM)
    near.connect(str(ground / "log"))

attempt("make", lambda: socket.socket(socket.AF_UNIX))
attempt("connect", lambda: connect(str(ground / "socket")))
attempt("datagrams", of_datagrams)
"""
NETWORK = """
def over_tcp():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as near, server.accept()[0] as far:
            near.sendall(b"x")
            far.recv(1)

def over_pair():
    near, far = socket.socketpair()
    near.sendall(b"x")
    far.recv(1)

attempt("tcp", over_tcp)
attempt("udp", lambda: socket.socket(type=socket.SOCK_DGRAM))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("pair", over_pair)
"""
IO_URING = """
attempt("io_uring", lambda: call(libc.syscall(425, 1, bytes(120))))
"""

CLOSED = """
add_key, keyctl, unshare, prlimit = {
    "aarch64": (217, 219, 97, 261), "x86_64": (248, 250, 272, 302)
}[platform.machine()]
(work / "link").symlink_to(rows)
(work / "moved").write_text("")
handle = os.open(vault, os.O_PATH)
confine()
attempt("read", lambda: os.open(rows, os.O_RDONLY))
attempt("write", lambda: os.open(rows, os.O_WRONLY))
attempt("list", lambda: os.listdir(vault))
attempt("symlink", lambda: os.open(work / "link", os.O_RDONLY))
attempt("handle of the folder", lambda: os.open("rows.csv", os.O_RDONLY, dir_fd=handle))
attempt("hard link", lambda: os.link(rows, work / "hard"))
attempt("make", lambda: os.open(vault / "made", os.O_WRONLY | os.O_CREAT))
attempt("truncate", lambda: os.truncate(ledger, 0))
attempt("replace", lambda: os.replace(work / "moved", ledger))
attempt("rename", lambda: os.rename(rows, vault / "other"))
attempt("rename out", lambda: os.rename(vault / "ledger.db", work / "ledger.db"))
attempt("handed down, by name", lambda: os.open(f"/proc/self/fd/{held}", os.O_RDONLY))
attempt("unshare", lambda: call(libc.syscall(unshare, 0)))
for code in (f"open({str(rows)!r})", "import socket; socket.socket(socket.AF_UNIX)"):
    attempt(f"program: {code[:6]}", lambda: program(sys.executable, "-c", code))
"""
CLOSED += LOCAL
"""What a node must not do, and what succeeds where nothing is confined."""

REFUSED = """
attempt("silo", lambda: os.open(kit / "silo.toml", os.O_RDONLY))
attempt("kit", lambda: os.open(kit / "federation.toml", os.O_WRONLY))
attempt("mode", lambda: os.chmod(work, 0o777))
attempt("times", lambda: os.utime(work))
attempt("own program", lambda: os.execv(work / "tool", ["tool"]))
attempt("add_key", lambda: call(libc.syscall(add_key, b"user", b"fedpower", b"x", 1, -4)))
attempt("keyctl", lambda: call(libc.syscall(keyctl, 0, -4, 0)))
attempt("others' limits", lambda: call(libc.syscall(prlimit, os.getppid(), 7, 0, bytes(16))))
caps = "print(open('/proc/self/status').read().split('CapPrm:')[1].split()[0], end='')"
attempt("capabilities", lambda: program(sys.executable, "-c", caps))
"""
REFUSED += IO_URING

OPEN = """
attempt("federation", lambda: [(kit / "federation.toml").read_text()])
attempt("write own", lambda: (work / "own").write_text("x"))
attempt("move", lambda: ((work / "sub").mkdir(), os.replace(work / "own", work / "sub" / "own")))
attempt("remove", lambda: (work / "sub" / "own").unlink())
attempt("nothing", lambda: open("/dev/null", "r+b", buffering=0))
attempt("import", lambda: [__import__("sqlite3")])
attempt("own limits", lambda: call(libc.syscall(prlimit, 0, 7, 0, bytes(16))))
attempt("handed down", lambda: os.read(held, 3))
attempt("talk", lambda: socket.socket(fileno=talks).recv(5))
"""
OPEN += NETWORK


@needs_landlock
def test_a_node_opens_no_secret_by_any_name_and_does_what_it_has_to(ground):
    """All that is closed to it succeeds where nothing is confined."""
    tool = ground.folder / "work/tool"
    tool.write_text("#!/bin/sh")
    tool.chmod(0o755)
    near, far = socket.socketpair()
    with near, far, (ground.vault / "rows.csv").open("rb") as held:
        near.sendall(b"asked")
        handed = (held.fileno(), far.fileno())
        code = f"held, talks = {handed}\n{CLOSED}"
        found = ground.outcomes("node", code + REFUSED + OPEN, pass_fds=handed)
        assert found.pop("capabilities") == f"{0:016}"
        done = {name for name, said in found.items() if said == "done"}
        assert done == set(re.findall(r'attempt\("([^"]+)"', OPEN))
        assert not others(found, "done", "EACCES", "EPERM", "EXDEV")
        kept = {path.name: path.read_bytes() for path in ground.vault.iterdir()}
        assert kept == {"ledger.db": SECRET, "rows.csv": SECRET}
        for name in ("link", "moved"):
            (ground.folder / "work" / name).unlink()
        assert not others(ground.outcomes("open", code, pass_fds=handed), "done")


PARENT = f"""
secret = ctypes.create_string_buffer(open(rows, "rb").read())
length, place, parent = {len(SECRET)}, ctypes.addressof(secret), os.getpid()
held = os.open(rows, os.O_RDONLY)
server = socket.socket(socket.AF_UNIX)
server.bind("")  # abstract: the kernel names it
server.listen()
os.chdir(vault)
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.close(held)
of_parent = Path(f"/proc/{{parent}}")

def read_memory():
    near = ctypes.create_string_buffer(length)
    spans = [(ctypes.c_size_t * 2)(at, length) for at in (ctypes.addressof(near), place)]
    call(libc.process_vm_readv(parent, spans[0], 1, spans[1], 1, 0))

confine()
attempt("environ", lambda: (of_parent / "environ").read_bytes())
attempt("mem", lambda: os.pread(os.open(of_parent / "mem", os.O_RDONLY), length, place))
attempt("cwd", lambda: os.open(of_parent / "cwd" / "rows.csv", os.O_RDONLY))
attempt("fd", lambda: os.open(of_parent / "fd" / str(held), os.O_RDONLY))
attempt("process_vm_readv", read_memory)
attempt("pidfd_getfd", lambda: call(libc.syscall(438, os.pidfd_open(parent), held, 0)))
attempt("ptrace", lambda: call(libc.ptrace(0x4206, parent, None, None)))
attempt("signal", lambda: os.kill(parent, signal.SIGCONT))
attempt("socket", lambda: socket.socket(socket.AF_UNIX).connect(server.getsockname()))
"""


@pytest.mark.parametrize("how", ["landlock", "node", "open"])
def test_nothing_is_had_from_a_process_of_the_same_user(ground, how):
    """All of it can be had where nothing is confined."""
    if how == "open" and Path("/proc/sys/kernel/yama/ptrace_scope").exists():
        pytest.skip("Yama keeps processes apart here in any case")
    if how != "open" and not isolation.available():
        pytest.skip("this kernel has no Landlock or seccomp")
    found = ground.outcomes(how, PARENT)
    if landlock_abi() < 6:  # it knows no scopes
        del found["signal"], found["socket"]
    assert not others(found, *(["done"] if how == "open" else ["EACCES", "EPERM"]))


@needs_landlock
def test_a_vault_has_local_sockets_and_no_network(ground):
    code = f"allow_sockets(socket.AF_UNIX)\nconfine()\n{LOCAL}{NETWORK}{IO_URING}"
    found = ground.outcomes("vault", code)
    assert {name for name, said in found.items() if said == "done"} == {"make", "connect", "pair"}
    assert set(others(found, "done").values()) == {"EACCES", "EPERM"}


@needs_landlock
def test_with_threads_files_are_not_confined_and_sockets_are_in_all(ground):
    code = """
go = threading.Event()

def wait(place):
    go.wait()
    attempt(f"thread {place}", lambda: socket.socket(socket.AF_UNIX))

threads = [threading.Thread(target=wait, args=(place,)) for place in range(8)]
for each in threads:
    each.start()
attempt("files", confine)
forbid_sockets(socket.AF_UNIX)
go.set()
for each in threads:
    each.join()
"""
    found = ground.outcomes("node", code)
    assert found.pop("files") == "EBUSY"
    assert len(found) == 8
    assert not others(found, "EACCES")


CHECKED = """
def checked(*paths, allowed=()):
    try:
        check_confined(paths, allowed=allowed)
    except InputError as error:
        return str(error)
    return "closed"

secrets = (rows, ledger, vault, kit / "silo.toml", vault / "later.db")
"""


@needs_landlock
def test_the_check_passes_in_a_confined_process_and_fails_in_another(ground):
    """A secret that can only be written is open too."""
    is_root = ground.user is None and os.getuid() == 0  # who reads whatever the mode
    (ground.vault / "ledger.db").chmod(0o200)
    code = CHECKED + 'confine()\nattempt("all", lambda: checked(*secrets))'
    assert ground.outcomes("node", code) == {"all": "closed"}
    code = CHECKED + "for each in secrets:\n    attempt(each.name, lambda: checked(each))"
    advice = "let only the vault's user own it and enter its folder"
    found = {
        "rows.csv": "a readable file",
        "ledger.db": "a readable file" if is_root else "a writable file",
        "vault": "a readable folder",
        "silo.toml": "a readable file",
        "later.db": "a folder in which it can make files",
    }
    reported = ground.outcomes("open", code)
    assert reported.keys() == found.keys()
    assert all(sentence.endswith(f", got {found[name]}; {advice}") for name, sentence in reported.items())
    assert len(list(ground.vault.iterdir())) == 2
    code = f"""{CHECKED}
confine(ground)
attempt("below", lambda: checked(rows, allowed=[Path("/usr/lib"), ground]))
"""
    (sentence,) = ground.outcomes("node", code).values()
    assert f"got a readable file; move it out of {ground.folder}, which the node needs" in sentence


def test_no_folder_with_a_secret_is_read_because_packages_may_be_in_it(tmp_path, monkeypatch):
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home / "data", other, tmp_path / "here"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    paths = ["", ".", str(home), str(other), str(tmp_path / "here"), "/nowhere"]
    monkeypatch.setattr(sys, "path", paths)
    kit = tmp_path / "kit"
    found = node_reads(kit, [home / "data" / "rows.csv"])
    own = [kit / "tls", kit / "federation.toml", other]
    assert [path for path in found if path.is_relative_to(tmp_path)] == own
    assert Path(fedpower.__file__).parent in found
    assert home in node_reads(kit)


def test_what_isolates_is_said_in_one_sentence_also_where_nothing_does(tmp_path, monkeypatch):
    assert isolation.describe(confined=False).startswith("NO ISOLATION: ")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):  # a check that settles nothing is no pass
        check_confined([tmp_path / "loop"])
    monkeypatch.setattr(isolation.platform, "machine", lambda: "riscv64")
    assert not isolation.available()
    with pytest.raises(OSError, match="aarch64 or x86_64"):
        isolation.forbid_sockets(socket.AF_UNIX)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OSError, match="no Landlock"):
        isolation.confine_files(read=[])
