"""Engines: they move messages between coordinator and silos, and supply time. Nothing else."""
