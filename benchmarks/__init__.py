"""Measurements of the whole product, run by hand: ``python -m benchmarks.NAME``. Never tests."""
