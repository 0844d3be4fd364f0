"""Estimators from options by the names that the command line gives them: tests vary one at a time."""

from benchmarks.fits import fed_communities, fed_moment, fed_pca

__all__ = ["fed_communities", "fed_moment", "fed_pca"]
