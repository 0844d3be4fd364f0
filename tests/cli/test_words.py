"""Sentences speak of options, and leave the user's own names alone."""

import ast
import copy
import pickle
from pathlib import Path
from string import Formatter

import pytest

import fedpower
from fedpower.cli.words import _OPTIONS, _PHRASES, in_options
from fedpower.errors import InputError, Sentence
from fedpower.parameters import SPECS
from fedpower.rows.columns import not_a_number


@pytest.mark.parametrize(
    ("template", "in_python", "on_the_command_line"),
    [
        ("{n_steps} must be 1", "n_steps must be 1", "--n-steps must be 1"),
        ("between {n_components:3} and 9", "between n_components=3 and 9", "between -k 3 and 9"),
        ("with {noise:moment}", "with noise='moment'", "with --noise moment"),
        ("or {epsilon:inf}", "or epsilon=inf", "or --epsilon inf"),
        ("pass {center:False}", "pass center=False", "pass --no-center"),
        ("got {normalize:True}", "got normalize=True", "got --normalize"),
        ("set {one_shot_start}", "set one_shot_start", "set --one-shot-start"),
        ("{without_extra}", 'extra_columns="drop" (extra="drop" of open_source)', "--extra drop"),
        ("{smaller_side:6}", "min(n_samples, n_features)=6", "the smaller of rows and columns, 6"),
        ("{steps}", "{2, 4, 5}", "2,4,5"),
    ],
)  # fmt: skip
def test_a_parameter_is_called_as_python_or_the_command_line_does(
    template: str, in_python: str, on_the_command_line: str
):
    assert Sentence(template) == in_python
    assert in_options(Sentence(template)) == on_the_command_line


@pytest.mark.parametrize("name", ["n_steps", "{n_steps}", "{", "{0}", "row_norm.csv"])
def test_what_the_user_named_is_left_as_it_is(name: str):
    said = Sentence("column {name!r} must go, with {row_norm}", name=name)
    assert said == f"column {name!r} must go, with row_norm"
    assert in_options(said) == f"column {name!r} must go, with --row-norm"
    assert in_options(f"n_steps of {name}") == f"n_steps of {name}", "no sentence about parameters"


def test_a_sentence_within_a_sentence_is_said_in_the_same_words():
    within = Sentence("{tol}", tol_is="unused")
    assert in_options(Sentence("raise {what}", what=within)) == "raise --tol"


def test_copies_of_a_sentence_know_its_parameters():
    said = Sentence("{n_steps} must be {least}", least="{odd}")
    for other in (copy.deepcopy(said), pickle.loads(pickle.dumps(said))):  # noqa: S301
        assert other == said
        assert in_options(other) == "--n-steps must be {odd}"


def test_an_error_about_a_parameter_has_its_parts():
    error = InputError.about(
        "iteration_rank",
        must="lie between {n_components:{k}} and {most}",
        got="{9}",
        advice="choose one",
        k=2,
        most=5,
    )
    parts = (error.parameter, error.must, error.got, error.advice)
    assert parts == ("iteration_rank", "lie between n_components=2 and 5", "{9}", "choose one")
    assert str(error) == "{} must {}, got {}; {}".format(*parts)
    assert in_options(error.args[0]) == ("--iteration-rank must lie between -k 2 and 5, got {9}; choose one")


def test_every_rule_of_a_parameter_refuses_in_its_option_s_name():
    for name, spec in SPECS.items():
        if spec.rule is not None and spec.option is not None:
            with pytest.raises(InputError) as refused:
                spec.rule.check(name, {})
            assert refused.value.parameter == name
            assert in_options(refused.value.args[0]).startswith(spec.option.split("/")[0])


def test_a_command_is_told_of_no_option_that_it_lacks():
    sentence = not_a_number("north.csv", "sex", "text", 0).args[0]
    drop = "column 'sex' of north.csv must hold numbers, got text at row 1; drop the column"
    rest = ", or turn it into numbers, by a rule in a code book for instance"
    assert in_options(sentence) == f"{drop} (--drop 'sex'){rest}"
    assert in_options(sentence, "transform") == f"{drop}{rest}"
    assert in_options(sentence, "silo") == (f"{drop} (drop = ['sex'] in [data] of the silo file){rest}")
    surplus = Sentence("{without_extra}")
    assert in_options(surplus, "silo") == 'extra_columns = "drop" in [data] of the silo file'
    for command, said in {
        "fit north.csv": "lower --min-silos",
        "study init": "lower --min-silos",
        "study check": "lower min_silos",
        "run study.toml": "lower min_silos",
        "silo kit": "lower min_silos",
    }.items():
        assert in_options(Sentence("lower {min_silos}"), command) == said, command


def templates() -> list[tuple[str, str, set[str]]]:
    """Return where each template of the library is, its text and the facts that it is given."""
    found = []
    for path in sorted(Path(fedpower.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            given = {each.arg: each.value for each in node.keywords if each.arg is not None}
            texts = [given[name] for name in ("must", "advice") if called == "about" and name in given]
            if called == "Sentence" or (called.endswith("Error") and given):
                texts = node.args[:1]
            found += [
                (f"{path.name}:{node.lineno}", each.value, set(given))
                for each in texts
                if isinstance(each, ast.Constant)
            ]
    return found


def test_whatever_a_template_names_is_a_fact_or_something_that_users_can_give():
    known = {*SPECS, *_PHRASES, *_OPTIONS, "without_extra", "force"}
    seen = templates()
    assert len(seen) > 60
    for place, text, facts in seen:
        named = {name.partition(".")[0] for _, name, _, _ in Formatter().parse(text) if name}
        assert named <= facts | known, (place, named - facts - known)
