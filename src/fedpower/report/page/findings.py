"""What the angles of a result say, in sentences: the same on a terminal and in the report."""

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from fedpower.protocol.solvers.angles import CONFIDENCE, DETERMINED
from fedpower.report.causes import cause_of_noise
from fedpower.report.page.markup import listed
from fedpower.report.result import Result

Array = NDArray[np.float64]

NO_ANGLES = "Angles were not computed by the version that made this result."


def degrees(angle: float) -> str:
    """Return an angle in whole degrees, rounded up."""
    return f"{math.ceil(angle)}°"


def variances(result: Result) -> tuple[Array, Array]:
    """Return variances and their shares without what noise adds; as released where that is not known."""
    denoised, ratios = result.denoised_variance, result.denoised_variance_ratio
    if denoised is None or ratios is None:
        return result.explained_variance, result.explained_variance_ratio
    return denoised, ratios


def findings(result: Result) -> list[str]:
    """Return which components are determined, which only together, and what turns them."""
    components, subspaces = result.component_angles, result.subspace_angles
    if components is None or subspaces is None:
        return [NO_ANGLES]
    exact = result.run["privacy"]["mode"] == "none"
    sentences = angle_sentences(components, subspaces, result.n_features, exact=exact)
    if not exact:
        sentences += _shares(result)
    cause = cause_of_noise(result)
    if cause is not None:
        sentences.append(f"{cause[0].upper()}{cause[1:]}.")
    return sentences


def angle_sentences(components: Array, subspaces: Array, n_features: int, *, exact: bool) -> list[str]:
    """Return which components are determined, and which only together; if exact, only the latter."""
    # All columns together span everything, which is nothing that is found out.
    subspaces = np.where(np.arange(1, len(subspaces) + 1) < n_features, subspaces, 90.0)
    determined = components <= DETERMINED
    sentences = [] if exact else [_determined(np.flatnonzero(determined).tolist())]
    if not exact and not any(subspaces <= DETERMINED):
        return sentences  # all is said
    for fixed, places in groupby(range(len(components)), lambda place: bool(determined[place])):
        if not fixed:
            sentences += _undetermined(list(places), subspaces, exact=exact)
    return sentences


def named(places: Sequence[int]) -> str:
    """Return the names of components at places from 0: pc1, pc2 and pc4 to pc9."""
    words: list[str] = []
    for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
        names = [f"pc{place + 1}" for _, place in run]
        words += names if len(names) < 4 else [f"{names[0]} to {names[-1]}"]
    return listed(words)


def _determined(places: list[int]) -> str:
    confidence = f"at {CONFIDENCE:.0%} confidence"
    if not places:
        return f"No component is determined: each may be more than 45° off, {confidence}."
    verb, each = ("is", "it") if len(places) == 1 else ("are", "each")
    return (
        f"{named(places)} {verb} determined: {each} is within 45° of the component that the rows have, "
        f"{confidence}."
    )


def _undetermined(places: list[int], subspaces: Array, *, exact: bool) -> list[str]:
    """Return what is known of components in a row none of which is determined by itself."""
    joint = [place for place in places if subspaces[place] <= DETERMINED]
    group = [place for place in places if joint and place <= joint[-1]]
    rest = places[len(group) :]
    sentences = []
    if group:
        verb = "is not determined by itself" if len(group) == 1 else "cannot be told apart"
        they = "it is" if len(group) == 1 else "they are"
        before = f" with {named(range(group[0]))}" if group[0] else ""
        sentences.append(
            f"{named(group)} {verb}; together{before} {they} within {degrees(subspaces[group[-1]])}."
        )
    if rest:
        why = ": without variance, or with the same as others" if exact else ""
        sentences.append(f"{named(rest)} {'is' if len(rest) == 1 else 'are'} not determined{why}.")
    return sentences


def _shares(result: Result) -> list[str]:
    """Return how much of an angle is noise, and how much comes from rows that the bound shortens."""
    angles, cut = result.run["angles"], result.run.get("clipping")
    if cut is None or not any(result.determined):
        return []
    place = result.determined.index(True)
    whole, noise = angles["components"][place], angles["noise_components"][place]
    share = f"about {cut['energy']:.0%}" if cut["energy"] >= 0.01 else "less than 1%"
    return [
        f"Of the {degrees(whole)} of pc{place + 1}, noise makes {degrees(noise)}; the rest comes from "
        f"rows that the bound shortens ({share} of their squared length)."
    ]
