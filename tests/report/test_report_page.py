"""report.html shows what was released, all of it in words and numbers, and nothing else."""

import base64
import hashlib
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from msgspec.structs import fields
from parsed_page import parsed, words

import fedpower
from fedpower.errors import InputError
from fedpower.estimator.terms import options_of
from fedpower.privacy.statement import as_sentence
from fedpower.report import Result, read_result
from fedpower.report.charts import element, printable
from fedpower.report.outcome import recorded
from fedpower.report.page import result_page as page
from fedpower.report.record import ARRAYS, MOMENT, REPORT, RUN, Record
from fedpower.report.result import write_report
from sample_results import HOSTILE, KINDS, PRIVATE, hospitals, with_run, written


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
        "summary", "sup", "figure", "figcaption", "svg", "desc", "line", "rect", "path", "text",
    }  # fmt: skip
    contents = ["privacy", "components", "loadings", "scores", "rounds", "silos", "provenance"]
    if kind != "scored":
        contents.remove("scores")
    assert [each.attributes["id"] for each in root.every("section")] == ["summary", *contents]


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


@pytest.fixture(scope="module")
def plain(folders: dict[str, Path]) -> Result:
    return read_result(folders["private"])


@pytest.fixture(scope="module")
def skeleton(plain: Result) -> list[tuple[str, list[str]]]:
    """Every element of its page in order, with its attributes' names."""
    return [(each.tag, sorted(each.attributes)) for each in parsed(page(plain)).all()]


@pytest.mark.slow
@given(names=st.lists(st.text(max_size=30), min_size=8, max_size=8, unique=True))
def test_the_page_has_the_same_elements_whatever_the_names(
    names: list[str], plain: Result, skeleton: list[tuple[str, list[str]]]
):
    run = json.loads(json.dumps(plain.run))
    renamed = dict(zip([each["name"] for each in run["silos"]], names, strict=False))
    for each in run["silos"]:
        each["name"] = renamed[each["name"]]
    for each in run["rounds"]:
        each["participants"] = [renamed[name] for name in each["participants"]]
    run["solver"]["reason"] = run["privacy"]["public"][0] = names[0]
    other = parsed(page(replace(with_run(plain, run), feature_names=tuple(names))))
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
    reported = (written(tmp_path / "out", files, **PRIVATE) / REPORT).read_text(encoding="utf-8")
    assert "kept-by-the-silo" not in reported
    assert ".parquet" not in reported
    assert str(planted)[:7] not in reported


@pytest.mark.parametrize("kind", ["private", "secure", "step", "drowned", "hostile", "federated"])
def test_a_private_result_states_all_that_its_statement_holds(kind: str, result: Any):
    reported = result(kind).run["privacy"]
    section = words(parsed(page(result(kind))).by_id("privacy"))
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
        (3.9999999959, "54.6", "That is weak protection."),
        (12.0, "163,000", "That promises little."),
        ("inf", "∞", "That promises little."),
    ],
)
def test_a_large_epsilon_is_called_what_it_is(epsilon: float | str, odds: str, verdict: str, result: Any):
    whole = result("private")
    rows = [{**row, "epsilon": epsilon} for row in whole.run["privacy"]["protections"]]
    run = {**whole.run, "privacy": {**whole.run["privacy"], "protections": rows}}
    found = words(parsed(page(with_run(whole, run))).by_id("summary"))
    assert f"shift by a factor of {odds} at most" in found
    assert found.endswith(f"10⁻⁶.{' ' * bool(verdict)}{verdict}")


def test_a_promise_that_a_leak_voids_is_not_made(result: Any):
    whole = result("private")
    leak = "the row bound was read from the rows"
    run = {**whole.run, "privacy": {**whole.run["privacy"], "private": False, "leak": leak}}
    root = parsed(page(with_run(whole, run)))
    assert f"NOT PRIVATE although ε = 1 was asked for: {leak}" in words(root.by_id("privacy"))
    assert f"NOT PRIVATE: nothing is promised, because {leak}." in words(root.by_id("summary"))
    assert not root.by_id("privacy").every("table")


def test_the_command_parameters_or_study_that_give_it_again_are_told(result: Any):
    reported = {kind: parsed(page(result(kind))).by_id("provenance") for kind in KINDS}
    assert shlex.split(reported["exact"].every("pre")[0].text) == ["fedpower", "fit", "a b.csv"]
    call = reported["step"].every("pre")[0].text
    names = {name: getattr(fedpower, name) for name in fedpower.__all__}
    model = eval(call.removesuffix(".fit_silos(silos)"), names)  # noqa: S307
    assert recorded(options_of(model)) == result("step").record.parameters
    assert "fedpower run study.toml" in words(reported["federated"])
    assert "ab" * 32 in words(reported["federated"])


def test_a_secure_sum_is_neither_promised_again_for_nothing_nor_called_a_noised_moment(result: Any):
    root = parsed(page(result("secure")))
    again = words(root.by_id("provenance"))
    assert "A secure sum is asked for again: running this again spends ε = 1 again." in again
    assert "nothing is charged" not in again
    privacy = words(root.by_id("privacy"))
    assert "moment: each silo added its share of the noise to a masked sum" in privacy
    assert "was noised once" not in privacy
    assert "was noised once" in words(parsed(page(result("private"))).by_id("privacy"))


def test_a_record_with_an_unknown_key_is_refused(folders: dict[str, Path], tmp_path: Path):
    shutil.copytree(folders["private"], tmp_path / "out")
    run = json.loads((tmp_path / "out" / RUN).read_text())
    for changed in ({**run, "surprise": 1}, {**run, "solver": {**run["solver"], "surprise": 1}}):
        (tmp_path / "out" / RUN).write_text(json.dumps(changed))
        with pytest.raises(InputError, match="unknown field `surprise`"):
            read_result(tmp_path / "out")


@pytest.mark.parametrize(
    "key", [field.name for field in fields(Record) if field.required and field.name != "format"]
)
@pytest.mark.parametrize("instead", [None, "", [], 7.5, [{}], {"a": 1}], ids=repr)
def test_a_record_without_what_a_report_shows_is_refused_in_one_sentence(
    key: str, instead: Any, folders: dict[str, Path], tmp_path: Path
):
    shutil.copytree(folders["private"], tmp_path / "out")
    run = json.loads((tmp_path / "out" / RUN).read_text())
    run[key] = instead
    (tmp_path / "out" / RUN).write_text(json.dumps(run))
    (tmp_path / "out" / MOMENT).unlink(missing_ok=True)  # its hash covers the record
    before = (tmp_path / "out" / REPORT).read_bytes()
    empty = (None, [])
    allowed = {"parameters": ({"a": 1},), "command": empty, "started": empty[:1], "remarks": empty[1:]}
    if instead in allowed.get(key, ()):
        write_report(tmp_path / "out")
        return
    with pytest.raises(InputError, match=rf"run\.json must be as fedpower wrote it, got .*{key}") as caught:
        write_report(tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "out" / REPORT).read_bytes() == before


def test_content_is_escaped_once_and_markup_never():
    inner = element("b", '<&"', title="\"'>")
    assert inner == '<b title="&#34;&#39;&gt;">&lt;&amp;&#34;</b>'
    assert element("p", inner, ["x", None, 1], class_="y", id=None) == f'<p class="y">{inner}x1</p>'
    assert printable("\x00a\ud800\x85\n") == "\ufffda\ufffd\ufffd\n"
    assert isinstance(inner, Markup)
