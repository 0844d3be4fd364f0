# ruff: noqa: E501
"""Every wrong use is refused: status 2 and one line that names the option or file at fault; nothing is written or charged."""

import ast
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
from contextlib import chdir
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hospitals import EXACT, PRIVATE, PROGRAM, run, succeed
from row_forms import write_xlsx

import fedpower
from fedpower.cli.console import in_options
from fedpower.cli.options import SHARED
from fedpower.options import FLAT

SHORT = {
    "EXACT": shlex.join(EXACT),
    "PRIVATE": shlex.join(PRIVATE),
    "CLINIC": "fit clinic.csv -k 1 --epsilon inf --codebook",
    "STUDY": "study init new.toml --name heart --silos a,b",
}
USES = """
# The command
fitt | fit
fit | FILE
fit north.csv -k 2 | --epsilon
# Persons
fit north.csv PRIVATE --unit patient | patient
fit wide.npy PRIVATE --unit patient | wide.npy
fit visits.csv PRIVATE --unit patient | visits.csv
fit ids.csv PRIVATE --unit patient | ids.csv
fit north.csv PRIVATE --unit age --rows-per-unit 0 | --rows-per-unit
STUDY --columns age,patient --unit patient -k 1 --epsilon 1 --row-norm 1 | patient
# Networks
fit edges.csv --network edge --epsilon 1 | edges.csv
fit edges.csv --network edge --epsilon 1 --nodes few.txt | edges.csv
fit heavy.csv --network edge --epsilon 1 --nodes nodes.txt --edge-weight 1e300 | --edge-weight
fit north.csv --network edge --epsilon 1 --nodes nodes.txt | north.csv
analyze communities linked -k 2 --labels odd.csv | labels
analyze communities linked -k 4 | communities
analyze communities kept -k 2 | communities
STUDY -k 1 --epsilon 1 --network edge | --network
# Privacy parameters
fit north.csv -k 2 --epsilon 0 --normalize | --epsilon
fit north.csv -k 2 --epsilon small --normalize | --epsilon
fit north.csv -k 2 --epsilon inf --scores-epsilon 0.1 | --scores-epsilon
fit north.csv -k 2 --epsilon 1 --solver krylov | --row-norm
fit north.csv --prepare-only --epsilon inf | epsilon
fit north.csv PRIVATE --aggregation secure | secure sum
fit north.csv south.parquet east.csv -k 2 --epsilon inf --aggregation secure | --aggregation
analyze correlate none | none
audit --epsilon inf | --epsilon
# Components and iterations
fit north.csv -k 6 --epsilon inf | -k
plan --n-features 9 --rows 2x50 -k 2 --epsilon 1 --gap=-1 | gap
fit north.csv EXACT --device tpu | device
# Files
fit . EXACT | parts
fit one.npy EXACT | centring
fit east.csv east.npy EXACT | east.csv
fit a=east.csv b=east.csv EXACT | east.csv
fit north.csv --groups age EXACT | north.csv
fit north.csv east.csv --groups age EXACT | --groups
# Columns
fit north.csv EXACT --columns age,shoe | north.csv
fit north.csv EXACT --columns age,bmj | has no column 'bmj'; did you mean 'bmi'?
fit north.csv everybody.csv EXACT | everybody.csv
fit north.csv east.npy EXACT | north.csv
fit north.npy wide.npy EXACT | north.npy
fit north.csv EXACT --drop shoe | shoe
fit everybody.csv --groups ward EXACT | everybody.csv
fit north.csv EXACT --scale-file scale.csv | scale.csv
fit north.csv EXACT --scale-file twofold.csv | twofold.csv
fit north.csv EXACT --scale-file three.npy | scale
# Rules of tables
CLINIC height.toml | height
fit north.npy EXACT --codebook draft.toml | north.npy
fit gap.csv -k 1 --epsilon inf --row-norm 9 --codebook gap.toml | gap.csv
CLINIC grade.toml | clinic.csv
CLINIC smoker.toml | clinic.csv
CLINIC seen.toml | clinic.csv
CLINIC text.toml | clinic.csv
fit clash.csv -k 1 --epsilon inf --codebook clash.toml | clash.csv
fit clinic.csv -k 1 --epsilon 1 --codebook draft.toml --solver krylov | --row-norm
fit north.csv --prepare-only --epsilon 1 --codebook full.toml | preparation
STUDY -k 1 --epsilon 1 --codebook draft.toml --columns bmi,sbp | --columns
STUDY -k 1 --epsilon 1 --codebook unfilled.toml | unfilled.toml
fit games.csv --epsilon 1 --codebook yews.toml --row-norm 1 | --row-norm
inspect | FILE
inspect north.npy | north.npy
inspect north.csv --draft notes.txt | notes.txt
# Text, folders and sheets
fit south.parquet EXACT --encoding cp1252 | south.parquet
fit uneven EXACT | uneven/2.csv
fit 'parts/*.csv.gz' EXACT | parts/*.csv.gz
fit uneven uneven/1.csv EXACT | uneven/1.csv
fit 'ward.xlsx#Summer' EXACT | ward.xlsx#Summer
# Names and units
fit north.csv other.csv EXACT | other.csv
fit north.csv EXACT --rename bmi=age | north.csv
fit north.npy EXACT --rename a=b | north.npy
fit nought.toml EXACT | factors
study run agreed.toml --epsilon 2 | --epsilon
study run agreed.toml --local 2 --rename a=b | --rename
# Budgets
fit east.csv PRIVATE --ledger . | east.ledger
fit north.csv PRIVATE --ledger north=heart.ledger --data-set lungs | heart.ledger
fit north.csv PRIVATE --ledger north=heart.ledger | heart.ledger
fit booked=east.csv PRIVATE --ledger . | booked
fit north.csv PRIVATE --ledger . --data-version 1 --data-version 2 | --data-version
ledger create new.ledger --data-set '' --epsilon 1 --delta 1e-06 | data set
fit north.csv PRIVATE --ledger west=north.ledger | --ledger
fit north.csv PRIVATE --ledger west.ledger | create SILO.ledger
fit north.csv east.csv PRIVATE --ledger north=north.ledger | --ledger
fit north.csv -k 2 --epsilon 3 --normalize --ledger . | north
fit north.csv PRIVATE --ledger north=secret.csv | secret.csv
fit open=north.csv PRIVATE --ledger . | open.ledger
ledger show nowhere.ledger | nowhere.ledger
ledger show secret.csv | secret.csv
ledger verify nowhere.ledger | nowhere.ledger
ledger verify secret.csv | secret.csv
ledger verify north.ledger --log secret.csv | --log
ledger show north.ledger --what-if=-1 | --what-if must be positive
ledger create new.ledger --epsilon 1 | --delta
ledger create north.ledger --epsilon 9 --delta 1e-06 | north.ledger
ledger create new/x.ledger --epsilon inf --delta 1e-06 | --epsilon
ledger set-cap north.ledger --epsilon 9 --delta 1e-06 | --reason
ledger set-cap north.ledger --epsilon 9 --delta 1e-06 --reason ' ' | --reason
# Results
transform torn north.csv | torn/components.npz
transform garbled north.csv | garbled/run.json
transform later north.csv | later
export model --to fax -o out | --to
export unsaid --to parquet -o out | unsaid/run.json
transform model north.csv --json | --json
export model --to plink -o out | --to
show north.csv --against north.csv | north.csv
show other.npz --against other.npz | other.npz
show ones.npy --against ones.npy | ones.npy
# Studies
STUDY --columns-of index.csv -k 1 --epsilon 1 --normalize | index.csv
study check nowhere.toml | nowhere.toml
study check bad.toml | bad.toml
node key secret.csv | secret.csv
# Disks and permissions
fit north.csv EXACT -o occupied | occupied
fit north.csv EXACT -o occupied --force | occupied
fit north.csv EXACT -o north.csv | north.csv
study init s.toml --name a --silos b -k 1 --epsilon 1 --row-norm 1 | --columns
STUDY --columns-of north.csv --columns a,b -k 2 --epsilon 1 --row-norm 10 | --columns
STUDY --columns-of east.npy -k 1 --epsilon 1 --row-norm 1 | east.npy
STUDY --columns-of north.csv -k 2 --epsilon 1 --scale-file scale.csv | scale.csv
STUDY --columns-of north.csv -k 2 --epsilon 1 --row-norm 10 --normalize | --row-norm
study show . | .
export model --to anndata -o out | --rows
export model --to csv --rows east.csv -o out | --rows
export model --to anndata --rows east.csv --id-column id -o out | --id-column
export model --to csv -o north.csv | north.csv
export model --to anndata --rows east.csv -o out | east.csv
export model --to plink --rows east.csv --id-column x -o out | east.csv
export model --to plink --rows holes.csv -o out | holes.csv
plan -k 3 --epsilon 1 | --n-features
plan --n-features 30 --rows 20000 -k 3 --epsilon 1 --gap 0.1 --spectrum 1 | --gap
plan --n-features 30 --rows 20000 -k 3 --epsilon 1 --spectrum a,b | --spectrum
plan --n-features 30 --rows 20000 -k 3 --epsilon 1 --spectrum 0.3,0.2,0.1 | k + 1 = 4 values
plan --n-features 3 --rows 0 -k 1 --epsilon 1 | --rows
plan x.npy --n-features 3 --rows 9 -k 1 --epsilon 1 | --n-features
fit north.csv -k loud --epsilon 1 | -k
show . | components.npz
transform model east.csv --id-column name -o scores.csv | name
transform model east.csv --id-column age -o scores.csv | age
transform model east.csv --id-column pc1 -o scores.csv | pc1
transform model east.npy --id-column who -o scores.csv | east.npy
transform model everybody.csv --id-column site -o scores.npy | ids
analyze regress kept --target weight | weight
analyze regress kept --target hdl --alpha 1 -k 2 | must not be used together
analyze monitor kept -k 2 --rows north.csv | --flags
analyze means kept --null age=old | --null
analyze factor kept -k 4 | n_factors
analyze correlate model | covariance
fit north.csv south.parquet east.csv PRIVATE --aggregation secure --solver krylov | --solver
fit north.csv south.parquet east.csv PRIVATE --aggregation secure --identity north=nowhere.pem | identity
"""
"""Each a command and what its sentence must name; -o new where there is no -o."""

