"""report.html tells what was released, all of it in words and numbers, and nothing else."""

import base64
import hashlib
import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_page import Node, parsed

from fedpower.errors import InputError
from fedpower.privacy.statement import ASSUMPTIONS
from fedpower.report import Result, read_result
from fedpower.report.folder import ARRAYS, REPORT, RUN, write_report
from fedpower.report.page import CONTENTS, page
from fedpower.report.page.components import mixed
from fedpower.report.page.provenance import PAPER
from fedpower.report.page.shape import RECORD, IfThere
from sample_results import HOSTILE, PRIVATE, hospitals, kinds, with_spectrum, written

KINDS = ("private", "drowned", "secure", "step", "exact", "krylov", "sampled", "one", "wide",
         "hostile", "federated")  # fmt: skip


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = kinds(tmp_path_factory.mktemp("results"))
    assert set(made) == set(KINDS)
    return made


@pytest.fixture
def result(folders: dict[str, Path]) -> Callable[[str], Result]:
    return lambda kind: read_result(folders[kind])


def words(node: Node) -> str:
    return " ".join(node.text.replace("\u00a0", " ").split())


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_depends_on_the_arrays_and_the_record_alone(
    kind: str, folders: dict[str, Path], tmp_path: Path
):
    for name in (ARRAYS, RUN):
        shutil.copy(folders[kind] / name, tmp_path)
    made = write_report(tmp_path)
    assert made == tmp_path / REPORT
    assert made.read_text(encoding="utf-8") == page(read_result(folders[kind]))
    if kind != "federated":  # that one was put together by hand
        assert made.read_bytes() == (folders[kind] / REPORT).read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([ARRAYS, RUN, REPORT])


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_whole_and_refers_to_nothing_outside(kind: str, result: Any):
    root = parsed(page(result(kind)))
    identities = [each.attributes["id"] for each in root.all() if "id" in each.attributes]
    assert len(identities) == len(set(identities))
    for node in root.all():
        assert not {"src", "style", "srcset", "action"} & set(node.attributes)
        assert not [key for key in node.attributes if key.startswith("on")]
        if "href" in node.attributes:
            assert node.attributes["href"][1:] in identities
    assert {each.tag for each in root.all()} <= {
        "html", "head", "meta", "title", "style", "script", "body", "a", "header", "nav", "main",
        "section", "footer", "h1", "h2", "h3", "p", "ul", "ol", "li", "dl", "dt", "dd", "div", "span",
        "b", "bdi", "code", "pre", "table", "caption", "thead", "tbody", "tr", "th", "td", "details",
        "summary", "figure", "figcaption", "svg", "desc", "line", "rect", "path", "text",
    }  # fmt: skip
    assert [each.attributes["id"] for each in root.every("section")] == ["summary", *CONTENTS]


