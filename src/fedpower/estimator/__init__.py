"""``FedPCA``: the estimator, in scikit-learn's manners; no algorithm is in here."""

from fedpower.estimator.fedpca import FedPCA
from fedpower.estimator.terms import PrivacyLeakWarning

__all__ = ["FedPCA", "PrivacyLeakWarning"]
