"""What a silo computes from its rows and lets out: exact, the moment noised once, or each step noised."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, ProtocolError
from fedpower.linalg import lower_of, lower_triangle, misalignment, orth, rotation, symmetric_of
from fedpower.linalg.memory import LARGE, give_back
from fedpower.linalg.words import Words
from fedpower.privacy.budget import Budget, Price
from fedpower.privacy.data_version import THIS_FIT, DataVersion
from fedpower.privacy.integer_release import IntegerNoise, packed_integers, perturb_integers
from fedpower.privacy.ledger import BY_EDGE, BY_PERSON, Ledger
from fedpower.privacy.noise import NoiseSource, perturb, perturb_in_place
from fedpower.privacy.preparation import SCORES, perturb_stage
from fedpower.privacy.sensitivity import unpack_below
from fedpower.protocol.messages import (
    AskMean,
    AskSteps,
    Factor,
    LocalSteps,
    MeanRow,
    Message,
    PackedMoment,
    Tally,
    decode,
    encode,
    frozen,
    narrowed,
    read_only,
    rounded,
)
from fedpower.protocol.private_study import study_mu
from fedpower.protocol.study import Study
from fedpower.rows.source import RowSource
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.watch import Watch
from fedpower.sums.exact_moment import ExactMoments
from fedpower.sums.score_counts import ScoreQuestion, count_scores
from fedpower.sums.survey import CELL_SIDE, Stage, Survey

Array = NDArray[np.float64]
_Multiply = Callable[[Array], Array]
"""Z ↦ A_i Z in an array of its own, with or without noise: the one seam through which noise enters."""


def take_local_steps(multiply: _Multiply, ask: AskSteps, total_variance: float | None = None) -> LocalSteps:
    """Return Y_{t+1} after ``ask.n_local_steps`` steps from the broadcast basis, and Z_t beside it."""
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
        turn = rotation(ask.align, basis, ask.basis)
        product = product @ turn
        spread = misalignment([basis @ turn], ask.basis)
    needs_basis = ask.align is None and ask.n_local_steps > 1
    return LocalSteps(
        product=frozen(product),
        basis=read_only(basis) if needs_basis else None,
        total_variance=total_variance,
        misalignment=spread,
    )


class Moment(Protocol):
    """A silo's rows as the method sees them; :class:`fedpower.sums.local.LocalMoment` is one."""

    @property
    def n_rows(self) -> int:
        """s_i, the number of rows."""

    def mean(self) -> Array:
        """Return the mean row."""

    def product(self, basis: Array, center: Array | None = None) -> Array:
        """Return A_i Z, with rows taken about ``center``, in an array that nobody else holds."""

    def trace(self, center: Array | None = None) -> float:
        """Return tr A_i, with rows taken about ``center``."""

    def diagonal(self, center: Array | None = None) -> Array:
        """Return the diagonal of A_i, with rows taken about ``center``."""

    def moment(self, center: Array | None = None) -> Array:
        """Return A_i itself, d×d."""

    def factor(self, center: Array | None = None) -> Array:
        """Return F, q×d, with FᵀF = A_i."""

    def sums(self) -> ExactMoments:
        """Return the sums over bounded rows in whole numbers: what a noised moment is made from."""

    @property
    def source(self) -> RowSource:
        """The rows themselves."""

    @property
    def treatment(self) -> RowTreatment:
        """What is done to them."""

    @property
    def watch(self) -> Watch:
        """Is told of every block of them that is read."""


def counted(rows: Moment | Survey, question: ScoreQuestion) -> NDArray[np.int64]:
    """Return how many of a silo's rows lie in each place of a grid over their scores, without noise."""
    treatment = RowTreatment() if isinstance(rows, Survey) else rows.treatment
    source = rows.filled if isinstance(rows, Survey) else rows.source
    return count_scores(source, treatment, question, watch=rows.watch)


