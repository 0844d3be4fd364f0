"""The node: a silo's process that talks to the network, and cannot open rows, ledger or signing key."""

import contextlib
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from fedpower.exceptions import FedpowerError, InputError, ProtocolError
from fedpower.federation import MOST_BYTES, TLS, isolation
from fedpower.federation.processes import end_with_starter, log_to_console

if TYPE_CHECKING:
    from fedpower.federation.health import Facts

SETTINGS = "FEDPOWER_NODE"  # the environment variable with a node's settings
COMMAND = (sys.executable, "-u", "-m", "fedpower.federation.node")  # starts a node
_PATIENCE_S = 10.0  # how long a connection may take before the operator is informed
_RETRY_S = 0.5  # between attempts to reach a vault that does not listen yet
_IDLE_S = 5.0  # how often the vault is asked for its status
_WAITING = 2  # how many questions may wait for the vault; the coordinator asks one at a time
logger = logging.getLogger("fedpower.federation.node")


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node gets from the process that starts it."""

    name: str
    host: str
    port: int
    kit: str
    vault: int | str
    confined: bool = False
    health: tuple[str, int] | None = None
    secrets: tuple[str, ...] = ()


class VaultStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the node may know of its vault; nothing of it depends on rows."""

    silo: str
    epsilon_spent: float
    epsilon_left: float
    n_waiting: int
    round: int | None = None
    can_answer: bool = True
    """Whether ledger and audit log agree: else every question is refused."""


class Node:
    """Passes questions to the vault and answers to the coordinator."""

    def __init__(self, settings: NodeSettings, vault: Connection) -> None:
        from fedpower.federation.links import ASK, Links  # noqa: PLC0415 (after confinement)

        self._settings = settings
        self._vault = vault
        self._questions: queue.Queue[tuple[int, bytes]] = queue.Queue(_WAITING)
        self._status = self._ask_status()
        states = ("not connected", "connected")
        self._links = Links(
            settings.name,
            accepts={"coordinator": ASK},
            most_bytes=MOST_BYTES,
            on_message=self._take,
            on_change=lambda _, there: logger.info("%s to the coordinator", states[there]),
        )

    def run(self) -> None:
        from fedpower.federation.links import ANSWER  # noqa: PLC0415

        settings = self._settings
        threading.Thread(target=self._end_with_vault, name="vault", daemon=True).start()
        if settings.health is not None:
            from fedpower.federation.health import serve_health  # noqa: PLC0415

            serve_health(settings.health, self._facts)
        self._links.connect(settings.host, settings.port, Path(settings.kit) / TLS)
        threading.Timer(_PATIENCE_S, self._report_no_connection).start()
        asked_at = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                number, question = self._questions.get(timeout=_IDLE_S)
                self._links.send("coordinator", ANSWER, number, self._ask(question))
            if time.monotonic() - asked_at >= _IDLE_S:  # also while the coordinator asks every second
                self._status, asked_at = self._ask_status(), time.monotonic()

    def _ask(self, question: bytes) -> bytes:
        self._vault.send_bytes(question)
        return self._vault.recv_bytes(MOST_BYTES)

    def _ask_status(self) -> VaultStatus:
        return msgspec.json.decode(self._ask(b""), type=VaultStatus)

    def _facts(self) -> "Facts":
        """Return what health and metrics show; the vault's part is of the last time it was asked."""
        from fedpower.federation.health import Facts, certificate_days_left  # noqa: PLC0415

        status = self._status
        return Facts(
            party=self._settings.name,
            connected={"coordinator": bool(self._links.connected())},
            last_contact_timestamp_seconds=self._links.last_contact(),
            certificate_days_left=certificate_days_left(Path(self._settings.kit) / TLS),
            round=status.round,
            epsilon_spent=status.epsilon_spent,
            epsilon_left=status.epsilon_left,
            studies_waiting=status.n_waiting,
            can_answer=status.can_answer,
        )

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
        os._exit(1)

    def _take(self, peer: str, kind: str, number: int, content: bytes) -> None:
        if not 0 < len(content) <= MOST_BYTES:  # an empty one would ask the vault for its status
            logger.warning("refused a question of %s bytes", len(content))
            return
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
        os._exit(1)


def _connect(vault: int | str) -> Connection:
    if isinstance(vault, int):
        os.set_inheritable(vault, False)
        return Connection(vault)
    said = False
    while True:  # the two start in any order
        try:
            return Client(vault)
        except (FileNotFoundError, ConnectionRefusedError):
            if not said:
                logger.info("waiting for the vault to listen at %s", vault)
            said = True
            time.sleep(_RETRY_S)
        except OSError as error:
            problem = (error.strerror or str(error)).lower()
            hint = "add the node's user to the socket's group"
            raise ProtocolError(f"the node must be able to open {vault}, got {problem}; {hint}") from None


if __name__ == "__main__":
    main()
