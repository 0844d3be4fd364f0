"""The silo: one organisation's side of the protocol. It answers questions of its study or refuses."""

import logging
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import BudgetError, FedpowerError, InputError, ProtocolError
from fedpower.linalg import is_orthonormal, orth
from fedpower.options import check_sums_are_noised
from fedpower.privacy.data_version import DataVersion
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource, SeededNoiseForExperiments, SystemNoise
from fedpower.protocol.clipped_releases import ClippedReleases
from fedpower.protocol.clipped_sums import ClippedSums
from fedpower.protocol.messages import (
    Answer,
    AskFactor,
    AskMasked,
    AskMean,
    AskMoment,
    AskNoisedSum,
    AskPreparedMoment,
    AskScores,
    AskSteps,
    AskSum,
    AskTally,
    CallRoll,
    Enrol,
    Enrolment,
    Factor,
    LocalSteps,
    MeanRow,
    Message,
    PackedMoment,
    Refusal,
    Tally,
    read_only,
)
from fedpower.protocol.prepared_sums import PreparedSums, checked_stage, checked_treatment
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.releases import ExactReleases, Moment, MomentReleases, PreparedReleases, StepReleases
from fedpower.protocol.roll import Exchanging, Identity, exchanged
from fedpower.protocol.score_sums import ScoreSums
from fedpower.protocol.secure_releases import SecureReleases, Summands
from fedpower.protocol.study import Study
from fedpower.sums.local import LocalMoment
from fedpower.sums.own_rows import told_of_units
from fedpower.sums.score_counts import ScoreQuestion
from fedpower.sums.survey import Survey

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

_MOST_LOCAL_STEPS = 10_000
"""A bound on the work one question can make a silo do."""


NOT_YOURS = "the silo could not answer; its operator's log says why"


class Releases(Protocol):
    """What a silo lets out, computed from its rows and, where the study is private, noised."""

    @property
    def n_rows(self) -> int:
        """The public number of rows."""

    def check_affordable(self) -> None:
        """Refuse a study that the ledger could not pay for to the end."""

    def mean(self, ask: AskMean, *, run: str) -> MeanRow:
        """Return the mean row."""

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        """Return the outcome of local power steps."""

    def moment(self, *, run: str) -> PackedMoment:
        """Return the moment itself."""

    def factor(self) -> Factor:
        """Return the moment as a factor of few rows."""

    def scores(self, question: ScoreQuestion) -> Tally:
        """Return the counts of rows by their scores."""


