"""A silo's side of the FLARE engine: a task becomes a question, the answer becomes its result."""

import logging
import threading
from abc import abstractmethod
from contextlib import AbstractContextManager, ExitStack

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedpower.engines.flare.carrier import failed, unwrapped, wrapped
from fedpower.engines.inprocess import Answers
from fedpower.errors import FedpowerError, ProtocolError
from fedpower.protocol.messages import Message, Refusal
from fedpower.protocol.silo import NOT_YOURS

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
