"""What a run ends with: the solution, the record of its rounds, the promise about the rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.budget import SCORES
from fedpower.privacy.statement import EXACT_SCORES, PrivacyStatement, Protection, whom
from fedpower.protocol.coordinator import Coordinator, Round
from fedpower.protocol.messages import QueryAnswer, SessionKey
from fedpower.protocol.solvers import Solution, SolverSettings
from fedpower.protocol.study import Study, epsilon_within, worst_epsilon
from fedpower.sums.survey import STAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a federation ends with."""

    solution: Solution
    rounds: list[Round]
    study: Study
    privacy: PrivacyStatement
    kernels: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()


def conclude(coordinator: Coordinator, settings: SolverSettings) -> Outcome:
    """Return the outcome of a coordinator that is done."""
    assert coordinator.done, "a run is concluded once"
    study = settings.study
    solution: Solution = coordinator.outcome
    rounds = [closed for closed in coordinator.history if closed.kind != "enrol"]
    made_for = {getattr(answer, "made_for", "") for closed in rounds for answer in closed.answers.values()}
    enrolled = coordinator.history[0].answers
    privacy = state_privacy(
        study,
        # Noise of a secure sum is shared by those in it. Otherwise a silo that was lost on the way may
        # have released something too.
        solution.sizes if study.is_secure else {name: answer.n_rows for name, answer in enrolled.items()},
        rounds,
        hides_silos=solution.hides_silos,
        used_before=not made_for <= {"", coordinator.run},
    )
    if solution.pooled is not None:
        published = (PUBLISHED, "the published covariance and everything computed from it")
        protections = (replace(row, sees=row.sees.replace(*published)) for row in privacy.protections)
        privacy = replace(privacy, protections=tuple(protections))
    versions = [f"{name} {answer.data_version}" for name, answer in enrolled.items() if answer.data_version]
    if versions:
        declared = f"the version of its data that each silo declared ({', '.join(versions)})"
        privacy = replace(privacy, public=(*privacy.public, declared))
    return Outcome(
        solution=solution,
        rounds=rounds,
        study=study,
        privacy=privacy,
        absent=tuple(name for name in coordinator.silos if name not in solution.sizes),
    )


PUBLISHED = "the published components and eigenvalues"
"""What the public sees of a fit, unless the pooled moment is published too."""

USED_BEFORE = (
    "an earlier run used some of the same noised answers, and anyone could compare the two results. So the "
    "public's epsilon is that of the coordinator. Nothing was charged again"
)
"""A note of the privacy statement."""

SUMMED = "the public knows nothing of the silos' noised answers but what is published"
"""An assumption of the public's smaller epsilon."""


def state_privacy(
    study: Study,
    sizes: Mapping[str, int],
    rounds: Sequence[Round],
    *,
    hides_silos: bool = False,
    used_before: bool = False,
) -> PrivacyStatement:
    """Return the privacy statement of a study that ran with ``rounds`` over silos of ``sizes`` rows."""
    public = _public_facts(study)
    who = whom(network=study.network, person=study.unit, rows_per_unit=study.rows_per_unit)
    if not study.is_private:
        return PrivacyStatement(
            mode="none",
            asked_epsilon=math.inf,
            delta=0.0,
            protections=(),
            public=public,
            notes=(EXACT_SCORES,) if study.scores else (),
            **who | {"assumptions": ()},  # nothing is promised
        )
    if secure := study.is_secure:
        attempts = attempts_charged(rounds)
        distance = attempts * study.budget.distance
        protections, notes = _in_secure_sums(study, len(sizes), attempts)
        public = (*public, "the silos of the session")
        supposed: tuple[str, ...] = ("the coordinator cannot break X25519, HKDF-SHA256 or ChaCha20",)
    else:
        distance = study.budget.distance
        protections, notes, supposed = _in_plain_sums(
            study, len(sizes), hides_silos=hides_silos, used_before=used_before
        )
    if study.preparation:
        notes += (
            f"the centre, scale and bound of the columns were found privately, {_part(study, *STAGES)}. The "
            "code book that holds them is public: later fits can use it at no cost",
        )
    if study.scores:
        notes += (
            "rows were counted by their scores on the first two components, with noise, "
            f"{_part(study, SCORES)}. The grid depends only on numbers that were released before",
        )
    first = protections[0]
    if study.network == "row":
        both = epsilon_within(2.0 * first.mu, first.delta, distance)
        notes += (
            "a row holds a node's edges in one layer. Every edge is in the rows of both its nodes, and is "
            f"protected at ε = {both:.4g}, δ = {first.delta:g}",
        )
    elif study.unit and len(sizes) > 1:
        times = 2.0 if secure else math.sqrt(2.0)
        both = epsilon_within(times * first.mu, first.delta, distance * (1.0 if secure else 2.0))
        notes += (
            "a person with rows in several silos is protected in each of them. Two silos together give at "
            f"most ε = {both:.4g} at δ = {first.delta:g}. For k silos, multiply mu by "
            + ("k" if secure else "the square root of k"),
        )
    return PrivacyStatement(
        mode=study.noise,
        asked_epsilon=study.epsilon,
        delta=study.delta,
        protections=protections,
        public=public,
        notes=notes,
        **who | {"assumptions": (*who["assumptions"], *supposed)},
    )


