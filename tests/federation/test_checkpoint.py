"""The checkpoint on disk: whatever happens to its files, the run ends with the same bytes."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from studies import RUN, open_silos, write_study

from fedpower.federation.coordinator import StudyRun
from fedpower.protocol.coordinator import Recorded
from fedpower.protocol.messages import decode_as, encode

POWER = {"solver": "fedpower", "n_steps": 4, "local_steps": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "upload": {},
    "fedpower, step": {"privacy": {"noise": "step"}, "solver": POWER},
    "krylov, moment": {"solver": {"solver": "krylov"}},
    "exact krylov": {"privacy": {"epsilon": float("inf"), "delta": None}, "solver": {"solver": "krylov"}},
}


def reported(node: StudyRun) -> bytes:
    result = node.result
    arrays = (result.components, result.explained_variance, result.mean)
    rows = [closed.as_row() for closed in node.coordinator.history]
    content = b"".join(np.asarray(array).tobytes() for array in arrays)
    return content + repr((rows, node.outcome.privacy)).encode()


def stored(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("settings", SETTINGS)
def test_resumed_after_any_round_nothing_is_asked_or_charged_twice(settings: str, tmp_path: Path) -> None:
    study, folder = write_study(tmp_path, **SETTINGS[settings]), tmp_path / "runs" / RUN / "rounds"
    with open_silos(study, tmp_path, cap=2.0) as silos:
        whole = StudyRun(study, run=RUN, checkpoint=folder)
        silos.finish(whole)
        expected, charges, asked, files = reported(whole), silos.charges(), silos.n, stored(folder)
        for place in range(len(files)):
            (folder / f"{place}.round").unlink()  # what follows it is not read
            silos.n = 0
            resumed = StudyRun(study, run=RUN, checkpoint=folder)
            assert resumed.coordinator.n_replayed == place
            silos.finish(resumed)
            earlier = whole.coordinator.history[:place]
            assert silos.n == asked - sum(len(closed.asked) for closed in earlier)
            assert reported(resumed) == expected
            assert stored(folder) == files
        assert silos.charges() == charges


@pytest.mark.slow
def test_cut_short_altered_or_of_other_questions_a_round_is_asked_again(tmp_path: Path) -> None:
    """Another version or machine may ask otherwise; what it wrote must not hide what follows."""
    study, folder = write_study(tmp_path, **SETTINGS["krylov, moment"]), tmp_path / "rounds"
    chance = random.Random(0)

    def altered(content: bytes) -> list[bytes]:
        known = decode_as(content, Recorded)
        others = [{"run": "f" * 16}, {"study": "0" * 64}, {"question": "0" * 64}, {"number": 9}]
        spoilt = [encode(structs.replace(known, **other)) for other in others]
        for place in range(0, len(content), len(content) // 2):
            turned = bytearray(content)
            turned[place] ^= 1 << chance.randrange(8)
            spoilt += [bytes(turned), content[:place]]
        return spoilt

    with open_silos(study, tmp_path, cap=2.0) as silos:
        whole = StudyRun(study, run=RUN, checkpoint=folder)
        silos.finish(whole)
        expected, files = reported(whole), stored(folder)
        assert len(files) >= 3
        for place in (1, len(files) - 1):
            path = folder / f"{place}.round"
            for content in altered(path.read_bytes()):
                path.write_bytes(content)
                resumed = StudyRun(study, run=RUN, checkpoint=folder)
                assert resumed.coordinator.n_replayed == place
                silos.finish(resumed)
                assert reported(resumed) == expected
                assert stored(folder) == files
        assert silos.charges() == [1, 1, 1]


def test_the_result_folder_says_what_the_run_was(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    with open_silos(study, tmp_path, cap=2.0) as silos:
        silos.finish(StudyRun(study, run=RUN, checkpoint=tmp_path / "rounds"), rounds=1)
        node = StudyRun(study, run=RUN, checkpoint=tmp_path / "rounds")
        silos.finish(node)
        record = node.write_result(tmp_path / "result")
    assert record["federation"] == {
        "name": study.name,
        "agreement": study.digest,
        "run": RUN,
        "rounds_resumed": 1,
        "silent": {"north": 0, "south": 0, "east": 0},
    }
    assert (tmp_path / "result" / "run.json").is_file()
    assert not any("budget" in each for each in record["silos"])  # a silo's ledger is its own
    page = (tmp_path / "result" / "report.html").read_text(encoding="utf-8")
    assert study.name in page
    assert "known to that silo only" in page
    assert str(tmp_path) not in page
