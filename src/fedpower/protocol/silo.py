"""The silo: one organisation's side of the protocol. It answers questions of its study or refuses."""

import functools
import hashlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedpower.exceptions import BudgetError, FedpowerError, InputError, ProtocolError
from fedpower.linalg import ALIGNMENTS, Array, is_orthonormal, lower_of, misalignment, orth, symmetric_of
from fedpower.privacy.ledger import Account, DataVersion, Ledger, unused_version
from fedpower.privacy.noise import NoiseSource, SeededNoiseForExperiments, SystemNoise
from fedpower.protocol.messages import (
    Answer,
    AskMoment,
    AskQuery,
    AskSteps,
    Enrol,
    Enrolment,
    KeyGone,
    LocalSteps,
    Message,
    MomentPart,
    OpenSession,
    QueryAnswer,
    Refusal,
    SessionKey,
    frozen,
    read_only,
    rounded,
)
from fedpower.protocol.query import Query, Step, moment_of, norm_of, query_of
from fedpower.protocol.release import Answering, Plain, key_of, noise_of, recorded_as, release
from fedpower.protocol.secure import Identity, KeyGoneError, SiloSessions
from fedpower.protocol.study import Study
from fedpower.sums.local import LocalMoment
from fedpower.sums.moment import Moments
from fedpower.sums.survey import Rows, Survey, units_warning

_Multiply = Callable[[Array], Array]
"""Z ↦ A_i Z in an array of its own, with or without noise: the one seam through which noise enters."""


def take_local_steps(multiply: _Multiply, ask: AskSteps, total_variance: float | None = None) -> LocalSteps:
    """Return Y_{t+1} after ``ask.n_local_steps`` steps from the broadcast basis, and Z_t with it."""
    drift = None if ask.pooled is None else ask.pooled - multiply(ask.basis)

    def step(basis: Array) -> Array:
        plain = multiply(basis)
        if ask.shift:
            plain = plain + ask.shift * basis
        return plain if drift is None else plain + drift @ (ask.basis.T @ basis)

    basis = ask.basis
    for _ in range(ask.n_local_steps - 1):
        basis = orth(step(basis))
    product = step(basis)
    spread = None
    if ask.align is not None:
        turn = ALIGNMENTS[ask.align](basis, ask.basis)
        product = product @ turn
        spread = misalignment([basis @ turn], ask.basis)
    needs_basis = ask.align is None and ask.n_local_steps > 1
    return LocalSteps(
        product=frozen(product),
        basis=read_only(basis) if needs_basis else None,
        total_variance=total_variance,
        misalignment=spread,
    )


class ExactReleases:
    """Exact answers: epsilon is infinite, and anyone who reads the messages can learn about rows."""

    def __init__(self, rows: LocalMoment, study: Study) -> None:
        self.rows = rows
        self._study = study

    def check_affordable(self) -> None:
        """Do nothing: there is no charge."""

    def moment(self, ask: AskMoment, *, run: str) -> MomentPart:
        rows, whole = self.rows, ask.label in ("covariance", "factor")
        mean = None if whole and not self._study.center else rows.summary.mean
        values: dict[str, Callable[[], Array]] = {
            "mean": lambda: np.empty(0),
            "variances": lambda: rows.summary.diagonal(mean),
            "covariance": lambda: frozen(lower_of(rows.moment(mean))),
            "factor": lambda: rows.factor(mean),
        }
        return MomentPart(
            values=read_only(values[ask.label]()),
            mean=None if mean is None else read_only(mean),
            total_variance=rows.summary.trace(mean) if whole else 0.0,
        )

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        rows, center = self.rows, ask.center
        if ask.gains is None:
            return take_local_steps(
                lambda basis: rows.product(basis, center), ask, rows.summary.trace(center)
            )
        gains = ask.gains[:, np.newaxis]
        return take_local_steps(
            lambda basis: gains * rows.product(gains * basis, center),
            ask,
            total_variance=float(ask.gains**2 @ rows.summary.diagonal(center)),
        )

    def query(self, ask: AskQuery, *, run: str) -> QueryAnswer:
        counts = query_of(self._study, ask.label, ask.public).evaluate(self.rows, (0,))
        return QueryAnswer(words=frozen(counts.view(np.uint64)))


