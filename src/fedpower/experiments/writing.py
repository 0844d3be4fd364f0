"""A model's silos written as files, in bounded memory and all or nothing."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.experiments.models import Model
from fedpower.report.files import staged
from fedpower.rows.source import pl
from fedpower.sums.kernel import block_rows

Array = NDArray[np.float64]
Format = Literal["npy", "parquet", "csv"]
FORMATS: tuple[Format, ...] = ("npy", "parquet", "csv")

_GROUP_BYTES = 32 * 2**20
"""Size of a Parquet row group: readers hold what describes every group, so there must not be many."""


def write_model(
    model: Model,
    folder: Path,
    *,
    kind: Format = "npy",
    force: bool = False,
    on_rows: Callable[[int], None] | None = None,
) -> list[Path]:
    """Return the silo files written to ``folder``, beside ``truth.npz`` and ``model.json``."""
    if kind not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {kind!r}; choose one")
    require_room(folder, force=force)
    digits = max(2, len(str(model.n_silos)))
    names = [f"silo-{place:0{digits}}.{kind}" for place in range(1, model.n_silos + 1)]
    with _all_or_nothing(folder) as partial:
        for silo, name in enumerate(names):
            write = {"npy": _write_npy, "parquet": _write_parquet, "csv": _write_csv}[kind]
            write(partial / name, model, _counted(model, silo, on_rows), model.sizes[silo])
        np.savez(partial / "truth.npz", basis=model.basis, columns=np.array(model.columns))
        facts = json.dumps(model.facts | {"files": names}, indent=2)
        (partial / "model.json").write_text(facts + "\n", encoding="utf-8")
    return [folder / name for name in names]


def require_room(folder: Path, *, force: bool) -> None:
    """Refuse a folder that holds something, unless it is an earlier simulation and ``force``."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} must be a folder, got a file; choose another name")
    names = sorted(path.name for path in folder.iterdir())
    if names and not force:
        raise InputError(
            f"{folder} must be empty or new, got {len(names)} files in it; choose another folder, "
            "or replace an earlier simulation with --force"
        )
    foreign = [name for name in names if not _is_ours(folder / name)]
    if foreign:
        raise InputError(
            f"{folder} must hold nothing but an earlier simulation to be replaced, got "
            f"{foreign[0]!r}; move that away or choose another folder"
        )


def _is_ours(path: Path) -> bool:
    """Return whether a name is one that a simulation gives."""
    silo = path.stem.startswith("silo-") and path.suffix.removeprefix(".") in FORMATS
    return path.is_file() and (silo or path.name in ("truth.npz", "model.json"))


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[Path]:
    """Give a new folder that takes the place of ``folder`` at the end, or vanishes."""
    try:
        with staged(folder, folder=True) as partial:
            yield partial
    except OSError as error:
        raise InputError(
            f"{folder} must be a folder that can be written, got "
            f"{(error.strerror or str(error)).lower()!r}; choose another, or make room"
        ) from error


def _counted(model: Model, silo: int, on_rows: Callable[[int], None] | None) -> Iterator[Array]:
    for block in model.blocks(silo, block_rows(model.n_features)):
        yield block
        if on_rows is not None:
            on_rows(len(block))


def _write_npy(path: Path, model: Model, blocks: Iterator[Array], n_rows: int) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, model.n_features)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype="<f8").data)


def _write_parquet(path: Path, model: Model, blocks: Iterator[Array], n_rows: int) -> None:
    del n_rows
    schema = dict.fromkeys(model.columns, pl.Float64)

    def frames(*_: object) -> "Iterator[pl.DataFrame]":
        return (_frame(block, model) for block in blocks)

    rows = import_module("polars.io.plugins").register_io_source(frames, schema=schema)
    rows.sink_parquet(path, row_group_size=max(1, _GROUP_BYTES // (8 * model.n_features)))


def _write_csv(path: Path, model: Model, blocks: Iterator[Array], n_rows: int) -> None:
    del n_rows
    with path.open("wb") as file:
        for place, block in enumerate(blocks):
            _frame(block, model).write_csv(file, include_header=place == 0)


def _frame(block: Array, model: Model) -> "pl.DataFrame":
    return pl.DataFrame(block, schema=list(model.columns))
