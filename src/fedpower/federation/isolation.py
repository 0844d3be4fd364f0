"""What keeps the process that talks to the network from rows, ledger and signing key."""

import ctypes
import errno
import os
import platform
import socket
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedpower.exceptions import InputError
from fedpower.federation import FEDERATION_FILE, TLS

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_EXECUTE, _WRITE, _READ, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_DEVICES = 1 << 6 | 1 << 11
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
# How many rights on files an ABI of Landlock knows; later ones know 16
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_SCOPED = 0b11  # abstract local sockets and signals reach no process outside


class _Machine(NamedTuple):
    """How an architecture numbers system calls; ``beyond`` is where another ABI's numbers begin."""

    audit: int
    seccomp: int
    socket: int
    socketpair: int
    ioctl: int
    prlimit: int
    refused: tuple[int, ...]
    attributes: tuple[int, ...]
    beyond: int | None


# Refused are ptrace, process_vm_readv and _writev, open_by_handle_at, truncate (before ABI 3 Landlock
# lets it by), io_uring_setup (it makes sockets unseen by a filter), pidfd_getfd, the user's keyring
# (add_key, request_key, keyctl), unshare and setns.
# Attributes are set by chmod and chown, utime and setxattr in all their forms: Landlock leaves them open.
_NEW_ATTRIBUTES = (452, 463, 466, 469)  # fchmodat2, setxattrat, removexattrat, file_setattr
_MACHINES = {
    "aarch64": _Machine(
        0xC00000B7, 277, 198, 199, 29, 261,
        (117, 270, 271, 265, 45, 425, 438, 217, 218, 219, 97, 268),
        (*range(52, 56), 88, 5, 6, 7, 14, 15, 16, *_NEW_ATTRIBUTES), None,
    ),
    "x86_64": _Machine(
        0xC000003E, 317, 41, 53, 16, 302,
        (101, 310, 311, 304, 76, 425, 438, 248, 249, 250, 272, 308),
        (*range(90, 95), 132, 235, 260, 261, 268, 280, 188, 189, 190, 197, 198, 199, *_NEW_ATTRIBUTES),
        0x40000000,
    ),
}  # fmt: skip
_LOAD, _IS, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
# SOCK_CLOEXEC and SOCK_NONBLOCK, which come with a type; nothing else that is judged has these bits
_FLAGS = 0x80800
# TIOCSTI and TIOCLINUX, which type into the terminal that a process was started from
_TYPING = (0x5412, 0x541C)
_Step = tuple[int, int, int, int]  # of a filter: code, steps to skip if true and if false, operand
# What Python, its packages and the resolver open
_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo",
    "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf",
    "/etc/ssl", "/etc/pki", "/etc/localtime", "/etc/ld.so.cache", "/dev/null", "/dev/urandom",
    "/proc",  # FLARE looks after its processes there
    "/sys/devices/system/cpu", "/sys/fs/cgroup",  # by which gRPC counts its threads
)  # fmt: skip
# How opening a path fails where it is closed, not there, or a folder that is opened as a file
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


def available() -> bool:
    return landlock_abi() > 0 and _machine() is not None


def describe(*, confined: bool) -> str:
    """Return in one sentence how the processes of one user keep the network away from rows."""
    if confined:
        return (
            f"Landlock (ABI {landlock_abi()}) and seccomp: the node cannot open rows, ledger or signing key"
        )
    return (
        "NO ISOLATION: this system has neither separate users nor Landlock. An attacker who controls the "
        "node, which talks to the network, can read the rows. Use the systemd units in "
        "examples/federation or a Linux kernel >= 5.13 on aarch64 or x86_64"
    )


def separation(node: int, vault: int) -> str:
    """Return how a node of another command is separated from the vault's files, by the users' numbers."""
    if node not in (0, vault):
        return f"separate users: the node runs as uid {node}, the vault as uid {vault}"
    user = "root" if node == 0 else "the vault's own user"
    return (
        f"NOT SEPARATE: the node runs as {user}, and the vault cannot see whether it is confined; "
        "run it as another user"
    )


