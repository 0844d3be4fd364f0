"""From an estimator's parameters to the terms of a study; every parameter is checked here."""

import math
import warnings
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils import check_random_state

from fedpower.data import LocalMoment, RowSource, RowTreatment, largest_row_norm, public_vector
from fedpower.data.kernel import MOST_SQUARE_FEATURES
from fedpower.errors import InputError
from fedpower.estimator.parameters import paper_settings, schedule_of
from fedpower.estimator.secure import ATTEMPTS, secure_terms
from fedpower.privacy.calibration import default_delta
from fedpower.protocol.choice import SolverChoice, choose_solver
from fedpower.protocol.private_study import budget_of, noise_floor
from fedpower.protocol.solvers import (
    KrylovSettings,
    PowerSettings,
    SecureSettings,
    SolverSettings,
    UploadSettings,
)
from fedpower.protocol.solvers.signal import Rank
from fedpower.protocol.solvers.upload import same_rows
from fedpower.protocol.study import NoiseMode, Study
from fedpower.protocol.weights import costly_sentence, costly_silos

if TYPE_CHECKING:
    from fedpower.estimator.fedpca import FedPCA

OVERSAMPLING = 10
"""How many columns more than k a basis has unless ``iteration_rank`` says otherwise."""

PRIVATE_STEPS = 10
"""T of the modes that noise every step unless ``n_steps`` says otherwise: the paper's."""


class PrivacyLeakWarning(RuntimeWarning):
    """Something was read from the rows that should have been given as a public fact."""


def centers(model: "FedPCA") -> bool:
    """Return whether rows are centred on the pooled mean."""
    return isinstance(model.center, bool | np.bool_) and bool(model.center)


