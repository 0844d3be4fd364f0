"""`LocalMoment`: what a silo asks of its own rows, wherever they are and whatever sums them."""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypedDict, Unpack

import numpy as np

from fedpower.errors import InputError
from fedpower.linalg.symmetric import moment_factor
from fedpower.rows.dask_source import DaskSource, PartitionOpener, dask
from fedpower.rows.networks import NetworkSource, network_of
from fedpower.rows.plink import fill_missing
from fedpower.rows.source import RowSource, Watch
from fedpower.rows.units import FilledRows, exact_weights, unit_of, with_gaps
from fedpower.rules.treatment import RowTreatment
from fedpower.sums import device as on_device
from fedpower.sums.device import Device
from fedpower.sums.kernel import (
    MEMORY_LIMIT,
    MOST_FACTOR_BYTES,
    KernelChoice,
    block_rows,
    choose_kernel,
    moment_bytes,
    shares_blocks,
    size_text,
)
from fedpower.sums.lattice import SIDE, ExactMoments, LatticeSum, Words, exact_moment
from fedpower.sums.moment import (
    Moments,
    ProductSum,
    ScatterSum,
    require_basis,
    require_center,
    scatter_rows,
    split_treatment,
)
from fedpower.sums.passes import EnrolledRows, Seen, enrolled, seen_in
from fedpower.sums.reduce import S, Sum, full_blocks, reduce
from fedpower.values import Matrix, Vector, cached_property, is_sparse

ON_LATTICE = "the moment is what is noised: it is made once, from rows in integers"

_ADJACENCY = "the adjacency itself is what is released: its layers are added up once"

_WIDE_BLOCK_BYTES = 16 * 2**20
"""Of a block of wide rows: the C library keeps memory of this size for the next block."""

FREE_ORDER_ROWS = 2**17
"""So many rows may be added in any order, as `privacy.budget.longest_sum` counts."""


class Reading(TypedDict, total=False):
    """How a silo's rows are read."""

    device: Device | None
    watch: Watch | None
    workers: int
    fingerprinted: bool
    on_lattice: bool
    rereads: bool