OPTIONS = {
    "fit north.csv EXACT": "--sead 1; --alignment by-eye; --iteration-rank 99; --schedule sometimes; --tol 2; "
    "--local-steps 0; --min-silos 2; --deadline 0; --seed -1; --columns ,; --separator ';'; --decimal ';'; "
    "--encoding klingon; --rename weight; --rename shoe=foot; --ledger .",
    "fit north.csv PRIVATE": "--unit ''; --rows-per-unit 3; --delta 1; --data-version 2",
    "fit north.csv -k 2 --epsilon 1": "--range age=120:0; --range weather=0:1; --row-norm=-1; --row-norm 1e+308",
    "fit north.csv PRIVATE --ledger .": "--data-version west=2; --data-version 'last spring'",
}
"""By command the options that it refuses, and names."""

FILES = """
nowhere.csv notes.txt empty.csv header.csv ragged.csv junk.csv cut.parquet bad.toml index.csv
holes.csv infinite.npy everybody.csv three.npy umlaut.csv hollow occupied scattered ward.xlsx
cut.xlsx keys.toml duck.toml stray.toml
"""
"""Each refused by `fedpower fit FILE`, and named."""

NO_PERMISSION = {
    "fit sealed.csv EXACT": "sealed.csv",
    "fit north.csv EXACT -o shut/new": "shut/new",
    "transform model north.csv -o shut/scores.csv": "shut/scores.csv",
    "study init shut/study.toml --name heart --silos a,b --columns x,y -k 1 --epsilon 1 --normalize": "shut/study.toml",
    "show sealed --open": "sealed/report.html",
    "ledger create shut/new.ledger --epsilon 1 --delta 1e-06": "shut/new.ledger",
}
FULL_DISK = {
    "fit north.csv EXACT": "disk",
    "transform model north.csv -o scores.csv": "disk",
    "fit north.csv PRIVATE --ledger .": "north",
}
ROOM = 1024
"""Bytes that a file may have on a disk that is full."""

