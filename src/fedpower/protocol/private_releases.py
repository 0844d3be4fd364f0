"""What a silo lets out of a private study: noised once, charged before it leaves, the same for ever.

Every number that leaves goes through :meth:`Ledger.release` [docs/privacy.md, rules 1 and 2]: it is
charged and stored in one durable transaction, and the same question gets the stored bytes again.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, ProtocolError
from fedpower.privacy.budget import Budget
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.mechanism import Noised, perturb
from fedpower.privacy.noise import NoiseSource, SystemNoise
from fedpower.privacy.summary import pack, unpack
from fedpower.protocol.local_steps import take_local_steps
from fedpower.protocol.messages import (
    AskSteps,
    LocalSteps,
    MeanRow,
    Message,
    PackedMoment,
    decode,
    encode,
    read_only,
)
from fedpower.protocol.private_study import budget_of, study_mu
from fedpower.protocol.releases import ExactReleases, Moment, packed
from fedpower.protocol.silo import Releases
from fedpower.protocol.study import Study
from fedpower.protocol.wire import rounded

Array = NDArray[np.float64]
Body = TypeVar("Body", MeanRow, LocalSteps)


class _PrivateReleases:
    """What the private modes share.

    Parameters
    ----------
    moment
        The silo's rows, of norm at most 1.
    study, budget
        The agreed terms and the price list that follows from them.
    ledger
        The silo's own.
    source
        Where noise comes from.
    fingerprint
        Identifies the rows, so that a ledger never gives one data set's release for another's.
    """

    def __init__(
        self,
        moment: Moment,
        study: Study,
        budget: Budget,
        *,
        ledger: Ledger,
        source: NoiseSource,
        fingerprint: str,
    ) -> None:
        self._moment = moment
        self._study = study
        self._budget = budget
        self._ledger = ledger
        self._source = source
        self._fingerprint = fingerprint
        self._digest = study.digest
        self._run = ""

    @property
    def n_rows(self) -> int:
        """The public number of rows."""
        return self._moment.n_rows

    def begin(self, run: str) -> None:
        """Take note of the run whose question is answered next."""
        self._run = run

    def check_affordable(self) -> None:
        """Refuse now, in one sentence, a study that the ledger could not pay for to the end."""
        budget = self._budget
        mu = study_mu(budget, self.n_rows)
        slack = budget.slack_delta * budget.n_releases
        self._ledger.check_affordable(study=self._booked_as, mu=mu, slack_delta=slack)

    @property
    def _booked_as(self) -> str:
        """The ledger's name for this study on these rows: other rows are other releases."""
        return f"{self._study.ledger_name}/{self._fingerprint[:16] or 'this fit'}"

    def _key(self, kind: str, *parts: bytes) -> str:
        """Return the identity of a question: equal questions get the stored answer."""
        digest = hashlib.sha256()
        for part in (kind.encode(), self._fingerprint.encode(), *parts):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return f"{kind}:{digest.hexdigest()}"


class StepReleases(_PrivateReleases):
    """Modes ``step`` and ``paper``: every step's product is noised [FP Alg. 2, line 6]."""

    def mean(self) -> MeanRow:
        """Return the noised mean row: one release of the study's T + 1."""
        budget, n_rows = self._budget, self._moment.n_rows

        def payload() -> bytes:
            noised = perturb(
                self._moment.mean(),
                sensitivity=budget.mean_sensitivity(n_rows),
                multiplier=budget.multiplier,
                source=self._source,
            )
            return _store(MeanRow(mean=noised.value))

        return _recall(self._release("mean", payload, 1, self._digest.encode()), MeanRow)

    def steps(self, ask: AskSteps) -> LocalSteps:
        """Return noised local steps; costs as many releases as there are steps."""
        if ask.shift != 0:
            raise ProtocolError(
                f"a shift must be 0 where products are noised, got {ask.shift}; "
                "only a noised moment needs one"
            )
        if ask.pooled is not None:
            raise ProtocolError(
                "drift-corrected steps must be asked for in a study with noise='moment' or none, got "
                "one whose products are noised: the product they need would be one more release"
            )

        def payload() -> bytes:
            traces: list[float] = []

            def multiply(basis: Array) -> Array:
                product, trace = self._noised_product(basis, ask.center)
                traces.append(trace)
                return product

            outcome = take_local_steps(multiply, ask)
            total = float(np.mean(traces)) if self._budget.with_trace else None
            std = self._budget.std(self.n_rows, _norm(ask.center))
            return _store(
                replace(
                    outcome,
                    product=read_only(rounded(outcome.product, std)),
                    total_variance=total,
                )
            )

        center = b"" if ask.center is None else ask.center.tobytes()
        question = (
            self._digest.encode(),
            repr((ask.basis.shape, ask.n_local_steps, ask.align)).encode(),
            np.ascontiguousarray(ask.basis).tobytes(),
            center,
        )
        return _recall(self._release("steps", payload, ask.n_local_steps, *question), LocalSteps)

    def moment(self) -> PackedMoment:
        """Refuse: only ``moment`` mode has a price for the moment itself."""
        raise ProtocolError(
            f"the moment itself must be asked for in a study with noise='moment', got one with "
            f"noise={self._budget.mode!r}; ask for steps"
        )

    def _noised_product(self, basis: Array, center: Array | None) -> tuple[Array, float]:
        """Return A_i Z plus noise, and tr A_i plus noise from the same release."""
        budget = self._budget
        product = self._moment.product(basis, center)
        values = product.ravel()
        if budget.with_trace:
            values = np.append(values, self._moment.trace(center))
        noised = self._perturb(values, self._moment.n_rows, _norm(center))
        return noised.value[: product.size].reshape(product.shape), float(noised.value[-1])

    def _perturb(self, values: Array, n_rows: int, center_norm: float) -> Noised:
        budget = self._budget
        printed = budget.mode == "paper"
        return perturb(
            values,
            sensitivity=budget.sensitivity(n_rows, center_norm),
            source=self._source,
            multiplier=None if printed else budget.multiplier,
            std=budget.std(n_rows, center_norm) if printed else None,
        )

    def _release(
        self, purpose: str, payload: Callable[[], bytes], count: int, *question: bytes
    ) -> bytes:
        budget = self._budget
        mu = budget.mu if purpose == "mean" else budget.product_mu(self.n_rows)
        return self._ledger.release(
            key=self._key(purpose, *question),
            purpose=f"{count} noised {purpose} ({budget.mode})",
            study=self._booked_as,
            mu=mu * math.sqrt(count),
            slack_delta=budget.slack_delta * count,
            study_mu=study_mu(budget, self.n_rows),
            payload=payload,
        )


