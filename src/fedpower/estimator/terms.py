"""From the options of a fit to its study: what is done to rows, what is noised, which solver runs."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from os import PathLike
from typing import Any, Literal

import numpy as np

from fedpower.engines.inprocess import Paths
from fedpower.estimator.fit_warnings import PrivacyLeakWarning
from fedpower.exceptions import InputError, require, warn
from fedpower.options import SOLVERS, Auto, Edge, Options, Plain, PowerMethod, Secure, converted
from fedpower.privacy.accounting import default_delta, mu_of
from fedpower.privacy.budget import SMALLEST_EPSILON, Outlook, scores_share, shares_of
from fedpower.protocol.secure import Identity
from fedpower.protocol.solvers import SolverSettings
from fedpower.protocol.solvers.shared import Rank
from fedpower.protocol.study import PREPARED, NoiseMode, SolverChoice, Study, sums_moment
from fedpower.report.text import human_bytes
from fedpower.rows.source import RowSource, largest_row_norm
from fedpower.rules.codebook import MEAN_WEIGHT as PREPARED_MEAN_WEIGHT
from fedpower.rules.codebook import CodeBook, ranges_of
from fedpower.rules.rules import TableRules
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.moment import MOST_SQUARE_FEATURES
from fedpower.values import LARGEST, public_vector

ATTEMPTS = 3  # how often silos take part at most: once, and twice more after a failure
OVERSAMPLING = 10  # how many columns more than k a basis has unless ``iteration_rank`` is given
PRIVATE_STEPS = 10  # T of the modes that noise every step unless ``n_steps`` is given: the paper's
_MOST_FOR_SCORES = 0.5  # largest part of ε for scores: the rest must find their components
# What a round and a byte count for: about what a federation over a wide-area network takes.
_SECONDS_PER_ROUND, _BYTES_PER_SECOND = 2.0, 2e6
_KRYLOV_ROUNDS = 8  # that krylov counts for: fewer where the gap is wide or noise sets the floor


def options_of(model: Any) -> Options:
    """Return the options of an estimator, or given by name, checked; a code book's path is read."""
    given: dict[str, Any] = dict(model) if isinstance(model, Mapping) else model.get_params(deep=False)
    book = given.get("codebook")
    if isinstance(book, str | PathLike):
        given["codebook"] = CodeBook.load(book)
    elif isinstance(book, Mapping):
        given["codebook"] = CodeBook(rules=book)
    return Options(**given)


# --- rows ------------------------------------------------------------------------------------------


def public_treatment(options: Options, columns: tuple[str, ...] | None = None) -> RowTreatment | None:
    """Return what the options do to each row, None where a fit finds it; ``columns`` may have no names."""
    if options.prepares:
        return None
    if isinstance(options.unit, Edge):
        given = [name for name in ("codebook", "ranges", "device") if getattr(options, name) is not None]
        given += [] if options.noise.scores_epsilon is None else ["scores_epsilon"]
        given += [] if options.aggregation.weights == "rows" else ["weights"]
        if given:
            raise InputError(f"{given[0]} must be left out where edges are protected")
        return RowTreatment(row_norm=1.0)  # edges are given in units of their public maximum
    if options.book is not None:
        require(options.ranges is None, "ranges", "left out, because the code book has them", options.ranges)
        return options.book.treatment
    public = options.public
    center, scale = (
        None if value is None else public_vector(name, value, columns=columns, positive=name == "scale")
        for name, value in (("offset", public.offset), ("scale", public.scale))
    )
    low = high = None
    if options.ranges is not None:
        width = len(options.ranges) if columns is None else len(columns)
        known = ranges_of(options.ranges, columns, width)
        low, high = np.array([ends or (-LARGEST, LARGEST) for ends in known]).T.copy()
        center = np.zeros(width) if center is None else center
    return RowTreatment(
        center=center,
        scale=scale,
        row_norm=public.row_norm,
        normalize=bool(public.normalize),
        low=low,
        high=high,
    )


