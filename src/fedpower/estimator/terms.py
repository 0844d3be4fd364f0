"""From the parameters of a fit to the terms of its study and the settings of its solver."""

import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from os import PathLike
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_random_state

from fedpower.data import LocalMoment, RowSource, RowTreatment, largest_row_norm, public_vector
from fedpower.data.codebook import MEAN_WEIGHT as PREPARED_MEAN_WEIGHT
from fedpower.data.codebook import CodeBook, Ranges, ranges_of
from fedpower.data.columns import LARGEST
from fedpower.data.kernel import MOST_SQUARE_FEATURES
from fedpower.data.rules import TableRules
from fedpower.data.survey import Survey
from fedpower.errors import InputError, Sentence
from fedpower.parameters import SPECS, Parameters
from fedpower.privacy.accounting import default_delta, mu_of
from fedpower.privacy.budget import SMALLEST_EPSILON
from fedpower.privacy.clipped import Design, choose_design, predicted_gain
from fedpower.privacy.preparation import scores_share, shares_of
from fedpower.protocol.choice import SolverChoice, choose_solver
from fedpower.protocol.exact_sums import MOST_PRODUCTS, exact_sums
from fedpower.protocol.private_study import budget_of, noise_floor, sums_moment
from fedpower.protocol.roll import Identity
from fedpower.protocol.schedule import Schedule, explicit
from fedpower.protocol.solvers import (
    ClippedSettings,
    ExactSumsSettings,
    KrylovSettings,
    PowerSettings,
    SecureSettings,
    SolverSettings,
    UploadSettings,
)
from fedpower.protocol.solvers.signal import Rank
from fedpower.protocol.solvers.upload import same_rows
from fedpower.protocol.study import (
    PREPARED,
    NoiseMode,
    Study,
    SumTerms,
    preparation_sums,
    scores_sum,
)
from fedpower.protocol.weights import costly_sentence, costly_silos
from fedpower.report.causes import cause_of_noise
from fedpower.report.codebook_file import read_code_book
from fedpower.report.result import Result

_DECAYS: dict[str, Literal["constant", "linear", "halving"]] = {
    "every": "constant",
    "decaying": "linear",
    "halving": "halving",
}

_SCHEDULE = (
    "schedule must be 'every', 'decaying', 'halving' or whole steps, got {got}; give e.g. [2, 4, 5]"
)

IdentityPaths = Mapping[str, str | PathLike[str]]

ATTEMPTS = 3
"""How often silos take part at most: a first time, and twice where somebody failed."""

OVERSAMPLING = 10
"""How many columns more than k a basis has unless ``iteration_rank`` says otherwise."""

PRIVATE_STEPS = 10
"""T of the modes that noise every step unless ``n_steps`` says otherwise: the paper's."""


_MOST_FOR_SCORES = 0.5
"""Of a fit's ε: its components are what scores are of."""


class PrivacyLeakWarning(RuntimeWarning):
    """Something was read from the rows that should have been given as a public fact."""


def public_treatment(
    parameters: Parameters, columns: tuple[str, ...] | None = None
) -> RowTreatment:
    """Return what the parameters say is done to each row; ``columns`` are names, where there are any."""
    if parameters.network == "edge":
        _check_edges(parameters)
        return RowTreatment(row_norm=1.0)  # edges are given in units of their public maximum
    book = code_book_of(parameters)
    if book is not None:
        return book.treatment
    center, offset = None, parameters.public_offset
    if offset is not None:
        given = "center" if parameters.offset is None else "offset"
        if offset is not parameters.offset and parameters.offset is not None:
            raise InputError(
                "a public centre is an offset, and must be given once, got center and offset; give "
                "offset, and center=True or False"
            )
        center = public_vector(given, offset, columns=columns)
    scale = None
    if parameters.scale is not None:
        scale = public_vector("scale", parameters.scale, columns=columns, positive=True)
    low = high = None
    if parameters.ranges is not None and not prepares(parameters):
        width = len(parameters.ranges) if columns is None else len(columns)
        known = ranges_of(parameters.ranges, columns, width)
        low = np.array([-LARGEST if each is None else each[0] for each in known])
        high = np.array([LARGEST if each is None else each[1] for each in known])
        center = np.zeros(width) if center is None else center
    return RowTreatment(
        center=center,
        scale=scale,
        row_norm=parameters.row_norm,
        normalize=bool(parameters.normalize),
        low=low,
        high=high,
    )


