"""The paper's sentences that can be tested: sections 3 and 5."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from paper.claims import LESS, MORE, Bound, Claim, Part, Query, Sample, ratio, rounds_to, slope
from paper.curves import ALIGNED_LOCAL_STEPS, MODES, SILO_EPSILON
from paper.settings import EPSILON, LOCAL_STEPS, ModelName, Settings
from paper.table import Table

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
    return {"figure": "alignment", "panel": panel, "alignment": alignment, "local_steps": local_steps}


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
        sentence="When OPT is used, the value of ρ_t tends to be smaller compared to when OPT is not used.",
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


LITTLE = Bound(at_most=2.0)
"""What counts as little influence: less than a factor of two in error."""

TOLERANCE = 1e-2
FIGURE_OF: dict[ModelName, str] = {"I": "3", "II": "4"}
MODELS: tuple[ModelName, ...] = ("I", "II")


def paper_claims(settings: Settings) -> list[Claim]:
    """Return the claims, for each model where they apply to both."""
    claims = []
    for model in MODELS:
        claims += [_larger_p(model), _epsilon(model), _participants(model), _little(model)]
        claims += [_start(model), _end(model), _decay(model), _communications(model)]
    return [*claims, *theorem_claims(settings)]


def in_every_mode(parts: Callable[[str], list[Part]]) -> dict[str, Any]:
    """Return the parts in the paper's noise, which decide, and in the other modes."""
    return {"parts": parts("paper"), "also": {mode: parts(mode) for mode in MODES if mode != "paper"}}


def fedpower(model: ModelName, noise: str, **varied: Any) -> Query:
    """Return what picks one of [FP §5]'s curves."""
    usual = {"local_steps": LOCAL_STEPS, "epsilon": EPSILON, "participation": 1.0}
    where = {"figure": FIGURE_OF[model], "solver": "fedpower", "noise": noise}
    return {**where, **usual, **varied}


def _larger_p(model: ModelName) -> Claim:
    def parts(noise: str) -> list[Part]:
        curve = partial(fedpower, model, noise)
        return [
            Part(
                what=f"error of p={p} over that of p=1 after equally many rounds",
                sample=lambda table, p=p: ratio(  # type: ignore[misc]
                    table, curve(local_steps=p), curve(local_steps=1), rounds="common"
                ),
                bound=LESS,
            )
            for p in (2, 4)
        ]

    return Claim(
        name=f"larger-p-is-better-{model}",
        whose="paper",
        sentence="It was observed that larger values of p led to smaller projection distances "
        "compared to the baseline case of p=1.",
        locus="[FP §5, Effect of the number of local iterations p]",
        figure=FIGURE_OF[model],
        panel="a",
        how="The errors of p=2 and of p=4 over those of p=1 in the same repetition, geometric mean "
        "over the rounds that both have, then over repetitions.",
        **in_every_mode(parts),
    )


def _epsilon(model: ModelName) -> Claim:
    def parts(noise: str) -> list[Part]:
        curve = partial(fedpower, model, noise)
        return [
            Part(
                what=f"last error at ε={more:g} over that at ε={less:g}",
                sample=lambda table, more=more, less=less: ratio(  # type: ignore[misc]
                    table, curve(epsilon=more), curve(epsilon=less)
                ),
                bound=LESS,
            )
            for more, less in ((10.0, 1.0), (1.0, 0.5))
        ]

    return Claim(
        name=f"epsilon-orders-the-error-{model}",
        whose="paper",
        sentence="As expected, increasing the privacy budget ε leads to improved performance of "
        "FedPower, indicating the trade-off between privacy and accuracy.",
        locus="[FP §5, Effect of the number of privacy budget ε]",
        figure=FIGURE_OF[model],
        panel="b",
        how="The last error at each ε over that at the next smaller one in the same repetition, "
        "geometric mean over repetitions.",
        **in_every_mode(parts),
    )


def _participation_parts(model: ModelName, bound: Bound, noise: str) -> list[Part]:
    curve = partial(fedpower, model, noise)
    full_first = bound is LESS
    return [
        Part(
            what=f"last error at K/m={'1' if full_first else f'{share:g}'} over that at "
            f"K/m={f'{share:g}' if full_first else '1'}",
            sample=lambda table, share=share: (  # type: ignore[misc]
                ratio(table, curve(participation=1.0), curve(participation=share))
                if full_first
                else ratio(table, curve(participation=share), curve(participation=1.0))
            ),
            bound=bound,
        )
        for share in (0.6, 0.4)
    ]


def _participants(model: ModelName) -> Claim:
    return Claim(
        name=f"more-participants-are-better-{model}",
        whose="paper",
        sentence="Notably, larger values of K/m tend to yield better results compared to smaller values.",
        locus="[FP §5, Effect of the proportion of participated machines K/m]",
        figure=FIGURE_OF[model],
        panel="c",
        how="The last error with all silos over that with a share of them in the same repetition, "
        "geometric mean over repetitions.",
        **in_every_mode(partial(_participation_parts, model, LESS)),
    )


