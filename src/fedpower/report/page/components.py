"""Variances and angles of the components, and what each of them is made of."""

from typing import Any

import numpy as np

from fedpower.privacy.statement import featured_as
from fedpower.protocol.solvers.angles import DETERMINED
from fedpower.report.page.charts import angles, bars, biplot, scree
from fedpower.report.page.findings import NO_ANGLES, degrees, named, variances
from fedpower.report.page.markup import (
    Figure,
    Markup,
    beside,
    column,
    count,
    element,
    figure,
    figures,
    folded,
    name,
    paragraphs,
    percent,
    section,
    signed,
    table,
)
from fedpower.report.result import Result

_MOST_DRAWN = 60
_MOST_BEYOND = 20


def components_section(result: Result) -> Markup:
    """Return variances and angles, drawn and in a table."""
    drawn = min(result.n_components, _MOST_DRAWN)
    beyond = _beyond(result)
    exact = result.run["privacy"]["mode"] == "none"  # else they have noise, which these do not
    picture = scree(
        variances(result)[0][:drawn].tolist(),
        standing=_kinds(result)[:drawn],
        beyond=beyond if exact and drawn == result.n_components else [],
    )
    return section(
        "components",
        "Components",
        figure(picture, _legend(result, drawn_beyond=bool(beyond) and exact)),
        _angles(result, drawn),
        paragraphs(
            f"The first {drawn} of {result.n_components} components are drawn."
            if drawn < result.n_components
            else None
        ),
        _table(result),
        folded(
            f"The {count(len(beyond), 'eigenvalue')} beyond the components",
            table(
                "Eigenvalues beyond the components" + ("" if exact else ", with their noise"),
                ["Number", "Eigenvalue"],
                [
                    (str(result.n_components + place), each)
                    for place, each in enumerate(figures(column(beyond), beyond), start=1)
                ],
            ),
        )
        if beyond
        else None,
    )


def _kinds(result: Result) -> list[str]:
    """Return how components are drawn; those of older versions as if they were determined."""
    known = result.determined or [True] * result.n_components
    return ["determined" if each else "undetermined" for each in known]


def _beyond(result: Result) -> list[float]:
    """Return the released eigenvalues that follow the components, as many as are of use in a picture."""
    if result.spectrum is None:
        return []
    following: list[float] = result.spectrum[result.n_components :].tolist()
    return following[: max(_MOST_BEYOND, result.n_components)]


def _legend(result: Result, *, drawn_beyond: bool) -> list[Any]:
    kinds = _kinds(result)
    entries: list[Any] = [
        _key(sign, kind, words)
        for sign, kind, words in (("●", "determined", "determined"), ("○", "undetermined", "not determined"))
        if result.determined and kind in kinds
    ]
    if drawn_beyond:
        entries.append(_key("▫", "beyond", "beyond the components"))
    return [*entries, "Variance (vertical) by number of the component."]


def _key(sign: str, kind: str, words: str) -> Markup:
    return element("span", element("b", sign, class_=kind), f" {words}", class_="key")


def _angles(result: Result, drawn: int) -> Markup | None:
    """Return the picture of the angles; nothing where all of them are 0 or none is known."""
    alone, together = result.component_angles, result.subspace_angles
    if alone is None or together is None or not alone.any():
        return None
    return figure(
        angles(alone[:drawn].tolist(), together[:drawn].tolist(), DETERMINED),
        [
            _key("●", "determined", "angle of the component"),
            _key("■", "determined", "of all up to it, together"),
            "Hollow above 45°: not determined.",
        ],
    )


def _table(result: Result) -> Markup:
    values, ratios = (each.tolist() for each in variances(result))
    joint = np.cumsum(ratios).tolist()
    columns: dict[str, list[Any]] = {
        "Component": [f"pc{place}" for place in range(1, result.n_components + 1)],
        "Variance": figures(column(values), values),
        "Share of all": figures(map(percent, ratios), ratios),
        "Together": figures(map(percent, joint), joint),
    }
    remark = NO_ANGLES
    alone, together = result.component_angles, result.subspace_angles
    if alone is not None and together is not None:
        columns["Angle"] = figures(map(degrees, alone), alone)
        columns["Angle together"] = figures(map(degrees, together), together)
        remark = (
            f"With {result.run['angles']['confidence']:.0%} confidence a component is no further than "
            "its angle from the one that the rows have; up to 45° it is determined. “Angle "
            "together” is that of all components up to it. Variances are without what noise adds to them."
        )
    rows = list(zip(*columns.values(), strict=True))
    shown = table("Variance and angle of each component", list(columns), rows, sortable=True)
    return element("div", shown, paragraphs(remark, result.clipping))