def _check_edges(parameters: Parameters) -> None:
    """Refuse what is about rows where an edge is what is protected."""
    given = [
        name
        for name in (
            "row_norm",
            "scale",
            "offset",
            "ranges",
            "codebook",
            "device",
            "scores_epsilon",
        )
        if getattr(parameters, name) is not None
    ]
    given += [name for name in ("normalize", "standardize") if getattr(parameters, name)]
    given += [] if parameters.weights == "rows" else ["weights"]
    if given:
        raise InputError(
            "{odd} must be left alone with {network:edge}, where no row is treated, got it too; leave it "
            "out",
            odd=Sentence("{" + given[0] + "}"),
        )


def given_book(parameters: Parameters) -> CodeBook | None:
    """Return the code book that was given, a draft or not, read from its file where it is a path."""
    given = parameters.codebook
    if given is None or isinstance(given, CodeBook):
        return given
    if not isinstance(given, str | PathLike):
        raise InputError(
            f"codebook must be a CodeBook or the path of one, got {type(given).__name__}; make one with "
            "`fedpower prepare`"
        )
    return read_code_book(given)


def rules_of(parameters: Parameters) -> TableRules | None:
    """Return the rules of the silos' tables, with what stands for missing cells; None without any."""
    book = code_book_of(parameters) or given_book(parameters)
    rules = None if book is None else book.table_rules
    return None if rules is None else rules.with_fills()


def _known_ranges(
    parameters: Parameters, columns: tuple[str, ...] | None, n_features: int
) -> Ranges:
    """Return what columns are known to lie between: by what was said of them, else by their rules."""
    said = ranges_of(parameters.ranges, columns, n_features)
    rules = rules_of(parameters)
    if rules is None or columns is None:
        return said
    return tuple(each or ruled for each, ruled in zip(said, rules.ranges(columns), strict=True))


def code_book_of(parameters: Parameters) -> CodeBook | None:
    """Return the code book that was given, if it has the numbers; None without one, or for a draft."""
    given = parameters.codebook
    if given is None:
        return None
    if isinstance(given, CodeBook) and given.is_draft:
        return None
    contradicting = [
        name
        for name in ("row_norm", "scale", "offset", "ranges")
        if getattr(parameters, name) is not None
    ] + (["normalize"] if parameters.normalize else [])
    if not isinstance(parameters.center, bool | np.bool_):
        contradicting.append("center")
    if contradicting and not _is_readable_draft(given):
        raise InputError(
            "{option} must be left alone with {codebook}, which says it already, got both; leave one of "
            "them out",
            option=Sentence("{" + contradicting[0] + "}"),
        )
    book = given_book(parameters)
    return None if book is None or book.is_draft else book


def _is_readable_draft(given: Any) -> bool:
    """Return whether a path is that of a draft, which says nothing of numbers."""
    try:
        return isinstance(given, str | PathLike) and read_code_book(given).is_draft
    except InputError:
        return False


def prepares(parameters: Parameters) -> bool:
    """Return whether a fit finds offset, scale and bound privately: where it was told none of them.

    Only a noised moment does; fits whose steps are noised, or whose solver iterates, take a code book.
    """
    given = (parameters.row_norm, parameters.scale, parameters.public_offset)
    return (
        parameters.is_private
        and parameters.network is None
        and not parameters.normalize
        and all(each is None for each in given)
        and parameters.noise in ("auto", "moment")
        and parameters.solver in ("auto", "moment")
        and not parameters.paper_settings
        and code_book_of(parameters) is None
    )


def _standardizes(parameters: Parameters, study: Study) -> bool:
    """Return whether columns are brought to variance 1: as asked for, or where they were prepared."""
    if parameters.standardize is not None:
        return bool(parameters.standardize)
    return bool(study.preparation) or code_book_of(parameters) is not None