class ExactReleases:
    """Exact answers: epsilon is infinite, and whoever reads the messages can learn about rows."""

    def __init__(self, moment: Moment, *, center: bool = False) -> None:
        self._moment = moment
        self._center = center

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self._moment.n_rows

    def check_affordable(self) -> None:
        """Do nothing: there is no charge."""

    def mean(self, ask: AskMean, *, run: str) -> MeanRow:
        """Return the exact mean row, and variances about it where they are asked for."""
        mean = self._moment.mean()
        variances = read_only(self._moment.diagonal(mean)) if ask.variances else None
        return MeanRow(mean=read_only(mean), variances=variances)

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        """Return exact local power steps: LocalPower."""
        moment, center = self._moment, ask.center
        if ask.gains is None:
            return take_local_steps(
                lambda basis: moment.product(basis, center), ask, total_variance=moment.trace(center)
            )
        gains = ask.gains[:, np.newaxis]
        return take_local_steps(
            lambda basis: gains * moment.product(gains * basis, center),
            ask,
            total_variance=float(ask.gains**2 @ moment.diagonal(center)),
        )

    def moment(self, *, run: str) -> PackedMoment:
        """Return the exact moment, about the silo's own mean where the study centres."""
        mean = self._moment.mean() if self._center else None
        return packed(self._moment.moment(mean), mean, self._moment.trace(mean))

    def scores(self, question: ScoreQuestion) -> Tally:
        """Return the exact counts of rows by their scores."""
        return Tally(counts=read_only(counted(self._moment, question).astype(np.float64)))

    def factor(self) -> Factor:
        """Return the exact moment by its factor, about the silo's own mean where the study centres."""
        mean = self._moment.mean() if self._center else None
        return Factor(
            factor=read_only(self._moment.factor(mean)),
            total_variance=self._moment.trace(mean),
            mean=None if mean is None else read_only(mean),
        )


def packed(moment: Array, mean: Array | None, trace: float) -> PackedMoment:
    """Return a moment as it is sent."""
    return PackedMoment(
        triangle=frozen(lower_of(moment)),
        total_variance=trace,
        mean=None if mean is None else read_only(mean),
    )


def integers_of(
    moment: Moment, noise: IntegerNoise, *, n_rows: int, with_mean: bool
) -> tuple[Words, NDArray[np.int64] | None, int]:
    """Return the lower triangle of Σ z zᵀ, Σ z and Σ ‖z‖² of a silo's rows, not noised yet."""
    sums = moment.sums()
    if (sums.lattice.side, sums.parts, sums.n_rows) != (noise.side, noise.parts, n_rows):
        raise InputError(
            f"noise must be made for the rows that were summed, got {n_rows} rows of side {noise.side} "
            f"for {sums.n_rows} of side {sums.lattice.side}; start the silo again"
        )
    return sums.squares.below(), sums.total if with_mean else None, sums.square_total


def purpose_of(study: Study, text: str) -> str:
    """Return what a ledger says that a release was, and what it protects where that is no row."""
    if study.network == "edge":
        return f"adjacency{BY_EDGE}"
    return f"{text}{BY_PERSON}" if study.unit else text


