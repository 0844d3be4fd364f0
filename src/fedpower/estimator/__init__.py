"""Estimators in scikit-learn's manners, and the walk of a fit below them."""
