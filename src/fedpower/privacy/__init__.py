"""Differential privacy that a silo enforces itself: sensitivity, calibration, noise, ledger, audit."""

from fedpower.privacy.accounting import compose, default_delta, delta_of, epsilon_of, mu_of, noise_std
from fedpower.privacy.ledger import Ledger

__all__ = ["Ledger", "compose", "default_delta", "delta_of", "epsilon_of", "mu_of", "noise_std"]
