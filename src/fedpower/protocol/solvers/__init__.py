"""Solvers: what the coordinator asks, and what it makes of the answers. One file per method."""

from fedpower.protocol.solvers.power import PowerSettings, Solution, fedpower

__all__ = ["PowerSettings", "Solution", "fedpower"]
