"""Price lists for tests, from the terms of a study; and ledgers that tests charge."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedpower.privacy import Ledger
from fedpower.privacy.ledger import Account
from fedpower.privacy.sensitivity import MEAN_WEIGHT, of_moment
from fedpower.protocol.study import PREPARED, Budget, Study
from fedpower.sums.lattice import SIDE


def moment_bound(n_rows: int, *, center: bool = False, mean_weight: float = MEAN_WEIGHT) -> float:
    """How far one row moves the moment of so many, its mean and its trace, in units of the bound."""
    moved = of_moment(2, mean_weight=mean_weight if center else 0.0)
    return math.sqrt(moved.squared) / (n_rows * SIDE**2)


def priced(mode: str = "covariance", *, n_sharing: int | None = None, **terms: Any) -> Budget:
    """The price list of a study of few terms; shared among so many silos where that is given."""
    given: dict[str, Any] = {
        "columns": None, "n_features": 20, "iteration_rank": 4, "n_steps": 10, "epsilon": 1.0, "delta": 1e-6,
    }  # fmt: skip
    given |= terms
    if mode == "covariance":
        given["n_steps"] = None
    if "preparation" in given:
        given |= {"treatment": PREPARED, "ranges": (None,) * given["n_features"]}
    if n_sharing is not None:
        given |= {
            "aggregation": "secure",
            "colluders": 1,
            "min_silos": 2,
            "identities": tuple((f"silo {place}", f"{place:064x}") for place in range(n_sharing)),
        }
    return Study(noise=mode, **given).budget  # type: ignore[arg-type]


def ledgers_in(
    folder: Path, names: Iterable[str], epsilon: float = 8.0, delta: float = 1e-6
) -> dict[str, Path]:
    paths = {name: folder / f"{name}.ledger" for name in names}
    for name, path in paths.items():
        Ledger.create(path, epsilon=epsilon, delta=delta, silo=name).close()
    return paths


def spent(path: Path) -> Account:
    with Ledger.open(path) as ledger:
        return ledger.spent()
