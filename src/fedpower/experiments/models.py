"""What the data models share: silos of rows drawn anew at each reading, always the same."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg import orth
from fedpower.rows.arrays import PositionalSource
from fedpower.rows.treatment import RowTreatment

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model(ABC):
    """Rows of several silos, drawn anew at each reading: row j of silo i depends on the seed alone."""

    sizes: tuple[int, ...]
    n_features: int
    rank: int
    basis: Array
    normalize: bool
    seed: int

    @property
    @abstractmethod
    def name(self) -> Literal["spiked", "sbm"]:
        """What the command line calls the model."""

    @property
    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """The parameters that only this model has."""

    @property
    def n_silos(self) -> int:
        """The number of silos m."""
        return len(self.sizes)

    @property
    def n_rows(self) -> int:
        """The number of rows n of all silos."""
        return sum(self.sizes)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: x001 and so on."""
        digits = max(3, len(str(self.n_features)))
        return tuple(f"x{place:0{digits}}" for place in range(1, self.n_features + 1))

    @property
    def facts(self) -> dict[str, Any]:
        """Everything needed to draw the same rows again, ready for JSON."""
        shared = {
            "model": self.name,
            "seed": self.seed,
            "sizes": list(self.sizes),
            "n_rows": self.n_rows,
            "n_features": self.n_features,
            "rank": self.rank,
            "normalize": self.normalize,
        }
        return shared | self.parameters

    def blocks(self, silo: int, max_rows: int) -> Iterator[Array]:
        """Yield the rows of silo 0, 1, … in order, at most ``max_rows`` at a time."""
        treatment = RowTreatment(normalize=self.normalize)
        for chunk in self.chunks(silo):
            rows = np.asarray(treatment.apply(chunk)[0])
            rows.flags.writeable = False
            for start in range(0, len(rows), max_rows):
                yield rows[start : start + max_rows]

    def source(self, silo: int) -> "_SimulatedRows":
        """Return one silo's rows as a source that an estimator can read."""
        return _SimulatedRows(
            name=f"simulated silo {silo + 1}",
            width=self.n_features,
            n_rows=self.sizes[silo],
            columns=self.columns,
            model=self,
            silo=silo,
        )

    @abstractmethod
    def chunks(self, silo: int) -> Iterator[Array]:
        """Yield a silo's rows before they are normalised, in chunks that depend on d alone."""

    def generator(self, *place: int) -> np.random.Generator:
        """Return the random numbers of one place in the model, independent of every other's."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1, *place)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _SimulatedRows(PositionalSource):
    """One silo of a model as a source of rows."""

    model: Model
    silo: int

    def read(self, max_rows: int) -> Iterator[Array]:
        """Yield the rows, drawn anew."""
        return self.model.blocks(self.silo, max_rows)


def _truth_generator(seed: int) -> np.random.Generator:
    """Return the random numbers that the truth is drawn from."""
    at_least("seed", seed, 0)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))


def _equal_sizes(n_rows: int, n_silos: int) -> tuple[int, ...]:
    """Return the sizes of silos that share rows as equally as can be."""
    at_least("n_silos", n_silos, 1)
    if n_rows < n_silos:
        raise InputError(f"n_rows must be at least one per silo, got {n_rows} for {n_silos} silos; give more")
    return tuple((n_rows + place) // n_silos for place in reversed(range(n_silos)))


def _given_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes asked for, checked."""
    if not sizes:
        raise InputError("sizes must name at least one silo, got none; give each silo's rows")
    for size in sizes:
        at_least("sizes", size, 1)
    return tuple(int(size) for size in sizes)


def at_least(name: str, value: int, least: int) -> None:
    """Refuse a number that is too small."""
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}; give a larger number")


def read_only(array: Array) -> Array:
    """Return the array, closed to writing."""
    array.flags.writeable = False
    return array


_CHUNK_VALUES = 2**19
"""Random numbers drawn at once (4 MiB); fixed, so that rows do not depend on how they are read."""

TILE_NODES = 128
"""Side of the tiles an adjacency matrix is drawn in; fixed for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpikedCovariance(Model):
    """Rows from N(0, UUᵀ + σ²I): ``noise`` is σ, ``basis`` is U [FP §5, Model I]."""

    noise: float

    @property
    def name(self) -> Literal["spiked"]:
        """What the command line calls the model."""
        return "spiked"

    @property
    def parameters(self) -> dict[str, Any]:
        """The noise level."""
        return {"noise": self.noise}

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _StochasticBlock(Model):
    """Adjacency matrices of networks on the same nodes, one network a silo [FP §5, Model II]."""

    within: float
    between: float
    strengths: tuple[float, ...]

    @property
    def name(self) -> Literal["sbm"]:
        """What the command line calls the model."""
        return "sbm"

    @property
    def parameters(self) -> dict[str, Any]:
        """The connectivity."""
        return {"within": self.within, "between": self.between, "strengths": list(self.strengths)}

    def strength(self, silo: int) -> float:
        """Return what W is multiplied by in this silo."""
        return self.strengths[silo * len(self.strengths) // self.n_silos]

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
        chance = self.strength(silo) * np.where(same, self.within, self.between)
        edges = self.generator(silo, row, column).random(chance.shape) < chance
        if row == column:
            upper = np.triu(edges, 1)
            edges = upper | upper.T
        return edges.astype(np.float64)


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
    at_least("rank", rank, 1)
    if n_features < rank:
        raise InputError(f"n_features must be at least rank={rank}, got {n_features}; choose a smaller rank")
    if not (np.isfinite(noise) and noise >= 0):
        raise InputError(f"noise must be a finite number of at least 0, got {noise}; 0.6 is usual")
    rng = _truth_generator(seed)
    return SpikedCovariance(
        sizes=_equal_sizes(n_rows, n_silos) if sizes is None else _given_sizes(sizes),
        n_features=n_features,
        rank=rank,
        basis=read_only(orth(rng.normal(0.5, 1.0, (n_features, rank)))),
        normalize=normalize,
        seed=seed,
        noise=float(noise),
    )


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
    at_least("n_silos", n_silos, 1)
    at_least("n_communities", n_communities, 1)
    if n_nodes < n_communities:
        raise InputError(f"n_nodes must be at least n_communities={n_communities}, got {n_nodes}; give more")
    for chance in (strength * each for strength in strengths for each in (within, between)):
        if not 0 <= chance <= 1:
            raise InputError(
                f"an edge's probability must lie between 0 and 1, got {chance:g}; "
                "change within, between or strengths"
            )
    _truth_generator(seed)
    indicators = np.eye(n_communities)[_communities(n_nodes, n_communities)]
    return _StochasticBlock(
        sizes=(n_nodes,) * n_silos,
        n_features=n_nodes,
        rank=n_communities,
        basis=read_only(indicators / np.sqrt(indicators.sum(axis=0))),
        normalize=normalize,
        seed=seed,
        within=float(within),
        between=float(between),
        strengths=tuple(float(strength) for strength in strengths),
    )


def _communities(n_nodes: int, n_communities: int) -> NDArray[np.int64]:
    """Return each node's community."""
    return np.arange(n_nodes, dtype=np.int64) * n_communities // n_nodes