class _ChargedReleases:
    """A silo's rows, its ledger and the names under which it books releases."""

    def __init__(
        self,
        moment: Moment,
        study: Study,
        budget: Budget,
        *,
        ledger: Ledger,
        source: NoiseSource,
        data: DataVersion | None,
    ) -> None:
        self._moment = moment
        self._study = study
        self._budget = budget
        self._ledger = ledger
        self._source = source
        self._data = data
        self._booked = THIS_FIT if data is None else ledger.booked_as(data)
        # The ledger's name for this study on this version: another version is another release.
        self._booked_as = f"{study.ledger_name}/{self._booked.name}"
        self._digest = study.digest

    @property
    def n_rows(self) -> int:
        """The public number of rows."""
        return self._moment.n_rows

    def check_affordable(self) -> None:
        """Refuse now, in one sentence, a study that the ledger could not pay for to the end."""
        budget = self._budget
        mu = study_mu(budget, self.n_rows)
        slack = budget.slack_delta * budget.n_releases
        self._ledger.check_affordable(study=self._booked_as, mu=mu, slack_delta=slack)

    def scores(self, question: ScoreQuestion) -> Tally:
        """Return the noised counts of rows by their scores: one release more, asked last."""
        budget = self._budget
        exact = counted(self._counted_rows, question)

        def payload() -> bytes:
            return perturb_stage(exact, budget.stage_scales(SCORES, 1), self._source).tobytes()

        raw = self._ledger.release(
            key=self._key(SCORES, self._digest.encode(), question.to_bytes()),
            purpose=purpose_of(self._study, "counts of scores on two components"),
            study=self._booked_as,
            data=self._data,
            mu=budget.scores_mu,
            slack_delta=budget.slack_delta,
            study_mu=study_mu(budget, self.n_rows),
            payload=payload,
        )
        return Tally(counts=read_only(np.frombuffer(raw, dtype="<i8").astype(np.float64)))

    @property
    def _counted_rows(self) -> "Moment | Survey":
        return self._moment

    def factor(self) -> Factor:
        """Refuse: it has no price, and no noise is made for it."""
        raise ProtocolError(
            "a factor of the moment must be asked for in a study without privacy, got a private one; ask "
            "for what it releases"
        )

    def _key(self, kind: str, *parts: bytes | memoryview) -> str:
        """Return the identity of a question: equal questions get the stored answer."""
        digest = hashlib.sha256()
        for part in (kind.encode(), self._booked.key.encode(), *parts):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return f"{kind}:{digest.hexdigest()}"


class MomentReleases(_ChargedReleases):
    """Mode ``moment``: A_i, its mean row and its trace are noised once; all else is post-processing."""

    _vector: Array | None = None
    _summary: tuple[Array, Array | None, float] | None = None
    _made_for = ""
    """The run for which the release was made: others that are given it analyse it once more."""

    def mean(self, ask: AskMean, *, run: str) -> MeanRow:
        """Return the mean row of the one noised release."""
        _, mean, _ = self._below(run)
        assert mean is not None, "a study that centres releases the mean"
        return MeanRow(mean=read_only(mean))

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        """Return local power steps on the noised moment: free."""
        moment, mean, trace = self._released(run)
        center = ask.center
        if center is None:
            return self._rounded(take_local_steps(lambda basis: moment @ basis, ask, total_variance=trace))
        assert mean is not None

        def multiply(basis: Array) -> Array:
            about_mean = mean @ basis
            about_center = center @ basis
            return moment @ basis - np.outer(center, about_mean - about_center) - np.outer(mean, about_center)

        total = trace - 2 * float(center @ mean) + float(center @ center)
        return self._rounded(take_local_steps(multiply, ask, total_variance=total))

    def moment(self, *, run: str) -> PackedMoment:
        """Return the noised moment itself, about the silo's own noised mean where the study centres."""
        # With every digit: what hides a silo's own in the sum is added there, for all of them together.
        below, mean, trace = self._below(run)
        if mean is not None:
            rows, columns = lower_triangle(mean.size)
            below -= mean[rows] * mean[columns]
            trace -= float(mean @ mean)
        return PackedMoment(
            triangle=read_only(frozen(below)),
            total_variance=trace,
            mean=None if mean is None else read_only(frozen(mean)),
            made_for=self._made_for,
        )

    @property
    def _entry_std(self) -> float:
        """The noise off the diagonal, which is also about that of a product's entries."""
        return self._budget.std(self.n_rows) / math.sqrt(2.0)

    def _rounded(self, outcome: LocalSteps) -> LocalSteps:
        product = read_only(rounded(outcome.product, self._entry_std))
        return replace(outcome, product=product, made_for=self._made_for)

    def _released(self, run: str) -> tuple[Array, Array | None, float]:
        """Return the noised moment, mean and trace."""
        if self._summary is None:
            below, mean, trace = self._below(run)
            self._summary = symmetric_of(below, self._budget.n_features), mean, trace
        return self._summary

    def _below(self, run: str) -> tuple[Array, Array | None, float]:
        """Return the same with the moment's lower triangle in its place, in arrays of their own."""
        if self._vector is None:
            self._vector = self._release(run)
        return unpack_below(
            self._vector,
            self._budget.n_features,
            with_mean=self._study.center,
            mean_weight=self._budget.mean_weight,
        )

    def _release(self, run: str) -> Array:
        """Return the one noised release as it is packed."""
        budget, with_mean = self._budget, self._study.center
        noise, n_rows = budget.integers, self.n_rows
        exact = integers_of(self._moment, noise, n_rows=n_rows, with_mean=with_mean)

        def payload() -> bytes:
            noised = perturb_integers(*exact, noise=noise, source=self._source)
            vector = packed_integers(*noised, n_rows=n_rows, noise=noise)
            name = run.encode()
            sent = vector.astype("<f8", copy=False).tobytes()
            return len(name).to_bytes(2, "little") + name + sent

        raw = self._ledger.release(
            key=self._key("moment", *self._terms),
            purpose=purpose_of(self._study, "moment, mean and trace" if with_mean else "moment and trace"),
            study=self._booked_as,
            data=self._data,
            mu=self._price.mu,
            slack_delta=self._price.slack_delta,
            study_mu=budget.total_mu if budget.preparation or budget.sums or budget.scores else None,
            payload=payload,
        )
        length = int.from_bytes(raw[:2], "little")
        self._made_for = raw[2 : 2 + length].decode()
        return np.frombuffer(raw, dtype="<f8", offset=2 + length)

    @property
    def _price(self) -> Price:
        """What the noised moment costs."""
        return Price(mu=self._budget.mu, slack_delta=self._budget.slack_delta)

    @property
    def _terms(self) -> tuple[bytes, ...]:
        """What the noised moment depends on beside the rows."""
        return (self._study.moment_terms.encode(),)


