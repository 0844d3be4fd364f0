"""PCA across organisations that cannot pool their rows.

``FedPCA`` is the estimator, ``SqlQuery`` a silo's data in a database, and ``read_result`` gives back what
`fedpower fit` and `fedpower run` wrote; ``fedpower.privacy``, ``fedpower.protocol`` and
``fedpower.linalg`` are the parts it is made of. Everything is imported when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpower.data.sql import SqlQuery as SqlQuery
    from fedpower.estimator import FedPCA as FedPCA
    from fedpower.protocol.schedule import decaying as decaying
    from fedpower.protocol.schedule import every as every
    from fedpower.protocol.schedule import explicit as explicit
    from fedpower.protocol.schedule import halving as halving
    from fedpower.report import read_result as read_result

__version__ = "0.1.0"

_HOMES = {
    "FedPCA": "fedpower.estimator",
    "SqlQuery": "fedpower.data.sql",
    "decaying": "fedpower.protocol.schedule",
    "every": "fedpower.protocol.schedule",
    "explicit": "fedpower.protocol.schedule",
    "halving": "fedpower.protocol.schedule",
    "read_result": "fedpower.report",
}
__all__ = [
    "FedPCA",
    "SqlQuery",
    "__version__",
    "decaying",
    "every",
    "explicit",
    "halving",
    "read_result",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("linalg", "privacy", "protocol", "data", "engines", "report"):
        return importlib.import_module(f"fedpower.{name}")
    raise AttributeError(f"module 'fedpower' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
