"""Results as a folder that people and programs read: components, eigenvalues and the run's record."""

from fedpower.report.folder import read_result, write_result
from fedpower.report.result import Result

__all__ = ["Result", "read_result", "write_result"]
