"""The paper's sentences about its theorems [FP §3.1]: alignment, and the number of silos."""

from functools import partial

from fedpower.experiments.reproduction.claims import Claim, Part
from fedpower.experiments.reproduction.curves import ALIGNED_LOCAL_STEPS, SILO_EPSILON
from fedpower.experiments.reproduction.settings import Settings
from fedpower.experiments.reproduction.statistics import LESS, Bound, Query, Sample, ratio, slope
from fedpower.experiments.reproduction.table import Table

GROWS = Bound(at_least=1.25)
CONSTANT = Bound(at_most=1.25)
"""From p = 4 to p = 16, a factor of four in p."""


def theorem_claims(settings: Settings) -> list[Claim]:
    """Return the claims about ρ_t, for each panel of its figure, and the one about the noise term."""
    size = settings.sizes["I"]
    claims = []
    for panel in (f"I r={size.iteration_rank}", f"I r={size.rank}", "II"):
        claims += [_aligned(panel), _not_aligned(panel), _smaller(panel)]
    return [*claims, _more_silos(settings)]


def _spread(panel: str, alignment: str, local_steps: int) -> Query:
    return {
        "figure": "alignment",
        "panel": panel,
        "alignment": alignment,
        "local_steps": local_steps,
    }


def _label(panel: str) -> str:
    return panel.replace(" ", "-").replace("=", "")


def _growth(panel: str, alignment: str, bound: Bound) -> Part:
    moderate, large = ALIGNED_LOCAL_STEPS[1], ALIGNED_LOCAL_STEPS[-1]
    return Part(
        what=f"ρ_t at p={large} over that at p={moderate}, {alignment}",
        sample=lambda table: ratio(
            table,
            _spread(panel, alignment, large),
            _spread(panel, alignment, moderate),
            column="misalignment",
        ),
        bound=bound,
    )


def _aligned(panel: str) -> Claim:
    return Claim(
        name=f"procrustes-frees-rho-of-p-{_label(panel)}",
        whose="paper",
        sentence="when OPT is employed (i.e., F=O_r), ρ_t=O(η) without any dependence on p.",
        locus="[FP §3.1, after Thm 4]",
        figure="alignment",
        panel=panel,
        how="Constant p without noise: ρ_t of the last round at p=16 over that at p=4 in the same "
        "repetition, geometric mean over repetitions.",
        parts=[_growth(panel, "procrustes", CONSTANT)],
    )


def _not_aligned(panel: str) -> Claim:
    return Claim(
        name=f"identity-ties-rho-to-p-{_label(panel)}",
        whose="paper",
        sentence="However, in the absence of OPT (i.e., F={I_r}), ρ_t=O(√k p κ^p η) exhibits an "
        "exponential dependence on p.",
        locus="[FP §3.1, after Thm 4]",
        figure="alignment",
        panel=panel,
        how="As with Procrustes; tested is that ρ_t grows with p, as runs cannot tell how fast an "
        "upper bound does.",
        parts=[_growth(panel, "identity", GROWS)],
    )


def _smaller(panel: str) -> Claim:
    large = ALIGNED_LOCAL_STEPS[-1]
    return Claim(
        name=f"procrustes-makes-rho-smaller-{_label(panel)}",
        whose="paper",
        sentence="When OPT is used, the value of ρ_t tends to be smaller compared to when OPT is not "
        "used.",
        locus="[FP §3.1, after Def. 5]",
        figure="alignment",
        panel=panel,
        how=f"Constant p={large} without noise: ρ_t of the last round with Procrustes over that "
        "without in the same repetition, geometric mean over repetitions.",
        parts=[
            Part(
                what=f"ρ_t with Procrustes over that without, p={large}",
                sample=lambda table: ratio(
                    table,
                    _spread(panel, "procrustes", large),
                    _spread(panel, "identity", large),
                    column="misalignment",
                ),
                bound=LESS,
            )
        ],
    )


def _more_silos(settings: Settings) -> Claim:
    def fall(table: Table, noise: str) -> Sample:
        where = {"figure": "silos", "noise": noise}
        counts = sorted({row.n_silos for row in table.select(**where)})
        return slope(table, {count: {**where, "n_silos": count} for count in counts})

    return Claim(
        name="noise-term-falls-with-silos-I",
        whose="paper",
        sentence="I_1 decreases as the number of local machines m increases.",
        locus="[FP §3.1, after Thm 3; eq. 3.4: ν√(d/m)]",
        figure="silos",
        panel="I",
        how=f"FedPower at ε={SILO_EPSILON:g} with a quarter, half and all of "
        f"{settings.sizes['I'].n_silos} silos of the same size: slope of log error on log m, which "
        "1/√m makes -0.5, mean over repetitions.",
        parts=[
            Part(
                what="slope of log error on log m",
                sample=partial(fall, noise="paper"),
                bound=Bound(at_least=-0.6, at_most=-0.4),
            )
        ],
        also={
            "step": [
                Part(
                    what="slope of log error on log m",
                    sample=partial(fall, noise="step"),
                    bound=Bound(at_least=-0.6, at_most=-0.4),
                )
            ]
        },
    )
