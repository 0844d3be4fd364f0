"""``FedMoment``: the pooled moment itself, paid for once; and fits that are computed from it."""

import math
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import structs
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from fedpower.engines.embedded import LedgerPaths, OnRows, Versions
from fedpower.errors import InputError, Sentence
from fedpower.estimator.solving import shortens
from fedpower.estimator.terms import IdentityPaths, rank_and_width
from fedpower.parameters import DEFAULTS, Parameters
from fedpower.protocol.choice import SolverChoice
from fedpower.protocol.exchange import Round
from fedpower.protocol.outcome import Outcome
from fedpower.protocol.solvers.upload import decompose, gains_of
from fedpower.protocol.study import Aggregation
from fedpower.protocol.weights import Weights
from fedpower.report.moment import Moment
from fedpower.report.outcome import recorded, result_of
from fedpower.report.result import Result
from fedpower.rows.networks import NetworkUnit
from fedpower.rules.codebook import CodeBook

if TYPE_CHECKING:
    from fedpower.estimator.fedpca import FedPCA

_CHOSEN = ("n_components", "iteration_rank", "standardize", "keep_moment")
"""Parameters of a fit that a moment leaves open."""

_OF_THE_RUN = (
    "command", "started", "silos", "n_rounds", "bytes_up", "bytes_down", "rounds", "federation",
    "code_book", "absent",
)  # fmt: skip
"""What the record of such a fit has from the run that released the moment."""


def result_from(moment: Moment, parameters: Parameters) -> Result:
    """Return the result of a fit to a released moment, by the functions that a direct fit has."""
    meant = _of_the_release(moment, parameters)
    record, study = moment.record, moment.study
    rank, width = rank_and_width(meant, moment.n_samples, moment.n_features, study.noise)
    meant = replace(meant, normalize=moment.treatment.normalize, network=study.network or None)
    # Scales that people gave are units of their choice; those of a code book are not.
    booked = study.preparation or record.parameters.get("codebook") is not None
    book, rules = moment.code_book if booked else None, record.table_rules
    solution = decompose(
        moment.pooled,
        gains_of(moment.pooled, standardize=meant.standardizes, book=book, groups=study.groups),
        sizes=moment.silo_sizes,
        rank=rank,
        iteration_rank=width,
        book=book,
        shortens=shortens(study, rules, normalize=moment.treatment.normalize),
    )
    outcome = Outcome(solution=solution, rounds=[], study=study, privacy=moment.privacy)
    found = result_of(
        outcome,
        parameters=replace(meant, center=moment.centered),
        treatment=moment.treatment,
        feature_names=moment.feature_names,
        solver=SolverChoice(solver="moment", reason="it is computed from a released moment"),
        rules=rules,
        code_book=moment.code_book,
    )
    origin = {name: value for name in _OF_THE_RUN if (value := getattr(record, name))}
    chosen = {name: value for name, value in recorded(parameters).items() if name in _CHOSEN}
    made = structs.replace(found.record, **origin, parameters={**record.parameters, **chosen})
    return replace(found, record=made, moment=moment if parameters.keep_moment else None)


def _of_the_release(moment: Moment, parameters: Parameters) -> Parameters:
    """Return parameters with those of the release; refuse one that was given and is another."""
    released, asked = moment.record.parameters, recorded(parameters)
    untouched = recorded(Parameters(**DEFAULTS))
    for name, value in asked.items():
        if name in _CHOSEN or value in (untouched[name], released.get(name)):
            continue
        raise InputError(
            "{odd} must be left alone in a fit to a released moment, or be that of the release, "
            "{released!r}, got {given!r}; leave it out, or release another moment",
            odd=Sentence("{" + name + "}"),
            released=released.get(name),
            given=value,
        )
    epsilon = released["epsilon"]
    return replace(parameters, epsilon=math.inf if epsilon == "inf" else float(epsilon), solver="auto")