class Silo:
    """Answers the coordinator for one organisation."""

    def __init__(
        self,
        name: str,
        study: Study,
        releases: Releases | SecureReleases,
        *,
        data_version: str = "",
        survey: Survey | None = None,
    ) -> None:
        if isinstance(releases, SecureReleases) != (study.aggregation == "secure"):
            raise InputError(
                f"what silo {name!r} releases must be made for aggregation={study.aggregation!r}, got "
                "something else; use SecureReleases with 'secure' and only with it"
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
        if isinstance(releases, SecureReleases):
            return _summed(message, releases)
        return self._computed(message, releases)

    def _computed(self, message: Message, releases: Releases) -> Answer:
        match message.body:
            case AskMean() as ask:
                problem = self._problem_with_mean(ask)
                if problem:
                    return Refusal(reason=problem)
                return releases.mean(ask, run=message.run)
            case AskSteps() as ask:
                problem = self._problem_with(ask)
                if problem:
                    return Refusal(reason=problem)
                return releases.steps(_cleaned(ask), run=message.run)
            case AskMoment():
                return releases.moment(run=message.run)
            case AskFactor():
                return releases.factor()
            case AskScores() as ask:
                return _scored(ask, self.study, releases)
            case AskTally() | AskPreparedMoment():
                if not isinstance(releases, PreparedReleases):
                    return Refusal(
                        reason="a tally must be asked for in a study that prepares rows privately, got "
                        "one whose treatment is agreed on; ask for the moment"
                    )
                return _prepared(message.body, self.study, releases, run=message.run)
            case AskNoisedSum() as ask:
                return _noised(ask, releases)
            case CallRoll() | AskMasked() | AskSum():
                return Refusal(
                    reason="a roll must be called in a study with aggregation='secure', got one without; "
                    "agree on such a study first"
                )
            case _:
                return Refusal(reason="a silo must be sent a question, got something else; ask one")

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


def _noised(ask: AskNoisedSum, releases: Releases) -> Answer:
    """Return a sum of a clipped fit; refuses in another study."""
    if isinstance(releases, ClippedReleases):
        return releases.noised_sum(ask)
    return Refusal(
        reason="a noised sum must be asked for in a study with noise='clipped', got another study; ask "
        "for what it releases"
    )


def _scored(ask: AskScores, study: Study, releases: Releases) -> Answer:
    """Return the counts of rows by their scores; refuses what was not agreed on."""
    if not study.scores:
        return Refusal(
            reason="scores must be counted in a study that has a share of its budget for them, got one "
            "without; ask for none"
        )
    question = ScoreQuestion(axes=ask.axes, offset=ask.offset, reach=ask.reach, n_bins=ask.n_bins)
    question.check(study.n_features)
    return releases.scores(question)


def _prepared(
    body: AskTally | AskPreparedMoment, study: Study, releases: PreparedReleases, *, run: str
) -> Answer:
    """Return the answer to a question of preparation; refuses what is none."""
    vectors = (body.low, body.high, body.offset, body.scale)
    if isinstance(body, AskPreparedMoment):
        return releases.prepared_moment(checked_treatment(study, vectors, body.bound), run=run)
    return releases.tally(checked_stage(study, body.stage, vectors))


def _summed(message: Message, releases: SecureReleases) -> Answer:
    """Return the answer in a study of which nothing leaves but a part of a secure sum."""
    match message.body:
        case CallRoll() as call:
            return releases.present(call, run=message.run)
        case AskMasked() as ask:
            return releases.masked_moment(ask, run=message.run)
        case AskSum() as ask:
            return releases.masked_sum(ask, run=message.run)
        case _:
            return Refusal(
                reason="in a study with aggregation='secure' nothing but a secure sum leaves a silo, got "
                "another question; call the roll"
            )


def _cleaned(ask: AskSteps) -> AskSteps:
    """Return the question with its basis orthonormal to the last bit, not only to 1e-6."""
    if is_orthonormal(ask.basis, 1e-12):
        return ask
    return replace(ask, basis=read_only(orth(ask.basis)))


def assemble(
    name: str,
    moment: Moment | Survey,
    study: Study,
    *,
    ledger: Ledger | None,
    identity: Identity | None = None,
    source: NoiseSource | None = None,
    data: DataVersion | None = None,
    summands: Summands | None = None,
    exchange: Exchanging = exchanged,
) -> Silo:
    """Return a silo of ``study``: the one way to put one together, for every engine."""
    check_sums_are_noised(study.aggregation, study.epsilon)
    releases = _releases(
        name,
        moment,
        study,
        ledger=ledger,
        identity=identity,
        source=source,
        data=data,
        summands=summands,
        exchange=exchange,
    )
    return Silo(
        name,
        study,
        releases,
        data_version="" if data is None else data.version,
        survey=moment if isinstance(moment, Survey) else None,
    )


def _releases(
    name: str,
    moment: Moment | Survey,
    study: Study,
    *,
    ledger: Ledger | None,
    identity: Identity | None,
    source: NoiseSource | None,
    data: DataVersion | None,
    summands: Summands | None,
    exchange: Exchanging,
) -> Releases | SecureReleases:
    """Return what a silo lets out of ``study``: exact answers where nothing is private."""
    budget = budget_of(study)
    if isinstance(moment, Survey) != bool(study.preparation):
        raise InputError(
            f"the rows of silo {name!r} must be read to be prepared in a study that prepares them, and "
            "only there, got another; read them as the study says"
        )
    if budget is None:
        assert not isinstance(moment, Survey), "only a private study prepares"
        return ExactReleases(moment, center=study.center)
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
    means: dict[str, Any] = {"ledger": ledger, "source": source or SystemNoise(), "data": data}
    if isinstance(moment, Survey) and study.aggregation == "plain":
        return PreparedReleases(moment, study, budget, **means)
    if study.aggregation == "secure":
        if isinstance(moment, Survey) and summands is None:
            summands = PreparedSums(moment, study)
        elif study.noise == "clipped" and summands is None:
            summands = ClippedSums(cast("LocalMoment", moment), study)
        if study.scores:
            summands = ScoreSums(moment, study, summands)
        return SecureReleases(
            name,
            moment,
            study,
            budget,
            identity=_signing(name, identity),
            summands=summands,
            exchange=exchange,
            **means,
        )
    assert not isinstance(moment, Survey), "rows that are prepared have been dealt with"
    if budget.mode == "clipped":
        return ClippedReleases(moment, study, budget, **means)
    kind = MomentReleases if budget.mode == "moment" else StepReleases
    return kind(moment, study, budget, **means)


def _signing(name: str, identity: Identity | None) -> Identity:
    """Return the key with which a silo of a secure sum signs; refuse none."""
    if identity is None:
        raise InputError(
            f"every silo of a secure sum must have an identity, got none for {name!r}; make one with "
            "`fedpower identity new`"
        )
    return identity
