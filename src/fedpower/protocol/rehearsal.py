"""A run before the run: the real solver on a made-up spectrum with the noise that is to come."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import sin_theta
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.preparation import SCORES
from fedpower.privacy.sensitivity import summary_size
from fedpower.protocol.clipped_rehearsal import plain_bytes, question_bytes, rehearsed_error, rounds_of
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.driving import drive, in_turn
from fedpower.protocol.messages import (
    Answer,
    AskMasked,
    AskMean,
    AskScores,
    AskSteps,
    AskSum,
    CallRoll,
    Factor,
    LocalSteps,
    MaskedMoment,
    MaskedSum,
    MeanRow,
    Message,
    PackedMoment,
    Present,
    Question,
    Tally,
    encoded_size,
    read_only,
    rounded,
)
from fedpower.protocol.prepared_sums import N_VECTORS, to_public
from fedpower.protocol.private_study import NOISE_SHARE
from fedpower.protocol.releases import packed, take_local_steps
from fedpower.protocol.roll import KEY_BYTES, SIGNATURE_BYTES, Place, Roll, n_neighbours
from fedpower.protocol.silo import Silo
from fedpower.protocol.solvers import ClippedSettings, SecureSettings, SolverSettings, UploadSettings, start
from fedpower.protocol.study import Study
from fedpower.sums.score_counts import MOST_BINS, ScoreQuestion

Array = NDArray[np.float64]

SILO = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What a rehearsal came to."""

    n_rounds: int
    bytes_up: int
    bytes_down: int
    error: float
    rank: int


def rehearse(
    settings: SolverSettings,
    study: Study,
    *,
    spectrum: Array,
    noise_std: float,
    silo_std: float,
    n_rows: int,
    rng: np.random.Generator,
) -> Rehearsed:
    """Return what ``settings`` would come to on a moment with the given eigenvalues."""
    if isinstance(settings, ClippedSettings):
        return _rehearse_clipped(settings, spectrum=spectrum, noise_std=noise_std, n_rows=n_rows, rng=rng)
    if isinstance(settings, SecureSettings):
        return _rehearse_secure(settings, spectrum=spectrum, noise_std=noise_std, n_rows=n_rows, rng=rng)
    releases = _Pooled(spectrum, study, noise_std=noise_std, silo_std=silo_std, n_rows=n_rows, rng=rng)
    if isinstance(settings, UploadSettings):
        # Of a given number of components angles are not asked for: they take longer than all the rest.
        simulated = noise_std > 0 and not isinstance(settings.rank, int)
        settings = replace(settings, noise=(lambda sizes: noise_std) if simulated else None)
    else:
        edge = noise_std * math.sqrt(2.0 * study.n_features) if study.noise == "moment" else 0.0
        # One silo stands for all: shift and floor are those of the pooled noise, not of a silo so large.
        floor = NOISE_SHARE * noise_std * math.sqrt(study.n_features)
        settings = replace(settings, shift=lambda sizes, steps: edge, floor=lambda sizes: floor)
    coordinator = Coordinator(start(settings, rng), [SILO], study=study, run="rehearsal")
    drive(coordinator, in_turn({SILO: Silo(SILO, study, releases)}))
    rounds = [each for each in coordinator.history if each.kind != "enrol"]
    rank, angles = coordinator.outcome.rank, coordinator.outcome.angles
    nothing = settings.rank == "auto" and angles is not None and angles.n_determined == 0
    return _with_scores(
        Rehearsed(
            n_rounds=len(rounds),
            bytes_up=sum(each.bytes_up for each in rounds),
            bytes_down=sum(each.bytes_down for each in rounds),
            error=sin_theta(coordinator.outcome.vectors[:, :rank], np.eye(spectrum.size, rank)),
            rank=0 if nothing else rank,
        ),
        study,
    )


def _score_question(study: Study) -> ScoreQuestion:
    """Return a question about scores of the size that it will have at most."""
    axes = np.full((study.n_features, 2), 0.1)
    return ScoreQuestion(axes=axes, offset=axes[0], reach=axes[0], n_bins=MOST_BINS)


def _with_scores(found: Rehearsed, study: Study) -> Rehearsed:
    """Return what a plain run comes to with the round in which scores are counted, if there is one."""
    if not study.scores:
        return found
    asked = _score_question(study)
    question = AskScores(axes=asked.axes, offset=asked.offset, reach=asked.reach, n_bins=MOST_BINS)
    answer = Tally(counts=np.zeros(MOST_BINS**2))

    def sent(body: Question | Answer) -> int:
        return encoded_size(Message(study=study.digest, run="", round=0, silo=SILO, body=body))

    return replace(
        found,
        n_rounds=found.n_rounds + 1,
        bytes_up=found.bytes_up + sent(answer),
        bytes_down=found.bytes_down + sent(question),
    )


def _rehearse_clipped(
    settings: ClippedSettings, *, spectrum: Array, noise_std: float, n_rows: int, rng: np.random.Generator
) -> Rehearsed:
    """Return what clipped iterates come to, with their own messages."""
    error = rehearsed_error(settings, spectrum=spectrum, noise_std=noise_std, n_rows=n_rows, rng=rng)
    return replace(unrehearsed(settings, n_rows=n_rows), error=error)


def unrehearsed(settings: ClippedSettings, *, n_rows: int) -> Rehearsed:
    """Return what of clipped iterates does not depend on eigenvalues; the error is NaN."""
    study = settings.study
    labels = [label for label, _, _ in study.sums if label != SCORES]
    down, up = sum(len(question_bytes(study, label)) for label in labels), 0
    if study.aggregation == "secure":
        down, up = secure_bytes(study, n_rows=n_rows)
    found = Rehearsed(
        n_rounds=rounds_of(study),
        bytes_up=up or plain_bytes(study),
        bytes_down=down,
        error=math.nan,
        rank=settings.rank,
    )
    return found if study.aggregation == "secure" else _with_scores(found, study)


