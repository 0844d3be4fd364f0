"""The paper's experiments, made anew beside the package: ``python -m paper``."""
