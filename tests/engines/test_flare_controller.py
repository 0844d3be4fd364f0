"""FLARE's side of the coordinator, without its processes: how a job ends that cannot go on."""

from typing import NoReturn

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from federations import coordinator_of, deliver, parties_of
from fedpower.engines.flare import CoordinatorController
from fedpower.engines.pacing import Pace
from fedpower.errors import FedpowerError, InputError, ProtocolError, RefusedError
from fedpower.protocol import Coordinator

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
