"""Components, their standing to the noise and their loadings, as the report shows them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parsed_page import parsed, words

from fedpower.report.files import REPORT
from fedpower.report.page import page
from fedpower.report.page.components import mixed
from sample_results import KINDS, hospitals, with_spectrum, written


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (("signal",) * 4, "All four components stand well above the level"),
        (
            ("signal", "signal", "signal", "near"),
            "pc4 is near it or much like what follows: read it with care.",
        ),
        (("signal", "signal", "near", "noise"), "Two of four components stand well above"),
        (("signal", "noise", "noise", "noise"), "pc2, pc3 and pc4 are noise."),
        (("near", "near", "near", "noise"), "No component stands well above"),
        (("noise",) * 4, "No component stands above the level"),
    ],
)
def test_how_components_stand_to_the_noise_is_told_by_shape_and_by_word(
    held: tuple[str, ...], sentence: str, result: Any
):
    times = np.array([{"signal": 2.0, "near": 1.99, "noise": 1.0}[kind] for kind in held])
    whole = result("private")
    run = {
        **whole.run,
        "noise_edge": 0.5,
        "n_above_noise": held.count("signal"),
        "clipping": None,
    }
    root = parsed(page(replace(whole, explained_variance=0.5 * times, run=run)))
    chart = root.by_id("components")
    for kind in ("signal", "near", "noise"):
        assert len(chart.every("path", class_=kind)) == held.count(kind)
    words_of = {
        "signal": "● well above the noise",
        "near": "○ near the noise",
        "noise": "× noise",
    }
    verdicts = [words(row.children[1]) for row in chart.every("table")[0].every("tr")[1:]]
    assert verdicts == [words_of[kind] for kind in held]
    assert len(chart.every("line", class_="edge")) == 1
    loadings = words(root.by_id("loadings"))
    assert loadings.count("× noise: do not read it") == held.count("noise")
    assert loadings.count("○ near the noise: read it with care") == held.count("near")
    assert sentence in words(root.by_id("summary"))
    together = [words(row.children[4]) for row in chart.every("table")[0].every("tr")[1:]]
    assert [each == "–" for each in together] == [kind == "noise" for kind in held]


@pytest.mark.parametrize("kind", ["private", "drowned", "secure"])
def test_how_many_stand_above_the_noise_is_told_in_the_words_of_fit(kind: str, result: Any):
    whole = result(kind)
    reported = (
        f"Above the noise: {whole.run['n_above_noise']} of 8 components, with a chance of at most 1% "
        "that it is too many."
    )
    root = parsed(page(whole))
    assert reported in words(root.by_id("summary"))
    assert reported in words(root.by_id("components"))
    unknown = replace(whole, run={**whole.run, "n_above_noise": None})
    assert "Above the noise" not in words(parsed(page(unknown)))


def test_two_components_are_both(result: Any):
    whole = result("private")
    two = replace(
        whole,
        components=whole.components[:2],
        explained_variance=np.array([9.0, 6.0]),
        explained_variance_ratio=np.array([0.5, 0.3]),
        run={**whole.run, "noise_edge": 1.0, "n_above_noise": 2},
    )
    assert "Both components stand well above" in words(parsed(page(two)).by_id("summary"))


@pytest.mark.parametrize(
    ("values", "following", "groups"),
    [
        ((9.0, 6.0, 4.0, 2.0), None, []),
        ((9.0, 8.5, 4.0, 2.0), None, [["pc1", "pc2"]]),
        ((9.0, 8.5, 8.0, 2.0), None, [["pc1", "pc2", "pc3"]]),
        ((9.0, 8.5, 4.0, 3.5), None, [["pc1", "pc2"], ["pc3", "pc4"]]),
        ((9.0, 6.0, 4.0, 2.0), 1.5, [["pc4", "what follows"]]),
        ((9.0, 6.0, 4.0, 2.0), 0.5, []),
        ((9.0, 6.0, 0.9, 0.8), None, []),
        ((9.0, 1.8, 0.9, 0.8), None, [["pc2", "pc3"]]),
    ],
)
def test_components_that_noise_may_have_mixed_are_named_together(
    values: tuple[float, ...], following: float | None, groups: list[list[str]], result: Any
):
    whole = result("private")
    spectrum = None if following is None else np.array([*values, following])
    run = {**whole.run, "noise_edge": 1.0}
    reported = replace(whole, explained_variance=np.array(values), spectrum=spectrum, run=run)
    assert mixed(reported) == groups
    section = words(parsed(page(reported)).by_id("components"))
    assert section.count("noise may have mixed them") == len(groups)
    for group in groups:
        assert f"{group[-2]} and {group[-1]} lie closer together" in section
    assert mixed(replace(reported, run={**run, "noise_edge": 0.0})) == []


def test_without_noise_there_is_no_level_and_no_verdict(result: Any):
    chart = parsed(page(result("exact"))).by_id("components")
    assert not chart.every("line", class_="edge")
    assert "noise" not in words(chart).replace("no noise level is drawn", "")


def test_eigenvalues_beyond_the_components_are_drawn_in_another_mark(result: Any):
    plain = parsed(page(replace(result("private"), spectrum=None))).by_id("components")
    assert not plain.every("path", class_="beyond")
    shown = parsed(page(result("private"))).by_id("components")
    assert len(shown.every("path", class_="beyond")) == 8 - 4
    more = parsed(page(with_spectrum(result("private"), 7))).by_id("components")
    assert len(more.every("path", class_="beyond")) == 7
    assert len(more.every("table")[1].every("tr")) == 1 + 7
    many = parsed(page(with_spectrum(result("private"), 2000))).by_id("components")
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
        shown = {
            row.children[0].text: float(row.children[1].attributes["data-value"]) for row in rows
        }
        order = np.argsort(-np.abs(loadings), kind="stable")[:500]
        assert list(shown) == [whole.feature_names[place] for place in order]
        np.testing.assert_allclose(list(shown.values()), loadings[order], rtol=1e-8)
        drawn = [each.text for each in part.every("ol", class_="labels")[0].every("bdi")]
        assert drawn == list(shown)[:15]
        assert len(part.every("rect", class_="bar")) == len(drawn)
    assert ("The 500 largest of 620 loadings" in words(root)) == (kind == "wide")
    assert ("components.csv has all" in words(root)) == (kind == "wide")


def test_of_very_many_components_the_first_are_shown(tmp_path: Path):
    root = parsed((written(tmp_path / "out", hospitals(70), 65) / REPORT).read_text("utf-8"))
    assert len(root.by_id("loadings").every("details", class_="component")) == 20
    assert "The first 20 of 65 components are shown" in words(root.by_id("loadings"))
    assert "The first 60 of 65 components are drawn" in words(root.by_id("components"))
    assert len(root.by_id("components").every("table")[0].every("tr")) == 1 + 65
