"""From the outcome of a federation to its result, in the units of the rows."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from fedpower.linalg import fix_signs
from fedpower.options import FLAT, Edge, Node, Options, Person
from fedpower.protocol.outcome import Outcome
from fedpower.protocol.pooled import Clipping, clipping_of
from fedpower.protocol.solvers.angles import Directions, exact_angles, product_angles
from fedpower.protocol.study import SolverChoice
from fedpower.report.covariance import Covariance
from fedpower.report.record import FORMAT, Record, plain, versions
from fedpower.report.result import Result
from fedpower.rules.codebook import CodeBook, CodeBookFile
from fedpower.rules.rules import TableRules
from fedpower.rules.treatment import RowTreatment


def result_of(
    outcome: Outcome,
    *,
    options: Options,
    treatment: RowTreatment | None,
    feature_names: tuple[str, ...] | None,
    solver: SolverChoice,
    rules: TableRules | None = None,
) -> Result:
    """Return the result of a federation; without a treatment it has found one."""
    solution, width = outcome.solution, outcome.study.n_features
    n_samples, code_book = sum(solution.sizes.values()), solution.code_book or options.book
    if treatment is None:
        assert code_book is not None, "a run without a treatment finds one"
        treatment = code_book.treatment
    bound = treatment.row_norm or 1.0
    scale = np.ones(width) if treatment.scale is None else treatment.scale
    to_mean, gains = bound * scale, solution.gains
    if gains is not None:
        # Gains are those of rows in units of their bound, which is in them.
        scale, bound = to_mean / gains, 1.0
    cut = _clipping(outcome, treatment, code_book)
    kept = 1.0 - cut.energy if cut and cut.counted and not options.standardizes else 1.0
    values = np.maximum(solution.values[: solution.rank], 0.0)
    to_variance = bound**2 / kept * n_samples / (n_samples - 1 if options.centers else n_samples)
    # Noise can make the parts add up to more than the total that was noised with them.
    total = max(solution.total_variance, float(values.sum()))
    ratios = values / total if total > 0 else np.full_like(values, np.nan)
    middle = np.zeros(width) if solution.center is None else np.asarray(solution.center)
    spectrum = solution.values if solution.spectrum is None else solution.spectrum
    if not treatment.normalize:
        public = np.zeros(width) if treatment.center is None else treatment.center
        middle = public + middle * to_mean
    directions = _directions(outcome, cut)
    denoised = directions.variances[: solution.rank]
    total = max(total, float(denoised.sum()))
    record = _record(
        outcome,
        options,
        solver,
        rules=rules,
        code_book=None if code_book is None else structs.replace(CodeBookFile.of(code_book), rules=None),
        clipping=cut,
        row_bound=None if cut is None else treatment.row_norm or 1.0,
        scores=None
        if solution.scores is None
        else structs.replace(
            solution.scores, reach=(solution.scores.reach[0] * bound, solution.scores.reach[1] * bound)
        ),
    )
    pooled = solution.pooled
    return Result(
        components=fix_signs(solution.vectors[:, : solution.rank]).T.copy(),
        explained_variance=values * to_variance,
        explained_variance_ratio=ratios,
        singular_values=np.sqrt(values * n_samples / kept) * bound,
        mean=middle,
        feature_names=feature_names,
        scale=None if (scale == 1.0).all() else scale,
        normalize=treatment.normalize,
        center=treatment.center,
        spectrum=spectrum * to_variance,
        record=record,
        basis=solution.basis,
        denoised_variance=denoised * to_variance,
        denoised_variance_ratio=denoised / total if total > 0 else np.full_like(denoised, np.nan),
        directions=directions,
        release=None
        if pooled is None
        else Covariance(pooled=pooled, treatment=treatment, feature_names=feature_names, record=record),
    )


def _clipping(outcome: Outcome, treatment: RowTreatment, code_book: CodeBook | None) -> Clipping | None:
    solution = outcome.solution
    if solution.law is None or treatment.row_norm is None:  # a covariance's is known with it
        return solution.clipping
    return clipping_of(
        solution.values,
        counted=None if code_book is None else code_book.clipped,
        n_features=outcome.study.n_features,
        trace=solution.total_variance,
        center=solution.center,
        std=solution.law.std,
    )


def _directions(outcome: Outcome, cut: Clipping | None) -> Directions:
    solution = outcome.solution
    if solution.directions is not None:
        return solution.directions
    width = outcome.study.n_features
    if solution.law is None:
        return exact_angles(solution.values, solution.rank, n_features=width)
    return product_angles(
        solution.values if solution.last_values is None else solution.last_values,
        solution.rank,
        n_features=width,
        total_variance=solution.total_variance,
        law=solution.law,
        cut=0.0 if cut is None else float(cut.moves(1)[0]),
    )


def _record(
    outcome: Outcome, options: Options, solver: SolverChoice, *, rules: TableRules | None, **computed: Any
) -> Record:
    solution, study = outcome.solution, outcome.study
    rounds = [entry.as_row() for entry in outcome.rounds]
    sizes, kernels = solution.sizes, outcome.kernels
    if study.unit:  # rules of a table with one rating per row name the column of persons
        options = replace(options, unit=Person(study.unit, options.person.rows))
    content = {
        "format": FORMAT,
        "command": None,
        "started": None,
        "finished": datetime.now(UTC).isoformat(),
        "versions": versions(),
        "study": {"hash": study.digest, "terms": study},
        "parameters": recorded(options),
        "solver": solver,
        "n_components": solution.rank,
        "n_features": study.n_features,
        "n_samples": sum(sizes.values()),
        "n_steps": solution.n_steps,
        "remarks": solution.remarks,
        "silos": [{"name": name, "rows": sizes[name], "kernel": kernels.get(name)} for name in sizes],
        "absent": outcome.absent,
        "n_rounds": len(rounds),
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "rounds": rounds,
        "privacy": outcome.privacy,
        "rules": None if rules is None else rules.as_content(),
        **computed,
    }
    return msgspec.convert(plain(content), Record, strict=False)


def recorded(options: Options) -> dict[str, Any]:
    """Return the options of a fit by their flat names, in JSON's types."""
    values, book, left = options.flat(), options.codebook, set[str]()
    if book is None or (book.is_draft and book.rules is None):
        values["codebook"] = None
    else:
        values["codebook"] = "rules" if book.is_draft or book.follows_rules else "numbers"
    if options.person.column is None:
        left |= {"unit", "rows_per_unit"}
    if not isinstance(options.unit, Edge | Node):
        left |= {"network", "edge_weight"}
    left |= {name for name in ("energy", "scores_epsilon", "whiten") if not values[name]}
    return {name: plain(values[name]) for name in sorted(FLAT) if name in values and name not in left}
