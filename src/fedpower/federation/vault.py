"""The vault: a silo's process that has its rows, ledger and signing key, and no network."""

import contextlib
import logging
import os
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

import fedpower
from fedpower.exceptions import FedpowerError, InputError, ProtocolError
from fedpower.federation import MOST_BYTES, isolation
from fedpower.federation.events import EventLog
from fedpower.federation.inbox import Inbox
from fedpower.federation.kits import Kit
from fedpower.federation.node import COMMAND, SETTINGS, NodeSettings, VaultStatus
from fedpower.federation.processes import only_one, start_process, stop, wait_for_signal
from fedpower.federation.review import advice_of, size_of
from fedpower.federation.silo_file import SiloFile, open_silo
from fedpower.federation.study_file import Federation, StudyFile
from fedpower.privacy.ledger import Decision, Ledger
from fedpower.protocol.messages import Message, Propose, Refusal, Standing, decode, encode, encoded_size
from fedpower.protocol.receiving import cleaned, most_question_bytes
from fedpower.protocol.silo import NOT_YOURS, Silo

logger = logging.getLogger(__name__)

Say = Callable[[str], None]

# Environment variables that a node inherits: the others may hold the password of a database
_NODE_VARIABLES = re.compile(
    r"PATH|LANG|LC_\w+|TZ|PYTHON\w+|LD_LIBRARY_PATH|GRPC_\w+|\w*_proxy|NO_PROXY", re.ASCII
)
_STOP_S = 5.0
_MOST_AN_HOUR, _HOUR_S = 100, 3600.0  # lines of the log that anybody can cause
_CREDENTIALS = struct.Struct("3i")  # process, user and group of a peer