class MomentReleases(_PrivateReleases):
    """Mode ``moment``: A_i, its mean row and its trace are noised once; all else is post-processing."""

    _summary: tuple[Array, Array | None, float] | None = None
    _made_for = ""
    """The run for which the release was made: others that are given it analyse it once more."""

    def mean(self) -> MeanRow:
        """Return the mean row of the one noised release."""
        _, mean, _ = self._released()
        assert mean is not None, "a study that centres releases the mean"
        return MeanRow(mean=read_only(mean))

    def steps(self, ask: AskSteps) -> LocalSteps:
        """Return local power steps on the noised moment: free."""
        moment, mean, trace = self._released()
        center = ask.center
        if center is None:
            return self._rounded(
                take_local_steps(lambda basis: moment @ basis, ask, total_variance=trace)
            )
        assert mean is not None

        def multiply(basis: Array) -> Array:
            about_mean = mean @ basis
            about_center = center @ basis
            return (
                moment @ basis
                - np.outer(center, about_mean - about_center)
                - np.outer(mean, about_center)
            )

        total = trace - 2 * float(center @ mean) + float(center @ center)
        return self._rounded(take_local_steps(multiply, ask, total_variance=total))

    def moment(self) -> PackedMoment:
        """Return the noised moment itself, about the silo's own noised mean where the study centres."""
        moment, mean, trace = self._released()
        if mean is None:
            sent = packed(rounded(moment, self._entry_std), None, trace)
        else:
            centred = rounded(moment - np.outer(mean, mean), self._entry_std)
            sent = packed(centred, rounded(mean, self._entry_std), trace - float(mean @ mean))
        return replace(sent, made_for=self._made_for)

    @property
    def _entry_std(self) -> float:
        """The noise off the diagonal, which is also about that of a product's entries."""
        return self._budget.std(self.n_rows) / math.sqrt(2.0)

    def _rounded(self, outcome: LocalSteps) -> LocalSteps:
        product = read_only(rounded(outcome.product, self._entry_std))
        return replace(outcome, product=product, made_for=self._made_for)

    def _released(self) -> tuple[Array, Array | None, float]:
        if self._summary is None:
            self._summary = self._release()
        return self._summary

    def _release(self) -> tuple[Array, Array | None, float]:
        budget, with_mean = self._budget, self._study.center
        exact = pack(
            self._moment.moment(),
            self._moment.mean() if with_mean else None,
            self._moment.trace(),
        )

        def payload() -> bytes:
            noised = perturb(
                exact,
                sensitivity=budget.sensitivity(self.n_rows),
                multiplier=budget.multiplier,
                source=self._source,
            )
            run = self._run.encode()
            return len(run).to_bytes(2, "little") + run + noised.value.astype("<f8").tobytes()

        raw = self._ledger.release(
            key=self._key("moment", self._study.moment_terms.encode()),
            purpose="moment, mean and trace" if with_mean else "moment and trace",
            study=self._booked_as,
            mu=budget.mu,
            slack_delta=budget.slack_delta,
            payload=payload,
        )
        length = int.from_bytes(raw[:2], "little")
        self._made_for = raw[2 : 2 + length].decode()
        vector = np.frombuffer(raw[2 + length :], dtype="<f8")
        return unpack(vector, budget.n_features, with_mean=with_mean)


def _norm(center: Array | None) -> float:
    return 0.0 if center is None else float(np.linalg.norm(center))


def _store(body: MeanRow | LocalSteps) -> bytes:
    return encode(Message(study="", run="", round=0, silo="", body=body))


def _recall(raw: bytes, kind: type[Body]) -> Body:
    body = decode(raw).body
    assert isinstance(body, kind)
    return body


def open_releases(
    moment: Moment,
    study: Study,
    *,
    ledger: Ledger | None,
    source: NoiseSource | None = None,
    fingerprint: str = "",
) -> Releases:
    """Return what a silo lets out of ``study``: exact answers where nothing is private.

    Parameters
    ----------
    moment
        The silo's rows.
    study
        The agreed terms.
    ledger
        The silo's own; a private study needs one.
    source
        Where noise comes from; the operating system unless an experiment injects its own.
    fingerprint
        Identifies the rows to the ledger.
    """
    budget = budget_of(study)
    if budget is None:
        return ExactReleases(moment, center=study.center)
    if ledger is None:
        raise InputError(
            "a private study must be charged to a ledger, got none; create one with "
            "`fedpower budget init`"
        )
    kind = MomentReleases if budget.mode == "moment" else StepReleases
    return kind(
        moment,
        study,
        budget,
        ledger=ledger,
        source=source or SystemNoise(),
        fingerprint=fingerprint,
    )
