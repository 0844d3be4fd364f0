"""The report draws columns in the plane of the first two components, unless one of them is noise."""

from pathlib import Path
from typing import Any

import pytest
from parsed_page import parsed

from fedpower.report.page import page


def planes(result: Any) -> list[Any]:
    section = parsed(page(result)).by_id("loadings")
    return [each for each in section.every("title") if "Loadings on pc1 and pc2" in each.text]


@pytest.mark.parametrize("kind", ["private", "exact", "hostile", "wide"])
def test_columns_are_drawn_by_their_first_two_loadings(kind: str, result: Any):
    found = result(kind)
    drawn = "noise" not in found.standings[:2] and found.n_components > 1
    assert len(planes(found)) == drawn
    if kind == "exact":
        words = parsed(page(found)).by_id("loadings").every("text")
        assert {each.text for each in words} >= {*found.feature_names, "pc1", "pc2"}


@pytest.mark.parametrize("kind", ["drowned", "one"])
def test_noise_and_single_components_are_not_drawn(kind: str, result: Any, tmp_path: Path):
    assert not planes(result(kind))