def test_the_policy_names_the_style_and_the_script_of_the_page(result: Any):
    root = parsed(page(result("private")))
    (policy,) = [
        each.attributes["content"]
        for each in root.every("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        (node,) = root.every(kind)
        digest = base64.b64encode(hashlib.sha256(node.text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_names_are_shown_as_they_are_and_nothing_in_them_is_run(result: Any):
    root = parsed(page(result("hostile")))
    shown = {each.text for each in root.every("bdi")}
    assert shown >= set(HOSTILE)
    assert len(root.every("script")) == 1
    assert not root.every("img")
    assert shlex.split(root.by_id("provenance").every("pre")[0].text) == list(HOSTILE)


@given(names=st.lists(st.text(max_size=30), min_size=8, max_size=8, unique=True))
def test_the_page_has_the_same_elements_whatever_the_names(
    names: list[str], folders: dict[str, Path]
):
    plain = read_result(folders["private"])
    run = json.loads(json.dumps(plain.run))
    renamed = dict(zip([each["name"] for each in run["silos"]], names, strict=False))
    for each in run["silos"]:
        each["name"] = renamed[each["name"]]
    for each in run["rounds"]:
        each["participants"] = [renamed[name] for name in each["participants"]]
    run["solver"]["reason"] = run["privacy"]["public"][0] = names[0]
    other = parsed(page(replace(plain, feature_names=tuple(names), run=run)))
    skeleton = [(each.tag, sorted(each.attributes)) for each in parsed(page(plain)).all()]
    assert [(each.tag, sorted(each.attributes)) for each in other.all()] == skeleton
    other.text.encode("utf-8")  # what cannot be written was replaced


def test_where_rows_are_and_what_they_hold_is_not_told(tmp_path: Path):
    """By chance a noised number begins like a planted one once in 10⁴ runs: some 10² against 6 digits."""
    kept = tmp_path / "kept-by-the-silo"
    kept.mkdir()
    planted = 1.2345678
    for name, frame in hospitals().items():
        frame.assign(test0=planted).to_parquet(kept / f"{name}.parquet")
    files = {name: kept / f"{name}.parquet" for name in hospitals()}
    told = (written(tmp_path / "out", files, **PRIVATE) / REPORT).read_text(encoding="utf-8")
    assert "kept-by-the-silo" not in told
    assert ".parquet" not in told
    assert str(planted)[:7] not in told


@pytest.mark.parametrize("kind", ["private", "secure", "step", "drowned", "hostile", "federated"])
def test_a_private_result_states_all_that_its_statement_holds(kind: str, result: Any):
    told = result(kind).run["privacy"]
    section = words(parsed(page(result(kind))).by_id("privacy"))
    for row in told["protections"]:
        assert f"Against {row['observer']}" in section
        assert f"who sees {row['sees']}" in section
        assert f"{row['epsilon']:.4g}" in section
    for sentence in (*told["public"], *told["notes"], *ASSUMPTIONS):
        assert " ".join(sentence.split()) in section
    assert told["unit"][1:] in section
    assert told["neighbours"][1:] in section
    assert f"ε = {told['asked_epsilon']:g} at δ = 10⁻⁶" in section
    assert told["mode"] in section
    assert "NOT PRIVATE" not in section


@pytest.mark.parametrize("kind", ["exact", "krylov", "sampled", "one", "wide"])
def test_an_exact_result_says_twice_that_nothing_is_protected(kind: str, result: Any):
    root = parsed(page(result(kind)))
    assert "NOT PRIVATE: nothing is protected" in words(root.by_id("summary"))
    assert "NOT PRIVATE (ε = ∞)" in words(root.by_id("privacy"))
    assert "Private:" not in words(root)


@pytest.mark.parametrize(
    ("epsilon", "odds", "verdict"),
    [
        (0.5, "1.65", ""),
        (4.0, "54.6", "That is weak protection."),
        (12.0, "163,000", "That promises little."),
        (None, "∞", "That promises little."),
    ],
)
def test_a_large_epsilon_is_called_what_it_is(
    epsilon: float | None, odds: str, verdict: str, result: Any
):
    whole = result("private")
    rows = [{**row, "epsilon": epsilon} for row in whole.run["privacy"]["protections"]]
    run = {**whole.run, "privacy": {**whole.run["privacy"], "protections": rows}}
    found = words(parsed(page(replace(whole, run=run))).by_id("summary"))
    assert f"shift by a factor of {odds} at most" in found
    assert found.endswith(f"10⁻⁶.{' ' * bool(verdict)}{verdict}")


def test_a_promise_that_a_leak_voids_is_not_made(result: Any):
    whole = result("private")
    leak = "the row bound was read from the rows"
    run = {**whole.run, "privacy": {**whole.run["privacy"], "private": False, "leak": leak}}
    root = parsed(page(replace(whole, run=run)))
    assert f"NOT PRIVATE although ε = 1 was asked for: {leak}" in words(root.by_id("privacy"))
    assert f"NOT PRIVATE: nothing is promised, because {leak}." in words(root.by_id("summary"))
    assert not root.by_id("privacy").every("table")


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
    run = {**whole.run, "noise_edge": 0.5, "n_above_noise": None}
    root = parsed(page(replace(whole, explained_variance=0.5 * times, run=run)))
    chart = root.by_id("components")
    for kind in ("signal", "near", "noise"):
        assert len(chart.every("path", class_=kind)) == held.count(kind)
    words_of = {
        "signal": "● well above the noise",
        "near": "○ near the noise",
        "noise": "× noise",
    }
    verdicts = [words(row.children[-1]) for row in chart.every("table")[0].every("tr")[1:]]
    assert verdicts == [words_of[kind] for kind in held]
    assert len(chart.every("line", class_="edge")) == 1
    loadings = words(root.by_id("loadings"))
    assert loadings.count("× noise: do not read it") == held.count("noise")
    assert loadings.count("○ near the noise: read it with care") == held.count("near")
    assert sentence in words(root.by_id("summary"))


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
    told = replace(whole, explained_variance=np.array(values), spectrum=spectrum, run=run)
    assert mixed(told) == groups
    section = words(parsed(page(told)).by_id("components"))
    assert section.count("noise may have mixed them") == len(groups)
    for group in groups:
        assert f"{group[-2]} and {group[-1]} lie closer together" in section
    assert mixed(replace(told, run={**run, "noise_edge": 0.0})) == []


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


def test_one_round_is_told_in_words_and_many_are_drawn(result: Any):
    single = parsed(page(result("private"))).by_id("rounds")
    assert "One round did it" in words(single)
    assert not single.every("svg")
    run = result("krylov").run
    many = parsed(page(result("krylov"))).by_id("rounds")
    convergence, traffic = many.every("svg", role="img")
    moved = [each["change"] for each in run["rounds"] if each["change"] is not None]
    assert len(moved) > 3
    assert len(convergence.every("path", class_="change")) == len(moved)
    assert len(traffic.every("rect", class_="up")) == run["n_rounds"]
    rows = many.every("table")[0].every("tr")[1:]
    assert [int(row.children[4].attributes["data-value"]) for row in rows] == [
        each["bytes_up"] for each in run["rounds"]
    ]


def test_rounds_that_move_no_basis_have_no_chart_of_it(result: Any):
    section = parsed(page(result("secure"))).by_id("rounds")
    assert "no convergence to watch" in words(section)
    assert len(section.every("svg", role="img")) == 1


def test_misalignment_is_drawn_where_it_was_recorded(result: Any):
    run = result("sampled").run
    spread = [each["misalignment"] for each in run["rounds"] if each["misalignment"] is not None]
    assert len(spread) > 1
    section = parsed(page(result("sampled"))).by_id("rounds")
    assert len(section.every("path", class_="misalignment")) == len(spread)
    assert "Misalignment (ρ)" in words(section)


def test_the_grid_has_a_cell_for_every_silo_and_round(result: Any):
    run = result("sampled").run
    section = parsed(page(result("sampled"))).by_id("silos")
    answered = sum(each["n_participants"] for each in run["rounds"])
    cells = len(run["silos"]) * run["n_rounds"]
    assert 0 < answered < cells
    assert len(section.every("rect", class_="answered")) == answered
    assert len(section.every("rect", class_="missing")) == cells - answered
    assert len(section.every("path", class_="missing")) == cells - answered


def test_a_silo_that_never_answered_is_in_the_grid_of_a_federation(result: Any):
    section = parsed(page(result("federated"))).by_id("silos")
    assert "never-there" in words(section)
    assert "Questions missed" in words(section)
    assert "Rows come from" not in words(section)


def test_budgets_of_silos_are_shown_only_where_the_record_has_them(result: Any):
    whole = result("private")
    plain = words(parsed(page(whole)).by_id("privacy"))
    assert "Spent of what was asked for" in plain
    assert "known to that silo alone" in plain
    budget = {"spent": 1.0, "left": 1.67, "cap": 2.0, "delta": 1e-6, "used": 0.31}
    run = {**whole.run, "silos": [{**each, "budget": budget} for each in whole.run["silos"]]}
    shown = parsed(page(replace(whole, run=run))).by_id("privacy")
    assert "Budgets after this fit" in words(shown)
    assert [words(cell) for cell in shown.every("table")[1].every("tr")[1].children] == [
        "north", "1.000", "1.670", "2.000", "10⁻⁶", "31.0%",
    ]  # fmt: skip


def test_the_command_parameters_or_study_that_give_it_again_are_told(result: Any):
    told = {kind: parsed(page(result(kind))).by_id("provenance") for kind in KINDS}
    assert shlex.split(told["exact"].every("pre")[0].text) == ["fedpower", "fit", "a b.csv"]
    call = told["step"].every("pre")[0].text
    assert eval(call, {"FedPCA": _Call, "silos": ()}).given == {  # noqa: S307
        key: value for key, value in result("step").run["parameters"].items() if value is not None
    }
    assert "fedpower run study.toml" in words(told["federated"])
    assert "ab" * 32 in words(told["federated"])


class _Call:
    def __init__(self, **given: Any) -> None:
        self.given = {
            key: "inf" if value == float("inf") else value for key, value in given.items()
        }

    def fit_silos(self, silos: Any) -> "_Call":
        return self


def test_the_paper_is_cited_as_in_the_references(result: Any):
    references = (Path(__file__).parents[2] / "docs" / "references.bib").read_text()
    assert PAPER in references
    section = parsed(page(result("private"))).by_id("provenance").text
    assert PAPER in section
    assert f"version = {{{result('private').run['versions']['fedpower']}}}" in section


def test_a_result_of_before_there_were_reports_gets_one(folders: dict[str, Path], tmp_path: Path):
    shutil.copytree(folders["private"], tmp_path / "old")
    (tmp_path / "old" / REPORT).unlink()
    run = json.loads((tmp_path / "old" / RUN).read_text())
    del run["noise_edge"]
    (tmp_path / "old" / RUN).write_text(json.dumps(run))
    with np.load(tmp_path / "old" / ARRAYS) as stored:
        kept = {name: stored[name] for name in stored.files if name != "spectrum"}
    np.savez(tmp_path / "old" / ARRAYS, **kept)
    assert read_result(tmp_path / "old").spectrum is None
    write_report(tmp_path / "old")
    assert "No noise level is on record" in (tmp_path / "old" / REPORT).read_text("utf-8")


@pytest.mark.parametrize(
    "key", [key for key, kind in RECORD.items() if not isinstance(kind, IfThere)]
)
@pytest.mark.parametrize("instead", [None, "", [], 7.5, [{}], {"a": 1}], ids=repr)
def test_a_record_that_lacks_what_a_report_tells_is_refused_in_one_sentence(
    key: str, instead: Any, folders: dict[str, Path], tmp_path: Path
):
    shutil.copytree(folders["private"], tmp_path / "out")
    run = json.loads((tmp_path / "out" / RUN).read_text())
    run[key] = instead
    (tmp_path / "out" / RUN).write_text(json.dumps(run))
    before = (tmp_path / "out" / REPORT).read_bytes()
    if key == "parameters" and isinstance(instead, dict):
        write_report(tmp_path / "out")
        return
    with pytest.raises(InputError, match=rf"got none or another kind of {key}") as caught:
        write_report(tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "out" / REPORT).read_bytes() == before
