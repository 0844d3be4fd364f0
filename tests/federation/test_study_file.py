"""The study file: what it says, what it comes to, and every wrong one's sentence."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies import COLUMNS, CONTENT, content_with, write_study

from fedpower import FedPCA
from fedpower.errors import InputError
from fedpower.federation.study_file import TABLES, StudyFile, read_study, to_toml

EXACT = {"epsilon": math.inf, "delta": None}
PAPER = {"solver": "fedpower", "n_steps": 4}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": None}, "must have 'name', got none; add it"),
    "name of another type": ({"name": 3}, "name in .* must be text in quotes, got a whole number; change it"),
    "name with a slash": ({"name": "a/b"}, "lower-case letters, digits and inner dashes.*got 'a/b'"),
    "name in capitals": ({"name": "Heart"}, "lower-case letters, digits and inner dashes"),
    "name that goes up": ({"name": ".."}, r"inner dashes, 63 at most, got '\.\.'; rename it"),
    "name too long": ({"name": "a" * 64}, "63 at most"),
    "unknown table": ({"colour": {}}, "must have known keys only, got 'colour'; did you mean 'columns'"),
    "no columns": ({"columns": None}, "must have 'columns', got none"),
    "columns empty": ({"columns": {"names": []}}, r"columns must be a list of names, got \[\]"),
    "columns of numbers": ({"columns": {"names": [1]}}, "names in .* a list whose entries are text"),
    "a column of no name": ({"columns": {"names": ["a", ""]}}, "columns must be a list of names"),
    "a column twice": ({"columns": {"names": ["a", "a"]}}, "different names, got 'a' twice"),
    "columns as text": ({"columns": {"names": "age"}}, "names in .* must be a list, got text in quotes"),
    "scales of too few": ({"columns": {"scale": [1.0]}}, "scale"),
    "scale of zero": ({"columns": {"scale": [1.0, 1.0, 0.0, 1.0, 1.0]}}, "scale"),
    "scale of text": ({"columns": {"scale": ["a", "b", "c", "d", "e"]}}, "a list whose entries are a number"),
    "scale of lists": ({"columns": {"scale": [[1.0]] * 5}}, "a list whose entries are a number"),
    "scale of truths": ({"columns": {"scale": [True] * 5}}, "a list whose entries are a number"),
    "offset of infinity": ({"columns": {"offset": [math.inf, 0.0, 0.0, 0.0, 0.0]}}, "offset must"),
    "centre among columns": ({"columns": {"center": [0.0] * 5}}, "got 'center'"),
    "no components": ({"components": None}, "must have 'components', got none"),
    "components of zero": ({"components": {"n_components": 0}}, "n_components must be a whole number"),
    "components of too many": ({"components": {"n_components": 6}}, "from 1 to .*5, a fraction"),
    "components as text": ({"components": {"n_components": "2"}}, "between 0 and 1 or 'auto', got '2'"),
    "components yes": ({"components": {"n_components": True}}, "got true or false; change it"),
    "a fraction of noised steps": (
        {"components": {"n_components": 0.5}, "privacy": {"noise": "step"}},
        "must go with noise='moment' or epsilon=inf",
    ),
    "auto of noised steps": (
        {"components": {"n_components": "auto"}, "privacy": {"noise": "step"}},
        "do not show the whole spectrum",
    ),
    "iteration rank": ({"components": {"iteration_rank": 1}}, "iteration_rank must lie between"),
    "no epsilon": ({"privacy": {"epsilon": None}}, "must have 'epsilon', got none"),
    "epsilon zero": ({"privacy": {"epsilon": 0}}, "epsilon must be above 0, got 0"),
    "epsilon below zero": ({"privacy": {"epsilon": -1.0}}, "epsilon must be above 0"),
    "epsilon not a number": ({"privacy": {"epsilon": math.nan}}, "epsilon must be above 0, got nan"),
    "epsilon as text": ({"privacy": {"epsilon": "1"}}, "must be a number, got text in quotes"),
    "no delta": ({"privacy": {"delta": None}}, "delta must be agreed on before the silos enrol"),
    "delta of one": ({"privacy": {"delta": 1.0}}, "delta must lie between 0 and 1"),
    "unknown noise": ({"privacy": {"noise": "loud"}}, "noise must be one of"),
    "no bound": (
        {"rows": {"row_norm": None}, "columns": {"scale": [1.0] * 5}},
        "must bound the norm of a row, got neither",
    ),
    "a range from above": (
        {"rows": {"row_norm": None}, "columns": {"ranges": [[1.0, 0.0]] * 5}},
        "the smaller first",
    ),
    "two bounds": ({"rows": {"normalize": True}}, "row_norm"),
    "bound of zero": ({"rows": {"row_norm": 0.0}}, "row_norm must be"),
    "bound of infinity": ({"rows": {"row_norm": math.inf}}, "row_norm must be"),
    "unknown solver": ({"solver": {"solver": "magic"}}, "solver must be one of"),
    "unknown key": ({"solver": {"momentum": 1}}, "got 'momentum'; its keys are solver, "),
    "a misspelled key": ({"solver": {"solvr": "krylov"}}, "got 'solvr'; did you mean 'solver'"),
    "settings of another": ({"solver": {"solver": "krylov", "local_steps": 2}}, "must be left alone"),
    "schedule": ({"solver": {"schedule": "often"}}, "schedule must be 'every', 'decaying'"),
    "schedule of text": ({"solver": {"schedule": ["a"]}}, "schedule"),
    "tolerance": ({"solver": {"tol": 1.5}}, r"tol must lie in \[0, 1\)"),
    "seed below zero": ({"solver": {"random_state": -1}}, "random_state must be from 0 to"),
    "seed too large": ({"solver": {"random_state": 2**40}}, "random_state must be from 0 to"),
    "correction and sampling": (
        {"solver": {**PAPER, "drift_correction": True}, "rounds": {"n_participants": 2}},
        "must hear every silo",
    ),
    "no deadline": ({"rounds": {"deadline": None}}, "must have 'deadline', got none"),
    "deadline zero": ({"rounds": {"deadline": 0}}, "deadline must be a positive number"),
    "min silos zero": ({"rounds": {"min_silos": 0}}, "min_silos must be a whole number of at least 1"),
    "min silos too many": ({"rounds": {"min_silos": 4}}, "at most the 3 silos, got 4; lower it"),
    "min silos a half": ({"rounds": {"min_silos": 1.5}}, "min_silos in .* must be a whole number"),
    "participants too many": ({"solver": PAPER, "rounds": {"n_participants": 4}}, "n_participants must"),
    "grace beyond the deadline": ({"rounds": {"grace": 61.0}}, "between 0 and the deadline of 60 s"),
    "grace below zero": ({"rounds": {"grace": -1.0}}, "grace must be between 0"),
    "grace not a number": ({"rounds": {"grace": math.nan}}, "grace must be between 0"),
    "no silos": ({"silos": None}, "must have 'silos', got none"),
    "silos empty": ({"silos": {"names": []}}, "silos must be a list of names"),
    "a silo twice": ({"silos": {"names": ["a", "a"]}}, "silos must have different names, got 'a'"),
    "a silo's path": ({"silos": {"names": ["../x"]}}, "inner dashes, 63 at most, got '../x'"),
    "no coordinator": ({"coordinator": None}, "must have 'coordinator', got none"),
    "host with a space": ({"coordinator": {"host": "a b"}}, "host name or an address, got 'a b'"),
    "host with dots": ({"coordinator": {"host": "a..b"}}, "host name or an address, got 'a..b'"),
    "host of a dash": ({"coordinator": {"host": "-"}}, "host name or an address, got '-'; correct"),
    "host empty": ({"coordinator": {"host": ""}}, "host must be a host name"),
    "port too large": ({"coordinator": {"port": 65536}}, "port must be between 1 and 65535, got 65536"),
    "port zero": ({"coordinator": {"port": 0}}, "port must be between 1 and 65535"),
    "port as text": ({"coordinator": {"port": "8002"}}, "port in .* must be a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_study_is_refused_in_one_sentence(fault: str, tmp_path: Path) -> None:
    changes, sentence = WRONG[fault]
    with pytest.raises(InputError, match=sentence) as refused:
        write_study(tmp_path, **changes)
    reported = str(refused.value)
    assert "\n" not in reported
    assert "got" in reported, reported
    assert ";" in reported, reported


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"name = ", "must be TOML, got something else .*; correct that line"),
        (b"name = 'a'\nname = 'b'", "must be TOML"),
        (b"\xff\xfe", "must be TOML"),
        (b"", "must have 'name', got none"),
        (b"rows = 3", "rows in .* must be a table, got a whole number"),
        (b"name = 'a'\nsilos = ['a']", "silos in .* must be a table, got"),
    ],
)
def test_what_is_no_toml_is_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_study(path)


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must exist, got no file at .*; check the path"):
        read_study(tmp_path / "none.toml")
    with pytest.raises(InputError, match="must be a file, got the folder"):
        read_study(tmp_path)


KEYS = {name: digit * 64 for name, digit in zip(("north", "south", "east"), "123", strict=True)}
SECURE = {"aggregation": "secure"}

AGREED: dict[str, dict[str, Any]] = {
    "name": {"name": "heart-2027"},
    "names of columns": {"columns": {"names": ["age", "bmi", "sbp", "dbp", "ldl"]}},
    "order of columns": {"columns": {"names": list(COLUMNS[::-1])}},
    "scale": {"columns": {"scale": [1.0, 2.0, 1.0, 1.0, 1.0]}},
    "row norm": {"rows": {"row_norm": 11.0}},
    "normalize": {"rows": {"row_norm": None, "normalize": True}},
    "moment that is kept": {"components": {"keep_moment": True}},
    "persons": {"rows": {"unit": "patient"}},
    "rows of a person": {"rows": {"unit": "patient", "rows_per_unit": 2}},
    "edges": {"rows": {"row_norm": None, "network": "edge"}},
    "weight of edges": {"rows": {"row_norm": None, "network": "edge", "edge_weight": 2.0}},
    "no centring": {"rows": {"center": False}},
    "n_components": {"components": {"n_components": 3}},
    "iteration_rank": {"components": {"iteration_rank": 4}},
    "epsilon": {"privacy": {"epsilon": 1.1}},
    "no privacy": {"privacy": EXACT},
    "delta": {"privacy": {"delta": 1e-7}},
    "noise": {"privacy": {"noise": "step"}},
    "secure sum": {"privacy": SECURE, "identities": KEYS},
    "colluders": {"privacy": SECURE | {"colluders": 2}, "identities": KEYS},
    "attempts": {"privacy": SECURE | {"attempts": 2}, "identities": KEYS},
    "identities": {"privacy": SECURE, "identities": KEYS | {"east": "4" * 64}},
    "solver": {"solver": {"solver": "krylov"}},
    "one_shot_start": {"solver": {"one_shot_start": True}},
    "schedule": {"solver": {"schedule": "decaying"}},
    "explicit schedule": {"solver": {"schedule": [1, 2, 4]}},
    "local_steps": {"solver": {"local_steps": 2}},
    "drift_correction": {"solver": {"drift_correction": True}},
    "n_steps": {"solver": {"n_steps": 7}},
    "tol": {"solver": {"tol": 1e-3}},
    "max_rounds": {"solver": {"max_rounds": 9}},
    "alignment": {"solver": {"alignment": "sign"}},
    "reference": {"solver": {"reference": "broadcast"}},
    "random_state": {"solver": {"random_state": 1}},
    "weights": {"privacy": {"weights": "noise"}},
    "energy": {"privacy": {"energy": 0.1}},
    "scores": {"privacy": {"scores_epsilon": 0.1}},
    "offset": {"columns": {"offset": [1.0] * 5}},
    "ranges": {"columns": {"ranges": [[0.0, 1.0]] * 5}},
    "standardize": {"rows": {"standardize": True}},
    "found privately": {"rows": {"row_norm": None}},
    "min_silos": {"rounds": {"min_silos": 2}},
    "deadline": {"rounds": {"deadline": 61.0}},
    "grace": {"rounds": {"grace": 5.0}},
    "n_participants": {"rounds": {"n_participants": 2}},
    "participation": {"rounds": {"participation": "first", "n_participants": 2}},
    "silos": {"silos": {"names": ["north", "south", "west"]}},
    "order of silos": {"silos": {"names": ["south", "north", "east"]}},
}


def test_every_agreed_value_changes_the_digest(tmp_path: Path) -> None:
    digests = [write_study(tmp_path, **changes).digest for changes in AGREED.values()]
    digests.append(write_study(tmp_path).digest)
    assert len(set(digests)) == len(AGREED) + 1


def test_every_key_of_the_file_is_among_those_changes() -> None:
    changed = {(table, key) for changes in AGREED.values() for table, keys in changes.items()
               if isinstance(keys, dict) for key in keys}  # fmt: skip
    keys = {(table, key) for table, kind in TABLES.items() for key in kind.__struct_fields__}
    assert keys - changed == {("coordinator", "host"), ("coordinator", "port")}


@pytest.mark.parametrize("coordinator", [{"host": "10.0.0.7"}, {"port": 9}, {"port": None}])
def test_where_the_coordinator_is_does_not_change_the_digest(
    coordinator: dict[str, Any], tmp_path: Path
) -> None:
    assert write_study(tmp_path, coordinator=coordinator).digest == write_study(tmp_path).digest


PLAIN = """\
name = "heart-2026"
[columns]
names = ["age", "bmi", "sbp", "dbp", "hdl"]
[rows]
row_norm = 10.0
center = true
standardize = false
[components]
n_components = 2
[privacy]
epsilon = 1.0
delta = 1e-6
[rounds]
deadline = 60.0
[silos]
names = ["north", "south", "east"]
[coordinator]
host = "localhost"
"""
OTHER = """\
# The same, written by somebody else.
name    =   'heart-2026'
silos.names = [
  "north",   # they have the most rows
  "south",
  "east",
]
[rounds]
deadline = 60
[privacy]
delta = 0.000_001
epsilon = 1
[coordinator]
host = "localhost"
[components]
n_components = 0x2
[rows]
standardize = false
center = true
row_norm = 1e1
[columns]
names = ['age', 'bmi', "sbp", "db\\u0070", '''hdl''']
"""


def test_comments_order_spacing_and_spelling_do_not_change_the_digest(tmp_path: Path) -> None:
    digests = set()
    for text in (PLAIN, OTHER, PLAIN.replace("\n", "\r\n"), to_toml(CONTENT)):
        path = tmp_path / "study.toml"
        path.write_bytes(text.encode())
        digests.add(read_study(path).digest)
    assert len(digests) == 1


def test_defaults_may_be_written_out_and_count_either_way(tmp_path: Path) -> None:
    defaults = FedPCA()
    spelled = {
        key: getattr(defaults, key)
        for key in ("solver", "schedule", "local_steps", "drift_correction", "max_rounds", "tol")
    }
    written = write_study(tmp_path, solver={**spelled, "random_state": 0})
    assert written.digest == write_study(tmp_path).digest


def test_the_study_that_silos_hold_questions_against_is_bound_to_the_file(tmp_path: Path) -> None:
    """Whatever changes the file's hash changes the hash in every message."""
    study = write_study(tmp_path)
    terms, settings, choice = study.terms()
    assert terms.agreement == study.digest
    assert terms.columns == COLUMNS
    assert (terms.epsilon, terms.delta, terms.noise) == (1.0, 1e-6, "moment")
    assert settings.n_features == len(COLUMNS)
    assert choice.solver == "moment"
    later = write_study(tmp_path, rounds={"deadline": 61.0})
    assert later.terms()[0].digest != terms.digest
    assert later.terms()[0].moment_terms == terms.moment_terms  # and yet the release is shared


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    study = write_study(tmp_path, coordinator={"port": None})
    assert (study.min_silos, study.grace, study.port) == (3, None, 8002)
    assert study.parameters.random_state == 0
    assert study.deadline == 60.0
    assert write_study(tmp_path, rounds={"min_silos": 2}).min_silos == 2


