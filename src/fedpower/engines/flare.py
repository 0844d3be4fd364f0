"""NVIDIA FLARE carries the messages: separate processes, mutual TLS. Nothing of the algorithm is here."""

import logging
import math
import queue
import threading
import time
from abc import abstractmethod
from contextlib import AbstractContextManager, ExitStack

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, SendOrder, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedpower.engines.pacing import Pace, paced
from fedpower.errors import FedpowerError, ProtocolError, RefusedError
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.driving import Answers, Arrived, Unreadable, rounds
from fedpower.protocol.exchange import Round
from fedpower.protocol.messages import Message, Refusal, decode, encode
from fedpower.protocol.silo import NOT_YOURS

TASK = "fedpower"
"""The one task that silos know."""

KEY = "message"
HEADER_BYTES = 64 * 1024
"""More than any message has besides its arrays."""


def wrapped(message: Message) -> Shareable:
    """Return the message as FLARE carries it."""
    carried = Shareable()
    carried[KEY] = encode(message)
    return carried


def unwrapped(carried: Shareable, *, most_bytes: int) -> Message:
    """Return the message that FLARE carried; refuse what is none or larger than any can be."""
    content = carried.get(KEY) if isinstance(carried, Shareable) else None
    if not isinstance(content, bytes):
        raise ProtocolError("a message must be bytes, got something else; send one of fedpower's")
    if len(content) > most_bytes:
        raise ProtocolError(
            f"a message of this study must have at most {most_bytes} bytes, got {len(content)}; "
            "send what the study asks for"
        )
    return decode(content)


def failed() -> Shareable:
    """Return a reply that says that there is no answer, and nothing else."""
    return make_reply(ReturnCode.BAD_TASK_DATA)


LOOK_S = 0.05
"""How often FLARE and this controller look for something to do."""

_MOST_ANSWER_BYTES = 2**31
"""An answer larger than this is no answer."""


class _EndedOutsideError(Exception):
    """FLARE was told to end the job."""


class CoordinatorController(Controller):
    """Runs a :class:`Coordinator` over FLARE; subclasses say which, and what becomes of its outcome."""

    def __init__(self) -> None:
        super().__init__(task_check_period=LOOK_S)
        self.waiting_for: tuple[str, ...] = ()
        self.gone: tuple[str, ...] = ()
        self.seconds: dict[int, float] = {}
        self._arrived: queue.Queue[tuple[str, Shareable]] = queue.Queue()
        self._stop_after_round = False

    @abstractmethod
    def open(self, fl_ctx: FLContext) -> tuple[Coordinator, Pace]:
        """Return what to run and how long its rounds may take."""

    @abstractmethod
    def close(
        self, coordinator: Coordinator | None, reason: str | None, *, again: bool, refused: bool
    ) -> None:
        """Take the outcome.

        Parameters
        ----------
        coordinator
            None where it could not be opened.
        reason, again
            Why there is no outcome yet, None if there is; and whether another job may bring it.
        refused
            Whether that is because silos refused: then something must be settled before another job.
        """

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: everything happens in ``control_flow``."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: FLARE cancels what is left."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the coordinator to its end, or until it cannot go on."""
        coordinator: Coordinator | None = None
        reason, again, refused = None, True, False
        try:
            coordinator, pace = self.open(fl_ctx)
            tasks = _Tasks(self, coordinator, abort_signal, fl_ctx)
            started = time.monotonic()
            for closed in rounds(coordinator, paced(tasks, coordinator, pace)):
                self.seconds[closed.number] = time.monotonic() - started
                self._closed(closed, fl_ctx)
                if self._stop_after_round and coordinator.interruptible and not coordinator.done:
                    reason = "asked to take in silos that came back"
                    break
                started = time.monotonic()
        except FedpowerError as error:
            # Too few answers may be more another time; what is wrong before any round stays so.
            reason, again = str(error), isinstance(error, ProtocolError) and coordinator is not None
            refused = isinstance(error, RefusedError)
            self.log_error(fl_ctx, reason)
        except _EndedOutsideError:
            reason = "the job was ended from outside"
        self.close(coordinator, reason, again=again, refused=refused)

    def stop_after_round(self) -> None:
        """End the job once the present round is closed; what is known stays known."""
        self._stop_after_round = True

    def process_result_of_unknown_task(
        self,
        client: Client,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        """Take note of an answer to a round that is closed; it counts for nothing."""
        self.log_info(fl_ctx, f"a late answer of {client.name} to a closed round was left aside")

    def _closed(self, closed: Round, fl_ctx: FLContext) -> None:
        """Take note of a round that is closed."""

    def _ask(self, question: Message, fl_ctx: FLContext) -> Task | None:
        """Return the task that asks a silo; None where it is not in this job."""
        if question.silo not in {client.name for client in self._engine.get_clients()}:
            self.log_info(fl_ctx, f"{question.silo} is not in this job and is not asked")
            return None
        task = Task(name=TASK, data=wrapped(question), result_received_cb=self._received)
        self.send(task, fl_ctx, targets=[question.silo], send_order=SendOrder.ANY)
        return task

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Hand a result to the loop; FLARE calls this in a thread of its own."""
        self._arrived.put((client_task.client.name, client_task.result))


