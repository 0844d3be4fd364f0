"""A silo put together from its files: refuses before it charges, and looks without touching."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from studies import COLUMNS, SIZES, silo_rows, write_rows, write_silo, write_study

from fedpower.errors import FedpowerError, InputError, LedgerError
from fedpower.federation import local
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.coordinator import Receipt
from fedpower.protocol.messages import AskMean, AskMoment, Enrol, Enrolment, Message, PackedMoment, Refusal
from fedpower.rows.opening import open_source

RUN = "0123456789abcdef"


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def question(study: Any, body: Any, silo: str = "north", run: str = RUN) -> Message:
    return Message(study=study.terms()[0].digest, run=run, round=0, silo=silo, body=body)


def another_study(folder: Path) -> None:
    write_silo(folder, more=f'[agrees]\nstudy = "{"0" * 64}"')


def too_much(folder: Path) -> None:
    write_silo(folder, more="[agrees]\nepsilon = 0.5")


def not_named(folder: Path) -> None:
    write_silo(folder, "north")
    path = folder / "north.toml"
    path.write_text(path.read_text().replace('silo = "north"', 'silo = "west"'))


def no_rows(folder: Path) -> None:
    (folder / "north.csv").unlink()


def holes(folder: Path) -> None:
    rows = silo_rows("north").copy()
    rows[3, 1] = np.nan
    write_rows(folder / "north.csv", rows)


def other_columns(folder: Path) -> None:
    write_rows(folder / "north.csv", silo_rows("north"), (*COLUMNS[:4], "shoe size"))


def more_columns(folder: Path) -> None:
    write_rows(folder / "north.csv", np.c_[silo_rows("north"), np.ones(60)], (*COLUMNS, "id"))


def another_s_ledger(folder: Path) -> None:
    (folder / "north.ledger").unlink()
    Ledger.create(folder / "north.ledger", epsilon=2.0, delta=1e-5, silo="south").close()


def no_ledger(folder: Path) -> None:
    (folder / "north.ledger").unlink()


def another_data_set_s_ledger(folder: Path) -> None:
    no_ledger(folder)
    path = folder / "north.ledger"
    Ledger.create(path, epsilon=2.0, delta=1e-5, silo="north", data_set="lungs").close()


def another_cap(folder: Path) -> None:
    write_silo(folder, cap=9.0)


def damaged_ledger(folder: Path) -> None:
    content = bytearray((folder / "north.ledger").read_bytes())
    content[:16] = b"not a database!!"
    (folder / "north.ledger").write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        another_study,
        too_much,
        not_named,
        no_rows,
        holes,
        other_columns,
        more_columns,
        another_s_ledger,
        no_ledger,
        another_data_set_s_ledger,
        another_cap,
        damaged_ledger,
    ],
)
def test_what_is_refused_is_refused_before_anything_is_charged(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    study = write_study(tmp_path)
    write_silo(tmp_path)
    spoil(tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(FedpowerError) as refused, open_silo(study, read_silo(tmp_path / "north.toml")):
        pytest.fail("the silo was opened")
    assert "\n" not in str(refused.value)
    assert files_of(tmp_path) == before


def test_a_look_at_a_silo_changes_no_file(tmp_path: Path) -> None:
    study, silo = write_study(tmp_path), write_silo(tmp_path)
    before = files_of(tmp_path)
    with open_silo(study, silo) as node:
        assert node.affordable
        assert node.budget is not None
        assert node.moment.n_rows == 60
    assert files_of(tmp_path) == before


def test_a_dry_run_changes_no_byte_of_a_ledger_in_use(tmp_path: Path) -> None:
    study, silo = write_study(tmp_path), write_silo(tmp_path)
    with open_silo(study, silo) as node:
        assert isinstance(node.silo.answer(question(study, AskMoment())).body, PackedMoment)
    before = files_of(tmp_path)
    with open_silo(study, silo) as node:
        assert node.ledger is not None
        assert node.ledger.spent().n_releases == 1
        assert node.affordable
    assert files_of(tmp_path) == before


def test_opening_charges_nothing_and_answering_charges_once(tmp_path: Path) -> None:
    study, silo = write_study(tmp_path), write_silo(tmp_path)
    sent = []
    for _ in range(2):
        with open_silo(study, silo) as node:
            assert node.ledger is not None
            charged = node.ledger.spent().n_releases
            assert charged == len(sent)
            sent.append(node.silo.answer(question(study, AskMoment())).body)
            assert node.ledger.spent().n_releases == 1
    np.testing.assert_array_equal(sent[0].triangle, sent[1].triangle)


def test_an_exact_study_needs_no_ledger(tmp_path: Path) -> None:
    study = write_study(tmp_path, privacy={"epsilon": float("inf"), "delta": None})
    with open_silo(study, write_silo(tmp_path, cap=None)) as node:
        assert (node.ledger, node.budget, node.affordable) == (None, None, True)
        assert isinstance(node.silo.answer(question(study, AskMoment())).body, PackedMoment)


def test_a_silo_that_cannot_pay_says_so_at_enrolment(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    with open_silo(study, write_silo(tmp_path, cap=0.5)) as node:
        assert not node.affordable
        reported = node.silo.answer(question(study, Enrol())).body
        assert isinstance(reported, Refusal)
        assert "would spend epsilon=0.873 but silo 'north' has 0.5 left" in reported.reason
        assert node.ledger is not None
        assert node.ledger.spent().n_releases == 0


@pytest.mark.parametrize("noise", ["moment", "step"])
def test_nobody_is_charged_for_a_study_that_one_silo_cannot_pay(noise: str, tmp_path: Path) -> None:
    """The poor one is asked last, and still before any other is charged."""
    study = write_study(tmp_path, privacy={"noise": noise})
    nodes = {name: open_silo(study, write_silo(tmp_path, name)) for name in ("north", "south")}
    poor = open_silo(study, write_silo(tmp_path, "east", cap=0.5))
    with nodes["north"] as north, nodes["south"] as south, poor as east:
        run = StudyRun(study, run=RUN, checkpoint=tmp_path / "rounds.journal")
        silos = {node.silo.name: node for node in (north, south, east)}
        answers = [silos[asked.silo].silo.answer(asked) for asked in run.coordinator.next()]
        for answer in answers[:-1]:
            run.coordinator.receive(answer)
        with pytest.raises(FedpowerError, match=r"silo 'east' refused: .* has 0\.5 left"):
            run.coordinator.receive(answers[-1])
        assert isinstance(north.silo.answer(question(study, Enrol())).body, Enrolment)
        assert all(node.ledger is not None and node.ledger.spent().n_releases == 0 for node in silos.values())


def test_a_silo_answers_for_the_rows_that_were_checked_when_it_started_and_no_others(tmp_path: Path) -> None:
    study = write_study(tmp_path, privacy={"epsilon": float("inf"), "delta": None})
    silo = write_silo(tmp_path, cap=None)
    with open_silo(study, silo) as node:
        expected = node.silo.answer(question(study, AskMoment())).body
    with open_silo(study, silo) as node:
        write_rows(tmp_path / "north.csv", silo_rows("south"))
        found = node.silo.answer(question(study, AskMoment())).body
    assert isinstance(expected, PackedMoment)
    assert isinstance(found, PackedMoment)
    np.testing.assert_array_equal(found.triangle, expected.triangle)


@pytest.mark.slow
def test_a_rehearsal_s_parties_are_started_as_a_user_starts_them_and_none_where_a_row_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would start is looked at in place of being started.

    The rows lie in a folder whose name has what TOML must escape.
    """
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(local, "start_party", lambda *words, log: started.append(words))
    study = write_study(tmp_path)
    folder = tmp_path / 'a "folder" \\ of é\tours'
    folder.mkdir()
    data = {name: folder / f"{name}.csv" for name in SIZES}
    for name, path in data.items():
        write_rows(path, silo_rows(name))
    made = local.LocalFederation(study, tmp_path / "rehearsal", data)
    made.start()
    kits = {name: str(made.kits / name) for name in ("coordinator", *SIZES)}
    assert started == [
        ("coordinator", kits["coordinator"]),
        *(("silo", kits[name], f"{kits[name]}/silo.toml") for name in SIZES),
    ]
    for name in SIZES:
        with open_silo(made.study, read_silo(made.kits / name / "silo.toml")) as node:
            assert node.moment.n_rows == SIZES[name]
    started.clear()
    data["east"].write_text(data["east"].read_text().replace("1", "x", 1))
    with pytest.raises(InputError, match="the data of silo 'east'"):
        made.start()
    assert started == []


