"""A study of three silos on disk, with its parties' own files."""

import copy
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.federation.silo_file import SiloFile, read_silo
from fedpower.federation.study_file import StudyFile, read_study, to_toml
from fedpower.privacy.ledger import Ledger
from problems import Array, spiked_rows, split

COLUMNS = ("age", "bmi", "sbp", "dbp", "hdl")
SIZES = {"north": 60, "south": 50, "east": 40}
CONTENT: dict[str, Any] = {
    "name": "heart-2026",
    "columns": {"names": list(COLUMNS)},
    "rows": {"row_norm": 10.0, "center": True, "standardize": False},
    "components": {"n_components": 2},
    "privacy": {"epsilon": 1.0, "delta": 1e-6},
    "rounds": {"deadline": 60.0},
    "silos": {"names": list(SIZES)},
    "coordinator": {"host": "localhost", "port": 8002},
}


def content_with(**tables: Any) -> dict[str, Any]:
    """Return the study's content with some tables' keys changed; None takes a key or a table out."""
    content = copy.deepcopy(CONTENT)
    for table, changes in tables.items():
        if not isinstance(changes, dict):
            content[table] = changes
        else:
            content[table] = {**content.get(table, {}), **changes}
            content[table] = {key: each for key, each in content[table].items() if each is not None}
    return {table: each for table, each in content.items() if each is not None}


def write_study(folder: Path, **tables: Any) -> StudyFile:
    path = folder / "study.toml"
    path.write_text(to_toml(content_with(**tables)), encoding="utf-8")
    return read_study(path)


def silo_rows(name: str) -> Array:
    rows = spiked_rows(sum(SIZES.values()), len(COLUMNS), rank=2, seed=3) + 1.0
    return dict(zip(SIZES, split(rows, list(SIZES.values())), strict=True))[name]


def write_rows(path: Path, rows: Array, columns: tuple[str, ...] = COLUMNS) -> None:
    np.savetxt(path, rows, delimiter=",", header=",".join(columns), comments="")


def write_silo(folder: Path, name: str = "north", *, cap: float | None = 2.0, more: str = "") -> SiloFile:
    """Write a silo's rows and its own file, and make its ledger unless it is there.

    ``more`` is put at the file's end; without a ``cap`` no ledger is made.
    """
    write_rows(folder / f"{name}.csv", silo_rows(name))
    ledger = f'[ledger]\npath = "{name}.ledger"\n'
    ledger += "" if cap is None else f"epsilon = {cap}\ndelta = 1e-5\n"
    path = folder / f"{name}.toml"
    path.write_text(f'silo = "{name}"\n[data]\npath = "{name}.csv"\n{ledger}{more}\n')
    if cap is not None and not (folder / f"{name}.ledger").exists():
        Ledger.create(folder / f"{name}.ledger", epsilon=cap, delta=1e-5, silo=name).close()
    return read_silo(path)
