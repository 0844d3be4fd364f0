"""Estimators like those of scikit-learn, and the steps of a fit below them."""
