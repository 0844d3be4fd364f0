"""A run before the run: the real solver over channels that draw answers from a spectrum."""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedpower.linalg import sin_theta
from fedpower.privacy.budget import MEAN, MOMENT, SCORES, QueryTerms
from fedpower.privacy.sensitivity import noise_for, summary_size
from fedpower.protocol.coordinator import Ask, Coordinator, Round, drive, in_turn
from fedpower.protocol.messages import (
    Answer,
    AskMoment,
    AskQuery,
    AskSteps,
    LocalSteps,
    Member,
    Message,
    MomentPart,
    OpenSession,
    QueryAnswer,
    Question,
    Session,
    SessionKey,
    encoded_size,
    read_only,
    rounded,
)
from fedpower.protocol.pooled import Pooled
from fedpower.protocol.query import N_VECTORS, Product, Query, vectors_to_bytes, width_of
from fedpower.protocol.secure import KEY_BYTES, SIGNATURE_BYTES, n_neighbours
from fedpower.protocol.silo import ExactReleases, Silo
from fedpower.protocol.solvers import ClippedSettings, Solution, SolverSettings, UploadSettings, start
from fedpower.protocol.solvers.clipped import iterate, part_kept
from fedpower.protocol.solvers.sums import Sums, Total
from fedpower.protocol.study import Study, Weights
from fedpower.sums.lattice import clipped_scale
from fedpower.sums.moment import Moments
from fedpower.sums.survey import MOST_BINS, ScoreQuestion

Array = NDArray[np.float64]

_SILO = "all"
# The most columns that d×d noise is drawn for; of more, the leading eigenvalues are taken, under noise that
# reaches as far.
_MOST_COLUMNS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What a rehearsal comes to: rounds and bytes of one silo, sin θ_k, and k; 0 for no component."""

    n_rounds: int
    bytes_up: int
    bytes_down: int
    error: float = math.nan
    rank: int | None = None


def sums_at_once(settings: SolverSettings) -> bool:
    """Return whether a solver asks for the queries of its study and nothing else."""
    return isinstance(settings, UploadSettings | ClippedSettings)


def cost(study: Study, *, n_rows: int, summed: bool) -> Rehearsed:
    """Return rounds and bytes of all queries of a study, or of scores after a solver's own rounds."""
    labels = [terms.label for terms in _queries(study) if summed or terms.label == SCORES]
    down, up = query_bytes(study, n_rows=n_rows, labels=labels)
    n_rounds = len(labels) + int(study.is_secure)
    return Rehearsed(n_rounds=n_rounds, bytes_up=up, bytes_down=down)


def rehearse(
    settings: SolverSettings,
    *,
    spectrum: Array,
    noise_std: float,
    silo_std: float,
    n_rows: int,
    rng: np.random.Generator,
) -> Rehearsed:
    """Return what ``settings`` would come to on a moment with these eigenvalues."""
    study = settings.study
    d, summed = study.n_features, sums_at_once(settings)
    drawn = study.noise == "moment" or any(terms.label == MOMENT for terms in study.design)
    width = min(d, _MOST_COLUMNS) if drawn else d
    study, after = _bare(study, width), cost(study, n_rows=n_rows, summed=summed)
    noise_std, silo_std = (std * math.sqrt(d / width) for std in (noise_std, silo_std))
    spectrum = spectrum[:width]
    if isinstance(settings, UploadSettings | ClippedSettings):
        sums = _MadeUpSums(
            study=study,
            sizes={_SILO: n_rows},
            spectrum=spectrum,
            # Of a given number of components no angles are asked for, which take longer than all the rest.
            std=noise_std if study.noise == "clipped" or not isinstance(settings.rank, int) else 0.0,
            drawn_std=noise_std,
            rng=rng,
        )
        if isinstance(settings, ClippedSettings):
            begin = rng.standard_normal((width, study.iteration_rank))
            script = iterate(sums, begin, rank=settings.rank)
        else:  # a made-up moment is diagonal: standardised, it would be the identity
            script = replace(settings, study=study, standardize=False, code_book=None).script(sums)
        try:
            next(script)
        except StopIteration as stop:  # made-up sums ask nobody
            solution: Solution = stop.value
        rounds: list[Round] = []
    else:
        # One silo stands for all: shift and floor are those of the pooled noise, not of a silo so large.
        settings = replace(settings, study=study, gains=None, pooled_std=noise_std)
        rows: Any = _Spectrum(spectrum, study, std=noise_std, n_rows=n_rows, rng=rng)
        releases = _Pooled(rows, study)
        releases.silo_std = silo_std / math.sqrt(2.0) if study.noise == "moment" else silo_std
        coordinator = Coordinator(start(settings, rng), [_SILO], study=study, run="rehearsal")
        drive(coordinator, in_turn({_SILO: Silo(_SILO, study, releases)}))
        solution = coordinator.outcome
        rounds = [closed for closed in coordinator.history if closed.kind != "enrol"]
    rank = solution.rank
    nothing = settings.rank == "auto" and solution.angles is not None and solution.angles.n_determined == 0
    return Rehearsed(
        n_rounds=after.n_rounds + len(rounds),
        bytes_up=after.bytes_up + round(sum(closed.bytes_up for closed in rounds) * d / width),
        bytes_down=after.bytes_down + round(sum(closed.bytes_down for closed in rounds) * d / width),
        error=sin_theta(solution.vectors[:, :rank], np.eye(width, rank)),
        rank=0 if nothing else rank,
    )


