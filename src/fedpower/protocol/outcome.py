"""What a run ends with: the solution, the record of its rounds, the promise about the rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.budget import MOMENT, SCORES, Budget
from fedpower.privacy.publication import smoothing
from fedpower.privacy.statement import (
    ASSUMPTIONS,
    EDGE,
    EDGE_NEIGHBOURS,
    EDGES_BOUNDED,
    EDGES_COUNT,
    EXACT_SCORES,
    NETWORK_KEPT,
    NODES_COUNT,
    PERSON,
    ROWS_BOUNDED,
    ROWS_COUNT,
    ROWS_KEPT,
    PrivacyStatement,
    Protection,
    person_counts,
    person_neighbours,
)
from fedpower.protocol.coordinator import Coordinator, Round
from fedpower.protocol.messages import Enrolment, QueryAnswer, SessionKey
from fedpower.protocol.solvers import ClippedSettings, Solution, SolverSettings, UploadSettings
from fedpower.protocol.study import (
    Study,
    budget_of,
    epsilon_of_attempts,
    epsilon_within,
    masses,
    noise_law,
    noise_shift,
)
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


def with_noise(settings: SolverSettings, study: Study, *, run: str) -> SolverSettings:
    """Return the settings of a solver that knows its run and how noisy the silos' answers will be."""
    budget = budget_of(study)
    if isinstance(settings, UploadSettings | ClippedSettings):
        return replace(settings, run=run)
    if budget is None:
        return settings
    return replace(
        settings,
        shift=noise_shift(budget, study.weights),
        noise=lambda sizes, norm: noise_law(budget, sizes, norm, study.weights),
    )


def conclude(coordinator: Coordinator, study: Study, settings: SolverSettings) -> Outcome:
    """Return the outcome of a coordinator that is done."""
    assert coordinator.done, "a run is concluded once"
    solution: Solution = coordinator.outcome
    rounds = [each for each in coordinator.history if each.kind != "enrol"]
    used_before = any(
        _made_before(answer, coordinator.run) for each in rounds for answer in each.answers.values()
    )
    enrolled = coordinator.history[0].answers
    privacy = state_privacy(
        study,
        budget_of(study),
        # Noise of a secure sum is shared by those in it. Otherwise a silo that was lost on the way may
        # have released something too.
        solution.sizes
        if study.aggregation == "secure"
        else {name: each.n_rows for name, each in enrolled.items()},
        rounds,
        sampled=getattr(settings, "n_participants", None) is not None,
        used_before=used_before,
    )
    if solution.pooled is not None:
        privacy = _with_the_moment(privacy)
    declared = _declared_versions(enrolled)
    return Outcome(
        solution=solution,
        rounds=rounds,
        study=study,
        privacy=replace(privacy, public=(*privacy.public, *declared)),
        absent=tuple(name for name in coordinator.silos if name not in solution.sizes),
    )


def _with_the_moment(privacy: PrivacyStatement) -> PrivacyStatement:
    said = (PUBLISHED, "the published moment and all that is computed from it")
    told = (replace(each, sees=each.sees.replace(*said)) for each in privacy.protections)
    return replace(privacy, protections=tuple(told))


def _declared_versions(enrolled: Mapping[str, Enrolment]) -> tuple[str, ...]:
    named = [f"{name} {each.data_version}" for name, each in enrolled.items() if each.data_version]
    if not named:
        return ()
    return (f"the version of its data that each silo declared ({', '.join(named)})",)


def _made_before(answer: Any, run: str) -> bool:
    return getattr(answer, "made_for", "") not in ("", run)


PUBLISHED = "the published components and eigenvalues"
"""What the public sees of a fit, unless the pooled moment is published too."""


USED_BEFORE = (
    "these noised moments went into an earlier run too. Two results from them could be compared, so the "
    "public gets no smaller epsilon than the coordinator. Nothing was charged again"
)
"""A note of the privacy statement."""


SMOOTHED = (
    "the public does not know the silos' noised moments. Of these SHAKE-256 made a little more noise, "
    "which was added to their sum before anything was computed from it"
)
"""An assumption of the public's smaller epsilon."""


def state_privacy(
    study: Study,
    budget: Budget | None,
    sizes: Mapping[str, int],
    rounds: Sequence[Round],
    *,
    sampled: bool = False,
    used_before: bool = False,
) -> PrivacyStatement:
    """Return the privacy statement of a study that ran with ``rounds`` over silos of ``sizes`` rows."""
    distance = 0.0 if budget is None else budget.distance
    if budget is not None and budget.n_sharing is not None:
        stated = _state_secure_privacy(study, budget, sizes, rounds)
        distance *= attempts_charged(rounds)
    else:
        stated = _state_plain_privacy(study, budget, sizes, rounds, sampled=sampled, used_before=used_before)
    if study.network and stated.protections:
        return _of_network(study, stated, distance)
    return _by_person(study, stated, len(sizes), distance)