def column_names(model: "FedPCA") -> tuple[str, ...] | None:
    """Return the names of the columns that an estimator was fitted to, in order; None without names."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)


def public_treatment(model: "FedPCA") -> RowTreatment:
    """Return what the parameters say is done to each row."""
    columns = column_names(model)
    center = None
    if not isinstance(model.center, bool | np.bool_):
        center = public_vector("center", model.center, columns=columns)
    scale = None
    if model.scale is not None:
        scale = public_vector("scale", model.scale, columns=columns, positive=True)
    return RowTreatment(
        center=center,
        scale=scale,
        row_norm=model.row_norm,
        normalize=bool(model.normalize),
    )


BOUND_READ = "the bound on the norm of a row was read from the rows themselves"


def treatment_of(model: "FedPCA", sources: Iterable[RowSource]) -> tuple[RowTreatment, str | None]:
    """Return what is done to each row before it counts, and what leaked in finding it, or None.

    A private fit needs a bound on the norm of a row. Without one the largest norm is read from the rows:
    the result then depends on a single row in a way that no noise covers. That is warned of, and the
    privacy statement promises nothing.
    """
    treatment = public_treatment(model)
    if math.isinf(model.epsilon) or treatment.bounded:
        return treatment, None
    bound = max(largest_row_norm(source, treatment) for source in sources)
    warnings.warn(
        "row_norm was not given, so the largest norm was read from the rows themselves: that is "
        "not private; give row_norm=B as a public bound, or normalize=True",
        PrivacyLeakWarning,
        stacklevel=4,
    )
    found = RowTreatment(
        center=treatment.center, scale=treatment.scale, row_norm=bound if bound > 0 else 1.0
    )
    return found, BOUND_READ


def warn_of_delta(study: Study, sizes: Iterable[int]) -> None:
    """Warn of a δ at which a mechanism may keep its promise and still give a whole row away."""
    least = min(sizes)
    if study.noise != "none" and study.delta * least > 1:
        warnings.warn(
            f"delta should be below 1/rows of every silo, got {study.delta:g} where one has {least} "
            "rows: so large a delta lets a row be given away as it is; leave delta out, or give 1e-6",
            UserWarning,
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
            "every row is longer than row_norm, so that their directions alone count; give public "
            "centres and scales, or a larger bound",
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


def warn_of_copies(study: Study, moments: Mapping[str, LocalMoment]) -> None:
    """Warn of silos of a private fit that hold the same rows: told to who runs it, and kept nowhere.

    Where nothing is private the moments themselves show it, in a federation too (`solvers.upload`).
    """
    if study.noise == "none":
        return
    first: dict[tuple[int, float, bytes], str] = {}
    for name, each in moments.items():
        trace = each.trace()
        if trace > 0:
            known = first.setdefault((each.n_rows, trace, each.mean().tobytes()), name)
            if known != name:
                warnings.warn(same_rows(known, name), UserWarning, stacklevel=4)


def rank_of(model: "FedPCA", n_rows: int | None, n_features: int, noise: NoiseMode) -> Rank:
    """Return k, a fraction of variance or "noise", as asked for; refuse what ``noise`` cannot tell."""
    asked = model.n_components
    most = n_features if n_rows is None else min(n_rows, n_features)
    if asked is None and n_rows is not None:
        return most
    if isinstance(asked, Integral) and not isinstance(asked, bool) and 1 <= int(asked) <= most:
        return int(asked)
    if isinstance(asked, Real) and not isinstance(asked, Integral) and 0 < float(asked) < 1:
        if noise in ("none", "moment"):
            return float(asked)
        raise InputError(
            "n_components as a fraction of variance must go with noise='moment' or epsilon=inf, got "
            f"{asked!r} with noise={noise!r}, whose releases do not show the whole spectrum; give a "
            "number of components"
        )
    if isinstance(asked, str) and asked == "noise":
        if noise == "moment":
            return "noise"
        got = (
            "epsilon=inf: there is no noise to stand above; give a number or a fraction of variance"
        )
        if noise != "none":
            got = f"noise={noise!r}, whose releases do not show the whole spectrum; give a number"
        raise InputError(f"n_components='noise' must go with noise='moment', got {got}")
    raise InputError(
        f"n_components must be a whole number from 1 to min(n_samples, n_features)={most}, a "
        f"fraction between 0 and 1 or 'noise', got {asked!r}; choose one of these"
    )


def agree(
    model: "FedPCA",
    *,
    n_rows: int | None,
    n_features: int,
    treatment: RowTreatment,
    columns: tuple[str, ...] | None = None,
    agreement: str = "",
    identities: Mapping[str, str] | None = None,
    attempts: int = ATTEMPTS,
) -> tuple[Study, SolverSettings, SolverChoice]:
    """Return the study, the coordinator's settings and why it takes that solver; public facts decide.

    ``n_rows`` is None where the silos are yet to enrol: then k and δ must be given. ``identities`` are
    the silos' public keys, which the terms of a secure sum hold, and ``attempts`` how often silos take
    part in it at most.
    """
    center = centers(model)
    if center and n_rows is not None and n_rows < 2:
        raise InputError(
            f"centring must have 2 rows at least, got n_samples = {n_rows}; "
            "bring more rows or pass center=False"
        )
    noise = noise_of(model, n_features)
    rank = rank_of(model, n_rows, n_features, noise)
    n_steps = model.n_steps
    if noise in ("step", "paper") and n_steps is None:
        n_steps = PRIVATE_STEPS
    if not isinstance(rank, int):
        width = n_features
    elif model.iteration_rank is None:
        width = min(n_features, rank + (1 if noise == "paper" else OVERSAMPLING))
    else:
        width = model.iteration_rank
        if not rank <= width <= n_features:
            raise InputError(
                f"iteration_rank must lie between n_components={rank} and the number of columns "
                f"{n_features}, got {width}; choose one in between"
            )
    study = Study(
        columns=columns,
        n_features=n_features,
        iteration_rank=width,
        center=center,
        treatment=treatment.digest(),
        noise=noise,
        epsilon=float(model.epsilon),
        delta=_delta(model, n_rows) if noise != "none" else 0.0,
        n_steps=n_steps if noise in ("step", "paper") else None,
        agreement=agreement,
        weights=model.weights,
        **secure_terms(model, noise, identities or {}, attempts),
    )
    choice = solver_of(model, study, rank)
    return study, settings_of(model, study, choice, rank=rank, n_steps=n_steps), choice


def solver_of(model: "FedPCA", study: Study, rank: Rank) -> SolverChoice:
    """Return the solver, chosen or as asked for; what contradicts it is refused."""
    given = paper_settings(model)
    if study.noise == "step":
        given = tuple(name for name in given if name != "n_steps")
    if model.drift_correction and study.noise in ("step", "paper"):
        raise InputError(
            f"drift_correction must go with noise='moment' or epsilon=inf, got noise={study.noise!r}, "
            "where the product it needs would be one more release; leave it out"
        )
    if study.aggregation == "secure":
        return SolverChoice(
            solver="moment",
            reason="aggregation='secure' sums the silos' moments once, and all else follows from the sum",
        )
    if study.noise == "moment" and not isinstance(rank, int):
        return _whole_spectrum(model, rank, given)
    if model.solver == "auto":
        return choose_solver(
            n_features=study.n_features,
            iteration_rank=study.iteration_rank,
            noise=study.noise,
            paper_settings=given,
        )
    if model.solver == "moment" and study.noise in ("step", "paper"):
        raise InputError(
            f"solver='moment' must go with noise='moment' or epsilon=inf, got noise={study.noise!r}; "
            "choose another solver or noise"
        )
    foreign = [name for name in given if (model.solver, name) != ("krylov", "n_participants")]
    if model.solver != "fedpower" and foreign:
        raise InputError(
            f"{foreign[0]} must be left alone with solver={model.solver!r}, got "
            f"{getattr(model, foreign[0])!r}; it belongs to solver='fedpower'"
        )
    return SolverChoice(solver=model.solver, reason="it was asked for")


def _whole_spectrum(model: "FedPCA", rank: Rank, given: tuple[str, ...]) -> SolverChoice:
    """Return the solver that shows how many components stand above the noise: there is one."""
    if model.solver not in ("auto", "moment") or given:
        name = given[0] if model.solver in ("auto", "moment") else "solver"
        raise InputError(
            f"{name} must be left alone with n_components={rank!r}, got {getattr(model, name)!r}: which "
            "components stand above the noise is read off the whole spectrum, which solver='moment' gives"
        )
    return SolverChoice(
        solver="moment",
        reason=f"n_components={rank!r} is read off the whole spectrum, which the moment's upload gives",
    )


def settings_of(
    model: "FedPCA",
    study: Study,
    choice: SolverChoice,
    *,
    rank: Rank,
    n_steps: int | None,
) -> SolverSettings:
    """Return the settings of the chosen solver."""
    if study.aggregation == "secure":
        return SecureSettings(study=study, rank=rank)
    if choice.solver == "moment":
        return UploadSettings(
            n_features=study.n_features,
            rank=rank,
            iteration_rank=study.iteration_rank,
            weights=study.weights,
        )
    assert rank != "noise", "only an upload shows what stands above the noise"
    if choice.solver == "krylov":
        opens_locally = model.one_shot_start
        if opens_locally is None:
            opens_locally = study.noise == "none"
        return KrylovSettings(
            warm=bool(opens_locally),
            lookahead=bool(opens_locally),
            n_features=study.n_features,
            rank=rank,
            iteration_rank=study.iteration_rank,
            tol=float(model.tol),
            floor=noise_floor(study),
            max_rounds=model.max_rounds,
            n_steps=study.n_steps,
            n_participants=model.n_participants,
            participation=model.participation,
            center=study.center,
            weights=study.weights,
        )
    return PowerSettings(
        n_features=study.n_features,
        rank=rank,
        iteration_rank=study.iteration_rank,
        schedule=schedule_of(model),
        n_steps=n_steps,
        tol=0.0 if study.noise in ("step", "paper") else float(model.tol),
        floor=noise_floor(study),
        max_rounds=model.max_rounds,
        alignment=model.alignment,
        reference=model.reference,
        n_participants=model.n_participants,
        participation=model.participation,
        center=study.center,
        corrected=bool(model.drift_correction),
        weights=study.weights,
    )


def public_rng(model: "FedPCA", study: Study | None = None) -> np.random.Generator:
    """Return the public randomness of a fit: start basis and sampling of silos, never noise.

    Where every product is noised and no ``random_state`` is given it follows from the ``study``, if that
    is given: the same fit then asks the same questions, to which ledgers hold the answers already.
    """
    if study is not None and study.noise in ("step", "paper") and model.random_state is None:
        return np.random.default_rng(int(study.digest, 16))
    return np.random.default_rng(check_random_state(model.random_state).randint(2**31 - 1))


def noise_of(model: "FedPCA", n_features: int) -> NoiseMode:
    """Return what is noised."""
    if math.isinf(model.epsilon):
        return "none"
    if model.noise != "auto":
        return model.noise
    return "moment" if n_features <= MOST_SQUARE_FEATURES else "step"


def _delta(model: "FedPCA", n_rows: int | None) -> float:
    if model.delta is not None:
        return float(model.delta)
    if n_rows is None:
        raise InputError(
            "delta must be agreed on before the silos enrol, got none; give one, at most 1e-6 or "
            "the inverse of the number of rows"
        )
    return default_delta(n_rows)
