"""Which components stand above the noise, and what each is made of."""

from typing import Any

import numpy as np

from fedpower.report.page.charts import bars, scree
from fedpower.report.page.markup import Markup, element, name
from fedpower.report.page.tables import (
    Figure,
    beside,
    figure,
    figures,
    folded,
    paragraphs,
    section,
    table,
)
from fedpower.report.page.words import column, count, number, percent, signed
from fedpower.report.result import Result

MOST_DRAWN = 60
MOST_BEYOND = 20
MOST_BARS = 15
MOST_LOADINGS = 500
MOST_COMPONENTS = 20

ABOVE, NOISE = "above the noise", "noise"


def components_section(result: Result) -> Markup:
    """Return the scree plot with the noise level, and the table behind it."""
    drawn = min(result.n_components, MOST_DRAWN)
    beyond = _beyond(result)
    picture = scree(
        result.explained_variance[:drawn].tolist(),
        noise=result.is_noise[:drawn].tolist(),
        beyond=beyond if drawn == result.n_components else [],
        edge=result.noise_edge,
    )
    return section(
        "components",
        "Components",
        figure(element("div", picture, class_="plot"), _legend(result, beyond)),
        _left_out(result.n_components, drawn),
        _variances(result),
        folded(
            f"The {count(len(beyond), 'eigenvalue')} beyond the components",
            table(
                "Eigenvalues beyond the components",
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


def loadings_section(result: Result) -> Markup:
    """Return what each component is made of: the largest loadings drawn, all of them in a table."""
    shown = min(result.n_components, MOST_COMPONENTS)
    left_out = (
        f"The first {shown} of {result.n_components} components are shown; components.csv has all."
        if shown < result.n_components
        else None
    )
    return section(
        "loadings",
        "Loadings",
        *paragraphs(
            "A loading is the weight of a column in a component; the squares of a component’s loadings "
            "add up to 1. The sign of a whole component means nothing: each is turned so that its "
            "largest loading is positive.",
            left_out,
        ),
        (_component(result, place) for place in range(shown)),
    )


def _beyond(result: Result) -> list[float]:
    """Return the released eigenvalues that follow the components, as many as are of use in a picture."""
    if result.spectrum is None:
        return []
    following: list[float] = result.spectrum[result.n_components :].tolist()
    return following[: max(MOST_BEYOND, result.n_components)]


def _legend(result: Result, beyond: list[float]) -> list[Any]:
    entries: list[Any] = []
    if not result.is_noise.all():
        entries.append(
            _key("●", "signal", "component above the noise" if result.noise_edge else "component")
        )
    if result.is_noise.any():
        entries.append(_key("×", "noise", "component that is noise"))
    if beyond:
        entries.append(_key("▫", "beyond", "released beyond the components"))
    if result.noise_edge:
        entries.append(
            _key("- -", "edge", f"noise level, a variance of {number(result.noise_edge, 3)}")
        )
    entries.append("Variance (vertical) by number of the component.")
    return entries


def _key(sign: str, kind: str, words: str) -> Markup:
    return element("span", element("b", sign, class_=kind), f" {words}", class_="key")


def _left_out(total: int, drawn: int) -> list[Markup]:
    return paragraphs(
        f"The first {drawn} of {total} components are drawn." if drawn < total else None
    )


def _variances(result: Result) -> Markup:
    variances, ratios = result.explained_variance.tolist(), result.explained_variance_ratio
    together = np.cumsum(ratios)
    headings = ["Component", "Variance", "Share of all", "Together"]
    columns = [
        [f"pc{place}" for place in range(1, result.n_components + 1)],
        figures(column(variances), variances),
        figures(map(percent, ratios), ratios.tolist()),
        figures(map(percent, together), together.tolist()),
    ]
    if result.noise_edge:
        times = [variance / result.noise_edge for variance in variances]
        headings += ["Times the noise level", "Verdict"]
        columns += [
            figures([f"{ratio:,.2f}" for ratio in times], times),
            [_verdict(drowned) for drowned in result.is_noise],
        ]
    remark = (
        "A component below the noise level is noise; one that is not well above it, say twice, is to be "
        "read with care. The level is known from public facts alone."
        if result.noise_edge
        else None
    )
    rows = list(zip(*columns, strict=True))
    shown = table("Variance of each component", headings, rows, sortable=True)
    return element("div", shown, paragraphs(remark))


def _verdict(drowned: bool) -> Markup:
    sign, words, kind = ("×", NOISE, "noise") if drowned else ("●", ABOVE, "signal")
    mark = element("b", sign, class_=kind, aria_hidden="true")
    return element("span", mark, f" {words}", class_="verdict")


def _component(result: Result, place: int) -> Markup:
    loadings = result.components[place]
    order = np.argsort(-np.abs(loadings), kind="stable")
    top, listed = order[:MOST_BARS], order[:MOST_LOADINGS]
    label = f"pc{place + 1}"
    picture = bars(
        f"Largest loadings of {label}",
        f"The {count(len(top), 'column')} with the largest loadings by size, from "
        f"{_loading(loadings[top[0]])} to {_loading(loadings[top[-1]])}. The table below has the "
        "numbers.",
        loadings[top].tolist(),
    )
    drowned = bool(result.is_noise[place])
    caption = (
        f"The {len(top)} largest of {len(loadings):,} loadings"
        if len(loadings) > len(top)
        else None
    )
    return folded(
        [
            element("span", label, class_="component"),
            element(
                "span", percent(float(result.explained_variance_ratio[place])), " of the variance"
            ),
            element("span", "× noise: do not read it", class_="noise") if drowned else None,
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
        kind="component",
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
            ["Column", "Loading", "Share of the component"],
            rows,
            sortable=True,
        ),
        kind="long",
    )  # fmt: skip


def _feature(result: Result, place: int) -> str:
    return f"x{place}" if result.feature_names is None else result.feature_names[place]


def _loading(value: float) -> str:
    return signed(f"{value + 0.0:.4f}")
