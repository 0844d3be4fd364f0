"""The paper's data models: silos of rows that depend on the seed and nothing else, and files of them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError, require
from fedpower.files import new_folder
from fedpower.linalg import orth
from fedpower.rows.arrays import ArraySource
from fedpower.rows.source import block_rows
from fedpower.rules.treatment import RowTreatment
from fedpower.values import pl

Array = NDArray[np.float64]
Format = Literal["npy", "parquet", "csv"]
FORMATS: tuple[Format, ...] = ("npy", "parquet", "csv")

# Fixed, so that rows do not depend on how they are read:
_CHUNK_VALUES = 2**19  # random numbers drawn at once
TILE_NODES = 128  # side of the tiles that an adjacency matrix is drawn in

_GROUP_BYTES = 32 * 2**20  # of a Parquet row group


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model(ABC):
    """Rows of several silos, drawn again at each reading: row j of silo i depends only on the seed."""

    name: ClassVar[Literal["spiked", "sbm"]]
    sizes: tuple[int, ...]
    n_features: int
    rank: int
    basis: Array
    normalize: bool
    seed: int

    @property
    def n_silos(self) -> int:
        return len(self.sizes)

    @property
    def n_rows(self) -> int:
        return sum(self.sizes)

    @property
    def columns(self) -> tuple[str, ...]:
        digits = max(3, len(str(self.n_features)))
        return tuple(f"x{place:0{digits}}" for place in range(1, self.n_features + 1))

    @property
    def facts(self) -> dict[str, Any]:
        """Everything needed to draw the same rows again, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "basis"}
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {"model": self.name, "n_rows": self.n_rows, **listed}

    def blocks(self, silo: int, max_rows: int) -> Iterator[Array]:
        """Yield the rows of silo 0, 1, … in order, at most ``max_rows`` at a time."""
        treatment = RowTreatment(normalize=self.normalize)
        for chunk in self.chunks(silo):
            rows = _read_only(np.asarray(treatment.apply(chunk)[0]))
            for start in range(0, len(rows), max_rows):
                yield rows[start : start + max_rows]

    def source(self, silo: int) -> ArraySource:
        return ArraySource(
            name=f"simulated silo {silo + 1}",
            width=self.n_features,
            n_rows=self.sizes[silo],
            columns=self.columns,
            reader=partial(self.blocks, silo),
        )

    @abstractmethod
    def chunks(self, silo: int) -> Iterator[Array]:
        """Yield a silo's rows before they are normalised, in chunks that depend only on d."""

    def generator(self, *place: int) -> np.random.Generator:
        """Return the random numbers of one place in the model, independent of every other's."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1, *place)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpikedCovariance(Model):
    """Rows from N(0, UUᵀ + σ²I): ``noise`` is σ, ``basis`` is U [FP §5, Model I]."""

    name = "spiked"
    noise: float

    def chunks(self, silo: int) -> Iterator[Array]:
        """Yield x = Uz + σg, with k + d standard normals (z, g) per row."""
        rng, left = self.generator(silo), self.sizes[silo]
        width = self.rank + self.n_features
        most = max(1, _CHUNK_VALUES // width)
        while left:
            drawn = rng.standard_normal((min(most, left), width))
            rows = drawn[:, self.rank :] * self.noise
            rows += drawn[:, : self.rank] @ self.basis.T
            yield rows
            left -= len(rows)


def spiked_covariance(
    *,
    n_rows: int = 2_000_000,
    n_features: int = 100,
    n_silos: int = 20,
    rank: int = 4,
    noise: float = 0.6,
    normalize: bool = True,
    sizes: Sequence[int] | None = None,
    seed: int,
) -> SpikedCovariance:
    """Return Model I, by default at the paper's size [FP §5]."""
    require(rank >= 1, "rank", "at least 1", rank)
    require(n_features >= rank, "n_features", f"at least rank={rank}", n_features, "choose a smaller rank")
    require(np.isfinite(noise) and noise >= 0, "noise", "a finite number of at least 0", noise)
    if sizes is None:
        require(n_silos >= 1, "n_silos", "at least 1", n_silos)
        if n_rows < n_silos:
            raise InputError(f"n_rows must be at least one per silo, got {n_rows} for {n_silos} silos")
        sizes = [(n_rows + place) // n_silos for place in reversed(range(n_silos))]
    require(len(sizes) > 0, "sizes", "those of at least one silo", sizes)
    require(min(sizes) >= 1, "sizes", "at least 1", min(sizes))
    rng = _truth_generator(seed)
    return SpikedCovariance(
        sizes=tuple(int(size) for size in sizes),
        n_features=n_features,
        rank=rank,
        basis=_read_only(orth(rng.normal(0.5, 1.0, (n_features, rank)))),
        normalize=normalize,
        seed=seed,
        noise=float(noise),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _StochasticBlock(Model):
    """Adjacency matrices of networks on the same nodes, one per silo [FP §5, Model II]."""

    name = "sbm"
    within: float
    between: float
    strengths: tuple[float, ...]

    def chunks(self, silo: int) -> Iterator[Array]:
        """Yield stripes of the symmetric matrix, tile by tile."""
        labels = _communities(self.n_features, self.rank)
        starts = range(0, self.n_features, TILE_NODES)
        for row, start in enumerate(starts):
            nodes = labels[start : start + TILE_NODES]
            stripe = [
                self._tile(silo, row, column, nodes, labels[first : first + TILE_NODES])
                for column, first in enumerate(starts)
            ]
            yield np.hstack(stripe)

    def _tile(
        self, silo: int, row: int, column: int, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> Array:
        if row > column:
            return self._tile(silo, column, row, columns, rows).T
        same = rows[:, np.newaxis] == columns[np.newaxis, :]
        strength = self.strengths[silo * len(self.strengths) // self.n_silos]
        chance = strength * np.where(same, self.within, self.between)
        edges = self.generator(silo, row, column).random(chance.shape) < chance
        if row == column:
            upper = np.triu(edges, 1)
            edges = upper | upper.T
        return edges.astype(np.float64)


def stochastic_block(
    *,
    n_nodes: int = 1000,
    n_silos: int = 20,
    n_communities: int = 2,
    within: float = 0.25,
    between: float = 0.1,
    strengths: Sequence[float] = (0.8, 0.6),
    normalize: bool = True,
    seed: int,
) -> _StochasticBlock:
    """Return Model II, by default with the paper's numbers: 0.8W, then 0.6W [FP §5]."""
    require(n_silos >= 1, "n_silos", "at least 1", n_silos)
    require(n_communities >= 1, "n_communities", "at least 1", n_communities)
    require(n_nodes >= n_communities, "n_nodes", f"at least n_communities={n_communities}", n_nodes)
    for chance in (strength * weight for strength in strengths for weight in (within, between)):
        if not 0 <= chance <= 1:
            raise InputError(
                f"an edge's probability must be between 0 and 1, got {chance:g}; "
                "change within, between or strengths"
            )
    _truth_generator(seed)
    indicators = np.eye(n_communities)[_communities(n_nodes, n_communities)]
    return _StochasticBlock(
        sizes=(n_nodes,) * n_silos,
        n_features=n_nodes,
        rank=n_communities,
        basis=_read_only(indicators / np.sqrt(indicators.sum(axis=0))),
        normalize=normalize,
        seed=seed,
        within=float(within),
        between=float(between),
        strengths=tuple(float(strength) for strength in strengths),
    )


def _communities(n_nodes: int, n_communities: int) -> NDArray[np.int64]:
    return np.arange(n_nodes, dtype=np.int64) * n_communities // n_nodes


def _truth_generator(seed: int) -> np.random.Generator:
    require(seed >= 0, "seed", "at least 0", seed)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


# --- files -----------------------------------------------------------------------------------------


def write_model(
    model: Model,
    folder: Path,
    *,
    kind: Format = "npy",
    force: bool = False,
    on_rows: Callable[[int], None] | None = None,
) -> list[Path]:
    """Return the silo files written to ``folder``, with ``truth.npz`` and ``model.json``; all or none."""
    require(kind in FORMATS, "format", f"one of {', '.join(FORMATS)}", kind)
    digits = max(2, len(str(model.n_silos)))
    names = [f"silo-{place:0{digits}}.{kind}" for place in range(1, model.n_silos + 1)]
    earlier = {path.name for form in FORMATS for path in folder.glob(f"silo-*.{form}")}
    try:
        with new_folder(folder, known={"truth.npz", "model.json", *earlier}, force=force) as partial:
            for silo, name in enumerate(names):
                _write(partial / name, model, silo, on_rows or (lambda count: None))
            np.savez(partial / "truth.npz", basis=model.basis, columns=np.array(model.columns))
            facts = json.dumps(model.facts | {"files": names}, indent=2)
            (partial / "model.json").write_text(facts + "\n", encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{folder} must be a folder that can be written, got {reason!r}") from error
    return [folder / name for name in names]


def _write(path: Path, model: Model, silo: int, on_rows: Callable[[int], None]) -> None:
    def blocks() -> Iterator[Array]:
        for block in model.blocks(silo, block_rows(model.n_features)):
            yield block
            on_rows(len(block))

    schema = dict.fromkeys(model.columns, pl.Float64)

    def frames(*_: object) -> "Iterator[pl.DataFrame]":
        return (pl.DataFrame(block, schema=schema) for block in blocks())

    if path.suffix == ".parquet":
        rows = import_module("polars.io.plugins").register_io_source(frames, schema=schema)
        rows.sink_parquet(path, row_group_size=max(1, _GROUP_BYTES // (8 * model.n_features)))
        return
    with path.open("wb") as file:
        if path.suffix == ".csv":
            for place, frame in enumerate(frames()):
                frame.write_csv(file, include_header=place == 0)
            return
        header = {"descr": "<f8", "fortran_order": False, "shape": (model.sizes[silo], model.n_features)}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks():
            file.write(np.ascontiguousarray(block, dtype="<f8").data)