class PrivateReleases:
    """Noised answers, each charged before it leaves; all else is computed from these."""

    def __init__(
        self,
        rows: Rows,
        study: Study,
        *,
        ledger: Ledger,
        source: NoiseSource,
        data: DataVersion | None,
        sessions: SiloSessions | None = None,
    ) -> None:
        if data is not None:
            ledger.check_rows(data)
        self.rows, self._study, self.budget, self.ledger = rows, study, study.budget, ledger
        self._recorded_as, self.sessions = recorded_as(study, data), sessions
        # All silos of a fit on one machine, until one of them gives its first new answer.
        self.peers = list[PrivateReleases]()
        self._data, self._plain, self._asked = data, Plain((rows.n_rows,)), set[str]()
        self._release = functools.partial(
            release, rows=rows, study=study, data=data, ledger=ledger, noise=source
        )
        self._moment: tuple[Moments, float, str] | None = None

    @property
    def attempts_charged(self) -> int:
        opening = f"{self._study.queries[0].label}:"  # the first of its queries makes an attempt
        return self.ledger.spent(self._recorded_as, key=opening).n_releases

    @property
    def spent_after(self) -> Account:
        """The ledger's account once this whole study is charged, all attempts at a secure sum counted."""
        spent, own = self.ledger.spent(), self.ledger.spent(self._recorded_as)
        times = self._study.attempts if self.sessions is not None else 1
        mu, slack_delta = self.budget.study_mu * math.sqrt(times), self.budget.slack_delta * times
        rest = math.sqrt(max(0.0, (mu - own.mu) * (mu + own.mu)))
        return spent.charged(rest, max(0.0, slack_delta - own.slack_delta))

    def check_affordable(self) -> None:
        """Refuse now, in one sentence, a study or an attempt that the ledger could not pay for to the end."""
        name = self._recorded_as
        if self.sessions is not None:
            charged = self.attempts_charged
            if charged >= self._study.attempts:
                raise BudgetError(
                    f"a study must stay within its {self._study.attempts} attempts, but this silo was "
                    f"charged for {charged} on these rows"
                )
            name = f"{name}, attempt {charged + 1}"  # what was paid for pays for no other
        mu, slack_delta = self.budget.study_mu, self.budget.slack_delta
        self.ledger.check_affordable(study=name, mu=mu, slack_delta=slack_delta)

    def check_next(self, query: Query) -> None:
        """Refuse a new question where the study's budget cannot pay for it and for all after it."""
        asked = {*self._asked, key_of(query, self._study, self._data, self._plain)}
        charged = {entry.key for entry in self.ledger.entries() if entry.study == self._recorded_as}
        if charged - asked:
            version = unused_version(silo.ledger for silo in self.peers)
            raise BudgetError(
                f"a study must stay within its agreed epsilon, but silo {self.ledger.owner.silo!r} has spent "
                "it on other questions of an earlier run; declare a new version for all silos with "
                f"data_version={version!r}, or change epsilon to make a new study (nothing was charged)"
            )
        mu, slack_delta = self.budget.study_mu, self.budget.slack_delta
        self.ledger.check_affordable(study=self._recorded_as, mu=mu, slack_delta=slack_delta, begun=True)

    def _release_plain(self, query: Query, **how: Any) -> tuple[NDArray[np.int64], str]:
        """Return a release that is no part of a secure sum.

        Answers of one silo decide on later questions to all. So before a fit on one machine charges the first
        new answer, every silo must be able to answer what comes after it.
        """
        key = key_of(query, self._study, self._data, self._plain)
        self._asked.add(key)
        if self.peers and not self.ledger.has(key):
            for silo in tuple(self.peers):
                silo.check_next(query)
            self.peers.clear()
        return self._release(query, channel=self._plain, **how)

    def open(self, call: OpenSession, *, run: str) -> SessionKey:
        sessions = self.sessions
        assert sessions is not None, "sessions are of secure studies"
        with sessions.lock:
            if sessions.is_new(call, run):
                self.check_affordable()
            return sessions.open(call, run, charged=self.attempts_charged)

    def query(self, ask: AskQuery, *, run: str) -> QueryAnswer | KeyGone:
        listed = self._study.queries
        if not 0 <= ask.index < len(listed) or listed[ask.index].label != ask.label:
            raise ProtocolError("a query must be on the study's list, with its number and name")
        asked = query_of(self._study, ask.label, ask.public)
        sessions = self.sessions
        if ask.session is None or sessions is None:
            integers, made_for = self._release_plain(asked, run=run)
            return QueryAnswer(words=frozen(integers.view(np.uint64)), made_for=made_for)
        sessions.check(ask.session, run)
        # Refused before the key is bound to the session.
        noise_of(asked, self._study, tuple(ask.session.sizes.values()))
        with sessions.lock:
            channel = sessions.channel(ask)
            try:
                integers, _ = self._release(asked, channel=channel)
            except KeyGoneError:
                return KeyGone()
            sessions.advance(channel)
        return QueryAnswer(words=frozen(integers.view(np.uint64)), charged=self.attempts_charged)

    def moment(self, ask: AskMoment, *, run: str) -> MomentPart:
        if self._has_steps():
            query = Step(study=self._study, n_rows=self.rows.n_rows)
            integers, _ = self._release_plain(query)
            mean = noise_of(query, self._study, (self.rows.n_rows,)).values(integers)
        else:
            mean = self._noised_moment(run)[0].mean
        return MomentPart(values=read_only(np.empty(0)), mean=read_only(mean))

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        if self._has_steps():
            return self._noised_steps(ask, run)
        released, trace, made_for = self._noised_moment(run)
        about = np.zeros(released.mean.size) if ask.center is None else ask.center
        trace += float(about @ about) - 2 * float(about @ released.mean)
        outcome = take_local_steps(lambda basis: released.product(basis, about), ask, total_variance=trace)
        # The noise off the diagonal is also about that of a product's entries.
        product = read_only(rounded(outcome.product, self.budget.std(self.rows.n_rows) / math.sqrt(2.0)))
        return structs.replace(outcome, product=product, made_for=made_for)

    def _noised_steps(self, ask: AskSteps, run: str) -> LocalSteps:
        if ask.shift != 0 or ask.pooled is not None:
            raise ProtocolError("drift-corrected steps must have one more release, which this study excludes")
        # By the question, and not by each step's basis: its last bits may be another machine's.
        digest = hashlib.sha256(repr((ask.basis.shape, ask.n_local_steps, ask.align)).encode())
        for array in (ask.basis, *(() if ask.center is None else (ask.center,))):
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        study, n_rows = self._study, self.rows.n_rows
        query = Step(study=study, n_rows=n_rows, basis=ask.basis, center=ask.center, public=digest.digest())
        noise = noise_of(query, study, (n_rows,))

        def asking(answering: Answering) -> None:
            def multiply(basis: Array) -> Array:
                return _product_of(noise.values(answering(replace(query, basis=basis))), basis)

            take_local_steps(multiply, ask)

        integers, _ = self._release_plain(query, asking=asking, times=ask.n_local_steps)
        stored = noise.values(integers.reshape(ask.n_local_steps, -1).T).T
        left = iter(stored)
        outcome = take_local_steps(lambda basis: _product_of(next(left), basis), ask)
        total = float(np.mean(stored[:, -1])) if self.budget.with_trace else None
        std = self.budget.std(n_rows, norm_of(ask.center))
        product = read_only(rounded(outcome.product, std))
        return structs.replace(outcome, product=product, total_variance=total)

    def _noised_moment(self, run: str) -> tuple[Moments, float, str]:
        """Return the silo's noised moment, its trace and the run that it was released for."""
        if self._moment is None:
            query, n_rows = moment_of(self._study), self.rows.n_rows
            integers, made_for = self._release_plain(query, run=run)
            values = noise_of(query, self._study, (n_rows,)).values(integers)
            below, mean, trace = query.read(values, n_rows)
            mean = np.zeros(self._study.n_features) if mean is None else mean
            about_mean = symmetric_of(below, mean.size) - np.outer(mean, mean)
            self._moment = Moments(n_rows=n_rows, mean=mean, covariance=about_mean), trace, made_for
        return self._moment

    def _has_steps(self) -> bool:
        if self._study.noise == "clipped" or self._study.preparation:
            raise ProtocolError("a question must be a query on the study's list")
        return self._study.noise in ("step", "paper")


