"""What a secure sum promises, and to whom."""

import math
from collections.abc import Mapping, Sequence

from fedpower.privacy.accounting import delta_with_distance, epsilon_of
from fedpower.privacy.budget import Budget
from fedpower.privacy.shares import shared_noise
from fedpower.privacy.statement import ASSUMPTIONS, PrivacyStatement, Protection
from fedpower.protocol.exchange import Round
from fedpower.protocol.secure_messages import MaskedMoment, Present
from fedpower.protocol.study import Study

REHEARSED = (
    "all silos ran in one process, whose operator could read their rows: the masks, signatures and "
    "ledgers were real, but a sum hides nothing from that operator, so this is a rehearsal"
)
"""Said where a secure sum was made on one machine."""


def public_facts(study: Study) -> tuple[str, ...]:
    """Return what everybody may know about a study."""
    booked = f", booked in ledgers as {study.ledger_name[:12]}" if study.noise != "none" else ""
    return (
        f"the study's terms, hash {study.digest[:12]}{booked}",
        "the number of rows of each silo",
        "the columns, the row bound and any scales given",
    )


def state_secure_privacy(
    study: Study, budget: Budget, sizes: Mapping[str, int], rounds: Sequence[Round]
) -> PrivacyStatement:
    """Return the privacy statement of a secure sum over silos of ``sizes`` rows.

    Every attempt counts that a silo was charged for on these rows, in whichever run, also one that
    the coordinator says failed: it may have read that sum. Rolls of earlier attempts may have been longer
    than the last one; a silo's price is then that of the study, `budget.mu`, which no roll exceeds.
    """
    attempts = attempts_charged(rounds)
    noise = shared_noise(budget, sizes.values())
    c = noise.colluders

    def protection(observer: str, sees: str, mu: float) -> Protection:
        together = mu * math.sqrt(attempts)
        return Protection(
            observer=observer,
            sees=sees,
            epsilon=_epsilon(together, budget.delta, attempts * budget.distance),
            delta=budget.delta,
            mu=together,
        )

    alone = noise.mu(0) if attempts == 1 else budget.mu
    silos = "1 silo" if c == 1 else f"{c} silos"
    return PrivacyStatement(
        mode=budget.mode,
        asked_epsilon=budget.epsilon,
        delta=budget.delta,
        protections=(
            protection("the coordinator by itself", "the noised sum over all silos", alone),
            protection(
                f"the coordinator together with {silos} of the {len(sizes)}",
                "the noised sum over all silos and the noise of those that collude",
                noise.mu(c) if attempts == 1 else budget.mu,
            ),
            protection("the public", "the published components and eigenvalues", alone),
        ),
        public=(*public_facts(study), "who was on the roll"),
        notes=(
            "the silos' moments were summed securely, every silo adding a share of the noise; more than "
            f"{silos} telling theirs would leave less than was asked for",
            f"the silo that was charged most often on these rows was for {_times(attempts)}, runs before "
            f"this one counted; all {study.attempts} that the study allows would cost "
            f"epsilon={epsilon_of_attempts(budget, study.attempts):.4g}",
        ),
        assumptions=(*ASSUMPTIONS, "the coordinator cannot break X25519, HKDF-SHA256 or ChaCha20"),
    )


def attempts_charged(rounds: Sequence[Round]) -> int:
    """Return for how many attempts a silo was charged at most, over all runs, by what silos told.

    An upload tells it exactly. A silo that was asked for one and gave none may have been charged all the
    same, and then has what it told at the roll call and one more.
    """
    told: dict[str, int] = {}
    most = 0
    for each in rounds:
        if each.kind == MaskedMoment.kind:
            told |= {name: told[name] + 1 for name in each.asked}
        for name, body in each.answers.items():
            if isinstance(body, Present | MaskedMoment):
                told[name] = body.charged
        if each.kind == MaskedMoment.kind:
            most = max(most, *(told[name] for name in each.asked))
    return most


def epsilon_of_attempts(budget: Budget, attempts: int) -> float:
    """Return the ε at the study's δ of so many attempts at a secure sum, whoever colludes as agreed."""
    if attempts == 1:
        return budget.epsilon
    mu = budget.mu * math.sqrt(attempts)
    return _epsilon(mu, budget.delta, attempts * budget.distance)


def _epsilon(mu: float, delta: float, distance: float) -> float:
    """Return ε at δ of what is within total variation ``distance`` of a μ-GDP release.

    The distance is charged at ε(δ/2), which is no less than the ε that is returned.
    """
    slack = delta_with_distance(0.0, epsilon_of(mu, delta / 2), distance)
    return epsilon_of(mu, delta - slack) if slack < delta / 2 else math.inf


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
