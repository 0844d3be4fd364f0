"""From the parameters of a fit to the terms of its study."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from os import PathLike
from typing import Any

from fedpower.errors import InputError, Sentence
from fedpower.estimator.solving import settings_of, solver_of
from fedpower.estimator.treatment import known_ranges, prepares, rules_of
from fedpower.parameters import SPECS, Parameters
from fedpower.privacy.accounting import default_delta, mu_of
from fedpower.privacy.budget import SMALLEST_EPSILON
from fedpower.privacy.division import Design, choose_design, predicted_gain, scores_share, shares_of
from fedpower.protocol.choice import SolverChoice
from fedpower.protocol.roll import Identity
from fedpower.protocol.solvers import SolverSettings
from fedpower.protocol.solvers.shared import Rank
from fedpower.protocol.study import PREPARED, NoiseMode, Study
from fedpower.rows.treatment import RowTreatment
from fedpower.rules.codebook import MEAN_WEIGHT as PREPARED_MEAN_WEIGHT
from fedpower.rules.rules import TableRules
from fedpower.sums.kernel import MOST_SQUARE_FEATURES

IdentityPaths = Mapping[str, str | PathLike[str]]


ATTEMPTS = 3
"""How often silos take part at most: a first time, and twice where somebody failed."""


OVERSAMPLING = 10
"""How many columns more than k a basis has unless ``iteration_rank`` says otherwise."""


PRIVATE_STEPS = 10
"""T of the modes that noise every step unless ``n_steps`` says otherwise: the paper's."""


_MOST_FOR_SCORES = 0.5
"""Of a fit's ε: its components are what scores are of."""


def _rank_of(parameters: Parameters, n_rows: int | None, n_features: int, noise: NoiseMode) -> Rank:
    """Return k, a fraction of variance or "auto", as asked for; refuse what ``noise`` cannot tell."""
    asked = parameters.n_components
    most = n_features if n_rows is None else min(n_rows, n_features)
    if asked is None and n_rows is not None:
        return most
    if isinstance(asked, Integral) and not isinstance(asked, bool) and 1 <= int(asked) <= most:
        return int(asked)
    if isinstance(asked, Real) and not isinstance(asked, Integral) and 0 < float(asked) < 1:
        if noise in ("none", "moment"):
            return float(asked)
        raise InputError(
            "{n_components} as a fraction of variance must go with {noise:moment} or {epsilon:inf}, "
            "got {asked!r} with {noise:{mode}}, whose releases do not show the whole spectrum; give "
            "a number of components",
            asked=asked,
            mode=noise,
        )
    if isinstance(asked, str) and asked == "auto":
        if noise in ("none", "moment"):
            return "auto"
        raise InputError(
            "{n_components:auto} must go with {noise:moment} or {epsilon:inf}, got {noise:{mode}}, "
            "whose releases do not show the whole spectrum; give a number of components",
            mode=noise,
        )
    raise InputError.about(
        "n_components",
        must="be a whole number from 1 to {smaller_side:{most}}, a fraction between 0 and 1 or 'auto'",
        got=repr(asked),
        advice="'noise' is now called 'auto'" if asked == "noise" else "choose one of these",
        most=most,
    )


def rank_and_width(
    parameters: Parameters, n_rows: int | None, n_features: int, noise: NoiseMode
) -> tuple[Rank, int]:
    """Return k, or how it is to be found, and r: as asked for, or what goes with k."""
    rank = _rank_of(parameters, n_rows, n_features, noise)
    if not isinstance(rank, int):
        width = n_features
    elif parameters.iteration_rank is None:
        width = min(n_features, rank + (1 if noise == "paper" else OVERSAMPLING))
    else:
        width = parameters.iteration_rank
        if not rank <= width <= n_features:
            raise InputError.about(
                "iteration_rank",
                must="lie between {n_components:{rank}} and the number of columns {most}",
                got=str(width),
                advice="choose one in between",
                rank=rank,
                most=n_features,
            )
    return rank, width


