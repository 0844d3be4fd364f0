"""The node: a silo's process that talks to the network, and cannot open rows, ledger or signing key."""

import logging
import os
import queue
import select
import signal
import sys
import threading
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import NoReturn

import msgspec

from fedpower.exceptions import FedpowerError, InputError, ProtocolError
from fedpower.federation import TLS, isolation
from fedpower.federation.processes import end_group, end_with_starter, log_to_console

SETTINGS = "FEDPOWER_NODE"  # the environment variable with a node's settings
COMMAND = (sys.executable, "-u", "-m", "fedpower.federation.node")  # starts a node
_PATIENCE_S = 10.0  # how long a connection may take before the operator is informed
_WAITING = 2  # how many questions may wait for the vault; the coordinator asks one at a time
logger = logging.getLogger("fedpower.federation.node")


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node gets from the process that starts it."""

    name: str
    host: str
    port: int
    kit: str
    vault: int | str
    most_question_bytes: int
    most_answer_bytes: int
    confined: bool = False
    secrets: tuple[str, ...] = ()


class Node:
    """Passes questions to the vault and answers to the coordinator."""

    def __init__(self, settings: NodeSettings, vault: Connection) -> None:
        from fedpower.federation.links import ASK, Links  # noqa: PLC0415 (after confinement)

        self._settings = settings
        self._vault = vault
        self._questions: queue.Queue[tuple[int, bytes]] = queue.Queue(_WAITING)
        states = ("not connected", "connected")
        self._links = Links(
            settings.name,
            accepts={"coordinator": ASK},
            most_bytes=settings.most_question_bytes,
            on_message=self._take,
            on_change=lambda _, there: logger.info("%s to the coordinator", states[there]),
        )

    def run(self) -> None:
        from fedpower.federation.links import ANSWER  # noqa: PLC0415

        settings = self._settings
        threading.Thread(target=self._end_with_vault, name="vault", daemon=True).start()
        self._links.connect(settings.host, settings.port, Path(settings.kit) / TLS)
        threading.Timer(_PATIENCE_S, self._report_no_connection).start()
        while True:
            number, question = self._questions.get()
            self._vault.send_bytes(question)
            answer = self._vault.recv_bytes(settings.most_answer_bytes)
            self._links.send("coordinator", ANSWER, number, answer)

    def _report_no_connection(self) -> None:
        """Explain to the operator why nothing happens; FLARE keeps trying."""
        if not self._links.connected():
            place = f"{self._settings.host}:{self._settings.port}"
            hint = "check that it runs, with a certificate of this kit's authority; trying again"
            logger.warning("no connection to the coordinator at %s so far; %s", place, hint)

    def _end_with_vault(self) -> None:
        """End as soon as the vault hangs up, also between questions: a silo needs both."""
        vault = select.poll()
        vault.register(self._vault, select.POLLRDHUP)
        vault.poll()
        logger.error("the node lost its vault: the connection was closed")
        end_group()

    def _take(self, peer: str, kind: str, number: int, content: bytes) -> None:
        try:
            self._questions.put_nowait((number, content))
        except queue.Full:
            logger.warning("refused a question: others already wait for an answer")


def become_node(settings: NodeSettings) -> NoReturn:
    """Turn this process into a node that connects to the socket of its vault."""
    os.environ[SETTINGS] = msgspec.json.encode(settings).decode()
    try:
        os.execv(COMMAND[0], COMMAND)  # noqa: S606 (our own interpreter)
    except OSError as error:
        problem = (error.strerror or "").lower()
        raise InputError(f"the node's user must be able to run {COMMAND[0]}, got {problem}") from None


def main() -> None:
    if SETTINGS not in os.environ:
        raise SystemExit("a node must be started with `fedpower node start`, got no settings")
    os.umask(0o077)
    log_to_console()
    settings = msgspec.json.decode(os.environ.pop(SETTINGS), type=NodeSettings)
    if isinstance(settings.vault, int):  # Ctrl-C reaches the vault too, which ends this process
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(0))  # a node keeps nothing
    try:
        vault = _connect(settings.vault)
        if settings.confined:
            try:  # before any thread starts: one that ran before would stay free
                isolation.confine_node(Path(settings.kit), map(Path, settings.secrets))
            except OSError as error:
                hint = "run vault and node as two users, with --part and --socket"
                raise ProtocolError(f"the kernel must confine the node, got {error}; {hint}") from None
            logger.info("%s", isolation.describe(confined=True))
        end_with_starter()
        Node(settings, vault).run()
    except FedpowerError as error:
        logger.error("%s", error)
        os._exit(2)
    except (OSError, EOFError) as error:
        logger.error("the node lost its vault: %s", error)
        end_group()


def _connect(vault: int | str) -> Connection:
    if isinstance(vault, int):
        os.set_inheritable(vault, False)
        return Connection(vault)
    try:
        return Client(vault)
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        hint = "start it first, with --part vault, and add the node's user to the socket's group"
        raise ProtocolError(f"the vault must listen at {vault}, got {problem}; {hint}") from None


if __name__ == "__main__":
    main()
