"""Sums over rows: moments, products and counts."""
