"""The silo: one organisation's side of the protocol. It answers questions of its study or refuses."""

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import BudgetError, FedpowerError, InputError, ProtocolError
from fedpower.linalg import is_orthonormal, orth
from fedpower.options import check_sums_are_noised
from fedpower.privacy.ledger import DataVersion, Ledger
from fedpower.privacy.noise import NoiseSource, SeededNoiseForExperiments, SystemNoise
from fedpower.protocol.messages import (
    Answer,
    AskFactor,
    AskMean,
    AskMoment,
    AskQuery,
    AskSteps,
    CallRoll,
    Enrol,
    Enrolment,
    Message,
    Refusal,
    read_only,
)
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.query import Rows
from fedpower.protocol.releases import ExactReleases, PrivateReleases
from fedpower.protocol.roll import Exchanging, Identity, exchanged
from fedpower.protocol.secure import SecureSession
from fedpower.protocol.study import Study
from fedpower.sums.own_rows import told_of_units
from fedpower.sums.survey import Survey

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

_MOST_LOCAL_STEPS = 10_000
"""A bound on the work one question can make a silo do."""


NOT_YOURS = "the silo could not answer; its operator's log says why"


Releases = ExactReleases | PrivateReleases


class Silo:
    """Answers the coordinator for one organisation."""

    def __init__(
        self,
        name: str,
        study: Study,
        releases: Releases,
        *,
        data_version: str = "",
        survey: Survey | None = None,
    ) -> None:
        if (getattr(releases, "session", None) is not None) != (study.aggregation == "secure"):
            raise InputError(
                f"what silo {name!r} releases must be made for aggregation={study.aggregation!r}, got "
                "something else; give a session with 'secure' and only with it"
            )
        self.name = name
        self.study = study
        self.releases = releases
        self._data_version = data_version
        self._survey = survey
        self._digest = study.digest

    def answer(self, message: Message) -> Message:
        """Return the answer to ``message``; never raises for anything a coordinator can send."""
        try:
            body = self._answer(message)
        except (ProtocolError, BudgetError) as error:
            body = Refusal(reason=str(error))
        except FedpowerError as error:
            # Rule 6: sentences about rows, files and ledgers are for the silo's operator.
            logger.error("silo %r could not answer: %s", self.name, error)
            body = Refusal(reason=NOT_YOURS)
        except Exception:
            logger.exception("silo %r could not answer round %s", self.name, message.round)
            body = Refusal(reason=NOT_YOURS)
        else:
            self._tell_clipped()
        return Message(study=self._digest, run=message.run, round=message.round, silo=self.name, body=body)

    def _tell_clipped(self) -> None:
        """Tell the operator, once and nobody else, how many rows the bound found shortened."""
        counts = None if self._survey is None else self._survey.clipped
        if counts is not None:
            survey, self._survey = self._survey, None
            assert survey is not None
            logger.info(
                "%.1f%% of the rows of silo %r (%d of %d) were shortened to the bound found (for your "
                "eyes only)", 100.0 * counts[0] / counts[1], self.name, *counts,
            )  # fmt: skip
            levels = {place for group in self.study.groups for place in group}
            odd = told_of_units(survey, levels=levels, columns=self.study.columns)
            if odd is not None:
                logger.info("%s", odd)

    def _answer(self, message: Message) -> Answer:
        if message.study != self._digest:
            return Refusal(
                reason=f"a question must belong to the study {self._digest[:12]} that this silo "
                f"agreed to, got one of study {str(message.study)[:12]!a}; agree on one study first"
            )
        if message.silo != self.name:
            return Refusal(
                reason=f"a question to silo {self.name!r} must name it, got one that names "
                "another silo; send it there"
            )
        releases = self.releases
        if isinstance(message.body, Enrol):
            # A silo that cannot pay says so before any other is charged.
            releases.check_affordable()
            return Enrolment(
                n_rows=releases.n_rows, n_features=self.study.n_features, data_version=self._data_version
            )
        if self.study.aggregation == "secure":
            return self._summed(message, releases)
        return self._computed(message, releases)

    def _computed(self, message: Message, releases: Releases) -> Answer:
        run = message.run
        match message.body:
            case AskMean() as ask:
                problem = self._problem_with_mean(ask)
                return Refusal(reason=problem) if problem else releases.mean(ask, run=run)
            case AskSteps() as ask:
                problem = self._problem_with(ask)
                return Refusal(reason=problem) if problem else releases.steps(_cleaned(ask), run=run)
            case AskMoment() as ask:
                return releases.moment(ask, run=run)
            case AskFactor():
                return releases.factor()
            case AskQuery() as ask if not ask.roll:
                return releases.query(ask, run=run)
            case CallRoll() | AskQuery():
                return Refusal(
                    reason="a roll must be called in a study with aggregation='secure', got one without; "
                    "agree on such a study first"
                )
            case _:
                return Refusal(reason="a silo must be sent a question, got something else; ask one")

    def _summed(self, message: Message, releases: Releases) -> Answer:
        """Return the answer in a study of which nothing leaves but a part of a secure sum."""
        assert isinstance(releases, PrivateReleases), "sums are noised"
        match message.body:
            case CallRoll() as call:
                return releases.present(call, run=message.run)
            case AskQuery() as ask:
                return releases.query(ask, run=message.run)
            case _:
                return Refusal(
                    reason="in a study with aggregation='secure' nothing but a secure sum leaves a silo, got "
                    "another question; call the roll"
                )

    def _problem_with_mean(self, ask: AskMean) -> str | None:
        if ask.variances and self.study.is_private:
            return "a private study releases no variances beside the mean; ask for the mean"
        if not self.study.center and not ask.variances:
            return "this study does not centre on the pooled mean; ask for no mean"
        return None

    def _problem_with(self, ask: AskSteps) -> str | None:
        """Return why a question must be refused, or None [docs/privacy.md, rule 3]."""
        rows, most = self.study.n_features, self.study.iteration_rank
        given = (ask.basis, ask.center, ask.pooled, ask.gains)
        arrays = [array for array in given if array is not None]
        if any(array.dtype != np.float64 for array in arrays):
            # A complex Z may have ZᵀZ = I and any norm.
            return "a basis and a centre must hold float64 numbers, got others; send those"
        shape = ask.basis.shape
        if ask.basis.ndim != 2 or shape[0] != rows or not 1 <= shape[1] <= most:
            return (
                f"a basis must have {rows} rows and 1 to {most} columns, got shape {shape}; "
                "send one that fits the study"
            )
        if not is_orthonormal(ask.basis):
            return (
                "a basis must have finite, orthonormal columns to 1e-6, got one that has not; "
                "orthonormalise it first"
            )
        if ask.center is not None and (ask.center.shape != (rows,) or not np.isfinite(ask.center).all()):
            return f"a centre must be {rows} finite numbers, got something else; send the mean row"
        if (ask.center is not None) and not self.study.center:
            return "this study does not centre on the pooled mean; send no centre"
        if ask.gains is not None and self.study.is_private:
            # They would make rows longer than the noise is made for.
            return "a private study multiplies no columns; send no gains"
        if ask.gains is not None and not (
            ask.gains.shape == (rows,) and np.isfinite(ask.gains).all() and (ask.gains > 0).all()
        ):
            return f"gains must be {rows} positive numbers, got something else; send one a column"
        if not 1 <= ask.n_local_steps <= _MOST_LOCAL_STEPS:
            return (
                f"the number of local steps must lie between 1 and {_MOST_LOCAL_STEPS}, "
                f"got {ask.n_local_steps}; choose one in between"
            )
        if not np.isfinite(ask.shift) or ask.shift < 0:
            return "a shift must be finite and not negative, got another; send 0 or more"
        if ask.align not in (None, "procrustes", "sign", "identity"):
            return "an alignment must be one of those of the paper, got another; choose one"
        if ask.pooled is not None:
            return self._problem_with_pooled(ask.pooled, shape)
        return None

    def _problem_with_pooled(self, pooled: Array, shape: tuple[int, ...]) -> str | None:
        if self.study.noise in ("step", "paper"):
            return (
                "drift-corrected steps must be asked for in a study with noise='moment' or none, got "
                f"one with noise={self.study.noise!r}, where the product they need would be one more "
                "release; send no pooled product"
            )
        if pooled.shape != shape or not np.isfinite(pooled).all():
            return (
                f"a pooled product must be finite and have the basis's shape {shape}, got one of "
                f"shape {pooled.shape}; send A·Z of the basis"
            )
        return None


