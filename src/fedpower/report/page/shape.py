"""What a record must hold for a report to be made of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpower.report.page.privacy import MODES

NUMBER = (int, float)
NOTHING = type(None)


@dataclass(frozen=True, slots=True)
class Several:
    """A list of things of one shape."""

    of: Any
    least: int = 0


@dataclass(frozen=True, slots=True)
class IfThere:
    """Something that may be left out, or be None."""

    of: Any


ROUND = {
    "round": int,
    "kind": str,
    "step": int,
    "participants": Several(str),
    "n_participants": int,
    "bytes_up": int,
    "bytes_down": int,
    "change": IfThere(NUMBER),
    "misalignment": IfThere(NUMBER),
}
SILO = {
    "name": str,
    "rows": IfThere(int),
    "source": IfThere(str),
    "budget": IfThere(
        {
            "spent": IfThere(NUMBER),
            "left": NUMBER,
            "cap": NUMBER,
            "delta": NUMBER,
            "used": NUMBER,
        }
    ),
}
PRIVACY = {
    "private": bool,
    "unit": str,
    "neighbours": str,
    "mode": re.compile("|".join(["none", *MODES])),
    "asked_epsilon": IfThere(NUMBER),
    "delta": NUMBER,
    "protections": Several(
        {"observer": str, "sees": str, "epsilon": IfThere(NUMBER), "delta": NUMBER}
    ),
    "public": Several(str),
    "leak": IfThere(str),
    "notes": Several(str),
    "assumptions": Several(str),
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
RECORD = {
    "command": IfThere(Several(str)),
    "started": IfThere(TIME),
    "finished": TIME,
    "versions": {"fedpower": str},
    "study": {"hash": str},
    "parameters": {
        "aggregation": IfThere(str),
        "normalize": IfThere(bool),
        "row_norm": IfThere(NUMBER),
    },
    "solver": {"solver": str, "reason": str},
    "n_samples": int,
    "noise_edge": IfThere(NUMBER),
    "n_above_noise": IfThere(int),
    "remarks": IfThere(Several(str)),
    "silos": Several(SILO, least=1),
    "bytes_up": int,
    "bytes_down": int,
    "rounds": Several(ROUND, least=1),
    "privacy": PRIVACY,
    "federation": IfThere(
        {"name": str, "agreement": str, "run": str, "silent": {}, "set_aside": IfThere({})}
    ),
}


def lacks(record: Any, shape: Any = RECORD, at: str = "") -> str | None:
    """Return the first place where a record is not of the shape, such as ``rounds[2].step``, or None."""
    if isinstance(shape, IfThere):
        return None if record is None else lacks(record, shape.of, at)
    if isinstance(shape, Several):
        if not isinstance(record, list) or len(record) < shape.least:
            return at
        places = ((each, shape.of, f"{at}[{place}]") for place, each in enumerate(record))
    elif isinstance(shape, Mapping):
        if not isinstance(record, Mapping):
            return at
        places = ((record.get(key), each, f"{at}.{key}".lstrip(".")) for key, each in shape.items())
    elif isinstance(shape, re.Pattern):
        return None if isinstance(record, str) and shape.fullmatch(record) else at
    else:
        truth = isinstance(record, bool) and shape is not bool
        return None if isinstance(record, shape) and not truth else at
    found = (lacks(*place) for place in places)
    return next((place for place in found if place is not None), None)
