"""What a secure sum asks of a fit: its terms, the silos' identities, and what it cannot go with."""

import math
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from fedpower.errors import InputError
from fedpower.estimator.parameters import paper_settings
from fedpower.protocol.identity import Identity

if TYPE_CHECKING:
    from fedpower.estimator.fedpca import FedPCA

IdentityPaths = Mapping[str, str | PathLike[str]]

ATTEMPTS = 3
"""How often silos take part at most: a first time, and twice where somebody failed."""


def secure_terms(
    model: "FedPCA", noise: str, identities: Mapping[str, str], attempts: int
) -> dict[str, Any]:
    """Return the terms that a study with a secure sum has beyond others; none for a plain one."""
    if model.aggregation == "plain":
        if model.colluders != 1:
            raise InputError(
                f"colluders must be left alone with aggregation='plain', got {model.colluders}; they "
                "share the noise of a secure sum"
            )
        return {}
    check_compatible(model, noise)
    least = len(identities) if model.min_silos is None else int(model.min_silos)
    if not model.colluders < least <= len(identities):
        raise InputError(
            f"a secure sum must have more silos than the {model.colluders} that may collude, got "
            f"{least} as the fewest of {len(identities)}; bring more silos, declare fewer colluders or "
            "change min_silos"
        )
    return {
        "aggregation": "secure",
        "colluders": int(model.colluders),
        "identities": tuple(identities.items()),
        "min_silos": least,
        "attempts": attempts,
    }


def check_compatible(model: "FedPCA", noise: str) -> None:
    """Refuse what a secure sum cannot go with, each with the reason."""
    if math.isinf(model.epsilon):
        raise InputError(
            "aggregation='secure' must go with a finite epsilon, got inf: the sum itself would be exact, "
            "and could be told apart from another sum; choose epsilon, or aggregation='plain'"
        )
    if noise != "moment":
        raise InputError(
            f"aggregation='secure' must go with noise='moment', got {noise!r}, of which each step is one "
            "more sum that could be told apart from the others; leave noise alone, or set it to 'moment' "
            "for wide rows"
        )
    if model.solver not in ("auto", "moment"):
        raise InputError(
            f"aggregation='secure' must go with solver='moment', got {model.solver!r}: silos take part "
            "in one sum, and every later round would be another; leave solver alone"
        )
    given = [*paper_settings(model), *(["one_shot_start"] if model.one_shot_start else [])]
    if given:
        raise InputError(
            f"{given[0]} must be left alone with aggregation='secure', got "
            f"{getattr(model, given[0])!r}: what silos do by themselves, or some of them, is no sum over "
            "all"
        )


def identities_of(
    model: "FedPCA", silos: Iterable[str], paths: IdentityPaths | None
) -> dict[str, Identity]:
    """Return every silo's identity: read from its file, or made for this fit; none for a plain fit."""
    names = list(silos)
    if model.aggregation == "plain":
        if paths:
            raise InputError(
                "identities must go with aggregation='secure', got some without; leave them out"
            )
        return {}
    if not paths:
        return {name: Identity.new() for name in names}
    if set(paths) != set(names):
        odd = sorted(set(paths) ^ set(names))[0]
        raise InputError(
            f"every silo must have an identity or none, got {odd!r} on one side only; the silos are "
            f"{', '.join(names)}"
        )
    return {name: Identity.load(paths[name]) for name in names}