@pytest.mark.parametrize("spelled", ["inf", "+inf"])
def test_infinity_is_no_privacy_and_needs_no_bound(spelled: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(PLAIN.replace("epsilon = 1.0\ndelta = 1e-6", f"epsilon = {spelled}")
                    .replace("row_norm = 10.0\n", ""))  # fmt: skip
    study = read_study(path)
    assert math.isinf(study.parameters.epsilon)
    assert study.terms()[0].noise == "none"
    path.write_text(study.with_coordinator("elsewhere", 1))
    assert read_study(path).digest == study.digest


def test_a_study_can_be_shown_without_its_content(tmp_path: Path) -> None:
    assert "content" not in repr(write_study(tmp_path))


label = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), min_size=1, max_size=8)
number = st.floats(allow_nan=False, allow_infinity=False, width=64)
hosts = st.from_regex(r"[A-Za-z0-9]{1,9}([.-][A-Za-z0-9]{1,9}){0,3}", fullmatch=True)


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    columns = draw(st.lists(label, min_size=2, max_size=4, unique=True))
    private = draw(st.booleans())
    columns_table: dict[str, Any] = {"names": columns}
    if draw(st.booleans()):
        columns_table["scale"] = draw(
            st.lists(st.floats(1e-3, 1e3), min_size=len(columns), max_size=len(columns))
        )
    return {
        "name": draw(st.from_regex(r"[a-z0-9][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)),
        "columns": columns_table,
        "rows": {"row_norm": draw(st.floats(1e-3, 1e6)), "center": draw(st.booleans())},
        "components": {"n_components": draw(st.integers(1, 2))},
        "privacy": {"epsilon": draw(st.floats(0.01, 10)), "delta": draw(st.floats(1e-9, 1e-5))}
        if private
        else {"epsilon": math.inf},
        "rounds": {"deadline": draw(st.one_of(st.integers(1, 10**6), st.floats(0.1, 1e9)))},
        "silos": {"names": draw(st.permutations(["a", "b-2", "3c"]))},
        "coordinator": {"host": draw(hosts), "port": draw(st.integers(1, 65535))},
    }


@pytest.mark.slow
@given(contents(), hosts, st.integers(1, 65535))
def test_rendered_and_read_back_a_study_is_the_same_wherever_it_moves(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any], host: str, port: int
) -> None:
    path = tmp_path_factory.mktemp("study") / "study.toml"

    def back(text: str) -> StudyFile:
        path.write_text(text, encoding="utf-8", newline="")
        return read_study(path)

    study = back(to_toml(content))
    assert study.content == content
    again = back(study.with_coordinator(host, port))
    assert (again.host, again.port) == (host, port)
    assert again.digest == study.digest
    assert again.terms()[0] == study.terms()[0]
    assert content_with() == CONTENT  # the shared content is nobody's to change


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"privacy": SECURE}, "must have more silos than the 1 that may collude, got 0"),
        (
            {"privacy": SECURE, "identities": KEYS | {"west": "5" * 64}},
            r"\[identities\].*must name the study's silos, got 'west'",
        ),
        ({"privacy": SECURE, "identities": KEYS | {"east": "?"}}, "must be 64 hexadecimal digits"),
        ({"privacy": SECURE, "identities": KEYS | {"east": "1" * 64}}, "got one twice"),
        ({"privacy": SECURE | {"noise": "step"}, "identities": KEYS}, "must go with noise='moment'"),
        (
            {"privacy": SECURE, "identities": KEYS, "rounds": {"n_participants": 2}},
            "n_participants must be left alone with aggregation='secure'",
        ),
        ({"privacy": SECURE | {"attempts": 0}, "identities": KEYS}, "attempts must be at least 1, got 0"),
        (
            {"privacy": SECURE | EXACT, "identities": KEYS, "rows": {"row_norm": None}},
            "aggregation='secure' must have a finite epsilon, got epsilon=inf; exact sums",
        ),
        ({"privacy": {"attempts": 2}}, r"attempts in \[privacy\] .* must go with aggregation"),
    ],
)
def test_secure_sums_that_cannot_be_are_refused(
    tables: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        write_study(tmp_path, **tables)