class Vault:
    """Answers for a silo, one at a time: proposals of studies, and questions of an approved study."""

    def __init__(self, federation: Federation, own: SiloFile, ledger: Ledger) -> None:
        self.inbox = Inbox(federation, own, ledger)
        self._own, self._ledger = own, ledger
        self._log = EventLog(own.log, ledger)
        self._one_at_a_time = threading.Lock()
        self._proposed: tuple[Propose, StudyFile] | None = None
        self._rows = contextlib.ExitStack()
        self._silo: Silo | None = None
        self._round: int | None = None
        self._refused: deque[tuple[float, str]] = deque(maxlen=_MOST_AN_HOUR)  # when, and why
        self._arrivals: deque[float] = deque(maxlen=_MOST_AN_HOUR)
        self._log.add("started", version=fedpower.__version__)

    def serve(self, node: Connection) -> None:
        with node, contextlib.suppress(EOFError):
            try:
                while True:
                    node.send_bytes(self.answer(node.recv_bytes(MOST_BYTES)))
            except OSError as error:
                logger.error("the connection to the node ended: %s", error)

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a question; nothing where the bytes are no question."""
        if not content:
            return msgspec.json.encode(self.status)
        try:
            question = decode(content)
        except ProtocolError as error:
            logger.error("refused a message that is not a question: %s", cleaned(error))
            return b""
        with self._one_at_a_time:
            answer = self._answer(question, len(content))
        if isinstance(answer.body, Refusal):
            logger.warning("refused round %s: %s", question.round, answer.body.reason)
        elif not isinstance(answer.body, Standing):
            self._round = question.round
            logger.info("answered round %s (%s)", question.round, answer.body.kind)
        return encode(answer)

    @property
    def status(self) -> VaultStatus:
        spent = self._ledger.spent()
        return VaultStatus(
            silo=self._own.name,
            epsilon_spent=spent.epsilon,
            epsilon_left=spent.left,
            n_waiting=self.inbox.n_waiting,
            round=self._round,
            can_answer=self._log.is_sound,
        )

    def close(self) -> None:
        self._silo = None
        self._rows.close()

    def stop(self) -> None:
        self._one_at_a_time.acquire(timeout=_STOP_S)  # an answer that is being made is stored first
        self.close()
        self._log.add("stopped")

    def _answer(self, question: Message, n_bytes: int) -> Message:
        """Return the answer to a proposal or a question; it leaves once it is in the audit log."""
        about: dict[str, Any] = {"study": question.study, "run": question.run, "round": question.round}
        body: Refusal | Standing
        try:
            if isinstance(question.body, Propose):
                body = self._standing(question.body, question.run)
                return msgspec.structs.replace(question, silo=self._own.name, body=body)
            silo = self._approved(question.study)
            about["study"] = silo.study.agreement
            if n_bytes > most_question_bytes(silo.study):
                raise ProtocolError("a question must be no longer than those of its study")
            self._log.add("asked", **about, question=getattr(question.body, "label", question.body.kind))
            answer = silo.answer(question)
            if (size := encoded_size(answer)) > MOST_BYTES:
                raise ProtocolError("an answer must be no longer than the longest message, got a longer one")
            if not isinstance(answer.body, Refusal):
                self._log.add("sent", **about, answer=answer.body.kind, bytes=size)
                return answer
            reason = answer.body.reason
        except ProtocolError as error:
            reason = str(error)
        except FedpowerError as error:
            logger.error("the silo could not answer: %s", cleaned(error))
            reason = NOT_YOURS
        except Exception:
            logger.exception("the silo could not answer round %s", question.round)
            reason = NOT_YOURS
        proposal = isinstance(question.body, Propose)
        body = Standing(state="unable", reason=reason) if proposal else Refusal(reason=reason)
        if self._is_news(reason):
            with contextlib.suppress(FedpowerError):  # which was why it could not answer
                self._log.add("refused to answer", **about, reason=reason)
        return msgspec.structs.replace(question, silo=self._own.name, body=body)

    def _standing(self, proposed: Propose, run: str) -> Standing:
        """Return where a proposed study stands; the rows of an approved one are read."""
        study = self._arrived(proposed, run)
        decision = self.inbox.decision(study.digest)
        if decision is None and (decision := self.inbox.by_rule(study)):
            logger.info("study %s (%s) meets the standing rules: approved", study.name, study.digest[:12])
            self._log.add()
        if decision is not None and decision.approved and self._open_approved(study, decision) is None:
            decision = None
        if decision is None:
            return Standing(state="waiting")
        return Standing(state="approved" if decision.approved else "refused", reason=decision.reason)

    def _open_approved(self, study: StudyFile, decision: Decision) -> Silo | None:
        """Return the silo of a study; nothing where rules have approved it and its rows do not fit."""
        try:
            return self._open(study)
        except Exception:
            if decision.by == "operator":
                raise
            logger.exception("no rule approves any study until you decide about %s", study.name)
            self.inbox.stop_rules(study)
            self._log.add()
            return None

    def _arrived(self, proposed: Propose, run: str) -> StudyFile:
        """Return a proposed study; it is asked about again and again, and kept once."""
        if self._proposed is None or self._proposed[0] != proposed or self._proposed[1] not in self.inbox:
            now = time.monotonic()
            if len(self._arrivals) == _MOST_AN_HOUR and now < self._arrivals[0] + _HOUR_S:
                raise ProtocolError(f"at most {_MOST_AN_HOUR} studies must arrive in an hour, got one more")
            self._arrivals.append(now)
            study = self.inbox.add(proposed)
            self._log.add("arrived", study=study.digest, run=run, name=study.name)
            self._proposed = proposed, study
            signatures = self.inbox.signatures(study)
            kit, against = self._own.path.parent, list(self.inbox.objections(study, signatures))
            if against and self.inbox.decision(study.digest) is None:
                logger.info("study %s waits: fedpower node approve %s %s", study.name, kit, study.digest[:12])
                if self._own.approve is not None:
                    logger.info("the standing rules do not approve it: %s", "; ".join(against))
        return self._proposed[1]

    def _is_news(self, reason: str) -> bool:
        """Return whether a refusal is to be logged: whoever asks again and again must not fill the disk."""
        now = time.monotonic()
        recent = [why for when, why in self._refused if now < when + _HOUR_S]
        if reason in recent or len(recent) == _MOST_AN_HOUR:
            return False
        self._refused.append((now, reason))
        return True

    def _approved(self, asked_as: str) -> Silo:
        """Return the silo that answers a study's questions, its rows read; refuse without an approval."""
        held, silo = self.inbox.decision(asked_as), None
        if held is not None and held.approved:
            if self._silo is not None and self._silo.study.digest == asked_as:
                return self._silo
            silo = self._open_approved(self.inbox.study(held.study), held)
        if silo is None:
            raise ProtocolError("a study must be approved by this silo's operator before it is answered")
        return silo

    def _open(self, study: StudyFile) -> Silo:
        if self._silo is None or self._silo.study.agreement != study.digest:
            self.close()
            silo = self._silo = self._rows.enter_context(open_silo(study, self._own))
            logger.info("study %s (%s): %s", study.name, study.digest[:12], size_of(silo))
            for advice in advice_of(silo):
                logger.info("%s", advice)
        return self._silo


@contextlib.contextmanager
def open_vault(federation: Federation, own: SiloFile) -> Iterator[Vault]:
    """Give a silo's vault; refuse what would keep it from ever answering."""
    if own.name not in federation.silos:
        must = f"silo {own.name!r} must be one of federation {federation.name!r}"
        raise InputError(f"{must}, got {', '.join(federation.silos)}")
    path = None if own.data.path is None else own.path.parent / own.data.path
    if path is not None and not path.exists():
        raise InputError(f"path in [data] of {own.path} must exist, got no file at {path}")
    with own.open_ledger() as ledger, _alone(own):
        vault = Vault(federation, own, ledger)
        try:
            yield vault
        finally:
            vault.stop()


def _alone(own: SiloFile) -> contextlib.AbstractContextManager[None]:
    """Refuse a second vault of a silo; several would answer in turn."""
    own.inbox.mkdir(exist_ok=True, mode=0o700)
    return only_one(own.inbox, f"silo {own.name!r} must run once, got one that already runs")


def node_settings(kit: Kit, vault: int | str = -1, *, health: tuple[str, int] | None = None) -> NodeSettings:
    return NodeSettings(
        name=kit.party,
        host=kit.federation.host,
        port=kit.federation.port,
        kit=str(kit.folder),
        vault=vault,
        confined=isolation.available(),
        health=health,
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
        vault.serve(Connection(stream.detach()))  # one at a time


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
