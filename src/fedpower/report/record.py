"""The record of a run, ``run.json``: what else is told of it, and what it gives back."""

import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.privacy.budget import QueryTerms
from fedpower.privacy.statement import PrivacyStatement, Protection
from fedpower.protocol.schedule import Schedule
from fedpower.protocol.study import Study

FORMAT = "fedpower-result/1"
MOST_NAMES = 8
"""Of silos in one line."""

PACKAGES = ("fedpower", "numpy", "scipy", "scikit-learn", "pyarrow")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of what a fit computes with."""
    return {
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in PACKAGES},
    }


def with_origin(
    record: Mapping[str, Any],
    *,
    command: Sequence[str] | None = None,
    silos: Mapping[str, Mapping[str, Any]] | None = None,
    started: datetime | None = None,
) -> dict[str, Any]:
    """Return a record that also says where its fit came from; what is left out stays as it is."""
    origins = {} if silos is None else silos
    found = dict(record)
    if command is not None:
        found["command"] = list(command)
    if started is not None:
        found["started"] = started.astimezone(UTC).isoformat()
    found["silos"] = [
        {
            **{key: value for key, value in each.items() if key != "kernel"},
            **origins.get(each["name"], {}),
            **({"kernel": each["kernel"]} if "kernel" in each else {}),
        }
        for each in record["silos"]
    ]
    return found


def without(record: Mapping[str, Any]) -> str:
    """Return which silos are missing from a result, as the end of a sentence; empty where none is."""
    absent = list(record.get("absent") or ())
    more = [f"{len(absent) - MOST_NAMES} more"] if len(absent) > MOST_NAMES else []
    return f", without {', '.join([*absent[:MOST_NAMES], *more])}" if absent else ""


def rounds_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rounds of a record as rows of numbers; what was not measured is NaN."""
    return [
        {
            **row,
            "participants": tuple(row["participants"]),
            **{key: math.nan if row.get(key) is None else row[key] for key in ("change", "misalignment")},
        }
        for row in record["rounds"]
    ]


def study_of(record: Mapping[str, Any]) -> Study:
    """Return the terms that a record gives, or refuse those that do not have the hash beside them."""
    try:
        terms = dict(record["study"]["terms"])
        terms["epsilon"] = float(terms["epsilon"])
        terms["columns"] = None if terms["columns"] is None else tuple(terms["columns"])
        terms["identities"] = tuple(tuple(each) for each in terms.get("identities", ()))
        terms["design"] = tuple(QueryTerms(*each) for each in terms.get("design", ()))
        terms["groups"] = tuple(tuple(each) for each in terms.get("groups", ()))
        terms["preparation"] = tuple(terms.get("preparation", ()))
        terms["ranges"] = tuple(None if each is None else tuple(each) for each in terms.get("ranges", ()))
        study = Study(**terms)
        whole = study.digest == record["study"]["hash"]
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise InputError(
            "the terms of a study must have the hash that run.json gives beside them, got others; "
            "bring back the folder as it was written"
        )
    return study


def standardized(run: Mapping[str, Any]) -> bool:
    """Return whether the columns of a fit were brought to variance 1."""
    given = run["parameters"]
    asked = given.get("standardize")
    if asked is None:  # a record from when only prepared columns were, unless somebody chose
        asked = "code_book" in run or given.get("codebook") is not None
    return bool(asked) and not given.get("normalize") and not given.get("network")


def privacy_of(record: Mapping[str, Any]) -> PrivacyStatement:
    """Return the statement that a record gives."""
    statement = record["privacy"]
    known = {each.name: statement[each.name] for each in fields(PrivacyStatement) if each.name in statement}
    if not statement["private"]:
        del known["assumptions"]  # nothing is promised, so none are listed
    return PrivacyStatement(
        **{
            **{key: tuple(each) if isinstance(each, list) else each for key, each in known.items()},
            "asked_epsilon": _infinite(statement["asked_epsilon"]),
            "protections": tuple(
                Protection(**{key: _infinite(each) for key, each in row.items()})
                for row in statement["protections"]
            ),
        }
    )


def _infinite(value: Any) -> Any:
    return math.inf if value is None else value


def plain(value: Any) -> Any:
    """Return a value in JSON's types: infinity as ``"inf"``, NaN as None, arrays as lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else list(value)
        return [plain(item) for item in items]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else (None if math.isnan(value) else str(value))
    if isinstance(value, Schedule):
        return plain(asdict(value))
    if hasattr(value, "to_dict"):  # a labelled vector
        return plain(value.to_dict())
    return value if value is None or isinstance(value, bool | int | str) else repr(value)