def _of_network(study: Study, statement: PrivacyStatement, distance: float) -> PrivacyStatement:
    terms = {ROWS_KEPT: NETWORK_KEPT, ROWS_COUNT: NODES_COUNT}
    if study.network == "edge":
        terms |= {ROWS_COUNT: EDGES_COUNT, ROWS_BOUNDED: EDGES_BOUNDED}
    supposed = tuple(terms.get(each, each) for each in statement.assumptions)
    if study.network == "edge":
        return replace(statement, unit=EDGE, neighbours=EDGE_NEIGHBOURS, assumptions=supposed)
    first = statement.protections[0]
    both = epsilon_within(2.0 * first.mu, first.delta, distance)
    note = (
        "a row is a node's edges in one layer as its own row of the matrix tells them. Every edge stands "
        f"in the rows of both its nodes, and is protected at epsilon={both:.4g}, delta={first.delta:g}"
    )
    return replace(statement, notes=(*statement.notes, note), assumptions=supposed)


def _by_person(study: Study, statement: PrivacyStatement, n_silos: int, distance: float) -> PrivacyStatement:
    if not study.unit:
        return statement
    assumptions = tuple(
        person_counts(study.unit) if each == ROWS_COUNT else each for each in statement.assumptions
    )
    notes = statement.notes
    if statement.protections and n_silos > 1:
        notes += (_in_several_silos(study, statement.protections[0], distance),)
    return replace(
        statement,
        unit=PERSON,
        neighbours=person_neighbours(study.rows_per_unit),
        assumptions=assumptions,
        notes=notes,
    )


def _in_several_silos(study: Study, first: Protection, distance: float) -> str:
    if secure := study.aggregation == "secure":
        both = epsilon_within(2.0 * first.mu, first.delta, distance)
    else:
        both = epsilon_within(math.sqrt(2.0) * first.mu, first.delta, 2.0 * distance)
    return (
        "somebody with rows in several silos is protected by each of them. What two of them tell "
        f"together is at most epsilon={both:.4g} at delta={first.delta:g}. Of k silos it is "
        + ("k times mu" if secure else "the square root of k times mu")
    )


def _state_plain_privacy(
    study: Study,
    budget: Budget | None,
    sizes: Mapping[str, int],
    rounds: Sequence[Round],
    *,
    sampled: bool,
    used_before: bool,
) -> PrivacyStatement:
    public = _public_facts(study)
    if budget is None:
        return PrivacyStatement(
            mode="none",
            asked_epsilon=math.inf,
            delta=0.0,
            protections=(),
            public=public,
            notes=(EXACT_SCORES,) if study.scores else (),
            assumptions=(),  # nothing is promised
        )
    delta, mu = budget.left_delta, budget.study_mu
    rows = [
        Protection(
            observer="the coordinator and whoever reads a silo's messages",
            sees="everything that silo releases",
            epsilon=epsilon_of(mu, delta),
            delta=budget.delta,
            mu=mu,
        )
    ]
    sees, outside, left = _published(study), mu, delta
    assumptions: tuple[str, ...] = ASSUMPTIONS
    noise = None
    if _is_one_sum(budget, sizes, rounds):
        noise = smoothing(budget, sizes.values(), masses(sizes, study.weights).values())
    summed = not sampled and noise is not None and noise.mu < mu
    if summed and not used_before:
        assert noise is not None
        # Every silo's integers are a little off the ideal, and those that were added to the sum.
        outside, left = noise.mu, delta - len(sizes) * budget.slack_delta
        if study.scores:  # each silo's counts are published, with its own noise
            outside = math.hypot(outside, budget.mu(SCORES))
        sees += " of this fit and of no other from the same releases"
        assumptions += (SMOOTHED,)
    rows.append(
        Protection(
            observer="the public",
            sees=sees,
            epsilon=epsilon_of(outside, left),
            delta=budget.delta,
            mu=outside,
        )
    )
    return PrivacyStatement(
        mode=budget.mode,
        asked_epsilon=budget.epsilon,
        delta=budget.delta,
        protections=tuple(rows),
        public=public,
        notes=(
            *((USED_BEFORE,) if summed and used_before else ()),
            *((_preparation_note(budget),) if study.preparation else ()),
            *((_scores_note(budget),) if study.scores else ()),
        ),
        assumptions=assumptions,
    )


def _preparation_note(budget: Budget) -> str:
    alone = epsilon_of(budget.mu(*STAGES), budget.left_delta)
    return (
        "offset, scale and bound of the columns were found privately, out of the same epsilon. That took "
        f"{budget.share(*STAGES):.1%} of the budget (of mu squared), which alone is "
        f"epsilon={alone:.3g}. The code book that holds them is public: later fits may use it without "
        "paying for it again"
    )