def _in_plain_sums(
    study: Study, m: int, *, hides_silos: bool, used_before: bool
) -> tuple[tuple[Protection, ...], tuple[str, ...], tuple[str, ...]]:
    """Return protections, notes and what they suppose where m silos noise by themselves."""
    budget = study.budget
    coordinator = Protection(
        observer="the coordinator, or anyone who reads a silo's messages",
        sees="everything that silo releases",
        epsilon=epsilon_of(budget.study_mu, budget.left_delta),
        delta=study.delta,
        mu=budget.study_mu,
    )
    public = replace(coordinator, observer="the public", sees=_published(study))
    if not hides_silos or m == 1:
        return (coordinator, public), (), ()
    # A row is in one silo's part of each sum, and all silos' noise hides it. Counts of scores are published
    # by silo, with its own noise.
    sums = (terms.label for terms in study.queries if terms.label != SCORES)
    mu = math.hypot(budget.mu(*sums) / math.sqrt(m), budget.mu(SCORES))
    # Each silo's noise is within `distance` of the ideal; one more is far above what the law of sums takes.
    epsilon = epsilon_within(mu, study.delta, (m + 1) * budget.distance)
    if epsilon >= coordinator.epsilon:
        return (coordinator, public), (), ()
    if used_before:
        return (coordinator, public), (USED_BEFORE,), ()
    sees = f"{public.sees}, of this fit and of no other from the same releases"
    return (coordinator, replace(public, sees=sees, epsilon=epsilon, mu=mu)), (), (SUMMED,)


def _in_secure_sums(study: Study, m: int, attempts: int) -> tuple[tuple[Protection, ...], tuple[str, ...]]:
    """Return protections and notes of secure sums over m silos."""
    c, budget = study.colluders, study.budget

    def protection(observer: str, sees: str, known: int) -> Protection:
        """Return what holds against anyone who knows the shares of so many silos."""
        together = budget.total_mu * math.sqrt(attempts)
        if attempts == 1:  # each query's share of the noise is at least as wide as the exact one
            together *= math.sqrt((m - c) / (m - known)) * (1 + 2.0**-50)
        epsilon = epsilon_within(together, study.delta, attempts * budget.distance)
        return Protection(observer=observer, sees=sees, epsilon=epsilon, delta=study.delta, mu=together)

    silos = "1 silo" if c == 1 else f"{c} silos"
    summed = f"{len(study.queries)} noised sums" if len(study.queries) > 1 else "noised sum"
    protections = (
        protection("the coordinator on its own", f"the {summed} over all silos", 0),
        protection(
            f"the coordinator together with {silos} of the {m}",
            f"the {summed} over all silos, and the noise of the colluding ones",
            c,
        ),
        protection("the public", _published(study), 0),
    )
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    notes = (
        "the silos' covariances were summed securely, and every silo added a share of the noise. If more "
        f"than {silos} revealed their shares, the protection would be weaker than requested",
        f"the silo that was charged most often on these rows was charged for {times}, earlier runs included. "
        f"All {study.attempts} that the study allows would cost "
        f"ε = {worst_epsilon(study):.4g}",
    )
    return protections, notes


def _part(study: Study, *labels: str) -> str:
    budget = study.budget
    own = epsilon_of(budget.mu(*labels), budget.left_delta)
    part = f"{100.0 * budget.share(*labels):.3g}% of the budget (of mu squared)"
    return f"out of the same epsilon. That took {part}, which is ε = {own:.3g} on its own"


def _published(study: Study) -> str:
    return f"{PUBLISHED}, and the counts of scores" if study.scores else PUBLISHED


REHEARSED = (
    "all silos ran in one process, and its operator could read their rows. The masks, signatures and "
    "ledgers were real, but the sum hid nothing from that operator: this is a rehearsal"
)
"""A note where a secure sum was made on one machine."""


def _public_facts(study: Study) -> tuple[str, ...]:
    """Return what anyone may know about a study."""
    known_as = f"{study.ledger_name[:12]}, the hash of the terms that these depend on"
    recorded = f"; ledgers record its releases under {known_as}" if study.is_private else ""
    number, columns = "the number of rows of each silo", "the columns, the row bound and given scales"
    if study.network == "edge":
        number = "the number of silos, but not of their edges or layers"
        columns = f"the nodes, and the largest weight of an edge, {study.edge_weight:g}"
    elif study.network:
        columns = "the nodes and the row bound"
    elif study.preparation:
        columns = "the columns, given ranges, and the code book that preparation found"
    if study.unit and study.rows_per_unit == 1:
        number = "the number of persons of each silo"
    elif study.unit:
        number = f"the number of rows used of each silo, at most {study.rows_per_unit} per person"
    rules = ("the rules that turn tables into these columns",) if study.rules else ()
    return (f"the terms of the study, with hash {study.digest[:12]}{recorded}", number, columns, *rules)


def attempts_charged(rounds: Sequence[Round]) -> int:
    """Return for how many attempts a silo was charged at most, over all runs, by what silos report."""
    charges: dict[str, int] = {}
    most = 0
    for closed in rounds:
        uploads = closed.kind != "open-session"
        if uploads and closed.step == 1:  # the first sum of an attempt
            charges |= {name: charges[name] + 1 for name in closed.asked}
        for name, body in closed.answers.items():
            if isinstance(body, SessionKey | QueryAnswer):
                charges[name] = body.charged
        if uploads:
            most = max(most, *(charges[name] for name in closed.asked))
    return most
