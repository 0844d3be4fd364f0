"""The paper's experiments: ``python -m paper``."""