def bounded(
    options: Options, treatment: RowTreatment | None, sources: Iterable[RowSource]
) -> tuple[RowTreatment | None, str | None]:
    """Return the treatment with a bound on the norm of a row, and what leaked in finding it, or None."""
    if treatment is None or treatment.bounded or not options.is_private:
        return treatment, None
    if isinstance(options.aggregation, Secure):
        raise InputError("a secure sum with offset or scale must have a public bound, got none; add row_norm")
    bound = max(largest_row_norm(source, treatment) for source in sources)
    warn(
        "the bound on row norms was read from the rows, which is not private; give "
        "codebook=CodeBook(row_norm=B) with a public bound B, or CodeBook(normalize=True)",
        PrivacyLeakWarning,
    )
    known = RowTreatment(center=treatment.center, scale=treatment.scale, row_norm=bound if bound > 0 else 1.0)
    return known, "the bound on row norms was read from the rows"


# --- the study -------------------------------------------------------------------------------------


def rank_and_width(
    options: Options, n_rows: int | None, n_features: int, noise: NoiseMode
) -> tuple[Rank, int]:
    """Return k, or how it is to be found, and r: as asked for, or what goes with k."""
    asked, most = options.n_components, n_features if n_rows is None else min(n_rows, n_features)
    if asked is None and n_rows is not None:
        asked = most
    is_fraction = isinstance(asked, Real) and not isinstance(asked, Integral) and 0 < float(asked) < 1
    if is_fraction or (isinstance(asked, str) and asked == "auto"):
        if noise not in ("none", "covariance"):
            raise InputError(
                f"n_components={asked!r} must be used with noise='covariance' or epsilon=inf, "
                f"got noise={noise!r}, which does not show the whole spectrum; give a number of components"
            )
        return float(asked) if is_fraction else "auto", n_features
    must = f"a whole number from 1 to min(n_samples, n_features)={most}, a fraction between 0 and 1 or 'auto'"
    whole = isinstance(asked, Integral) and not isinstance(asked, bool) and 1 <= int(asked) <= most
    require(whole, "n_components", must, asked)
    rank, width = int(asked), options.solver.iteration_rank
    if width is None:
        return rank, min(n_features, rank + (1 if noise == "paper" else OVERSAMPLING))
    must = f"between n_components={rank} and the number of columns {n_features}"
    require(rank <= width <= n_features, "iteration_rank", must, width)
    return rank, width


