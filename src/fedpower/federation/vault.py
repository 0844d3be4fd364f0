"""The vault: a silo's process that has its rows, ledger and signing key, and no network."""

import contextlib
import logging
import os
import re
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from fedpower.exceptions import InputError, ProtocolError
from fedpower.federation import isolation
from fedpower.federation.kits import Kit
from fedpower.federation.node import COMMAND, SETTINGS, NodeSettings
from fedpower.federation.processes import start_process, stop, wait_for_signal
from fedpower.federation.silo_file import SiloFile
from fedpower.federation.study_file import StudyFile
from fedpower.protocol.coordinator import Answers
from fedpower.protocol.messages import Refusal, decode, encode
from fedpower.protocol.receiving import most_answer_bytes, most_question_bytes

logger = logging.getLogger(__name__)

Say = Callable[[str], None]

# Environment variables that a node inherits: the others may hold the password of a database
_NODE_VARIABLES = re.compile(
    r"PATH|LANG|LC_\w+|TZ|PYTHON\w+|LD_LIBRARY_PATH|GRPC_\w+|\w*_proxy|NO_PROXY", re.ASCII
)
_CREDENTIALS = struct.Struct("3i")  # process, user and group of a peer


class Vault:
    """Answers questions of one study for a silo, one at a time."""

    def __init__(self, silo: Answers, study_file: StudyFile) -> None:
        self._silo = silo
        self._most_bytes = most_question_bytes(study_file.terms()[0])
        self._one_at_a_time = threading.Lock()

    def serve(self, node: Connection) -> None:
        with node, contextlib.suppress(EOFError):
            try:
                while True:
                    node.send_bytes(self.answer(node.recv_bytes(self._most_bytes)))
            except OSError as error:
                logger.error("the connection to the node ended: %s", error)

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a question; nothing where the bytes are no question."""
        try:
            question = decode(content)
        except ProtocolError as error:
            logger.error("refused a message that is not a question of this study: %s", error)
            return b""
        with self._one_at_a_time:
            answer = self._silo.answer(question)
        if isinstance(answer.body, Refusal):
            logger.warning("refused round %s: %s", question.round, answer.body.reason)
        else:
            logger.info("answered round %s (%s)", question.round, answer.body.kind)
        return encode(answer)


def node_settings(kit: Kit, vault: int | str = -1) -> NodeSettings:
    study, _, _ = kit.study.terms()
    return NodeSettings(
        name=kit.party,
        host=kit.study.host,
        port=kit.study.port,
        kit=str(kit.folder),
        vault=vault,
        confined=isolation.available(),
        most_question_bytes=most_question_bytes(study),
        most_answer_bytes=most_answer_bytes(study),
    )


def run_silo(vault: Vault, settings: NodeSettings, own: SiloFile, *, say: Say) -> int:
    """Start a node, confined where the system can do it, and answer it until a signal comes."""
    here, there = Pipe()
    secrets = tuple(map(str, own.secrets()))
    settings = msgspec.structs.replace(settings, vault=there.fileno(), secrets=secrets)
    environment = {key: value for key, value in os.environ.items() if _NODE_VARIABLES.fullmatch(key)}
    environment[SETTINGS] = msgspec.json.encode(settings).decode()
    child = start_process(COMMAND, environment, pass_fds=(there.fileno(),))
    there.close()
    if not settings.confined:
        say(isolation.describe(confined=False))
    if not _work(own, say, vault.serve, here, until=lambda: child.poll() is not None):
        say("the node stopped, so the silo stops")
        return child.returncode if child.returncode > 0 else 1
    stop(child)
    return 0


def run_vault(vault: Vault, path: Path, own: SiloFile, *, say: Say) -> int:
    """Listen at a socket for the node, which another user runs, until a signal comes."""
    listener = _listener(path)
    listener.listen(1)
    say(f"the vault listens at {path}")
    inode = path.stat().st_ino
    _work(own, say, _accept, vault, listener, say)
    if path.exists() and path.stat().st_ino == inode:
        path.unlink()
    return 0


def _listener(path: Path) -> socket.socket:
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            raise InputError(f"only one vault must listen at {path}, got another that already listens")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    umask = os.umask(0o117)  # the node's user is in the socket's group
    try:
        listener.bind(str(path))
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        hint = "name a new file with --socket"
        raise InputError(f"the vault must be able to listen at {path}, got {problem}; {hint}") from None
    finally:
        os.umask(umask)
    return listener


def _accept(vault: Vault, listener: socket.socket, say: Say) -> None:
    while True:
        stream, _ = listener.accept()
        credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(credentials)
        say(f"the node connected; {isolation.separation(uid, os.getuid())}")
        node = Connection(stream.detach())
        threading.Thread(target=vault.serve, args=(node,), name="node", daemon=True).start()


def _work(
    own: SiloFile, say: Say, work: Callable[..., None], *given: Any, until: Callable[[], bool] = lambda: False
) -> bool:
    """Give up the network, unless rows come over it, and work; return True once a signal comes."""
    if own.data.server:
        say("the vault keeps network access, because its rows come from a database server")
    elif isolation.available():
        isolation.allow_sockets(socket.AF_UNIX)
    threading.Thread(target=work, args=given, name="vault", daemon=True).start()
    if asked := wait_for_signal(until=until):
        say("stopping; releases and charges are stored")
    return asked