def landlock_abi() -> int:
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def confine_files(*, read: Iterable[Path], write: Iterable[Path] = ()) -> None:
    """Close the file system but for what is below some paths, for this process and all it starts."""
    abi = landlock_abi()
    if not abi:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise OSError(errno.EBUSY, "files must be confined before the process starts threads")
    handled = (1 << _RIGHTS.get(abi, 16)) - 1
    fields = (handled, 0, _SCOPED)[: 3 if abi >= 6 else 1]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = _checked(_libc().syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        for path in read:
            _allow(rules, path, handled & (_EXECUTE | _READ | _READ_DIR))
        for path in (Path("/dev/null"), *write):
            _allow(rules, path, handled & ~(_EXECUTE | _MAKE_DEVICES))
        _gain_nothing()
        _checked(_libc().syscall(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def confine_node(kit: Path, secrets: Iterable[Path]) -> None:
    """Close to this process all files but those that a node needs, and the ways around that."""
    secrets = list(secrets)
    reads = node_reads(kit, secrets)
    confine_files(read=reads)
    forbid_sockets(socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK)
    drop_capabilities()
    check_confined(secrets, allowed=reads)


def forbid_sockets(*families: int) -> None:
    """Let no socket of these address families be made, and close what else leads around Landlock."""
    _filter_calls(families, listed=_FAIL | errno.EACCES, others=_ALLOW, attributes=False)


def allow_sockets(*families: int) -> None:
    """Allow only sockets of these address families; files' attributes can still be changed."""
    _filter_calls(families, listed=_ALLOW, others=_FAIL | errno.EACCES, attributes=True)


def drop_capabilities() -> None:
    """Leave the calling thread no capability; a confined process of root's is open without this."""
    _gain_nothing()  # else root has them again in the next program that it starts
    _checked(_libc().capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)))


def node_reads(kit: Path, secrets: Iterable[Path] = ()) -> list[Path]:
    """Return what a node must be able to read: its kit's public side, Python and the system's libraries."""
    closed = [secret.resolve() for secret in secrets]
    packages = [
        folder
        for folder in (Path(entry).resolve() for entry in sys.path if entry.startswith("/"))
        if folder != Path.cwd() and not any(secret.is_relative_to(folder) for secret in closed)
    ]
    python = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    own = [kit / TLS, kit / FEDERATION_FILE, Path(__file__).resolve().parents[1]]
    return list(dict.fromkeys([*own, *map(Path, python), *packages, *map(Path, _SYSTEM)]))


def check_confined(secrets: Iterable[Path], *, allowed: Iterable[Path] = ()) -> None:
    """Refuse to continue if this process can open a secret, or make a file in it or next to it."""
    folders = [path.resolve() for path in allowed]
    for secret in secrets:
        if _opens(secret, os.O_RDONLY):
            found = "a readable folder" if secret.is_dir() else "a readable file"
        elif _opens(secret, os.O_WRONLY):
            found = "a writable file"
        elif _makes_file(secret) or _makes_file(secret.parent):
            found = "a folder in which it can make files"
        else:
            continue
        needed = [folder for folder in folders if secret.resolve().is_relative_to(folder)]
        advice = "let only the vault's user own it and enter its folder"
        if needed:
            advice = f"move it out of {needed[0]}, which the node needs"
        raise InputError(f"the node must not be able to open {secret}, got {found}; {advice}")


def _opens(path: Path, flags: int) -> bool:
    """Return whether a path can be opened; an error that does not settle it is raised."""
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o600))
    except OSError as error:
        if error.errno in _CLOSED:
            return False
        raise
    return True


def _makes_file(folder: Path) -> bool:
    made = folder / f".fedpower-{os.urandom(8).hex()}"
    if is_made := _opens(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL):
        made.unlink()
    return is_made


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    """Return what a call returned; raise what it failed with."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _gain_nothing() -> None:
    """Give up rights that a program could bring, as sudo does: the kernel asks for it."""
    _checked(_libc().prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0))))


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _OF_FILES
        _checked(_libc().syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", rights, handle), 0))
    finally:
        os.close(handle)


def _machine() -> _Machine | None:
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    machine = _MACHINES.get(platform.machine())
    asked = struct.pack("=I", _KILL)
    return machine if machine and _libc().syscall(machine.seccomp, 2, 0, asked) == 0 else None


def _filter_calls(families: Iterable[int], *, listed: int, others: int, attributes: bool) -> None:
    """Put a seccomp filter on all threads: for sockets of the families, for others, and for attributes."""
    machine = _machine()
    if machine is None:
        raise OSError(errno.ENOSYS, "seccomp filters need Linux on aarch64 or x86_64")
    refuse = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    steps: list[_Step] = [(_LOAD, 0, 0, 4), (_IS, 1, 0, machine.audit), (_RETURN, 0, 0, _KILL)]
    steps += [(_LOAD, 0, 0, 0)]
    if machine.beyond is not None:
        steps += [(_AT_LEAST, 0, 1, machine.beyond), refuse]
    for call in machine.refused if attributes else (*machine.refused, *machine.attributes):
        steps += [(_IS, 0, 1, call), refuse]
    steps += _by_argument(machine.socket, 0, families, then=listed, otherwise=others)
    streams, no_others = (socket.SOCK_STREAM,), _FAIL | errno.EACCES
    steps += _by_argument(machine.socketpair, 1, streams, then=_ALLOW, otherwise=no_others)
    steps += _by_argument(machine.ioctl, 1, _TYPING, then=_FAIL | errno.EPERM, otherwise=_ALLOW)
    # Of its own limits a process may ask; process 0 is itself.
    steps += _by_argument(machine.prlimit, 0, (0,), then=_ALLOW, otherwise=_FAIL | errno.EPERM)
    steps += [(_RETURN, 0, 0, _ALLOW)]
    program = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(steps), ctypes.addressof(buffer))
    _gain_nothing()
    if _checked(_libc().syscall(machine.seccomp, 1, 1, header)):
        raise OSError(errno.EBUSY, "a thread has a seccomp filter of its own")


def _by_argument(call: int, place: int, values: Iterable[int], *, then: int, otherwise: int) -> list[_Step]:
    judged: list[_Step] = [(_LOAD, 0, 0, 16 + 8 * place), (_AND, 0, 0, ~_FLAGS & 0xFFFFFFFF)]
    for value in values:
        judged += [(_IS, 0, 1, int(value)), (_RETURN, 0, 0, then)]
    judged += [(_RETURN, 0, 0, otherwise)]
    return [(_IS, 0, len(judged), call), *judged]
