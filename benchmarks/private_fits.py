"""Fits of the product over one split, read once, with seeded noise: for experiments only.

`Federation.fit` takes the same road as ``FedPCA.fit_silos`` (terms from the estimator's parameters,
real silos, ledgers and coordinator). Only the noise comes from a seed, so that a table can be made
again; the estimator itself has no parameter for that.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data_sets import DataSet, Places
from fedpower import FedPCA
from fedpower.engines.embedded import federate, read_silos
from fedpower.estimator.terms import build_study
from fedpower.estimator.treatment import public_treatment
from fedpower.parameters import Parameters
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.rows.opening import open_source

Array = NDArray[np.float64]

METHODS: dict[str, dict[str, Any]] = {
    "fedpower": {},
    "step": {"noise": "step"},
    "paper": {
        "noise": "paper",
        "solver": "fedpower",
        "schedule": "decaying",
        "local_steps": 2,
        "n_steps": 10,
    },
}
"""Parameters beside the data's own: every default; every step noised; the paper as in [FP §5]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A basis of k columns and what it cost, reading left out; seconds are of a core."""

    basis: Array
    seconds: float
    rounds: int
    bytes_up: int


class Federation:
    """The silos of one split with their rows read."""

    def __init__(self, data: DataSet, places: Places) -> None:
        self._data = data
        self._treatment = public_treatment(Parameters(**data.parameters))
        began = time.process_time()
        self._silos = read_silos(
            {
                f"silo-{number}": open_source(np.ascontiguousarray(data.rows[rows]))
                for number, rows in enumerate(places, start=1)
            },
            self._treatment,
            rank=16,
            steps=20,
            private=True,
            on_lattice=True,
        )
        self.reading_seconds = time.process_time() - began

    def fit(self, method: str, *, epsilon: float, seed: int) -> Fit:
        """Return the fit of one of `METHODS`; the seed gives the start basis and the noise."""
        model = FedPCA(
            self._data.rank, epsilon=epsilon, standardize=False, **self._data.parameters, **METHODS[method]
        )
        study, settings, _ = build_study(
            Parameters.of(model),
            n_rows=sum(silo.n_rows for silo in self._silos.values()),
            n_features=self._data.rows.shape[1],
            treatment=self._treatment,
        )
        began = time.process_time()
        outcome = federate(
            self._silos,
            study=study,
            settings=settings,
            rng=np.random.default_rng(seed),
            noise=SeededNoiseForExperiments(10_000 * (seed + 1) + list(METHODS).index(method)),
            n_jobs=1,  # one seeded noise source, drawn from in a fixed order
        )
        return Fit(
            basis=outcome.solution.vectors[:, : self._data.rank],
            seconds=time.process_time() - began,
            rounds=len(outcome.rounds),
            bytes_up=sum(each.bytes_up for each in outcome.rounds),
        )
