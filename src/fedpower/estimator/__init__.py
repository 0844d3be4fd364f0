"""``FedPCA`` and ``FedMoment``: estimators in scikit-learn's manners; no algorithm is in here."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpower.estimator.fedpca import FedMoment as FedMoment
    from fedpower.estimator.fedpca import FedPCA as FedPCA
    from fedpower.estimator.fit_warnings import PrivacyLeakWarning as PrivacyLeakWarning

_HOMES = {"FedMoment": "fedpca", "FedPCA": "fedpca", "PrivacyLeakWarning": "fit_warnings"}
__all__ = ["FedMoment", "FedPCA", "PrivacyLeakWarning"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"fedpower.estimator.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedpower.estimator' has no attribute {name!r}")