def build_study(
    parameters: Parameters,
    *,
    n_rows: int | None,
    n_features: int,
    treatment: RowTreatment | None,
    columns: tuple[str, ...] | None = None,
    agreement: str = "",
    identities: Mapping[str, str] | None = None,
    attempts: int = ATTEMPTS,
    roster: Mapping[str, int | None] | None = None,
) -> tuple[Study, SolverSettings, SolverChoice]:
    """Return the study, the coordinator's settings and why it takes that solver; public facts decide."""
    center = parameters.centers
    if center and n_rows is not None and n_rows < 2:
        raise InputError(
            "centring must have 2 rows at least, got n_samples = {n_rows}; bring more rows or pass "
            "{center:False}",
            n_rows=n_rows,
        )
    noise = noise_of(parameters, n_features, n_rows)
    by_edge = parameters.network == "edge"
    rank, width = rank_and_width(parameters, n_features if by_edge else n_rows, n_features, noise)
    n_steps = parameters.n_steps
    if noise in ("step", "paper") and n_steps is None:
        n_steps = PRIVATE_STEPS
    pairs = n_features * (n_features - 1) // 2
    counted = max(pairs, 1) if by_edge else n_rows
    delta = _delta(parameters, counted) if noise != "none" else 0.0
    secure = parameters.aggregation == "secure"
    scores = _scores_of(parameters, noise, delta, n_features)
    prepared: dict[str, Any] = {}
    if noise == "clipped":
        _check_clipped(parameters)
        design = _clipped_design(parameters, rank, n_rows, n_features, delta, center=center)
        queries = design.queries(n_features, center=center)
        prepared["design"] = tuple(terms._replace(share=terms.share * (1.0 - scores)) for terms in queries)
        width = max(design.widths)
    rules = rules_of(parameters)
    if treatment is None:
        _refuse_to_prepare_ratings(rules)
        known = known_ranges(parameters, columns, n_features)
        prepared = {
            "ranges": known,
            "preparation": shares_of(
                n_rows=n_rows,
                n_features=n_features,
                n_open=sum(each is None for each in known),
                mu=mu_of(float(parameters.epsilon), delta),
                n_noises=1 if secure else max(1, len(roster or {})),
            ),
            "roster": "" if agreement else _roster(roster or {}),
        }
    if scores:
        prepared["scores"] = scores
        prepared["roster"] = "" if agreement else _asked_how(parameters, roster or {})
    if rules is not None and columns is not None:
        prepared["rules"] = rules.digest
        prepared["groups"] = rules.groups(columns)
    if center and noise == "moment" and (treatment is None or treatment.low is not None):
        prepared["mean_weight"] = PREPARED_MEAN_WEIGHT
    study = Study(
        columns=columns,
        n_features=n_features,
        iteration_rank=width,
        center=center,
        treatment=PREPARED if treatment is None else treatment.digest(),
        noise=noise,
        epsilon=float(parameters.epsilon),
        delta=delta,
        n_steps=n_steps if noise in ("step", "paper") else None,
        agreement=agreement,
        weights=parameters.weights,
        # Of a table of one rating a row, its rules say whose each is.
        unit=parameters.unit or ("" if rules is None or rules.long is None else rules.long.person),
        rows_per_unit=parameters.rows_per_unit,
        network=parameters.network or "",
        edge_weight=float(parameters.edge_weight or 1.0),
        **_secure_terms(parameters, noise, identities or {}, attempts),
        **prepared,
    )
    choice = solver_of(parameters, study, rank)
    return study, settings_of(parameters, study, choice, rank=rank, n_steps=n_steps), choice


def _refuse_to_prepare_ratings(rules: TableRules | None) -> None:
    """Refuse to find a bound for rows of ratings: an offset or a scale would undo what the rules made."""
    if rules is not None and rules.spans:
        raise InputError(
            Sentence(
                "a private fit of ratings must be told how long a row may be, for their range is public "
                "already, got neither {normalize} nor {row_norm}; give {normalize:True}, with which all "
                "persons count alike"
            )
        )


def _roster(sizes: Mapping[str, int | None]) -> str:
    """Return a digest of the silos' names and sizes."""
    listed = json.dumps(sorted(sizes.items()))
    return hashlib.sha256(listed.encode()).hexdigest()