class _Tasks:
    """Carries a run's questions as tasks of FLARE.

    Parameters
    ----------
    controller, coordinator
        Who sends them, and whose they are.
    abort_signal, fl_ctx
        FLARE's own.
    """

    def __init__(
        self,
        controller: CoordinatorController,
        coordinator: Coordinator,
        abort_signal: Signal,
        fl_ctx: FLContext,
    ) -> None:
        self._controller, self._coordinator = controller, coordinator
        self._abort_signal, self._fl_ctx = abort_signal, fl_ctx
        self._standing: dict[str, Task] = {}

    def send(self, question: Message) -> None:
        """Ask a silo, if it is in the job."""
        task = self._controller._ask(question, self._fl_ctx)
        if task is not None:
            self._standing[question.silo] = task

    def wait(self, seconds: float | None) -> Arrived | None:
        """Return what comes next; None when that time is over, or nobody is left who could answer."""
        over = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            answers_may_come = self._look()
            if self._abort_signal.triggered:
                raise _EndedOutsideError
            left = over - time.monotonic() if answers_may_come else 0.0
            try:
                name, result = self._controller._arrived.get(timeout=max(0.0, min(LOOK_S, left)))
            except queue.Empty:
                if left <= 0:
                    return None
            else:
                return self._read(name, result)

    def leave(self) -> None:
        """Have FLARE forget what is unanswered."""
        for task in self._standing.values():
            self._controller.cancel_task(task, fl_ctx=self._fl_ctx)
        self._standing.clear()

    def _look(self) -> bool:
        """Note who is waited for and who has gone; return whether one who was asked may still answer."""
        current, controller = self._coordinator.history[-1], self._controller
        controller.waiting_for = tuple(set(current.asked) - set(current.answers))
        controller.gone = tuple(
            name for name in self._coordinator.silos if controller.get_client_disconnect_time(name)
        )
        return any(name not in controller.gone for name in self._standing)

    def _read(self, name: str, result: Shareable) -> Arrived:
        if result.get_return_code() != ReturnCode.OK or KEY not in result:
            return self._unreadable(name, "an answer must hold a message, got none")
        try:
            answer = unwrapped(result, most_bytes=_MOST_ANSWER_BYTES)
        except ProtocolError as error:
            return self._unreadable(name, str(error))
        if answer.silo != name:  # the certificate says who it is
            return self._unreadable(name, "an answer must be its silo's own, got another's")
        if answer.round == self._coordinator.history[-1].number:
            self._standing.pop(name, None)
        return answer

    def _unreadable(self, name: str, problem: str) -> Unreadable:
        self._standing.pop(name, None)
        return Unreadable(silo=name, problem=problem)


logger = logging.getLogger(__name__)


class SiloExecutor(Executor):
    """Answers for a silo over FLARE; subclasses say which.

    The rows are read once a job, beginning when it starts: questions wait for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ready = threading.Event()
        self._silo: Answers | None = None
        self._stack = ExitStack()

    @abstractmethod
    def open(self) -> AbstractContextManager[Answers]:
        """Give the silo, ready to answer, and close what it holds afterwards."""

    @property
    @abstractmethod
    def most_bytes(self) -> int:
        """The most bytes that a question of the study can have."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Read the rows when a job starts; let go of them when it ends."""
        if event_type == EventType.START_RUN:
            threading.Thread(target=self._open, name="read rows", daemon=True).start()
        elif event_type == EventType.END_RUN:
            self._ready.wait()
            self._stack.close()

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Return the answer to the question in ``shareable``; what is no question gets no answer."""
        self._ready.wait()
        try:
            question = unwrapped(shareable, most_bytes=self.most_bytes)
        except ProtocolError as error:
            logger.error("refused what is no question of this study: %s", error)
            return failed()
        if self._silo is None:
            return wrapped(_refusal(question))
        answer = self._silo.answer(question)
        if isinstance(answer.body, Refusal):
            logger.warning("refused round %s: %s", question.round, answer.body.reason)
        else:
            logger.info("answered round %s (%s)", question.round, answer.body.kind)
        return wrapped(answer)

    def _open(self) -> None:
        try:
            self._silo = self._stack.enter_context(self.open())
            logger.info("the rows are read; the silo is ready to answer")
        except FedpowerError as error:
            # For the operator: what leaves says only that there is something to read here.
            logger.error("this silo cannot take part: %s", error)
        except Exception:
            logger.exception("this silo cannot take part")
        finally:
            self._ready.set()


def _refusal(question: Message) -> Message:
    return Message(
        study=question.study,
        run=question.run,
        round=question.round,
        silo=question.silo,
        body=Refusal(reason=NOT_YOURS),
    )
