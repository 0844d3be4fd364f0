"""Results as a folder that people and programs read: components, eigenvalues and the run's record."""

from fedpower.report.result import Result, read_result
from fedpower.report.view import ScoreHistogram

__all__ = ["Result", "ScoreHistogram", "read_result"]
