"""What can be computed from a released moment, at no cost: each an estimator in scikit-learn's
manners.
"""

from fedpower.analyses.adjusted import AdjustedPCA
from fedpower.analyses.communities import Communities, agreement
from fedpower.analyses.completion import Completion
from fedpower.analyses.correlation import Correlations
from fedpower.analyses.factor import FactorAnalysis, congruence
from fedpower.analyses.means import MeanTests
from fedpower.analyses.monitor import ProcessMonitor
from fedpower.analyses.ranking import Ranking
from fedpower.analyses.regression import ComponentRegression, RidgeRegression

__all__ = [
    "AdjustedPCA",
    "Communities",
    "Completion",
    "ComponentRegression",
    "Correlations",
    "FactorAnalysis",
    "MeanTests",
    "ProcessMonitor",
    "Ranking",
    "RidgeRegression",
    "agreement",
    "congruence",
]
