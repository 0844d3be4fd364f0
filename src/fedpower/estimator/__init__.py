"""``FedPCA`` and ``FedMoment``: estimators in scikit-learn's manners; no algorithm is in here."""

from fedpower.estimator.fedpca import FedPCA
from fedpower.estimator.moments import FedMoment
from fedpower.estimator.terms import PrivacyLeakWarning

__all__ = ["FedMoment", "FedPCA", "PrivacyLeakWarning"]
