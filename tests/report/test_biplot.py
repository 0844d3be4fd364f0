"""The report draws columns in the plane of the first two components, grey where one is not determined."""

from typing import Any

import pytest
from parsed_page import parsed, words

from fedpower.report.page import result_page as page


def planes(result: Any) -> list[Any]:
    section = parsed(page(result)).by_id("loadings")
    return [each for each in section.every("title") if "Loadings on pc1 and pc2" in each.text]


@pytest.mark.parametrize("kind", ["private", "exact", "hostile", "wide"])
def test_columns_are_drawn_by_their_first_two_loadings(kind: str, result: Any):
    found = result(kind)
    assert len(planes(found)) == 1
    grey = parsed(page(found)).by_id("loadings").every("div", class_="undetermined")
    assert len(grey) == (not all(found.determined[:2]))
    if kind == "exact":
        texts = parsed(page(found)).by_id("loadings").every("text")
        assert {each.text for each in texts} >= {*found.feature_names, "pc1", "pc2"}


def test_a_single_component_is_no_plane(result: Any):
    assert not planes(result("one"))


def test_components_that_are_not_determined_are_said_to_be_so(result: Any):
    section = parsed(page(result("drowned"))).by_id("loadings")
    grey = section.every("div", class_="undetermined")
    assert "pc1 and pc2 are not determined." in words(grey[0])