def _scores_note(budget: Budget) -> str:
    alone = epsilon_of(budget.mu(SCORES), budget.left_delta)
    return (
        "rows were counted by their scores on the first two components, with noise, out of the same "
        f"epsilon. That took {budget.share(SCORES):.2%} of the budget (of mu squared), which alone is "
        f"epsilon={alone:.3g}. Where the grid lies follows from what was released before"
    )


def _published(study: Study) -> str:
    return f"{PUBLISHED}, and the counts of scores" if study.scores else PUBLISHED


def _is_one_sum(budget: Budget, sizes: Mapping[str, int], rounds: Sequence[Round]) -> bool:
    asked = [(each.kind, len(each.answers)) for each in rounds if each.kind != SCORES]
    return budget.mode == "moment" and asked == [(MOMENT, len(sizes))]


REHEARSED = (
    "all silos ran in one process, whose operator could read their rows. The masks, signatures and "
    "ledgers were real, but a sum hides nothing from that operator: this is a rehearsal"
)
"""Said where a secure sum was made on one machine."""


def _public_facts(study: Study) -> tuple[str, ...]:
    booked = f", booked in ledgers as {study.ledger_name[:12]}" if study.is_private else ""
    return (
        f"the study's terms, hash {study.digest[:12]}{booked}",
        _public_number(study),
        "the columns, the ranges given, and the code book that preparation found"
        if study.preparation
        else _public_columns(study),
        *(("the rules that turned tables into these columns",) if study.rules else ()),
    )


def _public_columns(study: Study) -> str:
    if study.network == "edge":
        return f"the nodes, and {study.edge_weight:g} as the most that an edge weighs"
    if study.network:
        return "the nodes and the bound on rows"
    return "the columns, the row bound and any scales given"


def _public_number(study: Study) -> str:
    if study.network == "edge":
        return "the number of silos, and not how many edges or layers one has"
    if not study.unit:
        return "the number of rows of each silo"
    if study.rows_per_unit == 1:
        return "the number of persons of each silo"
    return f"how many rows of each silo count, {study.rows_per_unit} of a person at most"


def _state_secure_privacy(
    study: Study, budget: Budget, sizes: Mapping[str, int], rounds: Sequence[Round]
) -> PrivacyStatement:
    attempts = attempts_charged(rounds)
    m, c = len(sizes), budget.colluders

    def protection(observer: str, sees: str, known: int) -> Protection:
        """Return what holds against whoever knows the shares of so many silos."""
        together = budget.total_mu * math.sqrt(attempts)
        if attempts == 1:  # each query's share of the noise is at least as wide as the exact one
            together *= math.sqrt((m - c) / (m - known)) * (1 + 2.0**-50)
        return Protection(
            observer=observer,
            sees=sees,
            epsilon=epsilon_within(together, budget.delta, attempts * budget.distance),
            delta=budget.delta,
            mu=together,
        )

    silos = "1 silo" if c == 1 else f"{c} silos"
    summed = f"{len(study.queries)} noised sums" if len(study.queries) > 1 else "noised sum"
    return PrivacyStatement(
        mode=budget.mode,
        asked_epsilon=budget.epsilon,
        delta=budget.delta,
        protections=(
            protection("the coordinator by itself", f"the {summed} over all silos", 0),
            protection(
                f"the coordinator together with {silos} of the {len(sizes)}",
                f"the {summed} over all silos and the noise of those that collude",
                c,
            ),
            protection("the public", _published(study), 0),
        ),
        public=(*_public_facts(study), "who was on the session"),
        notes=(
            "the silos' moments were summed securely, every silo adding a share of the noise. More than "
            f"{silos} telling theirs would leave less than was asked for",
            f"the silo that was charged most often on these rows was for {_times(attempts)}, runs before "
            f"this one counted. All {study.attempts} that the study allows would cost "
            f"epsilon={epsilon_of_attempts(budget, study.attempts):.4g}",
            *((_preparation_note(budget),) if study.preparation else ()),
            *((_scores_note(budget),) if study.scores else ()),
        ),
        assumptions=(*ASSUMPTIONS, "the coordinator cannot break X25519, HKDF-SHA256 or ChaCha20"),
    )


def attempts_charged(rounds: Sequence[Round]) -> int:
    """Return for how many attempts a silo was charged at most, over all runs, by what silos told."""
    charges: dict[str, int] = {}
    most = 0
    for each in rounds:
        uploads = each.kind != "open-session"
        if uploads and each.step == 1:  # the first sum of an attempt
            charges |= {name: charges[name] + 1 for name in each.asked}
        for name, body in each.answers.items():
            if isinstance(body, SessionKey | QueryAnswer):
                charges[name] = body.charged
        if uploads:
            most = max(most, *(charges[name] for name in each.asked))
    return most


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
