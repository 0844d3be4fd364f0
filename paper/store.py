"""The folder of a reproduction: finished repetitions, then table, verdicts, captions and pictures."""

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.runner import as_json, read_json, version_of
from fedpower.exceptions import InputError
from fedpower.files import write_whole
from paper.claims import Verdict, judge_all
from paper.curves import Curve, curves_of
from paper.figures import captions, draw_all
from paper.own_claims import own_claims
from paper.paper_claims import paper_claims
from paper.runs import Point, Run, run_repetition
from paper.settings import ModelName, Settings
from paper.table import Table, rounded, table_of

SETTINGS = "settings.json"
FINISHED = "finished"
PACKAGES = ("fedpower", "numpy", "scipy", "scikit-learn", "matplotlib")


def versions() -> dict[str, str]:
    """Return what the outcome may depend on in addition to the settings."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: version_of(name) for name in PACKAGES},
    }


class Store:
    """Keeps the repetitions of one reproduction in a folder.

    Each finished repetition of a model is a file that appears whole or not at all. The number of
    repetitions is not part of what a folder is made for: more of them go on where fewer ended.

    Parameters
    ----------
    folder
        New, empty, or one that a reproduction with the same settings and versions began.
    settings
        What is reproduced.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self._made_for = {
            "settings": {k: v for k, v in settings.as_dict().items() if k != "repetitions"},
            "versions": versions(),
        }
        self._fingerprint = hashlib.sha256(json.dumps(self._made_for, sort_keys=True).encode()).hexdigest()
        self._claim_folder()

    def load(self, model: ModelName, repetition: int, curves: Sequence[Curve]) -> list[Run] | None:
        """Return the runs of a finished repetition in the order of ``curves``; None if it is not."""
        path = self._path(model, repetition)
        try:
            kept = read_json(path)
        except FileNotFoundError:
            return None
        except ValueError:
            raise _damaged(path) from None
        if kept.get("fingerprint") != self._fingerprint:
            raise _damaged(path)
        by_key = {run["key"]: run for run in kept["runs"]}
        return [_run(curve, by_key[curve.key]) for curve in curves]

    def save(self, model: ModelName, repetition: int, runs: Sequence[Run]) -> None:
        """Keep a finished repetition, durably."""
        record = {
            "fingerprint": self._fingerprint,
            "runs": [
                {
                    "key": run.curve.key,
                    "n_rows": run.n_rows,
                    "n_silos": run.n_silos,
                    "points": [
                        [each.round, each.bytes_up, each.error, each.misalignment] for each in run.points
                    ],
                }
                for run in runs
            ],
        }
        write_whole(self._path(model, repetition), json.dumps(record))

    def _path(self, model: ModelName, repetition: int) -> Path:
        return self.folder / FINISHED / f"model-{model}-{repetition:03}.json"

    def _claim_folder(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} must be a folder, got a file there; name another with -o")
        mark = self.folder / SETTINGS
        if mark.is_file():
            self._compare(mark)
            return
        held = sorted(entry.name for entry in self.folder.iterdir()) if self.folder.exists() else []
        if held:
            raise InputError(
                f"{self.folder} must be new, empty or an unfinished reproduction, got a folder that "
                f"holds {held[0]!r}; name another with -o"
            )
        (self.folder / FINISHED).mkdir(parents=True, exist_ok=True)
        write_whole(mark, json.dumps(self._made_for, indent=2) + "\n")

    def _compare(self, mark: Path) -> None:
        try:
            found = read_json(mark)
            there = {**found["settings"], **found["versions"]}
        except (ValueError, KeyError, TypeError):
            raise _damaged(mark) from None
        here = {**self._made_for["settings"], **self._made_for["versions"]}
        other = [name for name in here if there.get(name) != here[name]]
        if other:
            name = other[0]
            raise InputError(
                f"{self.folder} must have been made with the same settings and versions to go on in "
                f"it, got {name} {there.get(name)} there and {here[name]} here; name another folder "
                "with -o, or give the same options again"
            )


def _run(curve: Curve, kept: dict[str, Any]) -> Run:
    points = tuple(
        Point(round=number, bytes_up=sent, error=rounded(error), misalignment=rounded(spread))
        for number, sent, error, spread in kept["points"]
    )
    return Run(curve=curve, n_rows=kept["n_rows"], n_silos=kept["n_silos"], points=points)


def _damaged(path: Path) -> InputError:
    return InputError(
        f"{path} must be what a reproduction wrote, got something else; delete it and run the same "
        "command again"
    )


MODELS: tuple[ModelName, ...] = ("I", "II")


def reproduce(
    settings: Settings,
    store: Store,
    *,
    on_progress: Callable[[int, int, bool], None] | None = None,
    n_jobs: int | None = None,
) -> Table:
    """Return the table of all runs; what the store holds is not run again.

    Parameters
    ----------
    settings
        What is reproduced.
    store
        Where finished repetitions are kept.
    on_progress
        Called with the runs done, the runs to do, and whether these were read back.
    n_jobs
        How many curves run at once; the number of cores unless given. Plays no part in the outcome.
    """
    curves = curves_of(settings)
    total = len(curves) * settings.repetitions
    finished: dict[tuple[ModelName, int], list[Run]] = {}
    done = 0

    def advance(count: int, *, kept: bool = False) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total, kept)

    places = [(repetition, model) for repetition in range(settings.repetitions) for model in MODELS]
    for repetition, model in places:
        kept = store.load(model, repetition, _of(curves, model))
        if kept is not None:
            finished[model, repetition] = kept
            advance(len(kept), kept=True)
    for repetition, model in places:
        mine = _of(curves, model)
        if (model, repetition) in finished or not mine:
            continue
        runs = run_repetition(settings, model, repetition, mine, on_curves=advance, n_jobs=n_jobs)
        store.save(model, repetition, runs)
        finished[model, repetition] = runs
    order = {curve: place for place, curve in enumerate(curves)}
    pairs = [(repetition, run) for (_, repetition), runs in finished.items() for run in runs]
    return table_of(sorted(pairs, key=lambda pair: (order[pair[1].curve], pair[0])))


def _of(curves: list[Curve], model: ModelName) -> list[Curve]:
    return [curve for curve in curves if curve.model == model]


RUNS, CLAIMS, CAPTIONS = "runs.csv", "claims.json", "captions.json"


def verdicts_on(settings: Settings, table: Table) -> list[Verdict]:
    """Return the verdicts on all claims that there are runs for, the paper's first."""
    return judge_all([*paper_claims(settings), *own_claims(settings)], table)


def claims_record(settings: Settings, verdicts: list[Verdict]) -> dict[str, Any]:
    """Return claims.json."""
    return {
        "settings": settings.as_dict(),
        "versions": versions(),
        "claims": [verdict.as_dict() for verdict in verdicts],
    }


def write_outputs(folder: Path, settings: Settings, table: Table, verdicts: list[Verdict]) -> list[Path]:
    """Return the files written to ``folder``: each whole or not at all, the same for the same runs."""
    reported = captions(settings, table)
    files: dict[str, str | bytes] = {
        RUNS: table.as_csv(),
        CLAIMS: as_json(claims_record(settings, verdicts), finite=True),
        CAPTIONS: as_json(reported, finite=True),
        **draw_all(table, reported),
    }
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]
