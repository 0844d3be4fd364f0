"""`LocalMoment`: what a silo computes from its own rows, with any source and any kind of sum."""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np

from fedpower.exceptions import InputError
from fedpower.linalg import moment_factor
from fedpower.rows.arrays import DaskSource
from fedpower.rows.networks import network_of
from fedpower.rows.plink import PlinkSource
from fedpower.rows.source import RowSource, Watch, block_rows, require_count
from fedpower.rows.units import PARTS, FilledRows, require_no_unit, unit_of, with_gaps
from fedpower.rules.treatment import RowTreatment, with_data
from fedpower.sums import device as on_device
from fedpower.sums.lattice import (
    CLIPPED_ROWS,
    SIDE,
    WIDE_BYTES,
    ClippedQuestion,
    ClippedSum,
    ExactMoments,
    LatticeSum,
    Words,
    product_rows,
)
from fedpower.sums.moment import (
    MOST_FACTOR_BYTES,
    MOST_SQUARE_FEATURES,
    Moments,
    ProductSum,
    ScatterSum,
    require_center,
)
from fedpower.sums.passes import EnrolledRows, Seen, enrolled, seen_in
from fedpower.sums.reduce import SPARSE_LIMIT, S, Sum, full_blocks, gram_rows, reduce, shares_blocks
from fedpower.values import Matrix, SparseBlock, Vector, cached_property, is_sparse

MEMORY_LIMIT = 4 * 8 * MOST_SQUARE_FEATURES**2 // 2**20
"""MiB of d×d arrays a silo may hold: the four that sparse rows of that width take."""

_WIDE_BLOCK_BYTES = 16 * 2**20
"""Of a block of wide rows: the C library keeps memory of this size for the next block."""

FREE_ORDER_ROWS = 2**17
"""So many rows may be added in any order; `protocol.study.longest_sum` counts on it."""

# Operations of a dense matrix product in the time that one takes:
_SPARSE_SLOWNESS = 150  # of a product of two sparse matrices
_SPARSE_TIMES_DENSE = 13  # of a product of a sparse matrix with a basis
_SQUARE_COST = 220  # entry of a d×d array, for each block of sparse rows
_READ_COST = 40  # value that is read and checked


_ON_DEVICE: dict[Callable[..., Any], Callable[..., Any]] = {
    LatticeSum: on_device.TorchLatticeSum,
    ScatterSum: on_device.TorchScatterSum,
    ProductSum: on_device.TorchProductSum,
}


class KernelChoice(NamedTuple):
    """How a silo multiplies: by a d×d moment made once, or by its rows at every step."""

    kind: Literal["covariance", "product"] = "covariance"
    reason: str = "the noised covariance is computed once, from rows in integers"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a silo's rows are read."""

    device: str | None = None
    watch: Watch = field(default_factory=Watch)
    workers: int = 1
    fingerprinted: bool = False
    on_lattice: bool = False
    rereads: bool = False