def _product_of(values: Array, basis: Array) -> Array:
    return values[: basis.size].reshape(basis.shape)


logger = logging.getLogger(__name__)

_MOST_LOCAL_STEPS = 10_000
"""A bound on the work one question can make a silo do."""

NOT_YOURS = "the silo could not answer; its operator can read why in the silo's log"

Releases = ExactReleases | PrivateReleases


class Silo:
    """Answers the coordinator for one organisation."""

    def __init__(self, name: str, study: Study, releases: Releases, *, data_version: str = "") -> None:
        if (getattr(releases, "sessions", None) is not None) != (study.is_secure):
            raise InputError(f"releases of silo {name!r} must be for aggregation={study.aggregation!r}")
        self.name = name
        self.study = study
        self.releases = releases
        self._data_version = data_version
        self._reported = False

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
            self._report_clipped()
        return structs.replace(message, study=self.study.digest, silo=self.name, body=body)

    def _report_clipped(self) -> None:
        """Report once, and only to the operator, how many rows the bound clipped."""
        rows = self.releases.rows
        if self.study.preparation and rows.n_clipped is not None and not self._reported:
            self._reported = True
            logger.info(
                "%.1f%% of the rows of silo %r (%d of %d) exceeded the bound and were clipped (only you "
                "see this)", 100.0 * rows.n_clipped / rows.n_read, self.name, rows.n_clipped, rows.n_read,
            )  # fmt: skip
            for odd in units_warning(rows, self.study.groups, self.study.columns):
                logger.info("%s", odd)

    def _answer(self, message: Message) -> Answer:
        if message.study != self.study.digest:
            raise ProtocolError(
                f"a question must belong to the study {self.study.digest[:12]} that this silo agreed to, got "
                f"one of study {str(message.study)[:12]!a}"
            )
        if message.silo != self.name:
            raise ProtocolError(f"a question to silo {self.name!r} must name it")
        releases, run, ask = self.releases, message.run, message.body
        if isinstance(ask, Enrol):
            # A silo that cannot pay says so before any other is charged.
            releases.check_affordable()
            n_rows, n_features = releases.rows.n_rows, self.study.n_features
            return Enrolment(n_rows=n_rows, n_features=n_features, data_version=self._data_version)
        if self.study.is_secure and not isinstance(ask, OpenSession | AskQuery):
            raise ProtocolError("a question of this study must be for a secure sum; open a session")
        match ask:
            case AskMoment(label="mean") if not self.study.center:
                raise ProtocolError("a mean must be asked for only where the study centres on it")
            case AskMoment() if ask.label != "mean" and self.study.is_private:
                raise ProtocolError(
                    "a private study must not release an exact covariance, variances or factor"
                )
            case AskMoment():
                return releases.moment(ask, run=run)
            case AskSteps():
                return releases.steps(_checked_steps(ask, self.study), run=run)
            case AskQuery():
                if (ask.session is None) == (self.study.is_secure):
                    raise ProtocolError("a query must have a session if, and only if, aggregation='secure'")
                return releases.query(ask, run=run)
            case OpenSession() if isinstance(releases, PrivateReleases) and releases.sessions is not None:
                return releases.open(ask, run=run)
            case OpenSession():
                raise ProtocolError("a session must be opened with aggregation='secure'")
        raise ProtocolError("a silo must be sent a question")


