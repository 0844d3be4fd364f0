"""The record of a run, ``run.json``: versions, terms, parameters, silos, rounds, privacy."""

import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpower.protocol.schedule import Schedule

if TYPE_CHECKING:  # reading a result takes no estimator with it
    from fedpower.estimator import FedPCA

FORMAT = "fedpower-result/1"
PACKAGES = ("fedpower", "numpy", "scipy", "scikit-learn", "pyarrow")


def run_record(
    model: "FedPCA",
    *,
    command: Sequence[str] | None = None,
    silos: Mapping[str, Mapping[str, Any]] | None = None,
    started: datetime | None = None,
) -> dict[str, Any]:
    """Return everything about a fit but its arrays, ready for JSON.

    Parameters
    ----------
    model
        A fitted estimator.
    command
        The words of the command line, where there was one.
    silos
        By silo: what else is to be told about it, for instance ``source``.
    started
        When the fit began.
    """
    told = silos or {}
    rounds = plain(model.history_)
    return {
        "format": FORMAT,
        "command": None if command is None else list(command),
        "started": None if started is None else started.astimezone(UTC).isoformat(),
        "finished": datetime.now(UTC).isoformat(),
        "versions": {
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in PACKAGES},
        },
        "study": {
            "hash": model.study_.digest,
            "terms": plain(asdict(model.study_)),
        },
        "parameters": plain(model.get_params()),
        "solver": plain(asdict(model.solver_)),
        "n_components": model.n_components_,
        "n_features": model.n_features_in_,
        "n_samples": model.n_samples_,
        "n_steps": model.n_steps_,
        "noise_edge": plain(model.noise_edge_),
        "n_above_noise": model.n_above_noise_,
        "remarks": list(model.remarks_),
        "silos": [
            {
                "name": name,
                "rows": model.silo_sizes_.get(name),
                **told.get(name, {}),
                "kernel": model.kernels_.get(name),
            }
            for name in model.kernels_ or model.silo_sizes_
        ],
        "n_rounds": len(rounds),
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "rounds": rounds,
        "privacy": plain(model.privacy_.as_dict()),
    }


def plain(value: Any) -> Any:
    """Return a value in JSON's types: infinity as ``"inf"``, NaN as None, arrays as lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else list(value)
        return [plain(item) for item in items]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else (None if math.isnan(value) else str(value))
    if isinstance(value, Schedule):
        return plain(asdict(value))
    if hasattr(value, "to_dict"):  # a labelled vector
        return plain(value.to_dict())
    return value if value is None or isinstance(value, bool | int | str) else repr(value)
