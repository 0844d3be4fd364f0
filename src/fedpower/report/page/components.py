"""Which components stand above the noise, and what each of them is made of."""

from typing import Any

import numpy as np

from fedpower.privacy.statement import featured_as
from fedpower.report.causes import cause_of_noise
from fedpower.report.page.charts import bars, biplot, scree
from fedpower.report.page.markup import (
    NOT_ASSESSED,
    Figure,
    Markup,
    above_the_noise,
    bent_by_the_bound,
    beside,
    beyond_bound,
    column,
    count,
    element,
    figure,
    figures,
    folded,
    listed,
    most_variance,
    name,
    number,
    paragraphs,
    percent,
    section,
    signed,
    table,
)
from fedpower.report.result import Result

_MOST_DRAWN = 60
_MOST_BEYOND = 20

_STANDINGS = {
    "signal": ("●", "well above the noise"),
    "bent": ("◐", "above the noise, but the bound may have bent it"),
    "near": ("○", "near the noise"),
    "noise": ("×", "noise"),
    "unknown": ("?", "not assessed"),
}
"""By standing: its sign, and the verdict in words."""


def components_section(result: Result) -> Markup:
    """Return the scree plot with the noise level, and the table behind it."""
    drawn = min(result.n_components, _MOST_DRAWN)
    beyond = _beyond(result)
    picture = scree(
        result.explained_variance[:drawn].tolist(),
        standing=result.standings[:drawn],
        beyond=beyond if drawn == result.n_components else [],
        edge=result.noise_edge,
    )
    return section(
        "components",
        "Components",
        figure(picture, _legend(result, beyond)),
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


def above_noise(result: Result) -> list[str]:
    """Return how many stand above the noise, in the words of `fedpower fit`; nothing without noise."""
    known = result.run.get("n_above_noise")
    if known is None:
        return [f"{NOT_ASSESSED}."] if result.noise_edge else []
    remarks = beyond_bound(
        result.explained_variance.tolist(), most_variance(result.run, result.n_samples)
    )
    cause = cause_of_noise(result)
    said = [] if cause is None else [f"{cause[0].upper()}{cause[1:]}."]
    turned = [] if result.clipping is None else [result.clipping]
    turned += bent_by_the_bound(result.standings)
    return [f"{above_the_noise(known, result.n_features)}.", *said, *remarks, *turned]


def mixed(result: Result) -> list[list[str]]:
    """Return groups of components that are closer together than the noise level, which may mix them.

    Noise of a spectral norm up to the level turns eigenvectors whose values lie closer than that into one
    another (Davis-Kahan); the space that they span together is not concerned. Components that are noise
    are left out; the eigenvalue after the last one counts where it is known.
    """
    if result.noise_edge == 0 or result.run.get("n_above_noise") is None:
        return []
    named = [f"pc{place}" for place in range(1, result.n_components + 1)]
    values = result.explained_variance.tolist()
    if result.spectrum is not None and len(result.spectrum) > len(values):
        values.append(float(result.spectrum[len(values)]))
        named.append("what follows")
    groups: list[list[str]] = []
    for place, standing in enumerate(result.standings):
        if standing == "noise" or place + 1 == len(values):
            break
        if values[place] - values[place + 1] < result.noise_edge:
            if not groups or groups[-1][-1] != named[place]:
                groups.append([named[place]])
            groups[-1].append(named[place + 1])
    return groups


def _mixture(group: list[str]) -> str:
    return (
        f"{listed(group)} lie closer together than the noise level, so noise may have mixed them: what "
        "they span together can be read, each of them alone cannot."
    )


def _beyond(result: Result) -> list[float]:
    """Return the released eigenvalues that follow the components, as many as are of use in a picture."""
    if result.spectrum is None:
        return []
    following: list[float] = result.spectrum[result.n_components :].tolist()
    return following[: max(_MOST_BEYOND, result.n_components)]


def _legend(result: Result, beyond: list[float]) -> list[Any]:
    held = result.standings
    entries: list[Any] = [
        _key(sign, kind, f"component {words}" if result.noise_edge else "component")
        for kind, (sign, words) in _STANDINGS.items()
        if kind in held
    ]
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
    noise = [kind == "noise" for kind in result.standings]
    together = [
        None if drowned else float(share)
        for drowned, share in zip(noise, np.cumsum(ratios), strict=True)
    ]
    alone = [
        None if drowned else float(share) for drowned, share in zip(noise, ratios, strict=True)
    ]
    columns: dict[str, list[Any]] = {
        "Component": [f"pc{place}" for place in range(1, result.n_components + 1)]
    }
    if result.noise_edge:
        columns["Verdict"] = [_verdict(kind) for kind in result.standings]
    columns["Variance"] = figures(column(variances), variances)
    columns["Share of all"] = figures(map(percent, alone), alone)
    columns["Together"] = figures(map(percent, together), together)
    if result.noise_edge:
        times = [variance / result.noise_edge for variance in variances]
        columns["Times\u00a0the noise\u00a0level"] = figures(
            [f"{ratio:,.2f}" for ratio in times], times
        )
    remark = (
        f"A component below the noise level is noise; one below twice the level{_uncounted(result)} is "
        "near it, and to be read with care. The level is known from public facts alone."
        if result.noise_edge and "unknown" not in result.standings
        else None
    )
    rows = list(zip(*columns.values(), strict=True))
    shown = table("Variance of each component", list(columns), rows, sortable=True)
    remarks = paragraphs(
        remark, *above_noise(result), *(_mixture(group) for group in mixed(result))
    )
    return element("div", shown, remarks)


def _uncounted(result: Result) -> str:
    known = result.run.get("n_above_noise") is not None
    return ", or one that noise may have made of several as large," if known else ""


def _verdict(kind: str) -> Markup:
    sign, words = _STANDINGS[kind]
    mark = element("b", sign, class_=kind, aria_hidden="true")
    return element("span", mark, f" {words}", class_="verdict")


_MOST_BARS = 15
_MOST_LOADINGS = 500
_MOST_COMPONENTS = 20

_WARNINGS = {
    "noise": "× noise: do not read it",
    "near": "○ near the noise: read it with care",
    "bent": "◐ maybe bent by the bound: read it with care",
}


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
    """Return the columns by their loadings on the first two components; nothing where one is noise."""
    if result.n_components < 2 or "noise" in result.standings[:2]:
        return None
    names = [_feature(result, each) for each in range(result.n_features)]
    first, second = result.components[:2].tolist()
    return figure(
        biplot(first, second, names, ("pc1", "pc2"), of=_thing(result)),
        f"A biplot: {_thing(result)}s that point the same way go together in these two components.",
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
            element("span", _WARNINGS[kind], class_=kind) if kind in _WARNINGS else None,
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
