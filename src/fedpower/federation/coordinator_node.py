"""The coordinator of a study: a checkpoint after every round, and the result folder at the end."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import structs

from fedpower.errors import ProtocolError
from fedpower.estimator.solving import public_rng
from fedpower.federation.private_files import open_private, private_folder
from fedpower.federation.study_file import StudyFile
from fedpower.protocol import journal
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.exchange import Round
from fedpower.protocol.outcome import Outcome, conclude, with_noise
from fedpower.protocol.solvers import start
from fedpower.report.outcome import result_of
from fedpower.report.record import FederationRecord
from fedpower.report.result import Result, write_files


class Checkpoint:
    """The file that a run's closed rounds are appended to, each on disk before the next is asked."""

    def __init__(self, path: Path, *, study: str, run: str) -> None:
        self.path = path
        self._study = study
        self._run = run
        self.rounds: tuple[Round, ...] = ()
        self.n_lost = 0
        opening = journal.opening(study, run)
        content = path.read_bytes() if path.exists() else b""
        if opening.startswith(content):  # new, or its writer died before the first round
            private_folder(path.parent)
            self._write(opening, os.O_CREAT | os.O_TRUNC)
            self._ends: tuple[int, ...] = (len(opening),)
        else:
            self._read(content)

    def append(self, closed: Round) -> None:
        """Put a closed round on disk."""
        self._write(journal.record(closed, self._study, self._run), os.O_APPEND)

    def keep(self, n_rounds: int) -> None:
        """Forget the rounds read after the first ``n_rounds``: the run goes another way from there."""
        if n_rounds < len(self.rounds):
            self.rounds = self.rounds[:n_rounds]
            self._cut(self._ends[n_rounds])

    def _read(self, content: bytes) -> None:
        held = journal.read(content)
        if (held.study, held.run) != (self._study, self._run):
            raise ProtocolError(
                f"checkpoint {self.path} must belong to run {self._run} of study "
                f"{self._study[:12]}, got run {held.run} of study {held.study[:12]}; start a new run"
            )
        self.rounds, self._ends = held.rounds, held.ends
        self.n_lost = len(content) - held.sound
        if self.n_lost:
            self._cut(held.sound)

    def _cut(self, size: int) -> None:
        with self.path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())

    def _write(self, content: bytes, flags: int) -> None:
        with os.fdopen(open_private(self.path, os.O_WRONLY | flags), "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


class CoordinatorNode:
    """One run of a study."""

    def __init__(
        self,
        study_file: StudyFile,
        *,
        run: str,
        checkpoint: Path,
        on_round: Callable[[Round], None] | None = None,
    ) -> None:
        self.file = study_file
        self.started = datetime.now(UTC)
        self.study, settings, self.choice = study_file.terms()
        self.settings = with_noise(settings, self.study, run=run)
        self.checkpoint = Checkpoint(checkpoint, study=self.study.digest, run=run)
        self.coordinator = Coordinator(
            start(self.settings, public_rng(study_file.parameters), self.study),
            study_file.silos,
            study=self.study,
            run=run,
            min_silos=study_file.min_silos,
            on_round=on_round,
            on_closed=self.checkpoint.append,
            recorded=self.checkpoint.rounds,
        )
        # Records that answer other questions than this coordinator's would hide those to come.
        self.checkpoint.keep(self.coordinator.n_replayed)

    @property
    def outcome(self) -> Outcome:
        """What the run ended with."""
        return conclude(self.coordinator, self.study, self.settings)

    @property
    def result(self) -> Result:
        """The result of the run, as an in-process fit gives it, with the federation on its record."""
        outcome = self.outcome
        treatment, book = self.file.treatment, outcome.solution.code_book
        if treatment is None:
            assert book is not None, "a run without a treatment finds one"
            treatment = book.treatment
        agreed = f"the study file that all parties agreed on, hash {self.file.digest}"
        found = result_of(
            replace(outcome, privacy=replace(outcome.privacy, public=(agreed, *outcome.privacy.public))),
            parameters=self.file.parameters,
            treatment=treatment,
            feature_names=self.file.columns,
            solver=self.choice,
            rules=self.file.rules,
            code_book=book,
        ).with_origin(started=self.started)
        federation = FederationRecord(
            name=self.file.name,
            agreement=self.file.digest,
            run=self.coordinator.run,
            rounds_resumed=self.coordinator.n_replayed,
            silent=_silent(self.coordinator),
            set_aside=_set_aside(self.coordinator),
        )
        return found.with_record(structs.replace(found.record, federation=federation))

    def write_result(self, folder: Path) -> dict[str, Any]:
        """Write the result folder, the same as ``fedpower fit`` writes, and return its record."""
        found = self.result
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, found)
        return found.run


def _silent(coordinator: Coordinator) -> dict[str, int]:
    """Return how many rounds each silo missed, of those that it was asked in."""
    missed = dict.fromkeys(coordinator.silos, 0)
    for each in coordinator.history:
        for name in set(each.asked) - set(each.answers):
            missed[name] += 1
    return missed


def _set_aside(coordinator: Coordinator) -> dict[str, str]:
    """Return the silos that sent what was no answer and gave none after it, and what was wrong."""
    problems: dict[str, str] = {}
    for each in coordinator.history:
        for name, problem in each.set_aside.items():
            problems.setdefault(name, f"round {each.number}: {problem}")
    return problems
