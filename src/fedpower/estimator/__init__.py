"""``FedPCA`` and ``FedMoment``: estimators in scikit-learn's manners; no algorithm is in here."""

from fedpower.estimator.fedpca import FedPCA
from fedpower.estimator.fit_warnings import PrivacyLeakWarning
from fedpower.estimator.moments import FedMoment

__all__ = ["FedMoment", "FedPCA", "PrivacyLeakWarning"]
