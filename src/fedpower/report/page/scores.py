"""Where rows lie on the first two components: counts on a grid, drawn as far as they are no noise."""

import math
from typing import Any

from fedpower.report.page.charts import score_map
from fedpower.report.page.markup import (
    Figure,
    Markup,
    count,
    element,
    figure,
    folded,
    name,
    number,
    paragraphs,
    section,
    table,
)
from fedpower.report.result import Result
from fedpower.report.score_counts import POOLED, ScoreHistogram

_MOST_PANELS = 12
_MOST_LISTED = 200


def scores_section(result: Result) -> Markup | None:
    """Return a map of the counts for each silo, that of all silos first; None where none were made."""
    found = result.score_counts
    if found is None:
        return None
    silos = list(found.counts)
    shown = silos[:_MOST_PANELS]
    panels = [_panel(found, silo) for silo in shown]
    if len(silos) > 1:
        panels.insert(0, _panel(found.together(), POOLED))
    left_out = (
        f"The first {len(shown)} of {len(silos)} silos are drawn; score_counts.csv has all."
        if len(shown) < len(silos)
        else None
    )
    return section(
        "scores",
        "Scores",
        *paragraphs(_told(found, several=len(silos) > 1), found.fractions, left_out),
        element("div", panels, class_="panels"),
    )


def _told(found: ScoreHistogram, *, several: bool) -> str:
    """Return how the maps are to be read."""
    begin = (
        "Rows are counted by their scores on pc1 (to the right) and pc2 (upwards); what lies beyond the "
        "outermost places counts there."
    )
    if found.noise_std == 0:
        return f"{begin} The counts are exact, and NOT private."
    together = ", and of all silos’ together with the noise of all" if several else ""
    return (
        f"{begin} Every count of a silo has noise of standard deviation {number(found.noise_std, 3)}"
        f"{together}. A place that noise alone may have filled is left empty: the least count drawn is "
        "one that noise reaches anywhere in 1 of 20 such pictures. An empty place may hold a few rows."
    )


def _panel(found: ScoreHistogram, silo: str) -> Markup:
    counts = found.counts[silo]
    picture = score_map(f"Scores of {silo}", counts.tolist(), found.edges.tolist(), least=found.clear)
    largest = float(counts.max())
    empty = largest < found.clear
    least = "" if found.noise_std == 0 else f"; below {number(found.clear, 3)} is noise"
    caption: list[Any] = [
        element("b", name(silo)),
        element(
            "span",
            f"nothing stands above the noise of ±{number(found.clear, 3)}"
            if empty
            else f"fullest place: {_rows(largest)}{least}",
        ),
    ]
    return element("div", figure(picture, caption), None if empty else _table(found, silo))


def _table(found: ScoreHistogram, silo: str) -> Markup:
    cells = sorted((cell for cell in found.cells(silo) if cell[4] >= found.clear), key=lambda cell: -cell[4])
    listed = cells[:_MOST_LISTED]
    ends = [float(each) for edges in found.edges for each in (edges[0], edges[-1])]
    rows = [
        (_between(*cell[:2], ends[:2]), _between(*cell[2:4], ends[2:]), Figure(number(cell[4]), cell[4]))
        for cell in listed
    ]
    words = f"{count(len(cells), 'place')} with rows"
    if len(listed) < len(cells):
        words = f"The {len(listed)} fullest of {words}"
    return folded(words, table(f"Counts of scores of {silo}", ["pc1", "pc2", "Count"], rows), kind="long")


def _between(low: float, high: float, ends: list[float]) -> str:
    """Return what lies in a place, in words; the outermost ones go on without end."""
    if math.isclose(low, ends[0]):
        return f"below {number(high, 3)}"
    if math.isclose(high, ends[1]):
        return f"above {number(low, 3)}"
    return f"{number(low, 3)} to {number(high, 3)}"


def _rows(many: float) -> str:
    return f"{number(many, 3)} {'row' if many == 1 else 'rows'}"
