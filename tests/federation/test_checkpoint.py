"""The checkpoint on disk: whatever happens to its files, the run ends with the same bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from studies import EXACT, RUN, open_silos, write_study

from fedpower.federation.coordinator import StudyRun
from fedpower.protocol.coordinator import Recorded
from fedpower.protocol.messages import decode_as, encode

SETTINGS: dict[str, dict[str, Any]] = {
    "upload": {},
    "fedpower, step": {
        "privacy": {"noise": "step"},
        "solver": {"solver": "fedpower", "n_steps": 4, "local_steps": 2},
    },
    "exact krylov": {"privacy": EXACT, "solver": {"solver": "krylov"}},
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


def test_cut_short_altered_or_of_other_questions_a_round_is_asked_again(tmp_path: Path) -> None:
    """Another version or machine may ask otherwise; what it wrote must not hide what follows."""
    study, folder = write_study(tmp_path, **SETTINGS["fedpower, step"]), tmp_path / "rounds"
    with open_silos(study, tmp_path, cap=2.0) as silos:
        whole = StudyRun(study, run=RUN, checkpoint=folder)
        silos.finish(whole)
        expected, files, charges = reported(whole), stored(folder), silos.charges()
        path = folder / "1.round"
        content = path.read_bytes()
        other = encode(structs.replace(decode_as(content, Recorded), run="f" * 16))
        turned = bytes([*content[:-200], content[-200] ^ 1, *content[-199:]])
        for spoilt in (b"", content[: len(content) // 2], turned, other):
            path.write_bytes(spoilt)
            resumed = StudyRun(study, run=RUN, checkpoint=folder)
            assert resumed.coordinator.n_replayed == 1
            silos.finish(resumed)
            assert reported(resumed) == expected
            assert stored(folder) == files
        assert silos.charges() == charges


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