class LocalMoment:
    """Mean, moment and products of one silo's treated rows."""

    def __init__(
        self, source: RowSource, treatment: RowTreatment, choice: KernelChoice | None = None, **reading: Any
    ) -> None:
        treatment.check_width(source.n_features)
        self.how = how = Reading(**reading)
        self.choice = KernelChoice() if choice is None or how.on_lattice else choice
        self.treatment, self.device, self.watch = treatment, how.device, how.watch
        # A moment is made in one pass, and no other has to be over the same rows.
        contents = treatment.bounded and (how.rereads or self.choice.kind == "product")
        self.source = self.filled = enrolled(source, contents=contents, fingerprinted=how.fingerprinted)
        self._unit = unit_of(source)
        # Without its centre, sparse rows stay sparse.
        split = source.sparse and not treatment.bounded
        self._split, self._offset = treatment.split() if split else (treatment, None)
        if how.device is not None:
            require_no_unit(source, f"the device {how.device!r}")
            if source.sparse:
                raise InputError(f"{source.name} must be dense, got sparse rows; leave the device out")
            self.choice = self.choice._replace(reason=f"{self.choice.reason}, on {how.device} in float64")

    def prepare(self) -> None:
        """Read the rows once now: counted and checked, so that later questions cannot fail on them."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = self.summary.trace()
        if not np.isfinite(total):
            raise InputError(
                f"squares of values of {self.source.name} must stay within float64; use other units"
            )

    @property
    def n_rows(self) -> int:
        if self._unit is not None:
            return self._unit.n_units
        known = self.source.n_rows
        return self.summary.n_rows if known is None else known

    @property
    def n_read(self) -> int:
        """Number of rows that a pass reads; for the silo's operator only."""
        return self.n_rows if self._unit is None else self._unit.n_read

    @property
    def n_clipped(self) -> int:
        """How many of those the bound shortened; for the silo's operator only."""
        return self.summary.n_clipped

    def treated(self, treatment: RowTreatment | None = None) -> "LocalMoment":
        """Return these rows, whose treatment was known from the beginning."""
        assert treatment is None or treatment == self.treatment, "rows have one treatment"
        return self

    def columns_as_treated(self) -> tuple[Vector, Vector] | None:
        """Return mean and spread of the treated rows' columns; None where that takes another pass."""
        if self.treatment.normalize or not {"summary", "_moment"} & vars(self).keys():
            return None
        return self.summary.mean, self.summary.spread

    def treated_columns(self) -> tuple[Vector, Vector] | None:
        """Return mean and spread of the columns, less the treatment's centre and in its scales."""
        rule, columns = self.treatment, self.columns_as_treated()
        if rule.center is None or rule.scale is None or columns is None:
            return None
        bound = 1.0 if rule.row_norm is None else rule.row_norm
        return columns[0] * bound, columns[1] * bound

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return the moment about `center` times the basis."""
        width, basis = self.source.n_features, np.asarray(basis, dtype=np.float64)
        ends = (basis.max(initial=0.0), basis.min(initial=0.0))  # which are NaN where a number is
        if basis.ndim != 2 or basis.shape[0] != width or not np.isfinite(ends).all():
            raise InputError(f"the basis must be a finite {width}×r matrix, got shape {basis.shape}")
        if self.choice.kind == "covariance":
            return self._moment.product(basis, center)
        shift = self._offset
        if center is not None:
            vector = require_center(center, width)
            shift = vector if shift is None else vector + shift
        found: Matrix = self._result(self._free_rows(), ProductSum, self._split, basis, shift)
        if not np.isfinite(found).all():
            for _ in self.source.blocks(block_rows(width)):  # which names a value that is not finite
                pass
        return found

    def moment(self, center: Vector | None = None) -> Matrix:
        """Return the d×d moment about `center`, or refuse one that does not fit."""
        if self.choice.kind == "product":
            self._require_room()
        return self._moment.about(center)

    def factor(self, center: Vector | None = None) -> Matrix:
        """Return F = Λ^½Uᵀ, q×d, of the moment about `center`: it is FᵀF; for fewer rows than columns."""
        n_rows, width = self.n_rows, self.source.n_features
        if n_rows > width or 8 * n_rows * width > MOST_FACTOR_BYTES:
            raise InputError(f"a factor must be of few rows, got {n_rows} by {width} in {self.source.name}")
        parts, weight = [], 0.0
        for block in full_blocks(self.source, block_rows(width), self.watch):
            features, persons = (block, None) if self._unit is None else self._unit.parted(block)
            found, _ = self.treatment.apply(features)
            rows = np.asarray(found.toarray() if is_sparse(found) else found)
            rows = rows if center is None else rows - require_center(center, width)
            weights = np.ones(len(rows)) if persons is None else persons.exact()
            parts.append(rows if persons is None else np.sqrt(weights)[:, np.newaxis] * rows)
            weight += float(weights.sum())
        stacked = np.vstack(parts)
        return moment_factor(stacked if self._unit is None else stacked * np.sqrt(len(stacked) / weight))

    def sums(self) -> ExactMoments:
        """Return the sums over the rows in integers, exact: as secret as the rows."""
        if not self.how.on_lattice:
            raise InputError(f"the rows of {self.source.name} must be read with on_lattice=True to be noised")
        return self._exact

    def clipped(self, question: ClippedQuestion | None = None, *, kappa: int = 0) -> ClippedSum:
        """Return the clipped product with a public basis, or Σ z, as secret as the rows."""
        width = self.source.n_features
        size = max(1, min(CLIPPED_ROWS, WIDE_BYTES // (8 * width)))
        found: ClippedSum = self._total(size, ClippedSum, self.treatment, width, question, kappa)
        require_count(self.source.name, self.n_rows, found.n_rows)
        return found

    @cached_property
    def summary(self) -> Moments:
        """Return what has the mean, the variances and counts, by the chosen kernel."""
        if "_moment" in vars(self) or (self.choice.kind == "covariance" and not self.how.on_lattice):
            return self._moment
        return self._exact.to_float(full=False) if self.how.on_lattice else self._scatter(full=False)

    @cached_property
    def _moment(self) -> Moments:
        return self._exact.to_float() if self.how.on_lattice else self._scatter(full=True)

    @cached_property
    def _exact(self) -> ExactMoments:
        self._require_room()
        source, rule, width = self.source, self.treatment, self.source.n_features
        size = product_rows(width)
        if source.sparse:
            size = block_rows(width, density=1.0 if rule.densifies() else source.density or 0.01)
        total: LatticeSum = self._total(size, LatticeSum, rule, width)
        return total.result() if self._unit is None else total.result(n_rows=self.n_rows, parts=PARTS)

    def _scatter(self, *, full: bool) -> Moments:
        size, width = self._free_rows(), self.source.n_features
        if full and not self._stays_sparse:
            size = block_rows(width) if self.source.sparse else gram_rows(width)
        found: Moments = self._result(size, ScatterSum, self._split, width, full, offset=self._offset)
        return found

    def _result(self, max_rows: int, kind: Callable[..., Any], *facts: Any, **how: Any) -> Any:
        """Return the result of a sum of some kind, in float64."""
        how |= {} if self._unit is None else {"n_units": self.n_rows}
        return self._total(max_rows, kind, *facts).result(**how)

    def _total(self, max_rows: int, kind: Callable[..., Any], *facts: Any) -> Any:
        """Return a sum over the rows, made where these are: here, on a device or at Dask's workers."""
        make = functools.partial(kind, *facts)
        if self.device is not None:
            make, stored = functools.partial(_ON_DEVICE[kind], *facts), kind is LatticeSum
            return on_device.total(self.source, self.device, make, self.watch, stored=stored)
        if isinstance(self.source, EnrolledRows) and isinstance(self.source.rows, DaskSource):
            return _dask_total(self.source, make, max_rows)
        workers = self.how.workers if shares_blocks(self.source.n_features) else 1
        return reduce(self.source, make, max_rows, watch=self.watch, workers=workers)

    @property
    def _stays_sparse(self) -> bool:
        return self.source.sparse and not self._split.densifies()

    def _free_rows(self) -> int:
        """Return how many rows are summed at once where no d×d array is made."""
        source, width = self.source, self.source.n_features
        if self._stays_sparse:
            return block_rows(width, density=source.density or 0.01)
        size = block_rows(width)
        if source.n_rows is not None and source.n_rows <= FREE_ORDER_ROWS:
            # Few rows are summed in any order. Smaller blocks are in memory that is used again.
            size = max(1, min(size, _WIDE_BLOCK_BYTES // (8 * width)))
        return size

    def _require_room(self) -> None:
        need = _moment_mib(self.source.n_features, self.source.density)
        if need > MEMORY_LIMIT:
            raise InputError(
                f"the covariance of {self.source.name} must fit in {MEMORY_LIMIT} MiB, got {need:.3g} MiB "
                f"for {self.source.n_features} columns; leave columns out, or use products"
            )


class EdgeMoment(LocalMoment):
    """The adjacency of a silo's network where an edge is protected: the sum of its layers is the moment."""

    def __init__(self, source: RowSource, treatment: RowTreatment | None = None, **reading: Any) -> None:
        if reading.pop("device", None) is not None:
            raise InputError("device must be None with network='edge', got one")
        super().__init__(source, RowTreatment() if treatment is None else treatment, **reading)
        reason = "the adjacency matrix is released: its layers are added up once"
        self.choice = KernelChoice(reason=reason)
        network = network_of(source)
        assert network is not None, "rows are summed otherwise"
        self._network = network

    @property
    def n_rows(self) -> int:
        return 1

    def columns_as_treated(self) -> None:
        """Return None: a network has no columns in units."""

    def factor(self, center: Vector | None = None) -> Matrix:
        raise InputError(f"the adjacency of {self.source.name} has no factor; use the covariance")

    def sums(self) -> ExactMoments:
        return self._exact

    @cached_property
    def _exact(self) -> ExactMoments:
        """Return the adjacency in integers of 1/S²; refuse what the noise is not made for."""
        total, within = np.zeros((self._network.n_features,) * 2, dtype=np.int64), True
        for layer in self._layers():
            weights = np.rint(layer.data * SIDE**2)
            within &= bool(((weights >= 0) & (weights <= SIDE**2)).all())
            total += with_data(layer, weights).toarray().astype(np.int64)
        if not within or np.diagonal(total).any() or not np.array_equal(total, total.T):
            raise InputError(
                f"the edges of {self._network.name} must be within the public maximum, between different "
                "nodes and the same in both directions; open it with open_network"
            )
        return ExactMoments(n_rows=1, total=np.zeros(len(total), dtype=np.int64), squares=Words(low=total))

    def _scatter(self, *, full: bool) -> Moments:
        matrix = sum((layer.toarray() for layer in self._layers()), np.zeros(()))
        return Moments(n_rows=1, mean=np.zeros(len(matrix)), covariance=matrix)

    def _layers(self) -> Iterator[SparseBlock]:
        for layer in self._network.layers:
            self.watch.saw(layer.shape[0])
            yield layer


def local_moment(
    source: RowSource,
    treatment: RowTreatment | None = None,
    *,
    rank: int,
    steps: int,
    density: float | None = None,
    **reading: Any,
) -> LocalMoment:
    """Return a silo's moment by the kernel that is cheaper for `steps` products of `rank` columns."""
    treatment = RowTreatment() if treatment is None else treatment
    if network_of(source) is not None:
        return EdgeMoment(source, treatment, **reading)
    # By a code book, missing cells are at the offset; so are missing genotypes, whose public offset is 2p.
    by_book = treatment.low is not None and reading.get("device") is None
    if treatment.center is not None and (by_book or isinstance(source, PlinkSource)):
        gaps = with_gaps(source)
        source = source if gaps is source else FilledRows(gaps, treatment.center)
    density = source.density if density is None else density
    choice = choose_kernel(source.n_rows, source.n_features, rank=rank, steps=steps, density=density)
    return LocalMoment(source, treatment, choice, **reading)


def choose_kernel(
    n_rows: int | None, n_features: int, *, rank: int, steps: int, density: float | None = 1.0
) -> KernelChoice:
    """Return the cheaper kernel by estimated operations and reads, within the memory limit."""
    share = 0.01 if density is None else density
    rows = 10 * n_features if n_rows is None else n_rows
    entries = rows * n_features * share
    once, slowness = (n_features + _READ_COST) * entries, 1
    if share <= SPARSE_LIMIT:
        n_blocks = -(-rows // block_rows(n_features, density=share))
        once = (n_features * share * _SPARSE_SLOWNESS + _READ_COST) * entries
        once += _SQUARE_COST * n_blocks * n_features**2
        slowness = _SPARSE_TIMES_DENSE
    by_covariance = once + steps * 2.0 * n_features**2 * rank
    by_products = steps * entries * (4.0 * rank * slowness + _READ_COST)
    need = _moment_mib(n_features, density)
    costs = f"about {by_covariance:.1e} operations, products {by_products:.1e}"
    facts = f"a covariance of d={n_features} columns ({need:.3g} MiB) takes {costs}"
    if need <= MEMORY_LIMIT and by_covariance <= by_products:
        return KernelChoice(reason=f"{facts}: it is computed once")
    return KernelChoice(kind="product", reason=f"{facts}: rows are read at every step")


def _moment_mib(n_features: int, density: float | None) -> float:
    """Return the size of the d×d arrays that making and using a moment takes."""
    return 8 * n_features**2 * (2 if density is not None and density > SPARSE_LIMIT else 4) / 2**20


# --- rows at Dask's workers -------------------------------------------------------------------------------


def _dask_total(rows: EnrolledRows, make: Callable[[], S], max_rows: int) -> S:
    """Return the merged sums of all partitions that have rows, once they are those enrolled."""
    delayed, source = import_module("dask").delayed, rows.rows
    assert isinstance(source, DaskSource)
    how = delayed((make, max_rows, rows.key), pure=False)
    parts = [delayed(_dask_sum, pure=False)(partition, opener, how) for partition, opener in source.openers()]
    while len(parts) > 1:
        pairs = [parts[place : place + 2] for place in range(0, len(parts), 2)]
        parts = [delayed(_dask_merged, pure=False)(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    found: tuple[Seen, S] | None = parts[0].compute()
    if found is None:
        raise InputError(f"{source.name} must have at least one row, got none; leave this silo out")
    rows.hold(found[0])
    return found[1]


def _dask_sum(
    partition: Any, opener: Callable[[Any], RowSource | None], how: tuple[Any, ...]
) -> tuple[Seen, Sum] | None:
    make, max_rows, key = how
    source = opener(partition)
    if source is None:
        return None
    seen = Seen(n_rows=0 if key is not None else len(partition))
    for block in source.blocks(block_rows(source.n_features)) if key is not None else ():
        seen += seen_in(block, key)
    return seen, reduce(source, make, max_rows)


def _dask_merged(one: tuple[Seen, Sum] | None, two: tuple[Seen, Sum] | None) -> tuple[Seen, Sum] | None:
    if one is None or two is None:
        return two if one is None else one
    total = copy.deepcopy(one[1])  # Dask may use its own again
    total.merge(two[1])
    return one[0] + two[0], total