def _asked_how(parameters: Parameters, sizes: Mapping[str, int | None]) -> str:
    """Return a digest of the silos and of all that decides which axes their scores are counted on."""
    settings = {
        name: repr(getattr(parameters, name))
        for name, spec in SPECS.items()
        if spec.section in ("components", "solver", "rounds") and name != "keep_moment"
    }
    listed = json.dumps([sorted(sizes.items()), parameters.standardizes, settings])
    return hashlib.sha256(listed.encode()).hexdigest()


def _scores_of(parameters: Parameters, noise: NoiseMode, delta: float, n_features: int) -> float:
    """Return the share of the budget for counting scores: 0 for none, 1 for exact counts."""
    asked, epsilon = parameters.scores_epsilon, float(parameters.epsilon)
    if asked is None:
        return 0.0
    if n_features < 2 or parameters.n_components == 1:
        raise InputError(
            Sentence(
                "{scores_epsilon} must go with two components or more, on which scores are counted, got "
                "one; give {n_components:2}, or leave it out"
            )
        )
    if noise == "none":
        if math.isinf(asked):
            return 1.0
        raise InputError(
            "{scores_epsilon} must be inf with {epsilon:inf}, where nothing is private, got {asked:g}; "
            "give a finite epsilon, or {scores_epsilon:inf}",
            asked=asked,
        )
    if not asked <= _MOST_FOR_SCORES * epsilon:
        raise InputError(
            "{scores_epsilon} must be at most half of {epsilon:{whole:g}}, of which it is a part, got "
            "{asked:g}; give e.g. {tenth:g}",
            whole=epsilon,
            asked=asked,
            tenth=epsilon / 10,
        )
    if asked < SMALLEST_EPSILON:
        raise InputError(
            "{scores_epsilon} must be at least {least:g}, got {asked:g}: less leaves nothing but noise",
            least=SMALLEST_EPSILON,
            asked=asked,
        )
    return scores_share(float(asked), epsilon, delta)


def noise_of(parameters: Parameters, n_features: int, n_rows: int | None = None) -> NoiseMode:
    """Return what is noised."""
    if not parameters.is_private:
        return "none"
    if parameters.noise != "auto":
        return parameters.noise
    if _gains_by_clipping(parameters, n_features, n_rows):
        return "clipped"
    return "moment" if n_features <= MOST_SQUARE_FEATURES else "step"


def _gains_by_clipping(parameters: Parameters, n_features: int, n_rows: int | None) -> bool:
    """Return whether clipped products are predicted to be clearly more accurate than the moment."""
    rank = parameters.n_components
    if (
        parameters.energy is None
        or not isinstance(rank, Integral)
        or isinstance(rank, bool)
        or not 1 <= int(rank) < n_features
        or parameters.solver != "auto"
        or parameters.weights != "rows"
        or parameters.standardizes
        or parameters.paper_settings
        or parameters.device is not None
        or parameters.unit is not None
        or prepares(parameters)
    ):
        return False
    delta = _delta(parameters, n_rows)
    return predicted_gain(
        n_features=n_features,
        rank=int(rank),
        n_rows=n_rows,
        multiplier=1.0 / mu_of(float(parameters.epsilon), delta),
        energy=float(parameters.energy),
    )


def _clipped_design(
    parameters: Parameters, rank: Rank, n_rows: int | None, n_features: int, delta: float, *, center: bool
) -> Design:
    """Return how a clipped fit divides its budget."""
    assert isinstance(rank, int), "others were refused"
    return choose_design(
        n_features=n_features,
        rank=rank,
        center=center,
        n_rows=n_rows,
        multiplier=1.0 / mu_of(float(parameters.epsilon), delta),
        energy=None if parameters.energy is None else float(parameters.energy),
        width=parameters.iteration_rank,
    )