def build_study(
    options: Options,
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
    center, rules, sizes = options.centers, options.rules, sorted((roster or {}).items())
    if center and n_rows is not None and n_rows < 2:
        raise InputError(f"centring must have at least 2 rows, got n_samples = {n_rows}; pass center=False")
    noise = noise_of(options, n_features, n_rows)
    rank, width = rank_and_width(
        options, n_features if isinstance(options.unit, Edge) else n_rows, n_features, noise
    )
    n_steps = getattr(options.solver, "n_steps", None)
    if noise in ("step", "paper") and n_steps is None:
        n_steps = PRIVATE_STEPS
    pairs = n_features * (n_features - 1) // 2
    n_units = max(pairs, 1) if isinstance(options.unit, Edge) else n_rows
    delta = 0.0 if noise == "none" else _delta(options, n_units)
    scores = _scores_of(options, noise, delta, n_features)
    for conflict in _conflicts(options, noise, rank):
        raise InputError(conflict)
    more: dict[str, Any] = {}
    if isinstance(options.aggregation, Secure):
        known = identities or {}
        more = {
            "aggregation": "secure",
            "colluders": int(options.aggregation.colluders),
            "identities": tuple(known.items()),
            "min_silos": options.aggregation.min_silos or len(known),
            "attempts": attempts,
        }
    if noise == "clipped":
        assert isinstance(rank, int), "others were refused"
        outlook = _outlook(options, n_features, n_rows, rank)
        design = outlook.design(center=center, width=options.solver.iteration_rank)
        queries = design.queries(n_features, center=center)
        more["design"] = tuple(terms._replace(share=terms.share * (1.0 - scores)) for terms in queries)
        width = max(design.widths)
    if treatment is None:
        if rules is not None and rules.spans:
            raise InputError(
                "private ratings must have a bound on row norms, got none; give row_norm or normalize"
            )
        ranges = ranges_of(options.ranges, columns, n_features)
        if rules is not None and columns is not None:
            ranges = tuple(given or own for given, own in zip(ranges, rules.ranges(columns), strict=True))
        more["ranges"] = ranges
        more["preparation"] = shares_of(
            n_rows=n_rows,
            n_features=n_features,
            n_open=sum(ends is None for ends in ranges),
            mu=mu_of(float(options.epsilon), delta),
            n_noises=1 if isinstance(options.aggregation, Secure) else max(1, len(sizes)),
        )
        more["roster"] = "" if agreement else _digest(sizes)
    if scores:
        # Everything that decides on which axes scores are counted.
        names = ("n_components", "random_state", "solver", "aggregation")
        axes = [sizes, options.standardizes, {name: repr(getattr(options, name)) for name in names}]
        more |= {"scores": scores, "roster": "" if agreement else _digest(axes)}
    if rules is not None and columns is not None:
        more |= {"rules": rules.digest, "groups": rules.groups(columns)}
    if center and noise == "covariance" and (treatment is None or treatment.low is not None):
        more["mean_weight"] = PREPARED_MEAN_WEIGHT
    network = options.network
    study = Study(
        columns=columns,
        n_features=n_features,
        iteration_rank=width,
        center=center,
        treatment=PREPARED if treatment is None else treatment.digest(),
        noise=noise,
        epsilon=float(options.epsilon),
        delta=delta,
        n_steps=n_steps if noise in ("step", "paper") else None,
        agreement=agreement,
        weights=options.aggregation.weights,
        # Rules of a table with one rating per row name the column of persons.
        unit=options.person.column or ("" if rules is None or rules.long is None else rules.long[0].column),
        rows_per_unit=options.person.rows,
        network="" if network is None else network.name,
        edge_weight=1.0 if network is None else float(network.max_weight or 1.0),
        **more,
    )
    choice = solver_of(options, study, rank)
    return study, settings_of(options, study, choice, rank=rank), choice


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _delta(options: Options, n_rows: int | None) -> float:
    if options.delta is not None:
        return float(options.delta)
    if n_rows is None:
        raise InputError("delta must be in the study, got none; give at most 1e-6")
    return default_delta(n_rows)


def _scores_of(options: Options, noise: NoiseMode, delta: float, n_features: int) -> float:
    """Return the share of the budget for counting scores: 0 for none, 1 for exact counts."""
    asked, epsilon = options.noise.scores_epsilon, float(options.epsilon)
    if asked is None:
        return 0.0
    if n_features < 2 or options.n_components == 1:
        raise InputError(
            "scores_epsilon must be used with at least two components, got one; give n_components=2"
        )
    if noise == "none":
        require(math.isinf(asked), "scores_epsilon", "inf with epsilon=inf, where nothing is private", asked)
        return 1.0
    must = f"at most half of epsilon={epsilon:g}, of which it is a part"
    require(asked <= _MOST_FOR_SCORES * epsilon, "scores_epsilon", must, asked, f"give e.g. {epsilon / 10:g}")
    require(asked >= SMALLEST_EPSILON, "scores_epsilon", f"at least {SMALLEST_EPSILON:g}", asked)
    return scores_share(float(asked), epsilon, delta)


def noise_of(options: Options, n_features: int, n_rows: int | None = None) -> NoiseMode:
    """Return what is noised."""
    if not options.is_private:
        return "none"
    kind: NoiseMode | Literal["auto"] = options.noise.kind
    if kind != "auto":
        return kind
    rank, guessed = options.n_components, options.noise.energy is not None
    whole = isinstance(rank, Integral) and not isinstance(rank, bool) and 1 <= int(rank) < n_features
    may_clip = whole and guessed and not options.prepares and options.person.column is None
    fits = may_clip and not any(_conflicts(options, "clipped", rank))
    if fits and _outlook(options, n_features, n_rows, int(rank)).gains_by_clipping():
        return "clipped"
    return "covariance" if n_features <= MOST_SQUARE_FEATURES else "step"


def _outlook(options: Options, n_features: int, n_rows: int | None, rank: int) -> Outlook:
    multiplier = 1.0 / mu_of(float(options.epsilon), _delta(options, n_rows))
    return Outlook(
        n_features=n_features, rank=rank, n_rows=n_rows, multiplier=multiplier, energy=options.noise.energy
    )


def _conflicts(options: Options, noise: NoiseMode, rank: Any) -> list[str]:
    """Return what of the options does not go together, in sentences."""
    solver, given, weights = options.solver, list(options.paper_settings), options.aggregation.weights
    asked, by_step = solver.name, noise in ("step", "paper")
    first, mode = next(iter(given), ""), "with noise='clipped'"
    cases: dict[str, object]  # by sentence: whether it holds
    if noise == "clipped":
        own = [*given, *([] if isinstance(solver, Auto) else ["solver"]), ""]
        cases = {
            f"{own[0]} must be left out {mode}, which has its own solver": own[0],
            f"columns must not be standardized {mode}; pass standardize=False": options.standardizes,
            f"weights must be 'rows' {mode}, got {weights!r}": weights != "rows",
            f"device must be left out {mode}, which runs on the CPU, got {options.device!r}": (
                options.device is not None
            ),
        }
    elif isinstance(options.aggregation, Secure):
        odd = first or ("lookahead" if getattr(solver, "lookahead", None) else "")
        cases = {
            f"solver must be 'upload' with aggregation='secure', got {asked!r}; a secure sum is one round": (
                noise == "covariance" and asked not in ("auto", "upload")
            ),
            f"{odd} must be left out with aggregation='secure', which only sums over all silos": odd,
        }
    else:
        why, mode = _why_upload(options, noise, rank), "must be used with noise='covariance' or epsilon=inf"
        given = [name for name in given if (name, noise) != ("n_steps", "step")]
        foreign = [name for name in given if name != "n_participants" and not isinstance(solver, PowerMethod)]
        odd = next(iter(given), "" if asked in ("auto", "upload") else f"solver={asked!r}")
        hint = "; pass standardize=False" if "standardizes" in (why or "") else ""
        drifts = getattr(solver, "drift_correction", False)
        cases = {
            f"drift_correction {mode}, got noise={noise!r}": by_step and drifts,
            f"noise must be 'covariance' because {why}, got {noise!r}{hint}": why and by_step,
            f"{odd} must be left out because {why}, which needs solver='upload'{hint}": why and odd,
            f"solver={asked!r} {mode}, got noise={noise!r}": by_step and "step" not in solver.noises,
            f"drift-corrected steps must know the number of components, got {rank}": (
                drifts and isinstance(rank, float)
            ),
            f"{next(iter(foreign), '')} must be left out with solver={asked!r}; it belongs to 'fedpower'": (
                foreign and asked != "auto"
            ),
        }
    return [sentence for sentence, odd in cases.items() if odd]


def _why_upload(options: Options, noise: str, rank: Rank) -> str | None:
    """Return why nothing but the upload of the covariance will do; None where others do."""
    if rank == "auto" or (noise == "covariance" and not isinstance(rank, int)):
        return f"n_components={rank!r} depends on the whole spectrum"
    if options.network is not None:
        return "communities are found from the whole matrix"
    if options.standardizes and options.is_private:
        return "the diagonal of the covariance standardizes columns"
    return None


def identities_of(options: Options, silos: Iterable[str], paths: Paths | None) -> dict[str, Identity]:
    """Return every silo's identity: read from its file, or made for this fit; none for a plain fit."""
    names = list(silos)
    if isinstance(options.aggregation, Plain):
        require(not paths, "identities", "left out with aggregation='plain'", paths)
        return {}
    if not paths:
        return {name: Identity.new() for name in names}
    odd = sorted(set(paths) ^ set(names))
    if odd:
        raise InputError(f"every silo must have an identity or none, got {odd[0]!r} on one side only")
    return {name: Identity.load(paths[name]) for name in names}


# --- the solver ------------------------------------------------------------------------------------


def solver_of(options: Options, study: Study, rank: Rank) -> SolverChoice:
    """Return the solver, chosen or as asked for, of options that go together."""
    d = study.n_features
    triangle, block = 4 * d * (d + 1), 16 * d * study.iteration_rank
    upload = _SECONDS_PER_ROUND + triangle / _BYTES_PER_SECOND
    steps = _KRYLOV_ROUNDS * (_SECONDS_PER_ROUND + block / _BYTES_PER_SECOND)
    figures = (
        f"one round of {human_bytes(triangle)} per silo against about {_KRYLOV_ROUNDS} rounds of "
        f"{human_bytes(block)}"
    )
    why = _why_upload(options, study.noise, rank)
    given = [name for name in options.paper_settings if (name, study.noise) != ("n_steps", "step")]
    solver = "krylov"
    if study.noise == "clipped":
        start = "after the covariance" if sums_moment(study) else "from a random start"
        solver, reason = "clipped", f"noise='clipped' bounds products with few directions, {start}"
    elif study.is_secure:
        solver, reason = "upload", "a secure sum adds the silos' covariances once"
    elif why is not None:
        solver, reason = "upload", why
    elif options.solver.name != "auto":
        solver, reason = options.solver.name, "it was asked for"
    elif given:
        solver, reason = "fedpower", f"{', '.join(given)} belongs to the paper's method"
    elif study.noise == "paper":
        solver, reason = "fedpower", "noise='paper' is the paper's method as printed"
    elif study.noise == "step":
        reason = "every product costs budget, and krylov uses all of them together"
    elif d <= MOST_SQUARE_FEATURES and upload <= steps:
        solver, reason = "upload", f"one upload of the covariance is cheapest: {figures}"
    else:
        reason = f"the covariance is large to upload: {figures}"
    return SolverChoice(solver=solver, reason=reason)


def settings_of(options: Options, study: Study, choice: SolverChoice, *, rank: Rank) -> SolverSettings:
    """Return what the chosen solver needs to know."""
    asked = options.solver
    return SolverSettings(
        study=study,
        rank=rank,
        solver=asked if choice.solver == "clipped" else converted(asked, SOLVERS[choice.solver]),
        standardize=options.standardizes,
        code_book=options.book,
        keep_covariance=study.noise == "covariance" or asked.name == "upload" or options.network is not None,
        shortens=shortens(study, options.rules, normalize=bool(options.public.normalize)),
    )


def shortens(study: Study, rules: TableRules | None, *, normalize: bool) -> bool:
    """Return whether a bound may shorten rows: edges, comparisons and unit rows are never too long."""
    fixed_length = study.network == "edge" or (rules is not None and rules.comparison is not None)
    return study.is_private and not normalize and not fixed_length


def public_rng(options: Options, study: Study | None = None) -> np.random.Generator:
    """Return the public randomness of a fit: start basis and sampling of silos, never noise."""
    seed = options.random_state
    if study is not None and (study.noise in ("step", "paper", "clipped") or study.scores) and seed is None:
        return np.random.default_rng(int(study.digest, 16))
    state: Any = seed  # what scikit-learn makes of it, without its import
    if seed is None:
        state = np.random
    elif isinstance(seed, Integral):
        state = np.random.RandomState(int(seed))
    require(hasattr(state, "randint"), "random_state", "a whole number, a RandomState or None", seed)
    return np.random.default_rng(state.randint(2**31 - 1))