def _cleaned(ask: AskSteps) -> AskSteps:
    """Return the question with its basis orthonormal to the last bit, not only to 1e-6."""
    if is_orthonormal(ask.basis, 1e-12):
        return ask
    return replace(ask, basis=read_only(orth(ask.basis)))


def assemble(
    name: str,
    rows: Rows | Survey,
    study: Study,
    *,
    ledger: Ledger | None,
    identity: Identity | None = None,
    source: NoiseSource | None = None,
    data: DataVersion | None = None,
    exchange: Exchanging = exchanged,
) -> Silo:
    """Return a silo of ``study``: the one way to put one together, for every engine."""
    check_sums_are_noised(study.aggregation, study.epsilon)
    budget = budget_of(study)
    if isinstance(rows, Survey) != bool(study.preparation):
        raise InputError(
            f"the rows of silo {name!r} must be read to be prepared in a study that prepares them, and "
            "only there, got another; read them as the study says"
        )
    releases: Releases
    if budget is None:
        assert not isinstance(rows, Survey), "only a private study prepares"
        releases = ExactReleases(rows, study)
    else:
        releases = PrivateReleases(
            rows,
            study,
            budget,
            ledger=_paying(name, ledger, source),
            source=source or SystemNoise(),
            data=data,
            session=SecureSession(name, study, rows.n_rows, _signing(name, identity), exchange)
            if study.aggregation == "secure"
            else None,
        )
    survey = rows if isinstance(rows, Survey) else None
    return Silo(name, study, releases, data_version="" if data is None else data.version, survey=survey)


def _paying(name: str, ledger: Ledger | None, source: NoiseSource | None) -> Ledger:
    """Return the ledger that releases are charged to; refuse none, and seeded noise on a real one."""
    if ledger is None:
        raise InputError(
            "a private study must be charged to a ledger, got none; create one with `fedpower budget init`"
        )
    if isinstance(source, SeededNoiseForExperiments) and not ledger.for_experiments:
        raise InputError(
            f"the ledger of silo {name!r} must book private releases, got seeded noise, which whoever "
            "knows the seed takes off again; leave the noise to the operating system, or make a ledger "
            "for experiments"
        )
    return ledger


def _signing(name: str, identity: Identity | None) -> Identity:
    """Return the key with which a silo of a secure sum signs; refuse none."""
    if identity is None:
        raise InputError(
            f"every silo of a secure sum must have an identity, got none for {name!r}; make one with "
            "`fedpower identity new`"
        )
    return identity