def _check_clipped(parameters: Parameters) -> None:
    """Refuse what clipped products cannot go with, each with the reason."""
    given = parameters.paper_settings
    if parameters.solver != "auto" or given:
        name = given[0] if parameters.solver == "auto" else "solver"
        raise InputError(
            f"{{{name}}} must be left alone with {{noise:clipped}}, got {{value!r}}: clipped products "
            "have a solver of their own; leave it out",
            value=getattr(parameters, name),
        )
    if parameters.standardizes:
        raise InputError(
            Sentence(
                "a fit with {noise:clipped} must go without standardised columns, for it has no diagonal "
                "to standardise by, got {standardize:True}; pass {standardize:False}"
            )
        )
    if parameters.weights != "rows":
        raise InputError(
            "{weights} must be 'rows' with {noise:clipped}, got {given!r}: its sums are over rows; leave "
            "it alone",
            given=parameters.weights,
        )
    if parameters.device is not None:
        raise InputError(
            "device must be left alone with {noise:clipped}, got {given!r}: its products are made on the "
            "processor; leave it out",
            given=parameters.device,
        )


def _delta(parameters: Parameters, n_rows: int | None) -> float:
    if parameters.delta is not None:
        return float(parameters.delta)
    if n_rows is None:
        raise InputError(
            "delta must be agreed on before the silos enrol, got none; give one, at most 1e-6 or "
            "the inverse of the number of rows"
        )
    return default_delta(n_rows)


def _secure_terms(
    parameters: Parameters, noise: str, identities: Mapping[str, str], attempts: int
) -> dict[str, Any]:
    """Return the terms that a study with a secure sum has beyond others; none for a plain one."""
    if parameters.aggregation == "plain":
        if parameters.colluders != 1:
            raise InputError.about(
                "colluders",
                must="be left alone with {aggregation:plain}",
                got=str(parameters.colluders),
                advice="they share the noise of a secure sum",
            )
        return {}
    _check_compatible(parameters, noise)
    least = len(identities) if parameters.min_silos is None else int(parameters.min_silos)
    if not parameters.colluders < least <= len(identities):
        raise InputError(
            "a secure sum must have more silos than the {some} that may collude, got {least} as the "
            "fewest of {all}; bring more silos, declare fewer colluders or change {min_silos}",
            some=parameters.colluders,
            least=least,
            all=len(identities),
        )
    return {
        "aggregation": "secure",
        "colluders": int(parameters.colluders),
        "identities": tuple(identities.items()),
        "min_silos": least,
        "attempts": attempts,
    }


def _check_compatible(parameters: Parameters, noise: str) -> None:
    """Refuse what a secure sum cannot go with, each with the reason."""
    if noise not in ("moment", "clipped"):
        raise InputError(
            "{aggregation:secure} must go with {noise:moment}, got {mode!r}, of which each step is "
            "one more sum that could be told apart from the others; leave noise alone, or set it to "
            "'moment' for wide rows",
            mode=noise,
        )
    if noise == "moment" and parameters.solver not in ("auto", "moment"):
        raise InputError(
            "{aggregation:secure} must go with {solver:moment}, got {taken!r}: silos take part in "
            "one sum, and every later round would be another; leave solver alone",
            taken=parameters.solver,
        )
    given = [*parameters.paper_settings, *(["one_shot_start"] if parameters.one_shot_start else [])]
    if given:
        raise InputError(
            f"{{{given[0]}}} must be left alone with {{aggregation:secure}}, got {{value!r}}: what "
            "silos do by themselves, or some of them, is no sum over all",
            value=getattr(parameters, given[0]),
        )


def identities_of(
    parameters: Parameters, silos: Iterable[str], paths: IdentityPaths | None
) -> dict[str, Identity]:
    """Return every silo's identity: read from its file, or made for this fit; none for a plain fit."""
    names = list(silos)
    if parameters.aggregation == "plain":
        if paths:
            raise InputError(
                Sentence("identities must go with {aggregation:secure}, got some without; leave them out")
            )
        return {}
    if not paths:
        return {name: Identity.new() for name in names}
    if set(paths) != set(names):
        odd = sorted(set(paths) ^ set(names))[0]
        raise InputError(
            f"every silo must have an identity or none, got {odd!r} on one side only; the silos are "
            f"{', '.join(names)}"
        )
    return {name: Identity.load(paths[name]) for name in names}
