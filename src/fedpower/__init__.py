"""PCA across organisations that cannot pool their rows."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpower.estimator.fedpca import FedCovariance as FedCovariance
    from fedpower.estimator.fedpca import FedPCA as FedPCA
    from fedpower.estimator.plan import plan as plan
    from fedpower.options import Auto as Auto
    from fedpower.options import Edge as Edge
    from fedpower.options import Krylov as Krylov
    from fedpower.options import Node as Node
    from fedpower.options import Noise as Noise
    from fedpower.options import Person as Person
    from fedpower.options import Plain as Plain
    from fedpower.options import PowerMethod as PowerMethod
    from fedpower.options import Secure as Secure
    from fedpower.options import Upload as Upload
    from fedpower.privacy.ledger import Ledger as Ledger
    from fedpower.report.result import load as load
    from fedpower.rows.sql import SqlQuery as SqlQuery
    from fedpower.rules.codebook import CodeBook as CodeBook

__version__ = "0.2.0"

_NAMES = {
    "estimator.fedpca": "FedCovariance FedPCA",
    "estimator.plan": "plan",
    "options": "Auto Edge Krylov Node Noise Person Plain PowerMethod Secure Upload",
    "privacy.ledger": "Ledger",
    "report.result": "load",
    "rows.sql": "SqlQuery",
    "rules.codebook": "CodeBook",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_ROOMS = (
    "analysis",
    "exceptions",
    "linalg",
    "privacy",
    "protocol",
    "rows",
    "rules",
    "sums",
    "engines",
    "report",
)
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - names


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the command line starts without scikit-learn."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"fedpower.{_HOMES[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"fedpower.{name}")
    raise AttributeError(f"module 'fedpower' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "analysis", "exceptions"])
