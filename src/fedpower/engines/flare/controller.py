"""The coordinator's side of the FLARE engine: rounds become tasks, task results become answers."""

import queue
import time
from abc import abstractmethod
from collections.abc import Iterable

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, SendOrder, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedpower.engines.flare.carrier import KEY, TASK, unwrapped, wrapped
from fedpower.engines.inprocess import MOST_ATTEMPTS
from fedpower.engines.pacing import Pace
from fedpower.errors import FedpowerError, ProtocolError
from fedpower.protocol.coordinator import Coordinator, Receipt
from fedpower.protocol.messages import Message

LOOK_S = 0.05
"""How often FLARE and this controller look for something to do."""

MOST_ANSWER_BYTES = 2**31
"""An answer larger than this is no answer."""


class EndedOutsideError(Exception):
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
    def close(self, coordinator: Coordinator | None, reason: str | None, *, again: bool) -> None:
        """Take the outcome.

        Parameters
        ----------
        coordinator
            None where it could not be opened.
        reason, again
            Why there is no outcome yet, None if there is; and whether another job may bring it.
        """

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: everything happens in ``control_flow``."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: FLARE cancels what is left."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the coordinator to its end, or until it cannot go on."""
        coordinator: Coordinator | None = None
        reason, again = None, True
        try:
            coordinator, pace = self.open(fl_ctx)
            while not coordinator.done:
                number, started = coordinator.history[-1].number, time.monotonic()
                self._round(coordinator, pace, abort_signal, fl_ctx)
                self.seconds[number] = time.monotonic() - started
                if self._stop_after_round and coordinator.interruptible and not coordinator.done:
                    reason = "asked to take in silos that came back"
                    break
        except FedpowerError as error:
            # Too few answers may be more another time; what is wrong before any round stays so.
            reason, again = str(error), isinstance(error, ProtocolError) and coordinator is not None
            self.log_error(fl_ctx, reason)
        except EndedOutsideError:
            reason = "the job was ended from outside"
        self.close(coordinator, reason, again=again)

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

    def _round(
        self, coordinator: Coordinator, pace: Pace, abort_signal: Signal, fl_ctx: FLContext
    ) -> None:
        number, started = coordinator.history[-1].number, time.monotonic()
        enough: float | None = None
        attempts: dict[str, int] = {}
        standing = self._ask(coordinator.next(), fl_ctx)
        try:
            while True:
                current = coordinator.history[-1]
                self.waiting_for = tuple(set(current.asked) - set(current.answers))
                now = time.monotonic()
                if enough is None and len(current.answers) >= pace.enough:
                    enough = now
                left = pace.left(now - started, None if enough is None else now - enough)
                self.gone = tuple(
                    name for name in coordinator.silos if self.get_client_disconnect_time(name)
                )
                if left == 0 or not self._may_answer(standing):
                    coordinator.deadline()
                    return
                if abort_signal.triggered:
                    raise EndedOutsideError
                try:
                    name, result = self._arrived.get(timeout=min(LOOK_S, left or LOOK_S))
                except queue.Empty:
                    continue
                if self._take(coordinator, name, result) is Receipt.MALFORMED:
                    attempts[name] = attempts.get(name, 0) + 1
                    again = [each for each in coordinator.next() if each.silo == name]
                    if attempts[name] < MOST_ATTEMPTS:
                        standing |= self._ask(again, fl_ctx)
                    else:
                        standing.pop(name, None)
                if coordinator.done or coordinator.history[-1].number != number:
                    return
        finally:
            for task in standing.values():
                self.cancel_task(task, fl_ctx=fl_ctx)

    def _may_answer(self, standing: dict[str, Task]) -> bool:
        """Return whether an answer may still come: only a silo that is in the job can give one."""
        return any(name in standing and name not in self.gone for name in self.waiting_for)

    def _ask(self, questions: Iterable[Message], fl_ctx: FLContext) -> dict[str, Task]:
        present = {client.name for client in self._engine.get_clients()}
        standing = {}
        for question in questions:
            if question.silo not in present:
                self.log_info(fl_ctx, f"{question.silo} is not in this job and is not asked")
                continue
            task = Task(name=TASK, data=wrapped(question), result_received_cb=self._received)
            self.send(task, fl_ctx, targets=[question.silo], send_order=SendOrder.ANY)
            standing[question.silo] = task
        return standing

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Hand a result to the loop; FLARE calls this in a thread of its own."""
        self._arrived.put((client_task.client.name, client_task.result))

    def _take(self, coordinator: Coordinator, name: str, result: Shareable) -> Receipt:
        if result.get_return_code() != ReturnCode.OK or KEY not in result:
            return coordinator.set_aside(name, "an answer must hold a message, got none")
        try:
            answer = unwrapped(result, most_bytes=MOST_ANSWER_BYTES)
        except ProtocolError as error:
            return coordinator.set_aside(name, str(error))
        if answer.silo != name:  # the certificate says who it is
            return coordinator.set_aside(name, "an answer must be its silo's own, got another's")
        return coordinator.receive(answer)
