"""report.html shows what was released, all of it in words and numbers, and nothing else."""

import base64
import hashlib
import shlex
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parsed_page import Node, check_whole, parsed, words

import fedpower
from fedpower.estimator.terms import options_of
from fedpower.privacy.statement import as_sentence
from fedpower.report import Result
from fedpower.report.outcome import recorded
from fedpower.report.page import result_page
from fedpower.report.record import ARRAYS, REPORT, RUN
from fedpower.report.result import write_report
from fedpower.report.view import findings
from sample_results import HOSTILE, KINDS, PRIVATE, hospitals, with_run, with_spectrum, written


def changed(result: Result, **run: Any) -> Node:
    return parsed(result_page(with_run(result, {**result.run, **run})))


def with_angles(result: Result, components: list[float], subspaces: list[float]) -> Node:
    """Return the page of a result with other angles, of noise alone."""
    others = {"components": components, "subspaces": subspaces, "noise_components": components}
    return changed(result, angles={**result.run["angles"], **others}, clipping=None)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wide"])  # that one takes seconds
def test_a_page_is_whole_and_depends_on_arrays_and_record_alone(kind, folders, result, shown, tmp_path):
    root, found = shown(kind), result(kind)
    check_whole(root)
    contents = ["privacy", "components", "loadings", "scores", "rounds", "silos", "provenance"]
    if kind != "scored":
        contents.remove("scores")
    assert [each.attributes["id"] for each in root.every("section")] == ["summary", *contents]
    pictures = root.every("svg", role="img")
    assert len(pictures) >= 2 + found.n_components
    assert all("table" in picture.children[1].text for picture in pictures)
    summary = words(root.by_id("summary"))
    assert all(sentence in summary for sentence in findings(found))
    for name in (ARRAYS, RUN):
        shutil.copy(folders(kind) / name, tmp_path)
    write_report(tmp_path)
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
        assert f"Against {row['observer']}" in section
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
        assert "NOT PRIVATE: nothing is protected" in words(shown(kind).by_id("summary"))
        assert "NOT PRIVATE (ε = ∞)" in words(shown(kind).by_id("privacy"))
        assert "Private:" not in words(shown(kind))
    leak = "the row bound was read from the rows"
    privacy = {**result("private").run["privacy"], "private": False, "leak": leak}
    root = changed(result("private"), privacy=privacy)
    assert f"NOT PRIVATE, although ε = 1 was requested: {leak}" in words(root.by_id("privacy"))
    assert f"NOT PRIVATE: nothing is promised, because {leak}." in words(root.by_id("summary"))
    assert not root.by_id("privacy").every("table")


def test_a_large_epsilon_is_called_what_it_is(result):
    privacy = result("private").run["privacy"]
    for epsilon, odds, verdict in (
        (0.5, "1.65", ""),
        (3.9999999959, "54.6", " That is weak protection."),
        (12.0, "163,000", " That promises little."),
        ("inf", "∞", " That promises little."),
    ):
        rows = [{**row, "epsilon": epsilon} for row in privacy["protections"]]
        found = words(changed(result("private"), privacy={**privacy, "protections": rows}).by_id("summary"))
        assert f"shift by a factor of {odds} at most" in found
        assert found.endswith(f"10⁻⁶.{verdict}")


def test_the_command_parameters_or_study_that_give_it_again_are_told(result, shown):
    reported = {kind: shown(kind).by_id("provenance") for kind in ("exact", "step", "federated")}
    assert shlex.split(reported["exact"].every("pre")[0].text) == ["fedpower", "fit", "a b.csv"]
    call = reported["step"].every("pre")[0].text
    names = {name: getattr(fedpower, name) for name in fedpower.__all__}
    model = eval(call.removesuffix(".fit_silos(silos)"), names)  # noqa: S307
    assert recorded(options_of(model)) == result("step").record.parameters
    assert "fedpower study run study.toml" in words(reported["federated"])
    assert "ab" * 32 in words(reported["federated"])


def test_a_secure_sum_is_neither_promised_again_for_nothing_nor_called_a_noised_moment(shown):
    again = words(shown("secure").by_id("provenance"))
    assert "A secure sum is asked for again: running this again spends ε = 1 again." in again
    assert "nothing is charged" not in again
    privacy = words(shown("secure").by_id("privacy"))
    assert "covariance: each silo added its share of the noise to a masked sum" in privacy
    assert "was noised once" not in privacy
    assert "was noised once" in words(shown("private").by_id("privacy"))


WITHIN = "is within 45° of the component that the rows have"
ANGLES: list[tuple[list[float], list[float], list[str]]] = [
    ([3, 4, 5, 6], [3, 4, 5, 6], [f"pc1 to pc4 are determined: each {WITHIN}"]),
    (
        [3, 65, 65, 45],
        [3, 60, 6.2, 7],
        [
            "pc1 and pc4 are determined",
            "pc2 and pc3 cannot be told apart; together with pc1 they are within 7°.",
        ],
    ),
    (
        [70, 70, 50, 80],
        [70, 6, 40, 70],
        [
            "No component is determined: each may be more than 45° off, at 90% confidence.",
            "pc1, pc2 and pc3 cannot be told apart; together they are within 40°. pc4 is not determined.",
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
]


@pytest.mark.parametrize(("components", "subspaces", "sentences"), ANGLES)
def test_what_is_determined_is_told_by_shape_and_by_word(components, subspaces, sentences, result):
    root = with_angles(result("private"), components, subspaces)
    summary = words(root.by_id("summary"))
    assert all(sentence in summary for sentence in sentences)
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


def test_what_is_exact_has_eigenvalues_beyond_drawn_and_may_be_without_variance(result, shown):
    def section(found: Result) -> Node:
        return parsed(result_page(found)).by_id("components")

    assert not section(replace(result("exact"), spectrum=None)).every("path", class_="beyond")
    assert len(shown("exact").by_id("components").every("path", class_="beyond")) == 8 - 4
    noised = section(with_spectrum(result("private"), 7))
    assert not noised.every("path", class_="beyond")
    assert len(noised.every("table")[1].every("tr")) == 1 + 7
    assert len(section(with_spectrum(result("exact"), 2000)).every("path", class_="beyond")) == 20
    summary = words(with_angles(result("exact"), [0, 0, 90, 90], [0, 0, 90, 90]).by_id("summary"))
    assert "pc3 and pc4 are not determined: without variance, or with the same as others." in summary


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
    assert "One round did it" in words(single)
    assert not single.every("svg")
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
    assert "Spent of what was asked for" in plain
    assert "known to that silo only" in plain
    budget = {"spent": 1.0, "left": 1.67, "cap": 2.0, "delta": 1e-6, "used": 0.31}
    silos = [{**each, "budget": budget} for each in result("private").run["silos"]]
    found = changed(result("private"), silos=silos).by_id("privacy")
    assert "Budgets after this fit" in words(found)
    assert [words(cell) for cell in found.every("table")[1].every("tr")[1].children] == [
        "north", "1.000", "1.670", "2.000", "10⁻⁶", "31.0%",
    ]  # fmt: skip
