"""A study whose unit is a person: agreed on in its file, held to by every silo, run over FLARE too."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from ground import fedpower
from studies import COLUMNS, SIZES, silo_rows, write_rows, write_silo, write_study
from test_checkpoint import RUN, Counted

from fedpower.errors import InputError
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.silo_file import open_silo

UNIT = {"unit": "patient_id"}
NAMES = (*COLUMNS, "patient_id")


def write_visits(path: Path, name: str, times: int = 1) -> None:
    """Write rows of persons with two visits each, all first visits before all second ones."""
    rows = np.tile(silo_rows(name), (times, 1))
    ids = np.arange(len(rows)) % (len(rows) // 2)
    write_rows(path, np.column_stack([rows, ids]), NAMES)


@pytest.mark.parametrize("rows", [{}, {"row_norm": None}], ids=["bounded", "prepared"])
def test_silos_of_such_a_study_tell_how_many_persons_they_have(tmp_path: Path, rows):
    study = write_study(tmp_path, rows={**UNIT, **rows})
    with ExitStack() as stack:
        opened = {}
        for name in study.silos:
            own = write_silo(tmp_path, name, cap=1.5)
            write_visits(tmp_path / str(own.data.path), name)
            opened[name] = stack.enter_context(open_silo(study, own))
        silos = Counted(opened)
        node = StudyRun(study, run=RUN, checkpoint=tmp_path / "runs" / "rounds.journal")
        silos.finish(node)
        found = node.result
        node.write_result(tmp_path / "result")
    assert found.silo_sizes == {name: size // 2 for name, size in SIZES.items()}
    assert found.privacy.unit == "one person of one silo"
    assert "one person of one silo" in (tmp_path / "result" / "privacy.txt").read_text()
    assert "75 persons" in (tmp_path / "result" / "report.html").read_text()


def test_the_unit_is_part_of_the_agreement_and_absent_it_changes_nothing(tmp_path: Path):
    plain, by_person = write_study(tmp_path), write_study(tmp_path, rows=UNIT)
    three = write_study(tmp_path, rows={**UNIT, "rows_per_unit": 3})
    assert len({plain.digest, by_person.digest, three.digest}) == 3
    assert write_study(tmp_path, rows={"rows_per_unit": 1}).digest == plain.digest


def test_a_silo_without_the_column_is_refused_before_it_connects(tmp_path: Path):
    study = write_study(tmp_path, rows=UNIT)
    own = write_silo(tmp_path, "north", cap=1.5)
    with (
        pytest.raises(InputError, match="must have the column 'patient_id' that says whose"),
        open_silo(study, own),
    ):
        pass


def test_a_study_whose_unit_is_a_feature_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"unit must be no feature.*'age' among the columns"):
        write_study(tmp_path, rows={"unit": "age"})


@pytest.mark.federation
def test_persons_are_rehearsed_over_flare_with_one_command(tmp_path: Path):
    rows = tmp_path / "rows"
    rows.mkdir()
    for name in SIZES:
        write_visits(rows / f"{name}.csv", name, times=20)
    made = fedpower(
        "study", "init", "study.toml", "--name=persons", f"--silos={','.join(SIZES)}",
        f"--columns={','.join(COLUMNS)}", "-k2", "--epsilon=20", "--row-norm=12", "--deadline=60",
        "--unit=patient_id", cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    done = fedpower("run", "study.toml", "--local=3", "--data=rows", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["n_samples"] == 10 * sum(SIZES.values())
    assert record["study"]["terms"]["unit"] == "patient_id"
    assert record["privacy"]["unit"] == "one person of one silo"
