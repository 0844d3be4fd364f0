"""Analyses of a released covariance, at no further cost: estimators with scikit-learn's interface.

Each has ``clipping_share_``: the share of the rows' squared length that the bound removed, or None if
unknown. Clipping biases estimates, and intervals do not include that bias.

An analysis is a subclass of `fedpower.analysis.base.Analysis` in a file of its own, and a line of
``ANALYSES``: then ``fedpower analyze`` has it too.
"""

import importlib
from typing import Any

ANALYSES = {
    "factor": ("factor", "FactorAnalysis", "Factor analysis: loadings with intervals."),
    "regress": ("regression", "Regression", "Regression on columns: least squares, ridge or components."),
    "adjust": ("adjusted", "AdjustedPCA", "Principal components after adjustment for covariates."),
    "monitor": ("monitor", "ProcessMonitor", "Limits of T² and SPE; --rows checks new rows locally."),
    "correlate": ("correlation", "Correlations", "Correlations with intervals and tests against 0."),
    "means": ("means", "MeanTests", "Test all column means, with common factors removed."),
    "communities": ("communities", "Communities", "Communities of nodes in released networks."),
    "complete": ("completion", "Completion", "Predict missing ratings; --rows fills empty cells locally."),
    "ranking": ("ranking", "Ranking", "Rank items from comparisons: scores and ranks with intervals."),
}
"""The registry: by command of ``fedpower analyze``, a module, its class and what the command does."""

__all__ = [name for _, name, _ in ANALYSES.values()]


def __getattr__(name: str) -> Any:
    """Import an analysis when it is asked for: the command line lists them without scikit-learn."""
    homes = {name: module for module, name, _ in ANALYSES.values()}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = homes[name]
    return getattr(importlib.import_module(module if "." in module else f"{__name__}.{module}"), name)