def _checked_steps(ask: AskSteps, study: Study) -> AskSteps:
    """Return steps from an exactly orthonormal basis; refuse those that the study does not have."""
    for holds, sentence in _demands_on_steps(ask, study):
        if not holds:
            raise ProtocolError(sentence)
    if is_orthonormal(ask.basis, 1e-12):
        return ask
    return structs.replace(ask, basis=read_only(orth(ask.basis)))


def _demands_on_steps(ask: AskSteps, study: Study) -> Iterator[tuple[object, str]]:
    """Yield what steps must be for the noise to be made for them [officer/threat-model.md, rule 3]."""
    d, most, shape = study.n_features, study.iteration_rank, ask.basis.shape

    def is_row(array: Array | None) -> bool:
        return array is None or (array.shape == (d,) and bool(np.isfinite(array).all()))

    arrays = [array for array in (ask.basis, ask.center, ask.pooled, ask.gains) if array is not None]
    # A complex Z may have ZᵀZ = I and any norm.
    floats = all(array.dtype == np.float64 for array in arrays)
    yield floats, "a basis and a centre must be float64 numbers"
    fits = ask.basis.ndim == 2 and shape[0] == d and 1 <= shape[1] <= most
    yield fits, f"a basis must have {d} rows and 1 to {most} columns, got shape {shape}"
    yield is_orthonormal(ask.basis), "a basis must have finite, orthonormal columns to 1e-6"
    yield is_row(ask.center), f"a centre must be {d} finite numbers"
    yield ask.center is None or study.center, "a centre must be left out, as the study does not use one"
    # Gains would make rows longer than the noise is made for.
    yield ask.gains is None or not study.is_private, "gains must be left out in a private study"
    positive = is_row(ask.gains) and (ask.gains is None or (ask.gains > 0).all())
    yield positive, f"gains must be {d} positive numbers"
    steps = f"local steps must be between 1 and {_MOST_LOCAL_STEPS}, got {ask.n_local_steps}"
    yield 1 <= ask.n_local_steps <= _MOST_LOCAL_STEPS, steps
    yield np.isfinite(ask.shift) and ask.shift >= 0, "a shift must be finite and not negative"
    yield ask.align in (None, *ALIGNMENTS), "an alignment must be one of the paper's"
    whole = ask.pooled is None or (ask.pooled.shape == shape and np.isfinite(ask.pooled).all())
    yield whole, f"a pooled product must be finite and have the basis's shape {shape}"


def assemble(
    name: str,
    rows: Rows,
    study: Study,
    *,
    ledger: Ledger | None,
    identity: Identity | None = None,
    source: NoiseSource | None = None,
    data: DataVersion | None = None,
) -> Silo:
    """Return a silo of ``study``: the one way to put one together, for every engine."""
    if isinstance(rows, Survey) != bool(study.preparation):
        raise InputError(f"the rows of silo {name!r} must be prepared as the study requires")
    releases: Releases
    if not study.is_private:
        releases = ExactReleases(rows.treated(), study)
    else:
        if ledger is None:
            raise InputError("a private study must have a ledger; create one with `fedpower ledger create`")
        if isinstance(source, SeededNoiseForExperiments) and not ledger.owner.for_experiments:
            raise InputError(f"the ledger of silo {name!r} must record private releases, got seeded noise")
        sessions = None
        if study.is_secure:
            if identity is None:
                raise InputError(f"silo {name!r} must have an identity; make one with `fedpower node key`")
            sessions = SiloSessions(name, study, rows.n_rows, identity)
        releases = PrivateReleases(
            rows, study, ledger=ledger, source=source or SystemNoise(), data=data, sessions=sessions
        )
    return Silo(name, study, releases, data_version="" if data is None else data.version)