_BOUND_READ = "the bound on the norm of a row was read from the rows themselves"


def treatment_of(
    parameters: Parameters, columns: tuple[str, ...] | None, sources: Iterable[RowSource]
) -> tuple[RowTreatment | None, str | None]:
    """Return what is done to each row before it counts, and what leaked in finding it, or None.

    A private fit needs a bound on the norm of a row. Where nothing at all is given the run finds it, and
    there is none yet. Where it is told something but no bound, the largest norm is read from the rows:
    the result then depends on a single row in a way that no noise covers. That is warned of, and the
    privacy statement promises nothing.
    """
    if prepares(parameters):
        return None, None
    treatment = public_treatment(parameters, columns)
    if not parameters.is_private or treatment.bounded:
        return treatment, None
    if parameters.aggregation == "secure":
        raise InputError(
            Sentence(
                "{aggregation:secure} with public centres or scales must know a public bound on the norm "
                "of a row too, got none; give {row_norm:B}, or leave all of them out to have them found "
                "privately"
            )
        )
    bound = max(largest_row_norm(source, treatment) for source in sources)
    warnings.warn(
        Sentence(
            "{row_norm} was not given, so the largest norm was read from the rows themselves: that is "
            "not private; give {row_norm:B} as a public bound, or {normalize:True}"
        ),
        PrivacyLeakWarning,
        stacklevel=4,
    )
    found = RowTreatment(
        center=treatment.center, scale=treatment.scale, row_norm=bound if bound > 0 else 1.0
    )
    return found, _BOUND_READ


def warn_of_delta(study: Study, sizes: Iterable[int]) -> None:
    """Warn of a δ at which a mechanism may keep its promise and still give a whole row away."""
    least = min(sizes)
    if study.is_private and study.delta * least > 1:
        warnings.warn(
            f"delta should be below 1/rows of every silo, got {study.delta:g} where one has {least} "
            "rows: so large a delta lets a row be given away as it is; leave delta out, or give 1e-6",
            UserWarning,
            stacklevel=4,
        )


class NoiseWarning(UserWarning):
    """No component of a private fit stands above its noise: what it found may be noise alone."""


def warn_of_noise(result: Result, stacklevel: int = 4) -> None:
    """Warn of a fit that found nothing for certain, and say what would help."""
    cause = cause_of_noise(result)
    if cause is not None:
        warnings.warn(
            Sentence(
                "no component stands above the privacy noise, so that all of them may be noise; {cause}",
                cause=cause,
            ),
            NoiseWarning,
            stacklevel=stacklevel,
        )


class BoundWarning(UserWarning):
    """A public bound shortens rows enough to have made components of a private fit what they are."""


def warn_of_bound(result: Result) -> None:
    """Warn of components that stand above the noise but may be made by a public bound.

    One that was found is where bias and noise balance; the report has what is to be said of it.
    """
    if result.code_book is None and "bent" in result.standings:
        place = result.standings.index("bent") + 1
        count = result.standings.count("bent")
        many = "no other" if count == 1 else f"{count - 1} more"
        warnings.warn(
            Sentence(
                "the bound may have bent components that stand above the noise, pc{place} and {many}: "
                "{clipping} give a larger {row_norm}, or leave it out to have it found",
                place=place,
                many=many,
                clipping=str(result.clipping),
            ),
            BoundWarning,
            stacklevel=4,
        )


class ClippingWarning(UserWarning):
    """Every row is longer than its bound: told to whoever holds the rows, and kept nowhere."""


def warn_of_clipping(counts: Mapping[str, tuple[int, int]]) -> None:
    """Warn whoever holds the rows of a bound that every one exceeds; there is a result all the same.

    Parameters
    ----------
    counts
        By silo: how many rows were clipped, and how many there are.
    """
    if all(count == rows for count, rows in counts.values()):
        warnings.warn(
            Sentence(
                "every row is longer than {row_norm}, so that their directions alone count; give public "
                "centres and scales, or a larger bound"
            ),
            ClippingWarning,
            stacklevel=4,
        )