def _bare(study: Study, n_features: int) -> Study:
    """Return a study of so many columns, without preparation and scores."""
    sizes = {MOMENT: summary_size(n_features, with_mean=study.center), MEAN: n_features}
    return replace(
        study,
        columns=None,
        n_features=n_features,
        iteration_rank=min(study.iteration_rank, n_features),
        design=tuple(
            terms._replace(size=sizes.get(terms.label) or n_features * width_of(study, terms.label) + 1)
            for terms in study.design
        ),
        preparation=(),
        ranges=(),
        roster="",
        groups=(),
        scores=0.0,
    )


@dataclass(slots=True, kw_only=True)
class _MadeUpSums(Sums):
    """Sums over rows that are nobody's, of normal coordinates with the moment diag(λ)."""

    spectrum: Array
    std: float  # of the noise that the solver is told
    drawn_std: float
    rng: np.random.Generator

    def total(self, query: Query, *, weights: Weights = "rows") -> Generator[Ask, Round, Total]:
        yield from ()
        budget = self.study.budget
        assert budget is not None
        rows = self.n_rows
        noise = noise_for(query.sensitivity, budget.price(query.label).multiplier, (rows,))
        exact = np.zeros(self.spectrum.size)
        if isinstance(query, Product):
            question = query.question
            basis = question.real_basis
            product = self.spectrum[:, np.newaxis] * basis
            kept = part_kept(float(np.sum(basis * product)), question.clip, basis.shape[1])
            exact = np.append(
                kept * product.reshape(-1) * clipped_scale(question.clip),
                float(self.spectrum.sum()) * query.kappa,
            )
        stds = tuple(self.drawn_std / budget.std(rows) * std for std in noise.stds)
        drawn = stds[0] * self.rng.standard_normal(exact.size)
        return Total(values=exact * rows + drawn, stds=stds, n_rows=rows)

    def moment(self, public: bytes = b"") -> Generator[Ask, Round, Pooled]:
        yield from ()
        return Pooled(
            moment=_noised(self.spectrum, self.drawn_std, self.rng),
            center=np.zeros(self.spectrum.size) if self.study.center else None,
            total_variance=float(self.spectrum.sum()),
            noise_std=self.std,
            mean_weight=self.study.mean_weight,
        )


def _noised(spectrum: Array, std: float, rng: np.random.Generator) -> Array:
    """Return diag(λ) with noise of this standard deviation on the diagonal, and √2 times less off it."""
    square = rng.standard_normal((spectrum.size, spectrum.size)) * std
    square += square.T.copy()
    square /= 2.0
    square[np.diag_indices(spectrum.size)] += spectrum
    return square


class _Spectrum:
    """Rows of all silos: the moment diag(λ) about the mean, with pooled noise where the study has it."""

    def __init__(
        self, spectrum: Array, study: Study, *, std: float, n_rows: int, rng: np.random.Generator
    ) -> None:
        self.n_rows = n_rows
        self.summary = Moments(n_rows=n_rows, mean=np.zeros(spectrum.size), covariance=spectrum.copy())
        self._std, self._rng = std, rng
        self._moment = _noised(spectrum, std, rng) if study.noise == "moment" else None

    def product(self, basis: Array, center: Array | None = None) -> Array:
        if self._moment is not None:
            return np.asarray(self._moment @ basis)
        noise = self._rng.standard_normal(basis.shape) if self._std > 0 else 0.0
        return np.asarray(self.summary.covariance[:, np.newaxis] * basis + self._std * noise)


class _Pooled(ExactReleases):
    """All silos in one, whose products travel as those of one noised silo do."""

    silo_std = 0.0

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        outcome = super().steps(ask, run=run)
        return structs.replace(outcome, product=read_only(rounded(outcome.product, self.silo_std)))


# --- rounds and bytes of queries --------------------------------------------------------------------


def _queries(study: Study) -> tuple[QueryTerms, ...]:
    """Return what is summed; of an exact study the moment too."""
    size = summary_size(study.n_features, with_mean=study.center)
    return study.queries if study.is_private else (QueryTerms(MOMENT, size, 1.0), *study.queries)


def _public(study: Study, label: str) -> bytes:
    """Return bytes as long as what a query is asked with."""
    if label == SCORES:
        axes = np.full((study.n_features, 2), 0.1)
        return ScoreQuestion(axes=axes, offset=axes[0], reach=axes[0], n_bins=MOST_BINS).to_bytes()
    if study.noise == "clipped" and label not in (MOMENT, MEAN):
        return bytes(24 + 4 * study.n_features * (width_of(study, label) + int(study.center)))
    if not study.preparation:
        return b""
    given = [np.zeros(study.n_features) if n < N_VECTORS[label] else None for n in range(4)]
    return vectors_to_bytes((given[0], given[1], given[2], given[3]), 1.0 if label == MOMENT else None)


def query_bytes(study: Study, *, n_rows: int = 1, labels: list[str] | None = None) -> tuple[int, int]:
    """Return the bytes down to one silo and up from it for all queries or some, sessions included."""
    names = [name for name, _ in study.identities] or [_SILO]

    def sent(number: int, body: Question | Answer) -> int:
        return encoded_size(Message(study=study.digest, run="0" * 16, round=number, silo=names[0], body=body))

    down, up, session = 0, 0, None
    if study.is_secure:
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
    for index, (label, size, _, _) in enumerate(_queries(study)):
        if labels is None or label in labels:
            public, number = _public(study, label), index + 2
            question: Question = AskQuery(index=index, label=label, public=public, session=session)
            secure = session is not None
            answer: Answer = QueryAnswer(
                words=np.zeros(0, dtype=np.uint64), charged=int(secure), made_for="" if secure else "0" * 16
            )
            if label == MOMENT and not study.is_private:
                question = AskMoment(label="moment")
                mean = np.zeros(0) if study.center else None
                answer = MomentPart(values=np.zeros(0), total_variance=1.0, mean=mean)
            down += sent(number, question)
            up += sent(number, answer) + 8 * size
    return down, up
