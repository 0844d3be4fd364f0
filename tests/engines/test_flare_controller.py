"""FLARE's side of the coordinator, without its processes: how a job ends that cannot go on."""

from dataclasses import replace
from typing import NoReturn

import pytest
from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from federations import coordinator_of, deliver, parties_of
from fedpower.engines.flare import TASK, CoordinatorController, failed, wrapped
from fedpower.engines.pacing import Pace
from fedpower.errors import FedpowerError, InputError, ProtocolError, RefusedError
from fedpower.protocol import Coordinator, Message
from fedpower.protocol.driving import MOST_ATTEMPTS
from fedpower.protocol.messages import Refusal

Ended = tuple[Coordinator | None, str | None, bool]


class Opens(CoordinatorController):
    """Runs what it is given, and keeps how it ended."""

    def __init__(self, opened: Coordinator | FedpowerError) -> None:
        super().__init__()
        self.opened = opened
        self.ended: list[Ended] = []

    def open(self, fl_ctx: FLContext) -> tuple[Coordinator, Pace]:
        if isinstance(self.opened, FedpowerError):
            raise self.opened
        return self.opened, Pace(deadline=1.0)

    def close(
        self, coordinator: Coordinator | None, reason: str | None, *, again: bool, refused: bool
    ) -> None:
        self.ended.append((coordinator, reason, again))
        self.refused = refused


class Failing(Opens):
    """Its rounds end in an error."""

    def __init__(self, coordinator: Coordinator, error: FedpowerError) -> None:
        super().__init__(coordinator)
        self.error = error

    def _ask(self, *_: object) -> NoReturn:
        raise self.error


class Answered(Opens):
    """Its silos answer as soon as they are asked, through FLARE's queue: but for those not in the job."""

    def __init__(self, coordinator: Coordinator, refuses: str, absent: str) -> None:
        super().__init__(coordinator)
        self.parties = parties_of("fedpower")
        self.refuses, self.absent = refuses, absent

    def open(self, fl_ctx: FLContext) -> tuple[Coordinator, Pace]:
        coordinator, _ = super().open(fl_ctx)
        return coordinator, Pace()  # no deadline would ever close a round

    def _ask(self, question: Message, fl_ctx: FLContext) -> Task | None:
        if question.silo == self.absent:
            return None
        answer = self.parties[question.silo].answer(question)
        if question.silo == self.refuses:
            answer = replace(answer, body=Refusal(reason="no budget is left"))
        self._arrived.put((question.silo, wrapped(answer)))
        return Task(name=TASK, data=wrapped(question))

    def get_client_disconnect_time(self, client_name: str) -> None:
        return None

    def cancel_task(self, task: Task, *_: object, **__: object) -> None:
        """Nothing stands."""


def run(controller: Opens) -> Ended:
    controller.control_flow(Signal(), FLContext())
    (ended,) = controller.ended
    return ended


@pytest.mark.parametrize("kind", [ProtocolError, InputError])
def test_a_run_that_cannot_be_opened_ends_with_its_sentence_and_for_good(
    kind: type[FedpowerError],
) -> None:
    assert run(Opens(kind("a checkpoint must be sound"))) == (
        None,
        "a checkpoint must be sound",
        False,
    )


def test_too_few_answers_may_be_more_in_another_job() -> None:
    coordinator = coordinator_of("fedpower")
    failing = Failing(coordinator, ProtocolError("round 1 needs 3 answers"))
    assert run(failing) == (coordinator, "round 1 needs 3 answers", True)


@pytest.mark.parametrize("kind", [ProtocolError, RefusedError])
def test_that_silos_refused_is_said_beside_the_sentence(kind: type[ProtocolError]) -> None:
    controller = Failing(coordinator_of("fedpower"), kind("silo 'refused: no' is silent"))
    assert run(controller)[1:] == ("silo 'refused: no' is silent", True)
    assert controller.refused is (kind is RefusedError)


def test_what_a_solver_refuses_it_would_refuse_again() -> None:
    coordinator = coordinator_of("fedpower")
    failing = Failing(coordinator, InputError("n_participants must lie between 1 and 3"))
    assert run(failing) == (coordinator, "n_participants must lie between 1 and 3", False)


def test_a_run_whose_rounds_are_all_on_record_asks_nobody() -> None:
    whole = coordinator_of("upload")
    deliver(whole, parties_of("upload"))
    resumed = coordinator_of("upload", recorded=whole.history)
    assert run(Opens(resumed)) == (resumed, None, True)


def test_a_round_does_not_wait_for_a_silo_that_refused_when_no_other_can_answer() -> None:
    coordinator = coordinator_of("fedpower", min_silos=1)
    first, *others, last = coordinator.silos
    controller = Answered(coordinator, refuses=first, absent=last)
    assert run(controller) == (coordinator, None, True)
    assert all(tuple(each.answers) == tuple(others) for each in coordinator.history)
    assert set(controller.seconds) == {each.number for each in coordinator.history}


def test_what_a_silo_sends_that_is_no_message_is_asked_for_again_and_then_set_aside() -> None:
    class Spoils(Answered):
        def _ask(self, question: Message, fl_ctx: FLContext) -> Task | None:
            if question.silo != self.refuses:
                return super()._ask(question, fl_ctx)
            self.n_asked += 1
            self._arrived.put((question.silo, failed()))
            return Task(name=TASK, data=wrapped(question))

    coordinator = coordinator_of("fedpower")
    controller = Spoils(coordinator, refuses=coordinator.silos[0], absent="")
    controller.n_asked = 0
    _, reason, again = run(controller)
    assert again
    assert controller.n_asked == MOST_ATTEMPTS
    assert reason is not None
    assert reason.endswith("was set aside: an answer must hold a message, got none")