def _rehearse_secure(
    settings: SecureSettings, *, spectrum: Array, noise_std: float, n_rows: int, rng: np.random.Generator
) -> Rehearsed:
    """Return what a secure sum comes to: the plain upload of a pooled moment, with its own messages."""
    study = settings.study
    plain = replace(
        study, aggregation="plain", colluders=0, identities=(), min_silos=0, attempts=1, sums=(), scores=0.0
    )
    upload = UploadSettings(
        n_features=study.n_features, rank=settings.rank, iteration_rank=study.iteration_rank
    )
    found = rehearse(
        upload, plain, spectrum=spectrum, noise_std=noise_std, silo_std=0.0, n_rows=n_rows, rng=rng
    )
    down, up = secure_bytes(study, n_rows=n_rows)
    return replace(found, n_rounds=1 + max(1, len(study.sums)), bytes_up=up, bytes_down=down)


def secure_bytes(study: Study, *, n_rows: int) -> tuple[int, int]:
    """Return the bytes down to one silo of a secure sum and up from it, the roll call included."""

    def public(label: str) -> bytes:
        if study.noise == "clipped" and label != SCORES:
            return question_bytes(study, label)
        if label == SCORES:
            return _score_question(study).to_bytes()
        given = [np.zeros(study.n_features) if n < N_VECTORS[label] else None for n in range(4)]
        return to_public((given[0], given[1], given[2], given[3]), 1.0 if label == MOMENT else None)

    names = [name for name, _ in study.identities]
    present = Present(
        n_rows=max(1, n_rows // len(names)), key=bytes(KEY_BYTES), signature=bytes(SIGNATURE_BYTES), charged=0
    )
    places = tuple(
        Place(silo=name, n_rows=present.n_rows, key=present.key, signature=present.signature)
        for name in names
    )
    roll = Roll(
        study=study.digest,
        run="0" * 16,
        attempt=0,
        places=places,
        neighbours=n_neighbours(len(places), study.colluders),
    )

    def sent(number: int, body: Question | Answer) -> int:
        return encoded_size(Message(study=study.digest, run=roll.run, round=number, silo=names[0], body=body))

    down, up = sent(1, CallRoll(attempt=0)), sent(1, present)
    content = roll.to_bytes()
    if not study.sums:
        words = np.zeros(summary_size(study.n_features, with_mean=study.center), dtype=np.uint64)
        down += sent(2, AskMasked(roll=content))
        return down, up + sent(2, MaskedMoment(words=words, charged=1))
    for index, (label, size, _) in enumerate(study.sums):
        down += sent(index + 2, AskSum(roll=content, index=index, label=label, public=public(label)))
        words = np.zeros(size, dtype=np.uint64)
        up += sent(index + 2, MaskedSum(words=words, charged=1))
    return down, up


class _Pooled:
    """All silos in one: the moment diag(λ) with pooled noise in the places of the study's mode."""

    def __init__(
        self,
        spectrum: Array,
        study: Study,
        *,
        noise_std: float,
        silo_std: float,
        n_rows: int,
        rng: np.random.Generator,
    ) -> None:
        self._spectrum = spectrum
        self._study = study
        self._std = noise_std
        self._silo_std = silo_std / math.sqrt(2.0) if study.noise == "moment" else silo_std
        self._rng = rng
        self.n_rows = n_rows
        self._noise: Array | None = None
        if study.noise == "moment":
            square = rng.standard_normal((spectrum.size, spectrum.size)) * noise_std
            self._noise = (square + square.T) / 2  # diagonal std τ, off the diagonal τ/√2

    def check_affordable(self) -> None:
        """Do nothing: a rehearsal spends nothing."""

    def mean(self, ask: AskMean, *, run: str) -> MeanRow:
        """Return the mean row: zero, for the spectrum is that of the centred moment."""
        return MeanRow(mean=read_only(np.zeros(self._spectrum.size)))

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        """Return local steps on the noised diagonal moment."""
        outcome = take_local_steps(self._multiply, ask, total_variance=float(self._spectrum.sum()))
        return replace(outcome, product=read_only(rounded(outcome.product, self._silo_std)))

    def moment(self, *, run: str) -> PackedMoment:
        """Return the noised diagonal moment."""
        moment = np.diag(self._spectrum) + (0.0 if self._noise is None else self._noise)
        mean = np.zeros(self._spectrum.size) if self._study.center else None
        return packed(moment, mean, float(self._spectrum.sum()))

    def scores(self, question: ScoreQuestion) -> Tally:
        """Return counts of nothing: a rehearsal has no rows."""
        return Tally(counts=np.zeros(question.n_bins**2))

    def factor(self) -> Factor:
        """Return the moment by its factor; what is rehearsed has a narrow one."""
        mean = np.zeros(self._spectrum.size) if self._study.center else None
        root = np.diag(np.sqrt(np.maximum(self._spectrum, 0.0)))
        total = float(self._spectrum.sum())
        return Factor(factor=read_only(root), total_variance=total, mean=mean)

    def _multiply(self, basis: Array) -> Array:
        product = self._spectrum[:, np.newaxis] * basis
        if self._noise is not None:
            return np.asarray(product + self._noise @ basis)
        if self._std > 0:
            return np.asarray(product + self._std * self._rng.standard_normal(basis.shape))
        return product