def warn_of_costly_silos(study: Study, sizes: Mapping[str, int]) -> None:
    """Warn of silos whose noise costs more than their rows bring; sizes are public."""
    budget = budget_of(study)
    if budget is None or study.aggregation == "secure":
        return
    costly, share = costly_silos(budget, sizes, study.weights)
    if costly:
        warnings.warn(costly_sentence(costly, share, sizes), UserWarning, stacklevel=4)


def warn_of_copies(study: Study, moments: Mapping[str, LocalMoment] | Mapping[str, Survey]) -> None:
    """Warn of silos of a private fit that hold the same rows: told to who runs it, and kept nowhere.

    Where nothing is private the moments themselves show it, in a federation too (`solvers.upload`).
    """
    if not study.is_private:
        return
    first: dict[tuple[int, float, bytes], str] = {}
    for name, each in moments.items():
        if isinstance(each, Survey):  # nothing was summed of rows that are yet to be prepared
            return
        trace = each.trace()
        if trace > 0:
            known = first.setdefault((each.n_rows, trace, each.mean().tobytes()), name)
            if known != name:
                warnings.warn(same_rows(known, name), UserWarning, stacklevel=4)


def _rank_of(parameters: Parameters, n_rows: int | None, n_features: int, noise: NoiseMode) -> Rank:
    """Return k, a fraction of variance or "noise", as asked for; refuse what ``noise`` cannot tell."""
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
    if isinstance(asked, str) and asked == "noise":
        if noise == "moment":
            return "noise"
        got = Sentence(
            "{epsilon:inf}: there is no noise to stand above; give a number or a fraction of variance"
        )
        if parameters.is_private:
            got = Sentence(
                "{noise:{mode}}, whose releases do not show the whole spectrum; give a number",
                mode=noise,
            )
        raise InputError("{n_components:noise} must go with {noise:moment}, got {got}", got=got)
    raise InputError.about(
        "n_components",
        must="be a whole number from 1 to {smaller_side:{most}}, a fraction between 0 and 1 or 'noise'",
        got=repr(asked),
        advice="choose one of these",
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
    """Return the study, the coordinator's settings and why it takes that solver; public facts decide.

    ``n_rows`` is None where the silos are yet to enrol: then k and δ must be given. ``identities`` are
    the silos' public keys, which the terms of a secure sum hold, and ``attempts`` how often silos take
    part in it at most. Without a ``treatment`` the run finds it privately, from the silos of the
    ``roster``, whose sizes are public.
    """
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
        sums = (SumTerms(*each) for each in design.sums(n_features, center=center))
        if scores:
            sums = (each._replace(share=each.share * (1.0 - scores)) for each in sums)
        prepared["sums"] = (*sums, *((scores_sum(scores),) if scores and secure else ()))
        width = max(design.widths)
    rules = rules_of(parameters)
    if treatment is None:
        _refuse_to_prepare_ratings(rules)
        known = _known_ranges(parameters, columns, n_features)
        prepared = {
            "ranges": known,
            "preparation": shares_of(
                n_rows=n_rows,
                n_features=n_features,
                n_open=sum(each is None for each in known),
                mu=mu_of(float(parameters.epsilon), delta),
            ),
            "roster": "" if agreement else _roster(roster or {}),
        }
        if secure:
            prepared["sums"] = preparation_sums(
                prepared["preparation"],
                n_features=n_features,
                n_open=sum(each is None for each in known),
                center=center,
                scores=scores,
            )
    elif scores and secure and noise == "moment":
        prepared["sums"] = preparation_sums(
            (0.0,) * 4, n_features=n_features, n_open=0, center=center, scores=scores
        )
    if scores:
        prepared["scores"] = scores
        prepared["roster"] = "" if agreement else _asked_how(parameters, roster or {})
    if rules is not None and columns is not None:
        prepared["rules"] = rules.digest
        prepared["groups"] = rules.groups(columns)
    if parameters.aggregation == "secure" and noise == "none":
        _check_compatible(parameters, noise)
        iterates = _exact_solver(parameters, n_features, width).solver == "krylov"
        prepared["sums"] = exact_sums(
            n_features=n_features,
            iteration_rank=width,
            center=center,
            n_products=min(parameters.max_rounds, MOST_PRODUCTS) if iterates else None,
            scores=bool(scores),
        )
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
    choice = _solver_of(parameters, study, rank)
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


def keeps_moment(parameters: Parameters) -> bool:
    """Return whether the result has the pooled moment: communities are found from a network's."""
    return bool(parameters.keep_moment) or parameters.network is not None


def _asked_how(parameters: Parameters, sizes: Mapping[str, int | None]) -> str:
    """Return a digest of the silos and of all that decides which axes their scores are counted on."""
    settings = {
        name: repr(getattr(parameters, name))
        for name, spec in SPECS.items()
        if spec.section in ("components", "solver", "rounds") and name != "keep_moment"
    }
    listed = json.dumps([sorted(sizes.items()), repr(parameters.standardize), settings])
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


def _solver_of(parameters: Parameters, study: Study, rank: Rank) -> SolverChoice:
    """Return the solver, chosen or as asked for; what contradicts it is refused."""
    given = parameters.paper_settings
    if study.noise == "step":
        given = tuple(name for name in given if name != "n_steps")
    if parameters.drift_correction and study.noise in ("step", "paper"):
        raise InputError(
            "{drift_correction} must go with {noise:moment} or {epsilon:inf}, got {noise:{mode}}, "
            "where the product it needs would be one more release; leave it out",
            mode=study.noise,
        )
    if study.noise == "clipped" and parameters.keep_moment:
        return _kept_moment(parameters, study, given)
    if study.noise == "clipped":
        warm = "after the moment" if sums_moment(study) else "from a random start"
        return SolverChoice(
            solver="clipped",
            reason=f"rows count by their clipped products with few directions, {warm}",
        )
    if study.aggregation == "secure" and not study.is_private:
        return _exact_solver(parameters, study.n_features, study.iteration_rank)
    if study.aggregation == "secure":
        return SolverChoice(
            solver="moment",
            reason=Sentence(
                "{aggregation:secure} sums the silos' moments once, and all else follows from the sum"
            ),
        )
    if study.noise == "moment" and not isinstance(rank, int):
        return _whole_spectrum(parameters, rank, given)
    if _standardizes(parameters, study):
        return _whole_moment(parameters, study, given)
    if keeps_moment(parameters):
        return _kept_moment(parameters, study, given)
    if parameters.solver == "auto":
        return choose_solver(
            n_features=study.n_features,
            iteration_rank=study.iteration_rank,
            noise=study.noise,
            paper_settings=given,
        )
    if parameters.solver == "moment" and study.noise in ("step", "paper"):
        raise InputError(
            "{solver:moment} must go with {noise:moment} or {epsilon:inf}, got {noise:{mode}}; "
            "choose another solver or noise",
            mode=study.noise,
        )
    foreign = [name for name in given if (parameters.solver, name) != ("krylov", "n_participants")]
    if parameters.solver != "fedpower" and foreign:
        raise InputError.about(
            foreign[0],
            must="be left alone with {solver:{taken}}",
            got=repr(getattr(parameters, foreign[0])),
            advice="it belongs to {solver:fedpower}",
            taken=parameters.solver,
        )
    return SolverChoice(solver=parameters.solver, reason="it was asked for")


def _exact_solver(parameters: Parameters, n_features: int, iteration_rank: int) -> SolverChoice:
    """Return the solver of an exact fit over secure sums."""
    if parameters.standardize:
        if parameters.solver == "krylov":
            raise InputError(
                Sentence(
                    "standardize must go with the sum of the moment, whose diagonal has the variances, "
                    "got {solver:krylov}; leave one of them out, or give public scales"
                )
            )
        return SolverChoice(
            solver="moment",
            reason="columns are standardised by the moment's diagonal, which its sum gives",
        )
    if keeps_moment(parameters):
        if parameters.solver == "krylov":
            raise InputError(
                Sentence(
                    "{keep_moment:True} must go with the sum of the moment, got {solver:krylov}, which "
                    "sums products; leave one of them out"
                )
            )
        return SolverChoice(
            solver="moment", reason="the pooled moment is kept, which its sum gives"
        )
    if parameters.solver == "auto":
        return choose_solver(n_features=n_features, iteration_rank=iteration_rank, noise="none")
    return SolverChoice(solver=parameters.solver, reason="it was asked for")


def _whole_moment(parameters: Parameters, study: Study, given: tuple[str, ...]) -> SolverChoice:
    """Return the solver that has the moment's diagonal, by which columns are standardised."""
    if study.noise in ("step", "paper") or parameters.solver not in ("auto", "moment") or given:
        raise InputError(
            "standardize must go with the solver that uploads the moment, whose diagonal has the "
            f"variances, got solver={parameters.solver!r} and noise={study.noise!r}"
            + (f" with {given[0]}" if given else "")
            + "; leave these alone, or give public scales"
        )
    return SolverChoice(
        solver="moment",
        reason="columns are standardised by the moment's diagonal, which its upload gives",
    )


def _kept_moment(parameters: Parameters, study: Study, given: tuple[str, ...]) -> SolverChoice:
    """Return the solver that has the pooled moment, which the result is to keep."""
    without = study.noise in ("step", "paper", "clipped")
    if without or parameters.solver not in ("auto", "moment") or given:
        raise InputError(
            "{keep_moment:True} must go with {solver:moment} and {noise:moment} or {epsilon:inf}, got "
            "settings with which no silo sends its moment; leave {odd} alone",
            odd=Sentence("{" + (given[0] if given else _odd_one(parameters)) + "}"),
        )
    return SolverChoice(solver="moment", reason="the pooled moment is kept, which its upload gives")


def _odd_one(parameters: Parameters) -> str:
    return "noise" if parameters.solver in ("auto", "moment") else "solver"


def _whole_spectrum(parameters: Parameters, rank: Rank, given: tuple[str, ...]) -> SolverChoice:
    """Return the solver that shows how many components stand above the noise: there is one."""
    if parameters.solver not in ("auto", "moment") or given:
        name = given[0] if parameters.solver in ("auto", "moment") else "solver"
        raise InputError(
            f"{{{name}}} must be left alone with {{n_components:{{rank}}}}, got {{given!r}}: which "
            "components stand above the noise is read off the whole spectrum, which "
            "{solver:moment} gives",
            rank=rank,
            given=getattr(parameters, name),
        )
    return SolverChoice(
        solver="moment",
        reason=Sentence(
            "{n_components:{rank}} is read off the whole spectrum, which the moment's upload gives",
            rank=rank,
        ),
    )


def settings_of(
    parameters: Parameters,
    study: Study,
    choice: SolverChoice,
    *,
    rank: Rank,
    n_steps: int | None,
) -> SolverSettings:
    """Return the settings of the chosen solver."""
    if study.noise == "clipped":
        assert isinstance(rank, int), "a clipped fit has a number of components"
        return ClippedSettings(study=study, rank=rank)
    if study.aggregation == "secure" and not study.is_private:
        assert rank != "noise", "without noise there is nothing to stand above"
        return ExactSumsSettings(
            study=study,
            rank=rank,
            solver="krylov" if choice.solver == "krylov" else "moment",
            tol=float(parameters.tol),
            standardize=_standardizes(parameters, study),
            keep_moment=keeps_moment(parameters),
        )
    if study.aggregation == "secure":
        return SecureSettings(
            study=study,
            rank=rank,
            standardize=_standardizes(parameters, study),
            keep_moment=keeps_moment(parameters),
        )
    if choice.solver == "moment":
        return UploadSettings(
            n_features=study.n_features,
            rank=rank,
            iteration_rank=study.iteration_rank,
            weights=study.weights,
            preparation=study if study.preparation else None,
            mean_weight=study.mean_weight,
            standardize=_standardizes(parameters, study),
            groups=study.groups,
            keep_moment=keeps_moment(parameters),
            adjacency=study.network == "edge",
        )
    assert rank != "noise", "only an upload shows what stands above the noise"
    if choice.solver == "krylov":
        opens_locally = parameters.one_shot_start
        if opens_locally is None:
            opens_locally = not study.is_private
        return KrylovSettings(
            warm=bool(opens_locally),
            lookahead=bool(opens_locally),
            n_features=study.n_features,
            rank=rank,
            iteration_rank=study.iteration_rank,
            tol=float(parameters.tol),
            floor=noise_floor(study),
            max_rounds=parameters.max_rounds,
            n_steps=study.n_steps,
            n_participants=parameters.n_participants,
            participation=parameters.participation,
            center=study.center,
            weights=study.weights,
        )
    return PowerSettings(
        n_features=study.n_features,
        rank=rank,
        iteration_rank=study.iteration_rank,
        schedule=_schedule_of(parameters),
        n_steps=n_steps,
        tol=0.0 if study.noise in ("step", "paper") else float(parameters.tol),
        floor=noise_floor(study),
        max_rounds=parameters.max_rounds,
        alignment=parameters.alignment,
        reference=parameters.reference,
        n_participants=parameters.n_participants,
        participation=parameters.participation,
        center=study.center,
        corrected=bool(parameters.drift_correction),
        weights=study.weights,
    )


def public_rng(parameters: Parameters, study: Study | None = None) -> np.random.Generator:
    """Return the public randomness of a fit: start basis and sampling of silos, never noise.

    Where every product is noised, or scores are counted, and no ``random_state`` is given it follows from
    the ``study``, if that is given: the same fit then asks the same questions, to which ledgers hold the
    answers already.
    """
    if (
        study is not None
        and (study.noise in ("step", "paper", "clipped") or study.scores)
        and parameters.random_state is None
    ):
        return np.random.default_rng(int(study.digest, 16))
    return np.random.default_rng(check_random_state(parameters.random_state).randint(2**31 - 1))


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
    """Return whether clipped products are predicted to be clearly more accurate than the moment.

    Only where people guess how much variance the leading directions hold, and where all that the fit asks
    for can be had from clipped products.
    """
    rank = parameters.n_components
    if (
        parameters.energy is None
        or not isinstance(rank, Integral)
        or isinstance(rank, bool)
        or not 1 <= int(rank) < n_features
        or parameters.solver != "auto"
        or parameters.weights != "rows"
        or parameters.standardize
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
    parameters: Parameters,
    rank: Rank,
    n_rows: int | None,
    n_features: int,
    delta: float,
    *,
    center: bool,
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
    if parameters.standardize:
        raise InputError(
            Sentence(
                "{standardize} must be left alone with {noise:clipped}, which has no diagonal to "
                "standardise by; give public scales, or a code book"
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


def _schedule_of(parameters: Parameters) -> Schedule:
    """Return the schedule of rounds."""
    schedule = parameters.schedule
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, str):
        if schedule not in _DECAYS:
            raise InputError(_SCHEDULE.format(got=repr(schedule)))
        return Schedule(local_steps=parameters.local_steps, decay=_DECAYS[schedule])
    try:
        if isinstance(schedule, Iterator):
            raise TypeError("an iterator is used up by the first look at it")
        return explicit(schedule)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(_SCHEDULE.format(got=repr(schedule))) from error


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
    if noise not in ("moment", "clipped", "none"):
        raise InputError(
            "{aggregation:secure} must go with {noise:moment}, got {mode!r}, of which each step is "
            "one more sum that could be told apart from the others; leave noise alone, or set it to "
            "'moment' for wide rows",
            mode=noise,
        )
    if noise == "none" and parameters.solver == "fedpower":
        raise InputError(
            Sentence(
                "{aggregation:secure} must go with {solver:moment} or {solver:krylov}, got "
                "{solver:fedpower}, whose local steps are no sum over silos; leave solver alone"
            )
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
                Sentence(
                    "identities must go with {aggregation:secure}, got some without; leave them out"
                )
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
