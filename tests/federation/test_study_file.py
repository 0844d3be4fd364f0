"""The study file: what it says, what it comes to, and every wrong one's sentence."""

import math
from typing import Any

import pytest
from studies import COLUMNS, CONTENT, EXACT, write_study

from fedpower.exceptions import InputError
from fedpower.federation.study_file import TABLES, read_study, to_toml
from fedpower.options import FLAT

KEYS = {name: digit * 64 for name, digit in zip(("north", "south", "east"), "123", strict=True)}
SECURE = {"aggregation": "secure"}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": None}, "must have 'name', got none"),
    "name with a slash": ({"name": "a/b"}, "lower-case letters, digits and inner dashes.*got 'a/b'"),
    "unknown table": ({"colour": {}}, "must have known keys only, got 'colour'; did you mean 'columns'"),
    "a column of no name": ({"columns": {"names": ["a", ""]}}, "columns must be a list of names"),
    "a column twice": ({"columns": {"names": ["a", "a"]}}, "different names, got 'a'; it occurs twice"),
    "components of too many": ({"components": {"n_components": 6}}, "from 1 to .*5, a fraction"),
    "no epsilon": ({"privacy": {"epsilon": None}}, "must have 'epsilon', got none"),
    "a price of nothing": ({"privacy": {"epsilon": 1e-300}}, "epsilon must be from 0.0001 to 60"),
    "no delta": ({"privacy": {"delta": None}}, "delta must be in the study"),
    "no bound": (
        {"rows": {"row_norm": None}, "columns": {"scale": [1.0] * 5}},
        "must bound row norms, got neither",
    ),
    "unknown key": ({"solver": {"momentum": 1}}, "got 'momentum'; its keys are solver, "),
    "min silos too many": ({"rounds": {"min_silos": 4}}, "must be at most the 3 silos, got 4"),
    "a deadline without end": ({"rounds": {"deadline": math.inf}}, "deadline must be finite, got inf"),
    "grace beyond the deadline": ({"rounds": {"grace": 61.0}}, "between 0 and the deadline of 60 s"),
    "a silo's path": ({"silos": {"names": ["../x"]}}, "and inner dashes, got '../x'"),
    "port too large": ({"coordinator": {"port": 65536}}, "port must be between 1 and 65535, got 65536"),
    "no keys": ({"privacy": SECURE}, "must have the public key of every silo, which .* prints, got none"),
    "a stranger's key": (
        {"privacy": SECURE, "identities": KEYS | {"west": "5" * 64}},
        r"\[identities\].*must name the study's silos, got 'west'",
    ),
    "no key": (
        {"privacy": SECURE, "identities": KEYS | {"east": "?"}},
        "must be 64 lower-case hexadecimal digits",
    ),
    "a key twice": ({"privacy": SECURE, "identities": KEYS | {"east": "1" * 64}}, "got one twice"),
    "rules of other columns": ({"rules": {"height": "number"}}, "must be for columns in"),
    "a reserved level": ({"rules": {"age": {"levels": ["F", "other"]}}}, "without 'other'"),
    "attempts at nothing": (
        {"privacy": {"attempts": 2}},
        r"attempts in \[privacy\] .* must be used with aggregation",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_study_is_refused_in_one_sentence(fault, tmp_path):
    changes, sentence = WRONG[fault]
    with pytest.raises(InputError, match=sentence) as refused:
        write_study(tmp_path, **changes)
    assert "\n" not in str(refused.value)


def test_what_is_no_toml_is_refused(tmp_path):
    path = tmp_path / "study.toml"
    for content, place, sentence in (
        ("", tmp_path / "none.toml", "must exist, got no file at"),
        ("", tmp_path, "must be a file, got the folder"),
        ("name = ", path, "must be TOML, got something else"),
        ("name = 'a'\nsilos = ['a']", path, "silos in .* must be a table, got"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=sentence):
            read_study(place)


ALONE: dict[str, dict[str, Any]] = {
    "columns": {"names": list(COLUMNS[::-1]), "scale": [2.0] * 5, "offset": [1.0] * 5,
                "ranges": [[0.0, 1.0]] * 5},
    "rows": {"row_norm": 11.0, "center": False, "standardize": True, "unit": "patient"},
    "components": {"n_components": 3, "iteration_rank": 4},
    "privacy": {"epsilon": 1.1, "delta": 1e-7, "noise": "step", "weights": "noise", "energy": 0.1,
                "scores_epsilon": 0.1},
    "solver": {"solver": "krylov", "lookahead": True, "schedule": "decaying", "local_steps": 2,
               "drift_correction": True, "n_steps": 7, "tol": 1e-3, "max_rounds": 9, "alignment": "sign",
               "reference": "broadcast", "random_state": 1},
    "rounds": {"min_silos": 2, "deadline": 61.0, "grace": 5.0, "n_participants": 2},
    "silos": {"names": ["south", "north", "east"]},
}  # fmt: skip
"""By table and key: another value than the study's, which goes with its others."""
TOGETHER: list[dict[str, Any]] = [
    {"name": "heart-2027"},
    {"columns": {"names": ["age", "bmi", "sbp", "dbp", "ldl"]}},
    {"rows": {"row_norm": None}},
    {"rows": {"row_norm": None, "normalize": True}},
    {"rows": {"unit": "patient", "rows_per_unit": 2}},
    {"rows": {"row_norm": None, "network": "edge"}},
    {"rows": {"row_norm": None, "network": "edge", "edge_weight": 2.0}},
    {"privacy": EXACT},
    {"privacy": SECURE, "identities": KEYS},
    {"privacy": SECURE, "identities": KEYS | {"east": "4" * 64}},
    {"privacy": SECURE | {"colluders": 2}, "identities": KEYS},
    {"privacy": SECURE | {"attempts": 2}, "identities": KEYS},
    {"solver": {"schedule": [1, 2, 4]}},
    {"rules": {"age": {"levels": ["F", "M"]}}, "rows": {"row_norm": None}},
    {"rules": {"age": {"levels": ["M", "F"]}}, "rows": {"row_norm": None}},
    {"rules": {"pid": "drop"}, "rows": {"row_norm": None}},
    {"rounds": {"participation": "first", "n_participants": 2}},
    {"silos": {"names": ["north", "south", "west"]}},
]


def test_every_agreed_value_changes_the_digest_and_the_coordinator_s_place_does_not(tmp_path):
    agreed = [{table: {key: value}} for table, keys in ALONE.items() for key, value in keys.items()]
    agreed += TOGETHER
    digests = [write_study(tmp_path, **changes).digest for changes in agreed]
    digest = write_study(tmp_path).digest
    assert len({digest, *digests}) == len(agreed) + 1
    changed = {(table, key) for changes in agreed for table, keys in changes.items() for key in keys}
    keys = {(table, key) for table, kind in TABLES.items() for key in kind.__struct_fields__}
    assert keys - changed == {("coordinator", "host"), ("coordinator", "port")}
    same: list[dict[str, Any]] = [
        {"coordinator": place} for place in ({"host": "10.0.0.7"}, {"port": 9}, {"port": None})
    ]
    names = ("solver", "schedule", "local_steps", "drift_correction", "max_rounds", "tol")
    same.append({"solver": {name: FLAT[name].default for name in names} | {"random_state": 0}})
    same += [{"rows": {"rows_per_unit": 1}}, {"rows": {"network": None}}]
    assert {write_study(tmp_path, **changes).digest for changes in same} == {digest}


PLAIN = to_toml(CONTENT)


def test_comments_order_spacing_and_spelling_do_not_change_the_digest(tmp_path):
    tables = {key: value for key, value in CONTENT.items() if key != "name"}
    turned = {key: dict(reversed(table.items())) for key, table in tables.items()}
    name, *parts = to_toml({"name": CONTENT["name"], **turned}).split("\n\n")
    other = "\n\n".join([name, *reversed(parts)])
    for old, new in (
        ("10.0", "1e1"), ("1.0\n", "1\n"), ("= 60.0", "   = 6_0"), ('"heart-2026"', "'heart-2026'"),
        ('"bmi",', '\n "b\\u006di",# a comment\n'), ("n_components = 2", "n_components = 0x2"),
    ):  # fmt: skip
        other = other.replace(old, new)
    digests = set()
    for text in (PLAIN, other, PLAIN.replace("\n", "\r\n")):
        path = tmp_path / "study.toml"
        path.write_bytes(text.encode())
        digests.add(read_study(path).digest)
    assert len(digests) == 1


def test_the_study_that_silos_hold_questions_against_is_bound_to_the_file(tmp_path):
    """Whatever changes the file's hash changes the hash in every message."""
    study = write_study(tmp_path)
    terms, _, choice = study.terms()
    assert terms.agreement == study.digest
    assert terms.columns == COLUMNS
    assert (terms.epsilon, terms.delta, terms.noise) == (1.0, 1e-6, "covariance")
    assert choice.solver == "upload"
    later = write_study(tmp_path, rounds={"deadline": 61.0})
    assert later.terms()[0].digest != terms.digest
    assert later.terms()[0].moment_terms == terms.moment_terms  # and yet the release is shared


def test_infinity_is_no_privacy_and_needs_no_bound_and_defaults_are_filled_in(tmp_path):
    tables = {"privacy": EXACT, "rows": {"row_norm": None}}
    study = write_study(tmp_path, **tables, coordinator={"port": None})
    assert (study.min_silos, study.grace, study.port) == (3, None, 8002)
    assert study.terms()[0].noise == "none"
    again = write_study(tmp_path, **tables, coordinator={"host": "elsewhere", "port": 1})
    assert (again.host, again.port, again.digest) == ("elsewhere", 1, study.digest)
    assert again.terms()[0] == study.terms()[0]
