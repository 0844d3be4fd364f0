"""PCA across organisations that cannot pool their rows."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpower.estimator import FedMoment as FedMoment
    from fedpower.estimator import FedPCA as FedPCA
    from fedpower.estimator.communities import FedCommunities as FedCommunities
    from fedpower.options import Auto as Auto
    from fedpower.options import Edge as Edge
    from fedpower.options import Krylov as Krylov
    from fedpower.options import Node as Node
    from fedpower.options import Noise as Noise
    from fedpower.options import Person as Person
    from fedpower.options import Plain as Plain
    from fedpower.options import PowerMethod as PowerMethod
    from fedpower.options import Secure as Secure
    from fedpower.options import Upload as Upload
    from fedpower.protocol.schedule import decaying as decaying
    from fedpower.protocol.schedule import every as every
    from fedpower.protocol.schedule import explicit as explicit
    from fedpower.protocol.schedule import halving as halving
    from fedpower.report import read_result as read_result
    from fedpower.report.codebook_file import read_code_book as read_code_book
    from fedpower.report.codebook_file import write_code_book as write_code_book
    from fedpower.report.moment import read_moment as read_moment
    from fedpower.rows.sql import SqlQuery as SqlQuery
    from fedpower.rules.codebook import CodeBook as CodeBook
    from fedpower.rules.codebook import comparisons as comparisons

__version__ = "0.1.0"

_HOMES = {
    "CodeBook": "fedpower.rules.codebook",
    "Edge": "fedpower.options",
    "FedCommunities": "fedpower.estimator.communities",
    "FedMoment": "fedpower.estimator",
    "FedPCA": "fedpower.estimator",
    "Auto": "fedpower.options",
    "Krylov": "fedpower.options",
    "Node": "fedpower.options",
    "Noise": "fedpower.options",
    "Person": "fedpower.options",
    "Plain": "fedpower.options",
    "PowerMethod": "fedpower.options",
    "Secure": "fedpower.options",
    "SqlQuery": "fedpower.rows.sql",
    "Upload": "fedpower.options",
    "comparisons": "fedpower.rules.codebook",
    "decaying": "fedpower.protocol.schedule",
    "every": "fedpower.protocol.schedule",
    "explicit": "fedpower.protocol.schedule",
    "halving": "fedpower.protocol.schedule",
    "read_code_book": "fedpower.report.codebook_file",
    "read_moment": "fedpower.report.moment",
    "read_result": "fedpower.report",
    "write_code_book": "fedpower.report.codebook_file",
}
__all__ = [
    "Auto",
    "CodeBook",
    "Edge",
    "FedCommunities",
    "FedMoment",
    "FedPCA",
    "Krylov",
    "Node",
    "Noise",
    "Person",
    "Plain",
    "PowerMethod",
    "Secure",
    "SqlQuery",
    "Upload",
    "__version__",
    "comparisons",
    "decaying",
    "every",
    "explicit",
    "halving",
    "read_code_book",
    "read_moment",
    "read_result",
    "write_code_book",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("analyses", "linalg", "privacy", "protocol", "rows", "rules", "sums", "engines", "report"):
        return importlib.import_module(f"fedpower.{name}")
    raise AttributeError(f"module 'fedpower' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
