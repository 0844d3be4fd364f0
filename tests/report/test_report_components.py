"""Components, their angles and their loadings, as the report shows them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parsed_page import parsed, words

from fedpower.report.page import result_page as page
from fedpower.report.result import Result
from fedpower.report.view import findings
from sample_results import KINDS, with_run, with_spectrum


def with_angles(result: Result, components: list[float], subspaces: list[float]) -> Result:
    """Return a result with other angles, of noise alone."""
    changed = {"components": components, "subspaces": subspaces, "noise_components": components}
    angles = {**result.run["angles"], **changed}
    return with_run(result, {**result.run, "angles": angles, "clipping": None})


@pytest.mark.parametrize(
    ("components", "subspaces", "sentences"),
    [
        (
            [3, 4, 5, 6],
            [3, 4, 5, 6],
            ["pc1 to pc4 are determined: each is within 45° of the component that the rows have"],
        ),
        (
            [3, 65, 65, 45],
            [3, 60, 6.2, 7],
            [
                "pc1 and pc4 are determined: each is",
                "pc2 and pc3 cannot be told apart; together with pc1 they are within 7°.",
            ],
        ),
        (
            [70, 70, 50, 80],
            [70, 6, 40, 70],
            [
                "No component is determined: each may be more than 45° off, at 90% confidence.",
                "pc1, pc2 and pc3 cannot be told apart; together they are within 40°.",
                "pc4 is not determined.",
            ],
        ),
        (
            [5, 46, 80, 85],
            [5, 44, 80, 85],
            [
                "pc1 is determined: it is within 45°",
                "pc2 is not determined by itself; together with pc1 it is within 44°.",
                "pc3 and pc4 are not determined.",
            ],
        ),
    ],
)
def test_what_is_determined_is_told_by_shape_and_by_word(
    components: list[float], subspaces: list[float], sentences: list[str], result: Any
):
    found = with_angles(result("private"), components, subspaces)
    root = parsed(page(found))
    shown = words(root.by_id("summary"))
    assert all(sentence in shown for sentence in sentences)
    known = sum(angle <= 45 for angle in components)
    scree, angles = root.by_id("components").every("figure")
    assert len(scree.every("path", class_="determined")) == known
    assert len(scree.every("path", class_="undetermined")) == 4 - known
    both = known + sum(angle <= 45 for angle in subspaces)
    assert len(angles.every("path", class_="determined")) == both
    assert len(angles.every("line", class_="edge")) == 1
    rows = root.by_id("components").every("table")[0].every("tr")[1:]
    assert [words(row.children[4]) for row in rows] == [f"{angle}°" for angle in components]
    loadings = root.by_id("loadings")
    assert words(loadings).count("○ not determined: do not read it") == 4 - known
    assert len(loadings.every("details", class_="undetermined")) == 4 - known


@pytest.mark.parametrize("kind", ["private", "drowned", "secure", "step"])
def test_the_page_says_what_a_terminal_says(kind: str, result: Any):
    shown = words(parsed(page(result(kind))).by_id("summary"))
    assert all(sentence in shown for sentence in findings(result(kind)))
    assert ("The likely cause is" in shown) == (not any(result(kind).determined))


def test_exact_components_without_variance_are_not_determined(result: Any):
    found = with_angles(result("exact"), [0, 0, 90, 90], [0, 0, 90, 90])
    shown = words(parsed(page(found)).by_id("summary"))
    assert "pc3 and pc4 are not determined: without variance, or with the same as others." in shown


def test_eigenvalues_beyond_the_components_are_drawn_where_they_are_exact(result: Any):
    plain = parsed(page(replace(result("exact"), spectrum=None))).by_id("components")
    assert not plain.every("path", class_="beyond")
    shown = parsed(page(result("exact"))).by_id("components")
    assert len(shown.every("path", class_="beyond")) == 8 - 4
    noised = parsed(page(with_spectrum(result("private"), 7))).by_id("components")
    assert not noised.every("path", class_="beyond")
    assert len(noised.every("table")[1].every("tr")) == 1 + 7
    many = parsed(page(with_spectrum(result("exact"), 2000))).by_id("components")
    assert len(many.every("path", class_="beyond")) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_has_a_title_a_description_and_its_numbers_in_a_table(kind: str, result: Any):
    root = parsed(page(result(kind)))
    pictures = root.every("svg", role="img")
    assert len(pictures) >= 2 + result(kind).n_components
    for picture in pictures:
        assert [each.tag for each in picture.children[:2]] == ["title", "desc"]
        assert "table" in picture.children[1].text
        assert all(each.text.strip() for each in picture.children[:2])
    for table in root.every("table"):
        assert table.every("caption")[0].text
        widths = {len(row.children) for row in table.every("tr")}
        assert len(widths) == 1


@pytest.mark.parametrize("kind", ["private", "hostile", "wide"])
def test_loadings_are_listed_by_size_with_the_columns_they_belong_to(kind: str, result: Any):
    whole = result(kind)
    root = parsed(page(whole)).by_id("loadings")
    parts = root.every("details", class_="component")
    assert len(parts) == whole.n_components
    for loadings, part in zip(whole.components, parts, strict=True):
        rows = part.every("table")[0].every("tr")[1:]
        assert len(rows) == min(len(loadings), 500)
        shown = {row.children[0].text: float(row.children[1].attributes["data-value"]) for row in rows}
        order = np.argsort(-np.abs(loadings), kind="stable")[:500]
        assert list(shown) == [whole.feature_names[place] for place in order]
        np.testing.assert_allclose(list(shown.values()), loadings[order], rtol=1e-8)
        drawn = [each.text for each in part.every("ol", class_="labels")[0].every("bdi")]
        assert drawn == list(shown)[:15]
        assert len(part.every("rect", class_="bar")) == len(drawn)
    assert ("The 500 largest of 620 loadings" in words(root)) == (kind == "wide")
    assert ("components.csv has all" in words(root)) == (kind == "wide")