def _little(model: ModelName) -> Claim:
    return Claim(
        name=f"participation-matters-little-{model}",
        whose="paper",
        sentence="However, the overall influence of K/m on the algorithm's accuracy is not significant.",
        locus="[FP §5, Effect of the proportion of participated machines K/m]",
        figure=FIGURE_OF[model],
        panel="c",
        how="The last error with a share of the silos over that with all in the same repetition, "
        "geometric mean over repetitions; little is less than a factor of two.",
        **in_every_mode(partial(_participation_parts, model, LITTLE)),
    )


def _without_noise(model: ModelName, local_steps: int, schedule: str = "constant") -> Query:
    return {"figure": "schedules", "panel": model, "local_steps": local_steps, "schedule": schedule}


def _start(model: ModelName) -> Claim:
    return Claim(
        name=f"large-p-starts-faster-{model}",
        whose="paper",
        sentence="We have observed that using a large value of p accelerates the initial convergence",
        locus="[FP §3.3, Decay p gradually]",
        figure="schedules",
        panel=model,
        how="Constant p without noise: the error after the first round over that of p=1 in the same "
        "repetition, geometric mean over repetitions.",
        parts=[
            Part(
                what=f"error of constant p={p} over that of p=1 after one round",
                sample=lambda table, p=p: ratio(  # type: ignore[misc]
                    table, _without_noise(model, p), _without_noise(model, 1), rounds="first"
                ),
                bound=LESS,
            )
            for p in (2, 4)
        ],
    )


def _end(model: ModelName) -> Claim:
    return Claim(
        name=f"large-p-ends-higher-{model}",
        whose="paper",
        sentence="but leads to a larger final error. On the other hand, setting p = 1 achieves the "
        "lowest error",
        locus="[FP §3.3, Decay p gradually]",
        figure="schedules",
        panel=model,
        how="Constant p without noise: the last error over that of p=1 after as many rounds in the "
        "same repetition, geometric mean over repetitions.",
        parts=[
            Part(
                what=f"last error of constant p={p} over that of p=1",
                sample=lambda table, p=p: ratio(  # type: ignore[misc]
                    table, _without_noise(model, p), _without_noise(model, 1)
                ),
                bound=MORE,
            )
            for p in (2, 4)
        ],
    )


def _decay(model: ModelName) -> Claim:
    decaying, constant = (_without_noise(model, 4, each) for each in ("decaying", "constant"))
    slowest = _without_noise(model, 1)
    return Claim(
        name=f"decaying-p-strikes-the-balance-{model}",
        whose="paper",
        sentence="To strike a balance between fast initial convergence and achieving a vanishing "
        "final error, we propose gradually decaying the value of p.",
        locus="[FP §3.3, Decay p gradually]",
        figure="schedules",
        panel=model,
        how="Without noise, decaying p=4: its last error over that of constant p=4, and its first "
        "and last errors over those of p=1, in the same repetition.",
        parts=[
            Part(
                what="last error of decaying p=4 over that of constant p=4",
                sample=lambda table: ratio(table, decaying, constant),
                bound=LESS,
            ),
            Part(
                what="error of decaying p=4 over that of p=1 after one round",
                sample=lambda table: ratio(table, decaying, slowest, rounds="first"),
                bound=LESS,
            ),
            Part(
                what="last error of decaying p=4 over that of p=1",
                sample=lambda table: ratio(table, decaying, slowest),
                bound=LESS,
            ),
        ],
    )


def _communications(model: ModelName) -> Claim:
    def away(table: Table, p: int) -> Sample:
        alone = rounds_to(table, _without_noise(model, 1), TOLERANCE)
        needed = rounds_to(table, _without_noise(model, p), TOLERANCE)
        with np.errstate(invalid="ignore"):  # never reached by either: not as claimed
            differences = np.nan_to_num(np.abs(needed - np.ceil(alone / p)), nan=math.inf, posinf=math.inf)
        return Sample(values=differences)

    return Claim(
        name=f"communications-are-divided-by-p-{model}",
        whose="paper",
        sentence="for a given error tolerance ϵ, the number of required communications is "
        "approximately ⌊T/p⌋",
        locus="[FP §3.3, Effect of p]",
        figure="schedules",
        panel=model,
        how=f"Without noise, rounds until the error is {TOLERANCE:g}: with p=1 they are T; how far "
        "they are from ⌈T/p⌉ with constant p, mean over repetitions.",
        parts=[
            Part(
                what=f"rounds of constant p={p} less ⌈T/{p}⌉, absolute",
                sample=partial(away, p=p),
                bound=Bound(at_most=1.0),
            )
            for p in (2, 4)
        ],
    )
