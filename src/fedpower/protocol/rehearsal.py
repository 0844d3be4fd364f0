"""A run before the run: the real solver on a made-up spectrum with the noise that is to come."""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedpower.linalg import sin_theta
from fedpower.privacy.budget import MEAN, MOMENT, SCORES, QueryTerms
from fedpower.privacy.sensitivity import noise_for, summary_size
from fedpower.protocol.coordinator import Ask, Coordinator, Round, drive, in_turn
from fedpower.protocol.messages import (
    Answer,
    AskMean,
    AskMoment,
    AskQuery,
    AskSteps,
    Factor,
    LocalSteps,
    MeanRow,
    Member,
    Message,
    OpenSession,
    PackedMoment,
    QueryAnswer,
    Question,
    Session,
    SessionKey,
    encoded_size,
    read_only,
    rounded,
)
from fedpower.protocol.query import N_VECTORS, Product, Query, vectors_to_bytes, width_of
from fedpower.protocol.secure import KEY_BYTES, SIGNATURE_BYTES, n_neighbours
from fedpower.protocol.silo import Silo, packed, take_local_steps
from fedpower.protocol.solvers import ClippedSettings, SecureSettings, SolverSettings, UploadSettings, start
from fedpower.protocol.solvers.clipped import iterate, part_kept
from fedpower.protocol.solvers.sums import Sums, Total
from fedpower.protocol.study import NOISE_SHARE, Study, budget_of
from fedpower.sums.clipped_product import clipped_scale
from fedpower.sums.survey import MOST_BINS, ScoreQuestion

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
    drive(coordinator, in_turn({SILO: Silo(SILO, study, releases)}))  # type: ignore[arg-type]
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
    down, up = query_bytes(study, label=SCORES)
    return replace(
        found, n_rounds=found.n_rounds + 1, bytes_up=found.bytes_up + up, bytes_down=found.bytes_down + down
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
    down, up = query_bytes(study, n_rows=n_rows)
    n_rounds = len(study.queries) + int(study.aggregation == "secure")
    return Rehearsed(n_rounds=n_rounds, bytes_up=up, bytes_down=down, error=math.nan, rank=settings.rank)


def _rehearse_secure(
    settings: SecureSettings, *, spectrum: Array, noise_std: float, n_rows: int, rng: np.random.Generator
) -> Rehearsed:
    """Return what a secure sum comes to: the plain upload of a pooled moment, with its own messages."""
    study = settings.study
    plain = replace(
        study, aggregation="plain", colluders=0, identities=(), min_silos=0, attempts=1, scores=0.0
    )
    upload = UploadSettings(
        n_features=study.n_features, rank=settings.rank, iteration_rank=study.iteration_rank
    )
    found = rehearse(
        upload, plain, spectrum=spectrum, noise_std=noise_std, silo_std=0.0, n_rows=n_rows, rng=rng
    )
    down, up = query_bytes(study, n_rows=n_rows)
    return replace(found, n_rounds=1 + len(study.queries), bytes_up=up, bytes_down=down)


def _public(study: Study, label: str) -> bytes:
    """Return bytes as long as what a query is asked with."""
    if label == SCORES:
        return _score_question(study).to_bytes()
    if study.noise == "clipped":
        if label in (MOMENT, MEAN):
            return b""
        return bytes(24 + 4 * study.n_features * (width_of(study, label) + int(study.center)))
    if not study.preparation:
        return b""
    given = [np.zeros(study.n_features) if n < N_VECTORS[label] else None for n in range(4)]
    return vectors_to_bytes((given[0], given[1], given[2], given[3]), 1.0 if label == MOMENT else None)


def query_bytes(study: Study, *, n_rows: int = 1, label: str | None = None) -> tuple[int, int]:
    """Return the bytes down to one silo and up from it for all queries or one, sessions included."""
    names = [name for name, _ in study.identities] or [SILO]

    def sent(number: int, body: Question | Answer) -> int:
        return encoded_size(Message(study=study.digest, run="0" * 16, round=number, silo=names[0], body=body))

    down, up, session = 0, 0, None
    if study.aggregation == "secure":
        rows, key, signature = max(1, n_rows // len(names)), bytes(KEY_BYTES), bytes(SIGNATURE_BYTES)
        session = Session(
            study=study.digest,
            run="0" * 16,
            attempt=0,
            members=tuple(Member(silo=name, n_rows=rows, key=key, signature=signature) for name in names),
            neighbours=n_neighbours(len(names), study.colluders),
        )
        down = sent(1, OpenSession(attempt=0))
        up = sent(1, SessionKey(n_rows=rows, key=key, signature=signature, charged=0))
    for index, terms in enumerate(study.queries):
        if label in (None, terms.label):
            public = _public(study, terms.label)
            down += sent(index + 2, AskQuery(index=index, label=terms.label, public=public, session=session))
            words = np.zeros(terms.size, dtype=np.uint64)
            up += sent(index + 2, QueryAnswer(words=words, charged=int(session is not None)))
    return down, up


@dataclass(slots=True, kw_only=True)
class _MadeUpSums(Sums):
    """Sums over rows that are nobody's, of normal coordinates with the moment diag(λ)."""

    spectrum: Array
    times: float
    rng: np.random.Generator

    def total(self, query: Query, *, step: int | None = None) -> Generator[Ask, Round, Total]:
        """Return the study's next sum."""
        yield from ()
        budget = budget_of(self.study)
        assert budget is not None
        rows = sum(self.sizes.values())
        noise = noise_for(query.sensitivity, budget.price(query.label).multiplier, (rows,))
        exact = np.zeros(self.spectrum.size)
        if isinstance(query, Product):
            question = query.question
            basis = question.real_basis
            product = self.spectrum[:, np.newaxis] * basis
            held = float(np.sum(basis * product))
            kept = part_kept(held, question.clip, basis.shape[1])
            exact = np.append(
                kept * product.reshape(-1) * clipped_scale(question.clip),
                float(self.spectrum.sum()) * query.kappa,
            )
        drawn = self.times * noise.stds[0] * self.rng.standard_normal(exact.size)
        return Total(values=exact * rows + drawn, stds=noise.stds, by_silo={})

    @property
    def moment_std(self) -> float:
        """The noise that was asked for."""
        budget = budget_of(self.study)
        assert budget is not None
        return self.times * budget.std(sum(self.sizes.values()))

    def moment(self, public: bytes = b"") -> Generator[Ask, Round, tuple[Array, Array | None, float]]:
        """Return the noised moment of a warm start."""
        yield from ()
        dim = self.spectrum.size
        square = self.rng.standard_normal((dim, dim)) * self.moment_std
        square += square.T.copy()
        square /= 2.0
        square[np.diag_indices(dim)] += self.spectrum
        mean = np.zeros(dim) if self.study.center else None
        return square, mean, float(self.spectrum.sum())


def rehearsed_error(
    settings: ClippedSettings, *, spectrum: Array, noise_std: float, n_rows: int, rng: np.random.Generator
) -> float:
    """Return the sin θ_k that clipped iterates would come to on a moment with these eigenvalues."""
    study = settings.study
    budget = budget_of(study)
    assert budget is not None
    sums = _MadeUpSums(
        study=study, sizes={SILO: n_rows}, spectrum=spectrum, times=noise_std / budget.std(n_rows), rng=rng
    )
    begin = rng.standard_normal((spectrum.size, study.iteration_rank))
    run = iterate(sums, begin, rank=settings.rank)
    try:
        while True:
            next(run)
    except StopIteration as stop:
        found: Array = stop.value.vectors
    return sin_theta(found, np.eye(spectrum.size, settings.rank))


def narrowed_design(study: Study, n_features: int) -> tuple[QueryTerms, ...]:
    """Return what a clipped study would list of fewer columns, with the same widths and shares."""
    wanted = {MOMENT: summary_size(n_features, with_mean=study.center), MEAN: n_features}
    return tuple(
        terms._replace(size=wanted.get(terms.label) or n_features * width_of(study, terms.label) + 1)
        for terms in study.design
    )


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
        return structs.replace(outcome, product=read_only(rounded(outcome.product, self._silo_std)))

    def moment(self, ask: AskMoment, *, run: str) -> PackedMoment:
        """Return the noised diagonal moment."""
        moment = np.diag(self._spectrum) + (0.0 if self._noise is None else self._noise)
        mean = np.zeros(self._spectrum.size) if self._study.center else None
        return packed(moment, mean, float(self._spectrum.sum()))

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