class PreparedReleases(MomentReleases):
    """Mode ``moment`` where the run itself finds offset, scale and bound: five tallies, then the moment."""

    def __init__(
        self,
        survey: Survey,
        study: Study,
        budget: Budget,
        *,
        ledger: Ledger,
        source: NoiseSource,
        data: DataVersion | None,
    ) -> None:
        super().__init__(cast("Moment", survey), study, budget, ledger=ledger, source=source, data=data)
        self._survey = survey
        self._rule: RowTreatment | None = None

    @property
    def n_rows(self) -> int:
        """The public number of rows."""
        return self._survey.n_rows

    @property
    def _counted_rows(self) -> Survey:
        return self._survey

    def tally(self, stage: Stage) -> Tally:
        """Return the noised whole numbers that answer one stage."""
        budget = self._budget
        exact = self._survey.tally(stage)

        def payload() -> bytes:
            scales = budget.stage_scales(stage.kind, CELL_SIDE, stage.n_asked)
            noised = perturb_stage(exact, scales, self._source)
            return noised.astype("<i8").tobytes()

        question = (
            b"" if part is None else np.ascontiguousarray(part, dtype="<f8").tobytes()
            for part in (stage.low, stage.high, stage.offset, stage.scale)
        )
        raw = self._ledger.release(
            key=self._key("tally", self._study.moment_terms.encode(), stage.kind.encode(), *question),
            purpose=purpose_of(self._study, f"preparation: {stage.kind}"),
            study=self._booked_as,
            data=self._data,
            mu=budget.stage_mu(stage.kind),
            slack_delta=budget.slack_delta,
            study_mu=budget.total_mu,
            payload=payload,
        )
        return Tally(counts=read_only(np.frombuffer(raw, dtype="<i8").astype(np.float64)))

    def prepared_moment(self, treatment: RowTreatment, *, run: str) -> PackedMoment:
        """Return the noised moment of rows treated so."""
        if self._rule != treatment:
            self._rule, self._vector, self._summary = treatment, None, None
            self._moment = self._survey.treated(treatment)
        return super().moment(run=run)

    def mean(self, ask: AskMean, *, run: str) -> MeanRow:
        """Refuse: there is no mean before rows are prepared."""
        raise ProtocolError(_NOT_PREPARED)

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        """Refuse: there is no moment before rows are prepared."""
        raise ProtocolError(_NOT_PREPARED)

    def moment(self, *, run: str) -> PackedMoment:
        """Refuse: there is no moment before rows are prepared."""
        raise ProtocolError(_NOT_PREPARED)

    @property
    def _terms(self) -> tuple[bytes, ...]:
        assert self._rule is not None, "a moment is asked for with its treatment"
        return (*super()._terms, self._rule.digest().encode())


