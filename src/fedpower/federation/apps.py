"""The two classes that FLARE loads, and the only ones of fedpower that a site lets it load.

Which study they serve and whose rows they hold is said by the site's own environment, which no job can
write: a job may name these classes, a run, and nothing else.
"""

import functools
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from fedpower.engines.flare import HEADER_BYTES, CoordinatorController, SiloExecutor
from fedpower.engines.pacing import Pace
from fedpower.errors import InputError
from fedpower.federation import environment
from fedpower.federation.coordinator_node import CoordinatorNode
from fedpower.federation.silo_file import read_silo
from fedpower.federation.silo_node import open_silo
from fedpower.federation.study_file import StudyFile, read_study
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.driving import Answers
from fedpower.protocol.exchange import Round
from fedpower.protocol.messages import KeyGone

_RUN_ID = re.compile(r"[0-9a-f]{16}")


class StudyController(CoordinatorController):
    """The coordinator of the study that this site serves.

    Parameters
    ----------
    run
        Which run to begin or, where its checkpoint is here, to resume.
    """

    def __init__(self, run: str) -> None:
        super().__init__()
        if not isinstance(run, str) or not _RUN_ID.fullmatch(run):
            raise InputError(
                f"a run must be named by 16 hexadecimal digits, got {run!r}; let `fedpower run` name it"
            )
        self._run = run
        self._rounds: list[dict[str, Any]] = []

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Let whoever submitted the job ask how far it is."""
        self._engine.register_app_command(environment.PROGRESS, self._tell_progress)
        self._engine.register_app_command(environment.REJOIN, self._take_in)

    def open(self, fl_ctx: FLContext) -> tuple[Coordinator, Pace]:
        """Return the coordinator of the run, with what its checkpoint knows."""
        workspace = self._engine.get_workspace()
        self._delivery = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / "fedpower"
        self._place = Path(os.environ[environment.RUNS]) / self._run
        study = read_study(Path(os.environ[environment.STUDY]))
        self._node = CoordinatorNode(
            study,
            run=self._run,
            checkpoint=self._place / "rounds.journal",
            on_round=self._note,
        )
        lost, known = self._node.checkpoint.n_lost, self._node.coordinator.n_replayed
        if lost:
            self.log_warning(fl_ctx, f"{lost} damaged bytes at the checkpoint's end were cut off")
        if known:
            self.log_info(fl_ctx, f"taking up run {self._run} after {known} rounds")
        pace = Pace(deadline=study.deadline, grace=study.grace, enough=study.min_silos)
        return self._node.coordinator, pace

    def close(
        self, coordinator: Coordinator | None, reason: str | None, *, again: bool, refused: bool
    ) -> None:
        """Write the result folder here and where it is fetched from, or why there is none yet."""
        self._delivery.mkdir(parents=True, exist_ok=True)
        done = coordinator is not None and coordinator.done
        if done:
            delivered = self._delivery / environment.RESULT
            self._node.write_result(delivered)
            shutil.copytree(delivered, self._place / environment.RESULT, dirs_exist_ok=True)
        why = {"reason": reason, "again": again, "refused": refused}
        state = {"done": done, **why, **self._progress()}
        (self._delivery / environment.STATE).write_text(json.dumps(state))

    def _note(self, closed: Round) -> None:
        row = closed.as_row()
        silent = [name for name in closed.asked if name not in closed.answers]
        restarted = [name for name, body in closed.answers.items() if isinstance(body, KeyGone)]
        self._rounds.append(
            {
                "round": closed.number,
                "kind": closed.kind,
                "step": closed.step,
                "answered": [name for name in closed.answers if name not in restarted],
                "restarted": restarted,
                "silent": silent,
                "refused": closed.refused,
                "set_aside": closed.set_aside,
                "bytes_up": closed.bytes_up,
                "change": row["change"] if row["change"] == row["change"] else None,
            }
        )

    def _progress(self) -> dict[str, Any]:
        return {
            "run": self._run,
            "rounds": self._rounds,
            "waiting_for": list(self.waiting_for),
            "gone": list(self.gone),
            "seconds": {str(number): spent for number, spent in self.seconds.items()},
        }

    def _tell_progress(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        return self._progress()

    def _take_in(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        self.stop_after_round()
        return {"agreed": True}


class StudySilo(SiloExecutor):
    """The silo that this site is, in the study that it agreed to."""

    def open(self) -> AbstractContextManager[Answers]:
        """Give the silo, its rows read."""
        return self._opened()

    @functools.cached_property
    def most_bytes(self) -> int:
        """Basis, pooled product and centre in float64, and a header."""
        study, _, _ = self._study().terms()
        return HEADER_BYTES + 8 * study.n_features * (2 * study.iteration_rank + 1)

    @contextmanager
    def _opened(self) -> Iterator[Answers]:
        own = read_silo(Path(os.environ[environment.SILO]))
        checked = os.environ.get(environment.ROWS, "")
        with open_silo(self._study(), own, checked=checked) as node:
            yield node.silo

    def _study(self) -> StudyFile:
        return read_study(Path(os.environ[environment.STUDY]))
