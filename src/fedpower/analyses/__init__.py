"""What can be computed from a released moment, at no cost: estimators in scikit-learn's manners."""

import importlib
from typing import Any

ANALYSES = {
    "factor": ("factor", "FactorAnalysis", "Factor analysis by maximum likelihood: loadings with intervals."),
    "regress": (
        "regression",
        "RidgeRegression",
        "Regression of a column on others: least squares, ridge or components.",
    ),
    "adjust": ("adjusted", "AdjustedPCA", "Principal components after covariates are partialled out."),
    "monitor": (
        "monitor",
        "ProcessMonitor",
        "Limits of T² and SPE for new rows; with --rows they are flagged at home.",
    ),
    "correlate": (
        "correlation",
        "Correlations",
        "Correlations with intervals, and which of them are told from 0.",
    ),
    "means": ("means", "MeanTests", "Test all column means at once, common factors taken off."),
    "communities": ("communities", "Communities", "Communities of nodes, where networks were released."),
    "complete": (
        "completion",
        "Completion",
        "Components of ratings that have gaps; with --rows empty cells are predicted.",
    ),
    "ranking": ("ranking", "Ranking", "Rank items from comparisons: scores and places with intervals."),
}
"""The registry: by command of `fedpower derive`, a module here, its class and what the command does."""

_HOMES = {
    **{name: module for module, name, _ in ANALYSES.values()},
    "ComponentRegression": "regression",
    "agreement": "communities",
    "congruence": "factor",
}
__all__ = [*_HOMES]  # noqa: PLE0604 - names


def __getattr__(name: str) -> Any:
    """Import an analysis when it is asked for: the command line lists them without scikit-learn."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