CELL = "zq"
"""In every word of a cell that no sentence may quote."""

TEXTS = {
    "notes.txt": "notes",
    "scale.csv": "age,1\n",
    "secret.csv": "a,b\n1,2\n",
    "empty.csv": "",
    "header.csv": "age,bmi,sbp,dbp,hdl\n",
    "ragged.csv": "a,b\n1,2\n3\n",
    "twofold.csv": "age,1\nbmi,1\nage,2\nsbp,1\ndbp,1\nhdl,1\n",
    "index.csv": ",a,b\n0,1,2\n1,3,5\n",
    "bad.toml": "silo = [\n",
    "other.csv": "age,gewicht,sbp,dbp,hdl\n1,2,3,4,5\n2,3,5,7,1\n",
    "keys.toml": '[data]\npath = "north.csv"\nsheet = "A"\n',
    "duck.toml": '[data]\nquery = "SELECT * FROM visits"\ndatabase = "duckdb:///none.duckdb"\n',
    "stray.toml": '[data]\npath = "north.csv"\n[columns.factors]\nweight = 2.2\n',
    "nought.toml": '[data]\npath = "north.csv"\n[columns.factors]\nage = 0\n',
    "uneven/1.csv": "a,b\n1,2\n",
    "uneven/2.csv": "a,c\n1,2\n",
    "scattered/1.csv": "a,b\n1,2\n",
    "scattered/year=2024/2.csv": "a,b\n1,2\n",
}
TEXTS |= {
    "occupied/thesis.tex": "years of work",
    "sealed.csv": "a,b\n1,2\n3,4\n",
    "edges.csv": "source,target\nann,bob\nbob,cyd\n",
    "heavy.csv": "source,target,weight\nann,bob,7\n",
    "nodes.txt": "ann\nbob\ncyd\ndan\n",
    "few.txt": "ann\nbob\n",
    "odd.csv": "zoe,1\n",
    "gap.csv": "a,b\n1,2\n,3\n4,5\n",
    "clinic.csv": "age,sex,grade,smoker,seen\n50,F,low,yes,2001-02-03\n61,M,high,no,2001-02-04\n70,Xzq,midzq,neverzq,somedayzq\n",
    "games.csv": "winner,loser,points\nash,oak,1\nyewzq,oak,2\n",
    "clash.csv": "sex,sex=F\nF,1\nM,0\n",
}
BAD_RULES = {
    "unfilled": "sex = { levels = [] }",
    "doubled": "sex = ['F', 'F']",
    "others": "sex = ['F', 'other']",
    "unlisted": "sex = { kind = 'levels' }",
    "unkind": "age = { kind = 'integer' }",
    "slip": "age = { kind = 'number', rnage = [0, 120] }",
    "backwards": "age = { kind = 'number', range = [120, 0] }",
    "ranged": "sex = { levels = ['F', 'M'], range = [0, 1] }",
    "often": "age = { kind = 'number', missing = 'often' }",
    "beyond": "age = { kind = 'number', range = [0, 120], missing = 999 }",
    "stranger": "sex = { levels = ['F', 'M'], missing = 'X' }",
    "both": "sex = { levels = ['F', 'M'], missing = 'F', indicator = true }",
    "undated": "seen = { kind = 'date' }",
    "misdated": "seen = { kind = 'date', origin = '31.1.2000' }",
    "fortnight": "seen = { kind = 'date', origin = 2000-01-31, unit = 'fortnights' }",
    "single": "grade = { ordered = ['low'] }",
    "number": "age = 3",
    "wordless": "age = { kind = 'number', missing_words = 'NA' }",
    "perhaps": "age = { kind = 'number', missing = 0, indicator = 'yes' }",
    "all-dropped": "age = 'drop'",
}
RULES = BAD_RULES | {
    "height": "height = 'number'",
    "gap": "a = 'number'",
    "grade": "sex = ['F']\ngrade = { ordered = ['low', 'high'] }\nsmoker = 'drop'\nseen = 'drop'",
    "smoker": "sex = ['F']\ngrade = 'drop'\nsmoker = 'yes/no'\nseen = 'drop'",
    "seen": "sex = ['F']\ngrade = 'drop'\nsmoker = 'drop'\nseen = { kind = 'date', origin = 2000-01-31 }",
    "text": "sex = ['F']\ngrade = 'drop'\nsmoker = { kind = 'number', missing = 0, missing_words = ['neverzq', 'no'] }\nseen = 'drop'",
    "clash": "sex = ['F', 'M']",
    "yews": "winner = { items = ['ash', 'oak', 'yew'], against = 'loser' }\npoints = 'drop'",
    "draft": "sex = ['F']\nage = { kind = 'number', range = [0, 120] }",
}
TEXTS |= {
    f"{name}.toml": f'format = "fedpower-codebook/2"\n[rules]\n{text}\n' for name, text in RULES.items()
}
BAD_BOOKS = ("outside", "flat", "later", "bare")
TEXTS |= {
    "outside.toml": 'format = "fedpower-codebook/2"\nsex = ["F", "M"]\n',
    "flat.toml": 'format = "fedpower-codebook/2"\nrules = 3\n',
    "later.toml": 'format = "fedpower-codebook/9"\n',
    "bare.toml": 'format = "fedpower-codebook/2"\nbound = 2.0\n',
    "full.toml": 'format = "fedpower-codebook/2"\nbound = 2.0\n'
    + "".join(
        f'[[column]]\nname = "{name}"\noffset = 0.0\nscale = 1.0\nlow = -9.0\nhigh = 9.0\n'
        for name in ("age", "bmi", "sbp", "dbp", "hdl")
    ),
    "visits.csv": "age,bmi,patient\n50,20,Q1\n60,21,\n",
    "ids.csv": "patient\nQ1\nQ2\n",
}
ARRAYS = {
    "three.npy": np.ones(3),
    "ones.npy": np.ones((4, 2)),
    "infinite.npy": np.array([[1, np.inf], [1, 2]]),
    "one.npy": np.ones((1, 5)),
    "wide.npy": np.ones((3, 4)),
}