_MOST_BARS = 15
_MOST_LOADINGS = 500
_MOST_COMPONENTS = 20


def loadings_section(result: Result) -> Markup:
    """Return what each component is made of: the largest loadings drawn, all of them in a table."""
    shown = min(result.n_components, _MOST_COMPONENTS)
    left_out = (
        f"The first {shown} of {result.n_components} components are shown; components.csv has all."
        if shown < result.n_components
        else None
    )
    return section(
        "loadings",
        "Loadings",
        *paragraphs(
            f"A loading is the weight of a {_thing(result)} in a component; the squares of a component’s "
            "loadings add up to 1. The sign of a whole component means nothing: each is turned so that "
            "its largest loading is positive.",
            left_out,
        ),
        _plane(result),
        (_component(result, place) for place in range(shown)),
    )


def _thing(result: Result) -> str:
    return featured_as(result.run["parameters"])


def _plane(result: Result) -> Markup | None:
    """Return the columns by their loadings on the first two components; grey where one may be noise."""
    if result.n_components < 2:
        return None
    names = [_feature(result, each) for each in range(result.n_features)]
    first, second = result.components[:2].tolist()
    open_ones = [place for place in (0, 1) if _kinds(result)[place] == "undetermined"]
    verb = "is" if len(open_ones) == 1 else "are"
    return element(
        "div",
        figure(
            biplot(first, second, names, ("pc1", "pc2"), of=_thing(result)),
            f"A biplot: {_thing(result)}s that point the same way go together in these two components."
            + (f" {named(open_ones)} {verb} not determined." if open_ones else ""),
        ),
        class_="undetermined" if open_ones else None,
    )


def _component(result: Result, place: int) -> Markup:
    loadings = result.components[place]
    order = np.argsort(-np.abs(loadings), kind="stable")
    top, listed = order[:_MOST_BARS], order[:_MOST_LOADINGS]
    label = f"pc{place + 1}"
    picture = bars(
        f"Largest loadings of {label}",
        f"The {count(len(top), _thing(result))} with the largest loadings by size, from "
        f"{_loading(loadings[top[0]])} to {_loading(loadings[top[-1]])}. The table below has the "
        "numbers.",
        loadings[top].tolist(),
    )
    kind = _kinds(result)[place]
    caption = f"The {len(top)} largest of {len(loadings):,} loadings" if len(loadings) > len(top) else None
    return folded(
        [
            element("span", label, class_="component"),
            element("span", percent(float(variances(result)[1][place])), " of the variance"),
            element("span", "○ not determined: do not read it", class_=kind)
            if kind == "undetermined"
            else None,
        ],
        figure(
            beside(
                [name(_feature(result, each)) for each in top],
                picture,
                [_loading(loadings[each]) for each in top],
                kind="loadings",
            ),
            caption,
        ),
        _all_loadings(result, label, loadings, listed),
        is_open=place == 0,
        kind=f"component {kind}",
    )


def _all_loadings(result: Result, label: str, loadings: Any, listed: Any) -> Markup:
    rows = [
        (
            name(_feature(result, each)),
            Figure(_loading(loadings[each]), float(loadings[each])),
            Figure(percent(float(loadings[each]) ** 2), float(loadings[each]) ** 2),
        )
        for each in listed
    ]
    whole = len(listed) == len(loadings)
    return folded(
        f"All {count(len(listed), 'loading')}" if whole
        else f"The {len(listed)} largest of {len(loadings):,} loadings (components.csv has all)",
        table(
            f"Loadings of {label}",
            [_thing(result).capitalize(), "Loading", "Share of the component"],
            rows,
            sortable=True,
        ),
        kind="long",
    )  # fmt: skip


def _feature(result: Result, place: int) -> str:
    return f"x{place}" if result.feature_names is None else result.feature_names[place]


def _loading(value: float) -> str:
    return signed(f"{value + 0.0:.4f}")
