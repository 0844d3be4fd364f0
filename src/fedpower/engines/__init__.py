"""Engines: they move messages between coordinator and silos, and supply time. Nothing else."""

from fedpower.engines.inprocess import run_in_process

__all__ = ["run_in_process"]
