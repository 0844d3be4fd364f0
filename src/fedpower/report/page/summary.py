"""What a record must hold for a report to be made of it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpower.privacy.statement import EDGE, PERSON, counted_as, featured_as
from fedpower.report.page.findings import findings, variances
from fedpower.report.page.markup import (
    Markup,
    count,
    element,
    equals,
    facts,
    moment_of_time,
    name,
    number,
    percent,
)
from fedpower.report.page.privacy import MODES, epsilon, odds, worst
from fedpower.report.record import MOST_NAMES
from fedpower.report.result import Result

NUMBER = (int, float)


@dataclass(frozen=True, slots=True)
class _ListOf:
    """A list of things of one shape."""

    of: Any
    least: int = 0


@dataclass(frozen=True, slots=True)
class Optional:
    """Something that may be left out, or be None."""

    of: Any


_ROUND = {
    "round": int,
    "kind": str,
    "step": int,
    "participants": _ListOf(str),
    "n_participants": int,
    "bytes_up": int,
    "bytes_down": int,
    "change": Optional(NUMBER),
    "misalignment": Optional(NUMBER),
}
SILO = {
    "name": str,
    "rows": Optional(int),
    "source": Optional(str),
    "budget": Optional(
        {"spent": Optional(NUMBER), "left": NUMBER, "cap": NUMBER, "delta": NUMBER, "used": NUMBER}
    ),
}
PRIVACY = {
    "private": bool,
    "unit": str,
    "neighbours": str,
    "mode": re.compile("|".join(["none", *MODES])),
    "asked_epsilon": Optional(NUMBER),
    "delta": NUMBER,
    "protections": _ListOf({"observer": str, "sees": str, "epsilon": Optional(NUMBER), "delta": NUMBER}),
    "public": _ListOf(str),
    "leak": Optional(str),
    "notes": _ListOf(str),
    "assumptions": _ListOf(str),
}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
RECORD = {
    "command": Optional(_ListOf(str)),
    "started": Optional(_TIME),
    "finished": _TIME,
    "versions": {"fedpower": str},
    "study": {"hash": str},
    "parameters": {"aggregation": Optional(str), "normalize": Optional(bool), "row_norm": Optional(NUMBER)},
    "solver": {"solver": str, "reason": str},
    "n_samples": int,
    "angles": Optional(
        {
            "confidence": NUMBER,
            "components": _ListOf(NUMBER, least=1),
            "subspaces": _ListOf(NUMBER, least=1),
            "noise_components": _ListOf(NUMBER, least=1),
            "variances": _ListOf(NUMBER, least=1),
            "variance_ratios": _ListOf(Optional(NUMBER), least=1),
        }
    ),
    "remarks": Optional(_ListOf(str)),
    "clipping": Optional(
        {
            "bound": NUMBER,
            "rows": NUMBER,
            "rows_most": NUMBER,
            "energy": NUMBER,
            "energy_least": NUMBER,
            "energy_most": NUMBER,
            "counted": bool,
        }
    ),
    "silos": _ListOf(SILO, least=1),
    "absent": Optional(_ListOf(str)),
    "bytes_up": int,
    "bytes_down": int,
    "rounds": _ListOf(_ROUND, least=1),
    "privacy": PRIVACY,
    "federation": Optional(
        {"name": str, "agreement": str, "run": str, "silent": {}, "set_aside": Optional({})}
    ),
}


def schema_error(record: Any, shape: Any = RECORD, at: str = "") -> str | None:
    """Return the first place where a record is not of the shape, such as ``rounds[2].step``, or None."""
    if isinstance(shape, Optional):
        return None if record is None else schema_error(record, shape.of, at)
    if isinstance(shape, _ListOf):
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
    found = (schema_error(*place) for place in places)
    return next((place for place in found if place is not None), None)


WEAK, LITTLE = 4.0, 10.0


def heading(result: Result) -> Markup:
    """Return the title and the facts under it; the hash is the one that a consortium agreed on."""
    run = result.run
    federation = run.get("federation") or {}
    study = federation.get("name")
    hashed = element("code", (federation.get("agreement") or run["study"]["hash"])[:12])
    return element(
        "header",
        element("p", "Federated principal components", class_="kicker"),
        element("h1", result.headline),
        facts(
            (
                ("Study", [name(study), " · ", hashed] if study else hashed),
                ("Silos", _silos([each["name"] for each in run["silos"]])),
                ("Absent", _silos(list(result.absent)) if result.absent else None),
                *sizes(run["parameters"], run["n_samples"], result.n_features),
                ("Components", f"{result.n_components:,}"),
                ("Computed", moment_of_time(run["finished"])),
            )
        ),
    )


def sizes(parameters: Mapping[str, Any], n_samples: int, n_features: int) -> tuple[tuple[str, str], ...]:
    """Return how much was fitted: rows and columns, or the nodes of networks."""
    if featured_as(parameters) == "node":
        return (("Nodes", f"{n_features:,}"),)
    things = f"{counted_as(parameters).capitalize()}s"
    return ((things, f"{n_samples:,}"), ("Columns", f"{n_features:,}"))


def summary(result: Result) -> Markup:
    """Return the three lines: what was found, what was spent, what that means."""
    privacy = result.run["privacy"]
    lines = (
        ("Found", " ".join((_found(result), *_remarks(result)))),
        ("Spent", _spent(privacy)),
        ("Meaning", _meaning(privacy)),
    )
    kind = "lead" if privacy["private"] else "lead unprotected"
    return element("section", facts(lines, kind="lines"), class_=kind, id="summary", aria_label="Summary")


def _silos(silos: list[str]) -> Any:
    names = [[name(each), ", "] for each in silos[:MOST_NAMES]]
    names[-1].pop()
    more = f" and {len(silos) - MOST_NAMES} more" if len(silos) > MOST_NAMES else ""
    return [f"{len(silos)}: ", names, more]


def _found(result: Result) -> str:
    explained = float(variances(result)[1].sum())
    share = "" if math.isnan(explained) else f", with {percent(explained)} of the variance"
    exact = ["No noise was added."] if result.run["privacy"]["mode"] == "none" else []
    return " ".join((f"{count(result.n_components, 'component')}{share}.", *exact, *findings(result)))


def _remarks(result: Result) -> list[str]:
    """Return what the run says is not to be trusted, as sentences."""
    return [f"Beware: {remark}." for remark in result.run.get("remarks") or ()]


def _spent(privacy: dict[str, Any]) -> str:
    if privacy["mode"] == "none":
        return "Nothing was charged: no budget limits what an exact result may tell."
    if not privacy["private"]:
        return f"{equals('ε', privacy['asked_epsilon'])} was asked for, but it bought no protection."
    spent = equals("ε", epsilon(worst(privacy)["epsilon"]))
    asked = equals("ε", privacy["asked_epsilon"])
    more = "" if spent == asked else f"; {asked} was asked for"
    return f"At most {spent} of each silo’s privacy budget, at {equals('δ', privacy['delta'])}{more}."


def _meaning(privacy: dict[str, Any]) -> str:
    if privacy["mode"] == "none":
        return (
            "NOT PRIVATE: nothing is protected. Exact numbers left every silo, and whoever reads them "
            "can learn about single rows."
        )
    if not privacy["private"]:
        return f"NOT PRIVATE: nothing is promised, because {privacy['leak']}."
    dearest = worst(privacy)["epsilon"]
    return (
        f"Whoever sees what left a silo learns a bounded amount about any one {_protected(privacy)}: the "
        f"odds for or against what it held shift by a factor of {odds(dearest)} at most, except with a "
        f"probability of {number(privacy['delta'])}.{_strength(epsilon(dearest))}"
    )


def _protected(privacy: Mapping[str, Any]) -> str:
    """Return what is protected, as a noun that "it" stands for afterwards."""
    return {PERSON: "person’s data", EDGE: "edge"}.get(privacy["unit"], "row")


def _strength(spent: float) -> str:
    """Return what docs/privacy.md says of a large ε, as it reads on the page; nothing of a usual one."""
    spent = float(f"{spent:.4g}")  # a fit for ε = 4 spends 4 less the last of its digits
    if spent > LITTLE:
        return " That promises little."
    return " That is weak protection." if spent >= WEAK else ""