class FedMoment(BaseEstimator):
    """The pooled second moment of rows that silos hold and do not pool: paid for once, analysed for ever.

    Each silo releases its noised moment, as it does for `FedPCA`, charged to the same ledgers under the
    same name: a fit that had it already costs nothing more, and the other way round. `Moment.save` writes
    it; `FedPCA.fit_moment` and the estimators of `fedpower.analyses` compute with it, at no cost.

    Parameters
    ----------
    epsilon, delta, aggregation, colluders, weights
        The budget and who sees what, as of `FedPCA`.
    row_norm, normalize, center, offset, scale, codebook, ranges, unit, rows_per_unit
        What is done to rows, and whose they are, as of `FedPCA`.
    network, edge_weight
        Whether silos hold networks, and what is protected of them, as of `FedPCA`.
    min_silos, deadline, extra_columns, n_jobs, device
        How it runs, as of `FedPCA`.

    Attributes
    ----------
    moment_ : Moment
        What was released, with its statement and the law of its noise.
    privacy_ : PrivacyStatement
        What is promised about the rows; print it.
    codebook_ : CodeBook or None
        Offsets, scales, ranges and bound of the columns that were found privately, or given.
    n_features_in_, feature_names_in_
        As in scikit-learn; names only where the columns have them.
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        aggregation: Aggregation = "plain",
        colluders: int = 1,
        weights: Weights = "rows",
        row_norm: float | None = None,
        normalize: bool = False,
        center: bool | ArrayLike = True,
        offset: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        codebook: CodeBook | str | PathLike[str] | None = None,
        ranges: Any = None,
        unit: str | None = None,
        rows_per_unit: int = 1,
        network: NetworkUnit | None = None,
        edge_weight: float | None = None,
        min_silos: int | None = None,
        deadline: float | None = None,
        extra_columns: Literal["refuse", "drop"] = "refuse",
        n_jobs: int | None = None,
        device: str | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.aggregation = aggregation
        self.colluders = colluders
        self.weights = weights
        self.row_norm = row_norm
        self.normalize = normalize
        self.center = center
        self.offset = offset
        self.scale = scale
        self.codebook = codebook
        self.ranges = ranges
        self.unit = unit
        self.rows_per_unit = rows_per_unit
        self.network = network
        self.edge_weight = edge_weight
        self.min_silos = min_silos
        self.deadline = deadline
        self.extra_columns = extra_columns
        self.n_jobs = n_jobs
        self.device = device

    def fit(
        self,
        X: ArrayLike,
        y: object = None,
        *,
        groups: ArrayLike | None = None,
        units: ArrayLike | None = None,
    ) -> Self:
        """Release the moment of rows in memory; ``groups`` says which silo each row belongs to.

        Parameters
        ----------
        X, y, groups, units
            As in `FedPCA.fit`.

        Returns
        -------
        FedMoment
            Itself.
        """
        return self._take(self._fit_of().fit(X, y, groups=groups, units=units))

    def fit_silos(
        self,
        silos: Any,
        y: object = None,
        *,
        ledgers: LedgerPaths | None = None,
        data_version: Versions | None = None,
        data_set: str | None = None,
        identities: IdentityPaths | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_rows: OnRows | None = None,
        on_clipped: Callable[[dict[str, tuple[int, int]]], None] | None = None,
    ) -> Self:
        """Release the moment of silos: arrays, tables or paths of files, which are never pooled.

        Parameters
        ----------
        silos, y, ledgers, data_version, data_set, identities, on_round, on_rows, on_clipped
            As in `FedPCA.fit_silos`.

        Returns
        -------
        FedMoment
            Itself.
        """
        return self._take(
            self._fit_of().fit_silos(
                silos,
                y,
                ledgers=ledgers,
                data_version=data_version,
                data_set=data_set,
                identities=identities,
                on_round=on_round,
                on_rows=on_rows,
                on_clipped=on_clipped,
            )
        )

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the moment as a folder and return where it is: see `Moment.save`."""
        moment: Moment = self.moment_
        return moment.save(folder, force=force)

    def _fit_of(self) -> "FedPCA":
        """Return the fit that makes the release: of one component, which nobody looks at."""
        from fedpower.estimator.fedpca import FedPCA  # noqa: PLC0415 - which computes with moments too

        return FedPCA(1, keep_moment=True, standardize=False, **self.get_params(deep=False))

    def _take(self, model: "FedPCA") -> Self:
        moment = model.moment_
        assert moment is not None, "it was asked for"
        # How many components there are to be is for later: the moment's own record leaves it open.
        terms = {**moment.record.parameters, "n_components": None, "standardize": None}
        self.moment_ = moment.with_record(structs.replace(moment.record, parameters=terms))
        self.privacy_ = model.privacy_
        self.codebook_ = model.codebook_
        self.n_features_in_ = model.n_features_in_
        if hasattr(model, "feature_names_in_"):
            self.feature_names_in_ = model.feature_names_in_
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self
