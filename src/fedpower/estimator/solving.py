"""Which solver a study is given to, and with which settings."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, Sentence
from fedpower.estimator.treatment import code_book_of, rules_of
from fedpower.parameters import Parameters
from fedpower.protocol.choice import SolverChoice, choose_solver
from fedpower.protocol.private_study import noise_floor, sums_moment
from fedpower.protocol.schedule import Schedule, explicit
from fedpower.protocol.solvers import (
    ClippedSettings,
    KrylovSettings,
    PowerSettings,
    SecureSettings,
    SolverSettings,
    UploadSettings,
)
from fedpower.protocol.solvers.gains import Gains, fixed, unit_variances
from fedpower.protocol.solvers.shared import Rank
from fedpower.protocol.study import Study
from fedpower.rules.rules import TableRules

Array = NDArray[np.float64]

_DECAYS: dict[str, Literal["constant", "linear", "halving"]] = {
    "every": "constant",
    "decaying": "linear",
    "halving": "halving",
}


_SCHEDULE = "schedule must be 'every', 'decaying', 'halving' or whole steps, got {got}; give e.g. [2, 4, 5]"


def keeps_moment(parameters: Parameters) -> bool:
    """Return whether the result has the pooled moment: communities are found from a network's."""
    return bool(parameters.keep_moment) or parameters.network is not None


def solver_of(parameters: Parameters, study: Study, rank: Rank) -> SolverChoice:
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
            solver="clipped", reason=f"rows count by their clipped products with few directions, {warm}"
        )
    if study.aggregation == "secure":
        return SolverChoice(
            solver="moment",
            reason=Sentence(
                "{aggregation:secure} sums the silos' moments once, and all else follows from the sum"
            ),
        )
    if study.noise == "moment" and not isinstance(rank, int):
        return _whole_spectrum(parameters, rank, given)
    if keeps_moment(parameters):
        return _kept_moment(parameters, study, given)
    if parameters.standardizes and study.is_private:
        return _whole_moment(parameters, study, given)
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


def _whole_moment(parameters: Parameters, study: Study, given: tuple[str, ...]) -> SolverChoice:
    """Return the solver that has the moment's diagonal, by which columns are standardised."""
    if study.noise in ("step", "paper") or parameters.solver not in ("auto", "moment") or given:
        if study.noise in ("step", "paper"):
            got = Sentence("{noise:{mode}}", mode=study.noise)
        elif given:
            got = Sentence("{" + given[0] + "}")
        else:
            got = Sentence("{solver:{taken}}", taken=parameters.solver)
        raise InputError(
            "a private fit with {standardize:True} must upload the moment, whose diagonal has the "
            "variances, got {got}; pass {standardize:False}",
            got=got,
        )
    return SolverChoice(
        solver="moment", reason="columns are standardised by the moment's diagonal, which its upload gives"
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
    """Return the solver that shows how many components are determined: there is one."""
    if parameters.solver not in ("auto", "moment") or given:
        name = given[0] if parameters.solver in ("auto", "moment") else "solver"
        raise InputError(
            f"{{{name}}} must be left alone with {{n_components:{{rank}}}}, got {{given!r}}: which "
            "components are determined is read off the whole spectrum, which "
            "{solver:moment} gives",
            rank=rank,
            given=getattr(parameters, name),
        )
    return SolverChoice(
        solver="moment",
        reason=Sentence(
            "{n_components:{rank}} is read off the whole spectrum, which the moment's upload gives", rank=rank
        ),
    )


def settings_of(
    parameters: Parameters, study: Study, choice: SolverChoice, *, rank: Rank, n_steps: int | None
) -> SolverSettings:
    """Return the settings of the chosen solver."""
    if study.noise == "clipped":
        assert isinstance(rank, int), "a clipped fit has a number of components"
        return ClippedSettings(study=study, rank=rank)
    if study.aggregation == "secure":
        return SecureSettings(
            study=study,
            rank=rank,
            standardize=parameters.standardizes,
            keep_moment=keeps_moment(parameters),
            code_book=code_book_of(parameters),
            shortens=shortens(study, rules_of(parameters), normalize=parameters.normalize),
        )
    if choice.solver == "moment":
        return UploadSettings(
            n_features=study.n_features,
            rank=rank,
            iteration_rank=study.iteration_rank,
            weights=study.weights,
            preparation=study if study.preparation else None,
            mean_weight=study.mean_weight,
            standardize=parameters.standardizes,
            groups=study.groups,
            keep_moment=keeps_moment(parameters),
            code_book=code_book_of(parameters),
            shortens=shortens(study, rules_of(parameters), normalize=parameters.normalize),
            adjacency=study.network == "edge",
        )
    assert rank != "auto", "only an upload shows the whole spectrum"
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
            gains=_exact_gains(parameters, study),
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
        gains=_exact_gains(parameters, study),
    )


def shortens(study: Study, rules: TableRules | None, *, normalize: bool) -> bool:
    """Return whether a bound may shorten rows: edges, comparisons and unit rows are never too long."""
    fixed_length = study.network == "edge" or (rules is not None and rules.comparison is not None)
    return study.is_private and not normalize and not fixed_length


def _exact_gains(parameters: Parameters, study: Study) -> Gains | None:
    """Return what products of exact columns are multiplied by; those of a private study are not."""
    if study.is_private:
        return None
    if parameters.standardizes:
        return unit_variances(groups=study.groups)
    book = code_book_of(parameters)  # a scale that is given is a choice of units, and stays
    return None if book is None else fixed(book.units)


def public_rng(parameters: Parameters, study: Study | None = None) -> np.random.Generator:
    """Return the public randomness of a fit: start basis and sampling of silos, never noise."""
    if (
        study is not None
        and (study.noise in ("step", "paper", "clipped") or study.scores)
        and parameters.random_state is None
    ):
        return np.random.default_rng(int(study.digest, 16))
    seed = parameters.random_state
    if not isinstance(seed, int):
        from sklearn.utils import check_random_state  # noqa: PLC0415

        return np.random.default_rng(check_random_state(seed).randint(2**31 - 1))
    # What scikit-learn makes of it, without its import: a coordinator needs nothing else of it.
    return np.random.default_rng(np.random.RandomState(seed).randint(2**31 - 1))


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
