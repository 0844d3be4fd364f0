"""report.html shows what was released, all of it in words and numbers, and nothing else."""

import base64
import hashlib
import re
import shlex
import shutil
import warnings
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from parsed_page import Node, check_whole, parsed, words

import fedpower
from benchmarks.fits import fed_pca
from fedpower.estimator.terms import options_of
from fedpower.privacy.statement import as_sentence
from fedpower.report import Result, charts
from fedpower.report.outcome import recorded
from fedpower.report.page import result_page
from fedpower.report.record import ARRAYS, REPORT, RUN
from fedpower.report.result import read_result
from fedpower.report.view import findings
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import table_rules
from sample_results import HOSTILE, KINDS, PRIVATE, hospitals, with_run, with_spectrum, written


def changed(result: Result, **run: Any) -> Node:
    return parsed(result_page(with_run(result, {**result.run, **run})))


def angled(result: Result, components: list[float], subspaces: list[float]) -> Result:
    """Return a result with other angles, of noise alone."""
    others = {"components": components, "subspaces": subspaces, "noise_components": components}
    angles = {**result.run["angles"], **others}
    return with_run(result, {**result.run, "angles": angles, "clipping": None})


def with_angles(result: Result, components: list[float], subspaces: list[float]) -> Node:
    """Return the page of a result with other angles."""
    return parsed(result_page(angled(result, components, subspaces)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wide"])  # that one takes seconds
def test_a_page_is_whole_and_depends_on_arrays_and_record_alone(kind, folders, result, shown, tmp_path):
    root, found = shown(kind), result(kind)
    check_whole(root)
    contents = ["components", "loadings", "scores", "privacy", "columns", "silos", "rounds", "provenance"]
    if kind != "scored":
        contents.remove("scores")
    assert [each.attributes["id"] for each in root.every("section")] == ["summary", *contents]
    pictures = root.every("svg", role="img")
    assert len(pictures) > found.n_components
    assert all("table" in picture.children[1].text for picture in pictures)
    summary = words(root.by_id("summary"))
    assert all(sentence in summary for sentence in findings(found, judged=True))
    for name in (ARRAYS, RUN):
        shutil.copy(folders(kind) / name, tmp_path)
    read_result(tmp_path).report(tmp_path / REPORT)
    assert (tmp_path / REPORT).read_bytes() == (folders(kind) / REPORT).read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([ARRAYS, RUN, REPORT])


def test_the_policy_names_the_style_and_the_script_of_the_page(shown):
    metas = {each.attributes.get("http-equiv"): each for each in shown("private").every("meta")}
    policy = metas["Content-Security-Policy"].attributes["content"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        (node,) = shown("private").every(kind)
        digest = base64.b64encode(hashlib.sha256(node.text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_names_are_shown_as_they_are_and_nothing_in_them_is_run(shown):
    root = shown("hostile")
    assert {each.text for each in root.every("bdi")} >= set(HOSTILE)
    assert not root.every("img")
    assert shlex.split(root.by_id("provenance").every("pre")[0].text) == list(HOSTILE)


def test_where_rows_are_and_what_they_hold_is_not_told(tmp_path):
    """By chance a noised number begins like a planted one once in 10⁴ runs: some 10² against 6 digits."""
    kept = tmp_path / "kept-by-the-silo"
    kept.mkdir()
    planted = 1.2345678
    for name, frame in hospitals().items():
        frame.assign(test0=planted).to_parquet(kept / f"{name}.parquet")
    files = {name: kept / f"{name}.parquet" for name in hospitals()}
    reported = (written(tmp_path / "out", files, **PRIVATE) / REPORT).read_text(encoding="utf-8")
    assert "kept-by-the-silo" not in reported
    assert ".parquet" not in reported
    assert str(planted)[:7] not in reported


@pytest.mark.parametrize("kind", ["private", "secure", "step", "drowned", "hostile", "federated"])
def test_a_private_result_states_all_that_its_statement_holds(kind, result, shown):
    reported = result(kind).run["privacy"]
    section = words(shown(kind).by_id("privacy"))
    for row in reported["protections"]:
        assert row["observer"][1:] in section
        assert f"who sees {row['sees']}" in section
        assert f"{row['epsilon']:.4g}" in section
    said = map(as_sentence, (*reported["notes"], *reported["assumptions"]))
    for sentence in (*reported["public"], *said):
        assert " ".join(sentence.split()) in section
    assert reported["unit"][1:] in section
    assert reported["neighbours"][1:] in section
    assert f"ε = {reported['asked_epsilon']:g} at δ = 10⁻⁶" in section
    assert reported["mode"] in section
    assert "NOT PRIVATE" not in section
    some = any(result(kind).determined)
    assert ("The likely cause is" in words(shown(kind).by_id("summary"))) == (not some)


def test_what_is_not_private_says_so_twice(result, shown):
    for kind in ("exact", "sampled"):
        assert "Not private: exact numbers left every silo." in words(shown(kind).by_id("summary"))
        assert "NOT PRIVATE (ε = ∞)" in words(shown(kind).by_id("privacy"))
        assert "Private:" not in words(shown(kind))
    leak = "the row bound was read from the rows"
    privacy = {**result("private").run["privacy"], "private": False, "leak": leak}
    root = changed(result("private"), privacy=privacy)
    assert f"NOT PRIVATE although ε = 1 was requested: {leak}" in words(root.by_id("privacy"))
    assert f"Not private: {leak}." in words(root.by_id("summary"))
    assert not root.by_id("privacy").every("table")


def test_a_large_epsilon_is_called_what_it_is(result):
    privacy = result("private").run["privacy"]
    for epsilon, odds, level, verdict in (
        (0.5, "1.6", "good", "Every row is protected at ε = 0.5."),
        (3.9999999959, "54.6", "care", "ε = 4 is weak protection."),
        (12.0, "163,000", "bad", "ε = 12 is almost no protection."),
    ):
        rows = [{**row, "epsilon": epsilon} for row in privacy["protections"]]
        near = {**result("private").run["angles"], "components": [1] * 4, "subspaces": [1] * 4}
        told = {"privacy": {**privacy, "protections": rows}, "clipping": None, "angles": near}
        found = changed(result("private"), **told)
        assert f"odds change by at most ×{odds}, per row" in words(found.by_id("summary"))
        (line,) = found.every("p", class_="judgment")
        assert verdict in words(line)
        assert line.attributes["class"] == f"judgment {level}"


def test_the_command_parameters_or_study_that_give_it_again_are_told(result, shown):
    reported = {kind: shown(kind).by_id("provenance") for kind in ("exact", "step", "federated")}
    assert shlex.split(reported["exact"].every("pre")[0].text) == ["fedpower", "fit", "a b.csv"]
    call = reported["step"].every("pre")[0].text
    names = {name: getattr(fedpower, name) for name in fedpower.__all__}
    model = eval(call.removesuffix(".fit_silos(silos)"), names)  # noqa: S307
    assert recorded(options_of(model)) == result("step").record.parameters
    assert "fedpower study run study.toml" in words(reported["federated"])
    assert "ab" * 32 in words(reported["federated"])


def test_a_secure_sum_is_neither_promised_again_for_nothing_nor_called_a_noised_covariance(shown):
    again = words(shown("secure").by_id("provenance"))
    assert "each run spends ε = 1." in again
    assert "at no cost" not in again
    privacy = words(shown("secure").by_id("privacy"))
    assert "Each silo added its share of the noise to a masked sum" in privacy
    assert "noised its covariance once" not in privacy
    assert "noised its covariance once" in words(shown("private").by_id("privacy"))


WITHIN = "is within 45° of the exact component"
ANGLES: list[tuple[list[float], list[float], list[str]]] = [
    ([3, 4, 5, 6], [3, 4, 5, 6], [f"pc1 to pc4 are determined: each {WITHIN}"]),
    (
        [3, 65, 65, 45],
        [3, 60, 6.2, 7],
        [
            "pc1 and pc4 are determined",
            "pc2 and pc3 cannot be distinguished; together with pc1 they are within 7°.",
        ],
    ),
    (
        [70, 70, 50, 80],
        [70, 6, 40, 70],
        [
            "No component is determined: each may be more than 45° from the exact one, at 90% confidence.",
            "pc1, pc2 and pc3 cannot be distinguished; together they are within 40°.",
            "pc4 is not determined.",
        ],
    ),
    (
        [5, 46, 80, 85],
        [5, 44, 80, 85],
        [
            "pc1 is determined: it is within 45°",
            "pc2 is not determined on its own; together with pc1 it is within 44°.",
            "pc3 and pc4 are not determined.",
        ],
    ),
]


@pytest.mark.parametrize(("components", "subspaces", "sentences"), ANGLES)
def test_what_is_determined_is_told_by_shape_and_by_word(components, subspaces, sentences, result):
    root = with_angles(result("private"), components, subspaces)
    told = " ".join(findings(angled(result("private"), components, subspaces)))
    assert all(sentence in told for sentence in sentences)
    summary = words(root.by_id("summary"))
    assert all(sentence in summary for sentence in sentences if "together" in sentence)
    assert WITHIN not in summary  # the tile and the judgment say it
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
    assert words(loadings).count("○ not determined: do not interpret it") == 4 - known
    assert len(loadings.every("details", class_="undetermined")) == 4 - known


def test_what_is_exact_has_eigenvalues_beyond_drawn_and_may_be_without_variance(result, shown):
    def section(found: Result) -> Node:
        return parsed(result_page(found)).by_id("components")

    assert not section(replace(result("exact"), spectrum=None)).every("path", class_="beyond")
    assert len(shown("exact").by_id("components").every("path", class_="beyond")) == 8 - 4
    noised = section(with_spectrum(result("private"), 7))
    assert len(noised.every("path", class_="beyond")) == 10 - 4
    assert len(noised.every("table")[1].every("tr")) == 1 + 7
    assert len(section(with_spectrum(result("exact"), 2000)).every("path", class_="beyond")) == 10 - 4
    summary = words(with_angles(result("exact"), [0, 0, 90, 90], [0, 0, 90, 90]).by_id("summary"))
    assert "pc3 and pc4 are not determined: no variance, or the same variance as another." in summary


@pytest.mark.parametrize("kind", ["private", "hostile", "krylov"])
def test_loadings_are_listed_by_size_with_the_columns_they_belong_to(kind, result, monkeypatch):
    monkeypatch.setattr("fedpower.report.page._MOST_LOADINGS", 30)
    whole, root = result(kind), parsed(result_page(result(kind))).by_id("loadings")
    parts = root.every("details", class_="component")
    assert len(parts) == whole.n_components
    for loadings, part in zip(whole.components, parts, strict=True):
        rows = part.every("table")[0].every("tr")[1:]
        listed = {row.children[0].text: float(row.children[1].attributes["data-value"] or 0) for row in rows}
        order = np.argsort(-np.abs(loadings), kind="stable")[:30]
        assert list(listed) == [whole.feature_names[place] for place in order]
        np.testing.assert_allclose(list(listed.values()), loadings[order], rtol=1e-8)
        drawn = [each.text for each in part.every("ol", class_="labels")[0].every("bdi")]
        assert drawn == list(listed)[:15]
        assert len(part.every("rect", class_="bar")) == len(drawn)
    assert ("The 30 largest of 40 loadings" in words(root)) == (kind == "krylov")
    assert ("components.csv has all" in words(root)) == (kind == "krylov")


def test_one_round_is_told_in_words_and_many_are_drawn(result, shown):
    single = shown("private").by_id("rounds")
    assert "1 round: " in words(single)
    assert not single.every("svg")
    assert not [part for part in single.every("details") if "open" in part.attributes]
    assert "Change" not in words(single)
    run, many = result("krylov").run, shown("krylov").by_id("rounds")
    convergence, traffic = many.every("svg", role="img")
    moved = [each["change"] for each in run["rounds"] if each["change"] is not None]
    assert len(moved) > 3
    assert len(convergence.every("path", class_="change")) == len(moved)
    assert len(traffic.every("rect", class_="up")) == run["n_rounds"]
    rows = many.every("table")[0].every("tr")[1:]
    sent = [int(row.children[4].attributes["data-value"] or 0) for row in rows]
    assert sent == [each["bytes_up"] for each in run["rounds"]]


def test_misalignment_and_who_answered_are_drawn_by_round(result, shown):
    run = result("sampled").run
    spread = [each["misalignment"] for each in run["rounds"] if each["misalignment"] is not None]
    assert len(spread) > 1
    rounds = shown("sampled").by_id("rounds")
    assert len(rounds.every("path", class_="misalignment")) == len(spread)
    assert "Misalignment (ρ)" in words(rounds)
    section = shown("sampled").by_id("silos")
    answered = sum(each["n_participants"] for each in run["rounds"])
    cells = len(run["silos"]) * run["n_rounds"]
    assert 0 < answered < cells
    assert len(section.every("rect", class_="answered")) == answered
    assert len(section.every("rect", class_="missing")) == cells - answered
    assert len(section.every("path", class_="missing")) == cells - answered
    assert "did not answer in time" in words(section)


def test_silos_of_a_federation_that_were_silent_or_set_aside_are_listed(result, shown):
    section = words(shown("federated").by_id("silos"))
    assert "never-there" in section
    assert "Questions missed" in section
    assert "Rows come from" not in section
    assert "Set aside" not in section
    why = "round 1: a mean must have the shape (6,), got (5,)"
    reported = {**result("federated").run["federation"], "set_aside": {"never-there": why}}
    assert why in words(changed(result("federated"), federation=reported).by_id("silos"))


def test_budgets_of_silos_are_shown_only_where_the_record_has_them(result, shown):
    plain = words(shown("private").by_id("privacy"))
    assert "known to that silo only" in plain
    budget = {"spent": 1.0, "left": 1.67, "cap": 2.0, "delta": 1e-6, "used": 0.31}
    silos = [{**each, "budget": budget} for each in result("private").run["silos"]]
    found = changed(result("private"), silos=silos).by_id("privacy")
    assert "Budgets after this fit" in words(found)
    assert [words(cell) for cell in found.every("table")[1].every("tr")[1].children] == [
        "north", "1.000", "1.670", "2.000", "10⁻⁶", "31.0%",
    ]  # fmt: skip


def test_captions_name_the_columns_that_make_up_a_component_and_none_of_noise(result):
    found = with_angles(result("private"), [1, 65, 65, 65], [1, 65, 65, 65]).by_id("components")
    first, *others = (words(line) for line in found.every("ol", class_="made-of")[0].every("li"))
    loadings, names = result("private").components[0], np.array(result("private").feature_names)
    large = np.abs(loadings) >= np.abs(loadings).max() / 2
    assert set(re.findall(r"test\d", first)) == set(names[large])
    up, _, down = first.partition("▼")
    assert "▲" in up
    assert set(re.findall(r"test\d", up)) == set(names[large & (loadings > 0)])
    assert set(re.findall(r"test\d", down)) == set(names[large & (loadings < 0)])
    assert all("not determined: do not interpret it" in line for line in others)


@pytest.mark.parametrize("epsilon", [1.0, float("inf")])
def test_rows_that_are_all_zero_get_a_red_line_and_no_caption(epsilon):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fed_pca(2, epsilon=epsilon, delta=1e-6).fit_silos([np.zeros((300, 4))]).result_
    root = parsed(result_page(found))
    check_whole(root)
    assert root.every("p", class_="bad")
    assert "0 of 2" in words(root.by_id("summary"))
    assert words(root.by_id("components")).count("do not interpret it") == 2
    assert not root.by_id("loadings").every("div", class_="plane")


def test_labels_of_a_biplot_overlap_at_no_width():
    angles = np.linspace(0, 6, 40)
    names = [f"a longish name {place}" for place in range(40)]
    drawn = charts.arrows(np.cos(angles).tolist(), np.sin(angles).tolist(), names)
    labelled = [arrow for arrow in drawn if arrow[3]]
    assert len(drawn) == 30
    assert 5 < len(labelled) < 30
    for side in (290, 360, 480):
        boxes = []
        for _, x, y, label, dx, dy, anchor in labelled:
            wide = 7.2 * len(label)
            left = x * side + dx - wide * {"start": 0, "middle": 0.5, "end": 1}[anchor]
            boxes.append((left, y * side + dy - 11, left + wide, y * side + dy + 4))
        for one, other in combinations(boxes, 2):
            assert one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]


def test_rules_of_cells_and_the_treatment_of_missing_ones_are_listed():
    rules = {
        "age": {"kind": "number", "range": [0, 100]},
        "sex": {"levels": ["f", "m"], "missing": "other"},
        "stage": {"ordered": ["low", "high"], "missing": "low"},
        "smoker": {"kind": "yes/no", "missing": 0, "indicator": True, "missing_words": ["NA"]},
    }
    table = pd.DataFrame({"age": [30.0, 50, 70], "sex": ["f", "m", "f"], "stage": ["low", "high", "high"],
                          "smoker": ["no", "yes", "no"]})  # fmt: skip
    book = CodeBook(rules=table_rules(rules, "the test"))
    found = fed_pca(1, epsilon=float("inf"), codebook=book).fit_silos([table]).result_
    rows = [[words(cell) for cell in row.children] for row in
            parsed(result_page(found)).by_id("columns").every("table")[0].every("tr")[1:]]  # fmt: skip
    assert rows == [
        ["age", "number, 0 to 100", "is not allowed"],
        ["sex", "one column per level: f, m, other", "counts as other"],
        ["stage", "low = 0, high = 1", "becomes 0"],
        ["smoker", "yes = 1, no = 0", "becomes 0; is marked in an extra column (also NA)"],
    ]
