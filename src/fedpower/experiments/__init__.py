"""Experiments: the paper's data models, the audit game and the attack. Never needed by a fit."""
