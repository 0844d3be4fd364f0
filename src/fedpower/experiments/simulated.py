"""What the data models share: silos of rows drawn anew at each reading, always the same."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.data import RowTreatment
from fedpower.data.positional import PositionalSource
from fedpower.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model(ABC):
    """Rows of several silos, drawn anew at each reading: row j of silo i depends on the seed alone.

    Attributes
    ----------
    sizes
        s_i, the number of rows of each silo.
    n_features, rank
        d, and k, the dimension of the planted eigenspace.
    basis
        The public truth, d×k orthonormal: the leading eigenspace of the population's moment.
    normalize
        Whether every row is scaled to norm 1, as in the paper; a zero row stays zero.
    seed
        Gives the truth and every row.
    """

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

    def source(self, silo: int) -> "SimulatedRows":
        """Return one silo's rows as a source that an estimator can read."""
        return SimulatedRows(
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
class SimulatedRows(PositionalSource):
    """One silo of a model as a source of rows."""

    model: Model
    silo: int

    def read(self, max_rows: int) -> Iterator[Array]:
        """Yield the rows, drawn anew."""
        return self.model.blocks(self.silo, max_rows)


def truth_generator(seed: int) -> np.random.Generator:
    """Return the random numbers that the truth is drawn from."""
    at_least("seed", seed, 0)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))


def equal_sizes(n_rows: int, n_silos: int) -> tuple[int, ...]:
    """Return the sizes of silos that share rows as equally as can be."""
    at_least("n_silos", n_silos, 1)
    if n_rows < n_silos:
        raise InputError(
            f"n_rows must be at least one per silo, got {n_rows} for {n_silos} silos; give more"
        )
    return tuple((n_rows + place) // n_silos for place in reversed(range(n_silos)))


def given_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
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
