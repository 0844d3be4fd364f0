"""A released covariance, and fits that are computed from it at no cost."""

import math
from dataclasses import replace

from msgspec import structs

from fedpower.errors import InputError
from fedpower.estimator.terms import rank_and_width, shortens
from fedpower.options import Edge, Node, Options
from fedpower.protocol.outcome import Outcome
from fedpower.protocol.solvers.upload import decompose
from fedpower.protocol.study import SolverChoice
from fedpower.report.moment import Moment
from fedpower.report.outcome import recorded, result_of
from fedpower.report.result import Result
from fedpower.rules.codebook import CodeBook

_CHOSEN = ("n_components", "iteration_rank", "standardize", "solver")
"""Options of a fit that a released covariance leaves open."""

_OF_THE_RUN = (
    "command", "started", "silos", "n_rounds", "bytes_up", "bytes_down", "rounds", "federation",
    "code_book", "absent",
)  # fmt: skip
"""What the record of such a fit has from the run that released the covariance."""


def result_from(moment: Moment, options: Options) -> Result:
    """Return the result of a fit to a released covariance, by the functions that a direct fit has."""
    _check_same(moment, options)
    record, study = moment.record, moment.study
    released = record.parameters["epsilon"]
    rank, width = rank_and_width(options, moment.n_samples, moment.n_features, study.noise)
    network = {"": None, "edge": Edge(), "row": Node()}[study.network]
    meant = options.replace(
        epsilon=math.inf if released == "inf" else float(released),
        aggregation="plain",
        solver="auto",
        center=moment.centered,
        codebook=CodeBook(normalize=True) if moment.treatment.normalize else None,
        unit=options.unit if network is None else network,
    )
    # Public scales are units of choice; those of a code book are not.
    booked = study.preparation or record.parameters.get("codebook") is not None
    book, rules = moment.code_book if booked else None, record.table_rules
    solution = decompose(
        moment.pooled,
        sizes=moment.silo_sizes,
        rank=rank,
        iteration_rank=width,
        standardize=meant.standardizes,
        groups=study.groups,
        book=book,
        shortens=shortens(study, rules, normalize=moment.treatment.normalize),
    )
    found = result_of(
        Outcome(solution=solution, rounds=[], study=study, privacy=moment.privacy),
        options=meant,
        treatment=moment.treatment,
        feature_names=moment.feature_names,
        solver=SolverChoice(solver="moment", reason="it is computed from a released covariance"),
        rules=rules,
        code_book=moment.code_book,
    )
    origin = {name: value for name in _OF_THE_RUN if (value := getattr(record, name))}
    chosen = {name: value for name, value in recorded(options).items() if name in _CHOSEN}
    made = structs.replace(found.record, **origin, parameters={**record.parameters, **chosen})
    return replace(found, record=made, moment=moment)


def _check_same(moment: Moment, options: Options) -> None:
    """Refuse an option that was given and is not that of the release."""
    released, untouched = moment.record.parameters, recorded(Options())
    for name, value in recorded(options).items():
        if name not in _CHOSEN and value not in (untouched.get(name), released.get(name)):
            raise InputError(
                f"{name} must be left out in a fit to a released covariance, or be that of the release, "
                f"{released.get(name)!r}, got {value!r}; release another one"
            )


def release_options(options: Options) -> Options:
    """Return the options of the fit that releases a covariance: of one component, which nobody looks at."""
    return options.replace(n_components=1, noise="moment", solver="moment", standardize=False)


def released_moment(result: Result) -> Moment:
    """Return the covariance of such a fit; its record leaves open how many components there are to be."""
    moment = result.moment
    assert moment is not None, "an upload is kept"
    open_terms = {"n_components": None, "standardize": None, "solver": "auto"}
    terms = {**moment.record.parameters, **open_terms}
    return moment.with_record(structs.replace(moment.record, parameters=terms))
