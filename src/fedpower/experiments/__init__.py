"""Experiments: the audit game and the attack. Never needed by a fit."""