def test_made_up_rows_have_the_study_s_columns_whatever_is_in_their_names(tmp_path: Path) -> None:
    study = replace(write_study(tmp_path), columns=('a "b"', "é\\", "c,d"))
    data = local.rehearsal_data(study, 3, tmp_path / "rows", None, say=lambda _: None)
    assert [open_source(path).columns for path in data.values()] == [study.columns] * 3


def test_an_exact_study_s_rows_have_no_fingerprint(tmp_path: Path) -> None:
    study = write_study(tmp_path, privacy={"epsilon": float("inf"), "delta": None})
    with open_silo(study, write_silo(tmp_path)) as node:
        assert node.fingerprint == ""


def moved_cell(folder: Path) -> None:
    rows = silo_rows("north").copy()
    rows[5, 1] += 1e-12
    write_rows(folder / "north.csv", rows)


def declare(folder: Path, version: str) -> None:
    path = folder / "north.toml"
    path.write_text(path.read_text().replace("[data]", f'[data]\nversion = "{version}"'))


@pytest.mark.parametrize("noise", ["moment", "step"])
def test_rows_that_changed_stop_the_silo_before_it_connects(noise: str, tmp_path: Path) -> None:
    study = write_study(tmp_path, privacy={"noise": noise})
    body: Any = AskMoment() if noise == "moment" else AskMean()
    with open_silo(study, write_silo(tmp_path)) as node:
        assert not isinstance(node.silo.answer(question(study, body)).body, Refusal)
    moved_cell(tmp_path)
    before = files_of(tmp_path)
    with (
        pytest.raises(LedgerError, match=r"got others; declare a new version with version in \[data"),
        open_silo(study, read_silo(tmp_path / "north.toml")),
    ):
        pytest.fail("the silo was opened")
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("change", [moved_cell, lambda folder: None], ids=["moved", "the same"])
def test_a_new_version_is_told_to_all_and_charged_whether_or_not_rows_changed(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    study = write_study(tmp_path)
    with open_silo(study, write_silo(tmp_path)) as node:
        node.silo.answer(question(study, AskMoment()))
    change(tmp_path)
    declare(tmp_path, "2026-03")
    with open_silo(study, read_silo(tmp_path / "north.toml")) as node:
        reported = node.silo.answer(question(study, Enrol())).body
        assert reported == Enrolment(n_rows=60, n_features=5, data_version="2026-03")
        assert isinstance(node.silo.answer(question(study, AskMoment())).body, PackedMoment)
        assert node.ledger is not None
        assert node.ledger.spent().n_releases == 2


def test_a_version_that_could_not_be_shown_is_not_taken_from_a_silo(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    run = StudyRun(study, run=RUN, checkpoint=tmp_path / "rounds.journal")
    asked = run.coordinator.next()[0]
    for version, receipt in (("\x1b[2J", Receipt.MALFORMED), ("2026-03", Receipt.ACCEPTED)):
        body = Enrolment(n_rows=60, n_features=5, data_version=version)
        assert run.coordinator.receive(structs.replace(asked, body=body)) is receipt