MADE = """\
study init agreed.toml --name heart --silos a,b --columns x,y -k 1 --epsilon 1 --normalize
ledger create north.ledger --epsilon 2 --delta 1e-6
ledger create open.ledger --epsilon 2 --delta 1e-6
ledger create heart.ledger --epsilon 2 --delta 1e-6 --silo north --data-set heart
ledger create booked.ledger --epsilon 2 --delta 1e-6
fit booked=north.csv PRIVATE --ledger . -o booked
fit north.csv --epsilon inf --solver upload -o kept
fit edges.csv --network edge --nodes nodes.txt --epsilon inf -o linked"""


def prepare(folder: Path) -> None:
    """Write next to the hospitals all that can be wrong with a file."""
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "hollow").mkdir()
    (folder / "umlaut.csv").write_text("größe,b\n1,2\n3,4\n", encoding="cp1252")
    book = write_xlsx(folder / "ward.xlsx", Winter=[["name", "age"], ["Meierzq", 61], ["Kunzzq", 50]])
    (folder / "cut.xlsx").write_bytes(book.read_bytes()[:500])
    for name, array in ARRAYS.items():
        np.save(folder / name, array)
    np.savez(folder / "other.npz", weights=np.ones(3))
    (folder / "junk.csv").write_bytes(bytes(range(256)) * 4)
    whole = (folder / "south.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "secret.csv").chmod(0o600)
    for words in MADE.splitlines():
        succeed(*words_of(words))
    (folder / "open.ledger").chmod(0o644)
    for name in ("torn", "garbled", "later", "unsaid", "sealed"):
        shutil.copytree("model", name)
    torn = folder / "torn" / "components.npz"
    torn.write_bytes(torn.read_bytes()[:300])
    (folder / "garbled" / "run.json").write_text("{")
    later = folder / "later" / "run.json"
    later.write_text(later.read_text().replace("fedpower-record/1", "fedpower-record/9"))
    unsaid = folder / "unsaid" / "run.json"
    unsaid.write_text(json.dumps({**json.loads(unsaid.read_text()), "privacy": None}))
    (folder / "sealed").chmod(0o500)
    (folder / "sealed.csv").chmod(0)
    (folder / "shut").mkdir(mode=0o500)


@pytest.fixture(scope="module")
def prepared(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(hospitals, tmp_path_factory.mktemp("prepared"), dirs_exist_ok=True)
    with chdir(folder):
        prepare(folder)
    return folder


@pytest.fixture
def place(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(prepared)
    return prepared


def words_of(use: str) -> list[str]:
    for short, meant in SHORT.items():
        use = use.replace(short, meant)
    words = shlex.split(use)
    return [*words, "-o", "new"] if words[0] == "fit" and len(words) > 1 and "-o" not in words else words


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    files = {path: path.lstat() for path in folder.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in files.items()}


def check(
    place: Path, before: dict[Path, tuple[int, int]], said: tuple[int, str, str], at_fault: str
) -> None:
    status, printed, errors = said
    assert (status, printed) == (2, ""), errors
    *logged, sentence = errors.splitlines()
    assert not logged or "full" in str(place), errors
    assert sentence.startswith("Error: ")
    assert at_fault in sentence
    assert not CALLS.search(sentence)
    assert CELL not in errors
    assert contents(place) == before


def cases() -> list[object]:
    pairs = [line.rsplit(" | ", 1) for line in USES.splitlines() if " | " in line]
    pairs += [
        [f"{use} {words}", re.split("[ =]", words)[0]]
        for use in OPTIONS
        for words in OPTIONS[use].split("; ")
    ]
    pairs += [[f"fit '{file}' EXACT", file] for file in FILES.split()]
    pairs += [[f"CLINIC {name}.toml", f"{name}.toml"] for name in (*BAD_RULES, *BAD_BOOKS)]
    return [
        pytest.param(use, at_fault, id=use, marks=[pytest.mark.devices] * ("--device" in use))
        for use, at_fault in pairs
    ]


@pytest.mark.parametrize(("use", "at_fault"), cases())
def test_a_wrong_use_names_what_is_at_fault_and_leaves_no_trace(place, use, at_fault):
    before = contents(place)
    said = run(*words_of(use))
    check(place, before, (said.exit_code, said.stdout, said.stderr), at_fault)


CALLS = re.compile(r"\b([a-z_]+)=(?:True|False|inf|\w+\(\)|[\['\"{])")
"""Python's way to give a parameter."""


def hints() -> list[str]:
    """Return the texts of the package that give a parameter as Python does, x for what they fill in."""
    texts = set()
    for path in Path(fedpower.__file__).parent.rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        filled = [node.values for node in nodes if isinstance(node, ast.JoinedStr)]
        within = {*chain(*filled)}
        for parts in [*filled, *([node] for node in nodes if node not in within)]:
            texts.add("".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts))
    known = FLAT.keys() | SHARED.keys()
    return sorted(text for text in texts if "\n" not in text and known & set(CALLS.findall(text)))


@pytest.mark.parametrize("hint", hints())
def test_the_command_line_gives_parameters_as_options(hint):
    assert not CALLS.search(in_options(hint))
    assert not CALLS.search(in_options(f"study.toml must be another; {hint}"))


def in_a_process(use: str, *, room: int = resource.RLIM_INFINITY) -> tuple[int, str, str]:
    command = [*PROGRAM, *words_of(use)]
    if os.geteuid() == 0:  # root may read and write all
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    limit = (room, resource.RLIM_INFINITY)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.programs
@pytest.mark.parametrize(("use", "at_fault"), NO_PERMISSION.items())
def test_without_permission_nothing_is_read_or_written(place, use, at_fault):
    before = contents(place)
    check(place, before, in_a_process(use), at_fault)


@pytest.mark.programs
@pytest.mark.parametrize(("use", "at_fault"), FULL_DISK.items())
def test_on_a_full_disk_nothing_is_written_or_charged(prepared, tmp_path, monkeypatch, use, at_fault):
    place = tmp_path / "full"
    shutil.copytree(prepared, place, ignore=shutil.ignore_patterns("sealed*", "shut"))
    monkeypatch.chdir(place)
    before = contents(place)
    check(place, before, in_a_process(use, room=ROOM), at_fault)