class LocalMoment:
    """Mean, moment and products of one silo's treated rows."""

    def __init__(
        self,
        source: RowSource,
        treatment: RowTreatment,
        *,
        choice: KernelChoice,
        memory_limit: int = MEMORY_LIMIT,
        device: Device | None = None,
        watch: Watch | None = None,
        workers: int = 1,
        fingerprinted: bool = False,
        on_lattice: bool = False,
        rereads: bool = False,
    ) -> None:
        treatment.check_width(source.n_features)
        if on_lattice:
            choice = KernelChoice(kind="moment", reason=ON_LATTICE)
        # A moment is made in one pass, and no other has to be over the same rows.
        rereads |= choice.kind == "product"
        self.source = enrolled(source, contents=treatment.bounded and rereads, fingerprinted=fingerprinted)
        self.treatment, self.choice, self.device = treatment, choice, device
        self.watch = Watch() if watch is None else watch
        self._workers = workers if shares_blocks(source.n_features) else 1
        self._unit, self._limit, self._on_lattice = unit_of(source), memory_limit, on_lattice
        self._split, self._offset = split_treatment(source, treatment)
        if device is not None:
            self.choice = on_device.checked_choice(source, device, choice)

    def prepare(self) -> None:
        """Read the rows once now: counted and checked, so that later questions cannot fail on them."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = self.trace()
        if not np.isfinite(total):
            raise InputError(
                f"the squares of the values of {self.source.name} must stay within float64, got larger "
                "ones; give the columns in other units"
            )

    @property
    def n_rows(self) -> int:
        if self._unit is not None:
            return self._unit.n_units
        known = self.source.n_rows
        return self._summary.n_rows if known is None else known

    @property
    def n_read(self) -> int:
        """Number of rows that a pass reads; for the silo's operator only."""
        return self.n_rows if self._unit is None else self._unit.n_read

    @property
    def n_clipped(self) -> int:
        """How many of those the bound shortened; for the silo's operator only."""
        return self._summary.n_clipped

    def treated_columns(self) -> tuple[Vector, Vector] | None:
        """Return mean and spread of the columns, less the treatment's centre and in its scales."""
        rule, columns = self.treatment, self.columns_as_treated()
        if rule.center is None or rule.scale is None or columns is None:
            return None
        bound = 1.0 if rule.row_norm is None else rule.row_norm
        return columns[0] * bound, columns[1] * bound

    def columns_as_treated(self) -> tuple[Vector, Vector] | None:
        """Return mean and spread of the treated rows' columns; None where that takes another pass."""
        if self.treatment.normalize or not {"_summary", "_moment"} & vars(self).keys():
            return None
        return self._summary.mean, self._summary.spread

    def mean(self) -> Vector:
        return self._summary.mean

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        width = self.source.n_features
        basis = require_basis(basis, width)
        if self.choice.kind == "moment":
            return self._moment.product(basis, center)
        shift = self._offset
        if center is not None:
            vector = require_center(center, width)
            shift = vector if shift is None else vector + shift
        kind: Callable[..., Any] = ProductSum if self.device is None else on_device.TorchProductSum
        make = functools.partial(kind, self._split, basis, shift, most=self._most)
        found: Matrix = self._summed(make, self._free_rows()).result(self._n_units)
        if not np.isfinite(found).all():
            for _ in self.source.blocks(block_rows(width)):  # which names a value that is not finite
                pass
        return found

    def trace(self, center: Vector | None = None) -> float:
        return self._summary.trace(center)

    def diagonal(self, center: Vector | None = None) -> Vector:
        return self._summary.diagonal(center)

    def moment(self, center: Vector | None = None) -> Matrix:
        """Return the d×d moment about `center`, or refuse one that does not fit."""
        if self.choice.kind == "product":
            self._require_room()
        return self._moment.about(center)

    def factor(self, center: Vector | None = None) -> Matrix:
        """Return F = Λ^½Uᵀ, q×d, of the moment about `center`: it is FᵀF; for fewer rows than columns."""
        n_rows, width = self.n_rows, self.source.n_features
        if n_rows > width or 8 * n_rows * width > MOST_FACTOR_BYTES:
            raise InputError(
                f"a factor must be of few rows, got {n_rows} rows of {width} columns in {self.source.name}"
            )
        parts, weight = [], 0.0
        for block in full_blocks(self.source, block_rows(width), self.watch):
            features, counts = (block, None) if self._unit is None else self._unit.parted(block)
            found, _ = self.treatment.apply(features)
            rows = np.asarray(found.toarray() if is_sparse(found) else found)
            rows = rows if center is None else rows - require_center(center, width)
            weights = np.ones(len(rows)) if counts is None else exact_weights(counts, self._most)
            parts.append(rows if counts is None else np.sqrt(weights)[:, np.newaxis] * rows)
            weight += float(weights.sum())
        stacked = np.vstack(parts)
        return moment_factor(stacked if self._unit is None else stacked * np.sqrt(len(stacked) / weight))

    def sums(self) -> ExactMoments:
        """Return the sums over the rows in integers, exact: as secret as the rows."""
        if not self._on_lattice:
            raise InputError(f"the rows of {self.source.name} must be read with on_lattice=True to be noised")
        return self._exact

    @cached_property
    def _exact(self) -> ExactMoments:
        self._require_room()
        kind: Callable[..., Any] = LatticeSum if self.device is None else on_device.TorchLatticeSum
        return exact_moment(self.source, self.treatment, self._summed, kind=kind)

    @cached_property
    def _moment(self) -> Moments:
        return self.sums().to_float() if self._on_lattice else self._scatter(full=True)

    @cached_property
    def _summary(self) -> Moments:
        """Return what holds the mean, the variances and counts, by the chosen kernel."""
        if "_moment" in vars(self) or (self.choice.kind == "moment" and not self._on_lattice):
            return self._moment
        return self.sums().to_float(full=False) if self._on_lattice else self._scatter(full=False)

    def total(self, make: Callable[[], S], max_rows: int) -> S:
        """Return a sum over the rows, made where these are: here or at Dask's workers."""
        if isinstance(self.source, EnrolledRows) and isinstance(self.source.rows, DaskSource):
            return _dask_total(self.source, make, max_rows)
        return reduce(self.source, make, max_rows, watch=self.watch, workers=self._workers)

    @property
    def _most(self) -> int:
        return 0 if self._unit is None else self._unit.most

    @property
    def _n_units(self) -> int | None:
        return None if self._unit is None else self._unit.n_units

    def _scatter(self, *, full: bool) -> Moments:
        kind: Callable[..., Any] = ScatterSum if self.device is None else on_device.TorchScatterSum
        make = functools.partial(kind, self._split, self.source.n_features, full=full, most=self._most)
        size = scatter_rows(self.source, self._split, full=True) if full else self._free_rows()
        found: Moments = self._summed(make, size).result(self._offset, self._n_units)
        return found

    def _summed(self, make: Callable[[], Any], max_rows: int) -> Any:
        if self.device is None:
            return self.total(make, max_rows)
        return on_device.total(self.source, self.device, make, self.watch, stored=self._on_lattice)

    def _free_rows(self) -> int:
        """Return how many rows are summed at once where no d×d array is made."""
        source, size = self.source, scatter_rows(self.source, self._split, full=False)
        stays = source.sparse and not self._split.densifies()
        if not stays and source.n_rows is not None and source.n_rows <= FREE_ORDER_ROWS:
            # Few rows are summed in any order. Smaller blocks are in memory that is used again.
            size = max(1, min(size, _WIDE_BLOCK_BYTES // (8 * source.n_features)))
        return size

    def _require_room(self) -> None:
        need = moment_bytes(self.source.n_features, density=self.source.density)
        if need > self._limit:
            raise InputError(
                f"the moment of {self.source.name} must fit in {size_text(self._limit)}, got "
                f"{size_text(need)} for {self.source.n_features} columns; raise memory_limit or use products"
            )


class EdgeMoment(LocalMoment):
    """The adjacency of a silo's network where an edge is protected: the sum of its layers is the moment."""

    def __init__(self, source: RowSource, treatment: RowTreatment | None = None, **options: Any) -> None:
        if options.pop("device", None) is not None:
            raise InputError("device must be None with network='edge', got one")
        options["choice"] = choice = KernelChoice(kind="moment", reason=_ADJACENCY)
        super().__init__(source, RowTreatment() if treatment is None else treatment, **options)
        self.choice = choice
        network = network_of(source)
        assert network is not None, "rows are summed otherwise"
        self._network = network

    @property
    def n_rows(self) -> int:
        return 1

    def columns_as_treated(self) -> None:
        """Return None: a network has no columns in units."""

    def factor(self, center: Vector | None = None) -> Matrix:
        raise InputError(f"the adjacency of {self.source.name} has no factor; use the moment")

    def sums(self) -> ExactMoments:
        return self._exact

    @cached_property
    def _exact(self) -> ExactMoments:
        """Return the adjacency in integers of 1/S²; refuse what the noise is not made for."""
        width = self._network.n_features
        total = np.zeros((width, width), dtype=np.int64)
        for start, part in self._parts():
            weights = np.rint(part * SIDE**2)
            if not ((weights >= 0) & (weights <= SIDE**2)).all():
                raise _out_of_bounds(self._network)
            total[start : start + len(part)] += weights.astype(np.int64)
        if not np.array_equal(total, total.T) or np.diagonal(total).any():
            raise _out_of_bounds(self._network)
        return ExactMoments(n_rows=1, total=np.zeros(width, dtype=np.int64), squares=Words(low=total))

    def _scatter(self, *, full: bool) -> Moments:
        width = self._network.n_features
        matrix = np.zeros((width, width))
        for start, part in self._parts():
            matrix[start : start + len(part)] += part
        return Moments(n_rows=1, mean=np.zeros(width), covariance=matrix)

    def _parts(self) -> Iterator[tuple[int, Matrix]]:
        """Yield rows of one layer at a time, and the node of the first; a block may span layers."""
        width, row = self._network.n_features, 0
        for block in full_blocks(self.source, block_rows(width), self.watch):
            rows = np.asarray(block.toarray() if is_sparse(block) else block)
            done = 0
            while done < len(rows):
                start = (row + done) % width
                part = rows[done : done + width - start]
                yield start, part
                done += len(part)
            row += len(rows)


def _out_of_bounds(network: NetworkSource) -> InputError:
    return InputError(
        f"the edges of {network.name} must be within the public maximum, between different nodes and the "
        "same in both directions, got others; open it with open_network"
    )


def local_moment(
    source: RowSource,
    treatment: RowTreatment | None = None,
    *,
    rank: int,
    steps: int,
    density: float | None = None,
    memory_limit: int = MEMORY_LIMIT,
    **reading: Unpack[Reading],
) -> LocalMoment:
    """Return a silo's moment by the kernel that is cheaper for `steps` products of `rank` columns."""
    treatment = RowTreatment() if treatment is None else treatment
    if network_of(source) is not None:
        return EdgeMoment(source, treatment, memory_limit=memory_limit, **reading)
    source = fill_missing(source, treatment.center)
    if treatment.low is not None and treatment.center is not None and reading.get("device") is None:
        # By a code book, missing cells are at the offset.
        gaps = with_gaps(source)
        source = source if gaps is source else FilledRows(gaps, treatment.center)
    choice = choose_kernel(
        n_rows=source.n_rows,
        n_features=source.n_features,
        rank=rank,
        steps=steps,
        density=source.density if density is None else density,
        memory_limit=memory_limit,
    )
    return LocalMoment(source, treatment, choice=choice, memory_limit=memory_limit, **reading)


def _dask_total(rows: EnrolledRows, make: Callable[[], S], max_rows: int) -> S:
    """Return the merged sums of all partitions that have rows, once they are those enrolled."""
    delayed, source = dask().delayed, rows.rows
    assert isinstance(source, DaskSource)
    how = delayed((make, max_rows, rows.key), pure=False)
    parts = [
        delayed(_dask_sum, pure=False)(partition, source.opener(place), how)
        for place, partition in enumerate(source.partitions)
    ]
    while len(parts) > 1:
        pairs = [parts[place : place + 2] for place in range(0, len(parts), 2)]
        parts = [delayed(_dask_merged, pure=False)(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    found: tuple[Seen, S] | None = parts[0].compute()
    if found is None:
        raise InputError(f"{source.name} must have at least one row, got none; leave this silo out")
    rows.hold(found[0])
    return found[1]


def _dask_sum(partition: Any, opener: PartitionOpener, how: tuple[Any, ...]) -> tuple[Seen, Sum] | None:
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
