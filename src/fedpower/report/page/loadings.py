"""What each component is made of: its largest loadings drawn, all of them in a table."""

from typing import Any

import numpy as np

from fedpower.report.findings import Findings
from fedpower.report.page.charts import bars
from fedpower.report.page.markup import Markup, element, name
from fedpower.report.page.tables import (
    Figure,
    beside,
    figure,
    folded,
    paragraphs,
    section,
    table,
)
from fedpower.report.page.words import count, percent, signed

MOST_BARS = 15
MOST_LOADINGS = 500
MOST_COMPONENTS = 20

WARNINGS = {"noise": "× noise: do not read it", "near": "○ near the noise: read it with care"}


def loadings_section(result: Findings) -> Markup:
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


def _component(result: Findings, place: int) -> Markup:
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
    kind = result.standings[place]
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
            element("span", WARNINGS[kind], class_=kind) if kind in WARNINGS else None,
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


def _all_loadings(result: Findings, label: str, loadings: Any, listed: Any) -> Markup:
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


def _feature(result: Findings, place: int) -> str:
    return f"x{place}" if result.feature_names is None else result.feature_names[place]


def _loading(value: float) -> str:
    return signed(f"{value + 0.0:.4f}")