_NOT_PREPARED = (
    "a study that prepares rows privately must be asked for its tallies and then for the moment of rows "
    "so prepared, got another question; ask those"
)


_Body = TypeVar("_Body", MeanRow, LocalSteps)


class StepReleases(_ChargedReleases):
    """Modes ``step`` and ``paper``: every step's product is noised [FP Alg. 2, line 6]."""

    def mean(self, ask: AskMean, *, run: str) -> MeanRow:
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

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
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
            sent = cast("Array", narrowed(outcome.product, std))  # to be stored, and read again
            outcome = replace(outcome, product=sent, total_variance=total)
            return _store(outcome)

        question = (
            self._digest.encode(),
            repr((ask.basis.shape, ask.n_local_steps, ask.align)).encode(),
            _bytes_of(ask.basis),
            b"" if ask.center is None else _bytes_of(ask.center),
        )
        found = _recall(self._release("steps", payload, ask.n_local_steps, *question), LocalSteps)
        if ask.basis.nbytes >= LARGE:
            give_back()
        return found

    def moment(self, *, run: str) -> PackedMoment:
        """Refuse: only ``moment`` mode has a price for the moment itself."""
        raise ProtocolError(
            f"the moment itself must be asked for in a study with noise='moment', got one with "
            f"noise={self._budget.mode!r}; ask for steps"
        )

    def _noised_product(self, basis: Array, center: Array | None) -> tuple[Array, float]:
        """Return A_i Z plus noise, and tr A_i plus noise from the same release."""
        budget, n_rows, norm = self._budget, self._moment.n_rows, _norm(center)
        product = np.require(self._moment.product(basis, center), np.float64, ["C", "W"])
        traces = [self._moment.trace(center)] if budget.with_trace else []
        trace = np.array(traces, dtype=np.float64)
        printed = budget.mode == "paper"
        perturb_in_place(
            product,
            trace,
            sensitivity=budget.sensitivity(n_rows, norm),
            source=self._source,
            multiplier=None if printed else budget.multiplier,
            std=budget.std(n_rows, norm) if printed else None,
        )
        return product, float(trace[0]) if traces else math.nan

    def _release(
        self, purpose: str, payload: Callable[[], bytes], count: int, *question: bytes | memoryview
    ) -> bytes:
        budget = self._budget
        mu = budget.mu if purpose == "mean" else budget.product_mu(self.n_rows)
        return self._ledger.release(
            key=self._key(purpose, *question),
            purpose=purpose_of(self._study, f"{count} noised {purpose} ({budget.mode})"),
            study=self._booked_as,
            data=self._data,
            mu=mu * math.sqrt(count),
            slack_delta=budget.slack_delta * count,
            study_mu=study_mu(budget, self.n_rows),
            payload=payload,
        )


def _norm(center: Array | None) -> float:
    return 0.0 if center is None else float(np.linalg.norm(center))


def _bytes_of(array: Array) -> memoryview:
    """Return the bytes of an array, as they lie where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _store(body: MeanRow | LocalSteps) -> bytes:
    return encode(Message(study="", run="", round=0, silo="", body=body))


def _recall(raw: bytes, kind: type[_Body]) -> _Body:
    body = decode(raw).body
    assert isinstance(body, kind)
    return body
