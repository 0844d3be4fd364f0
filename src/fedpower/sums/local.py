"""`LocalMoment`: what a silo asks of its own rows, whichever kernel answers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedpower.errors import InputError, Sentence
from fedpower.linalg.symmetric import moment_factor
from fedpower.rows.dask_source import DaskSource
from fedpower.rows.networks import network_of
from fedpower.rows.plink import fill_missing
from fedpower.rows.source import Matrix, RowSource, Vector
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import FilledRows, require_no_unit, unit_of, with_gaps
from fedpower.rows.watch import Watch
from fedpower.sums.dask_moment import DaskSums
from fedpower.sums.device import Device, DeviceSums
from fedpower.sums.edge_moment import EdgeMoment
from fedpower.sums.exact_moment import ExactMoments
from fedpower.sums.kernel import MEMORY_LIMIT, MOST_FACTOR_BYTES, KernelChoice, choose_kernel, moment_bytes
from fedpower.sums.moment import Moments
from fedpower.sums.passes import EnrolledRows, enrolled
from fedpower.sums.product import RowSums, require_basis
from fedpower.sums.reduce import S

ON_LATTICE = "the moment is what is noised: it is made once, from rows in whole numbers"
"""Why it is that kernel, in a result."""

_ADJACENCY = "the adjacency itself is what is released: its layers are added up once"


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
        if network_of(source) is not None:
            choice = KernelChoice(kind="moment", reason=_ADJACENCY)
        elif on_lattice:
            choice = KernelChoice(kind="moment", reason=ON_LATTICE)
        # A moment is made in one pass, and there is none to tell from it.
        rereads |= choice.kind == "product"
        self.source = enrolled(source, contents=treatment.bounded and rereads, fingerprinted=fingerprinted)
        self.treatment = treatment
        self.choice = choice
        self.device = device
        self.watch = watch = Watch() if watch is None else watch
        self._is_network, self._unit = network_of(source) is not None, unit_of(source)
        self._limit = memory_limit
        self._on_lattice = on_lattice
        self._moments: Moments | ExactMoments | None = None
        self._rows: RowSums | EdgeMoment
        if isinstance(source, DaskSource):
            assert isinstance(self.source, EnrolledRows), "Dask's rows are not in this memory"
            self._rows = DaskSums(source, treatment, self.source.enrolment)
        elif device is not None:
            if self._is_network:
                raise InputError(
                    Sentence("{device} must be left alone with {network:edge}, got one; leave it out")
                )
            require_no_unit(source, f"the device {device.name!r}")
            on_device = DeviceSums(self.source, treatment, device, watch)
            self._rows = on_device
            self.choice = replace(choice, reason=f"{choice.reason}, {on_device.where}")
        elif self._is_network:
            self._rows = EdgeMoment(self.source, watch)
        else:
            self._rows = RowSums(self.source, treatment, watch, workers)

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
        """Number of rows; of persons, where these count; 1 of a network whose edges do."""
        if self._is_network:
            return 1
        if self._unit is not None:
            return self._unit.n_units
        known = self.source.n_rows
        return self._summary().n_rows if known is None else known

    @property
    def n_read(self) -> int:
        """Number of rows that a pass reads; for the silo's operator only where persons count."""
        return self.n_rows if self._unit is None else self._unit.n_read

    @property
    def n_clipped(self) -> int:
        """How many of the rows that a pass reads the bound shortened; for the silo's operator only."""
        return self._summary().n_clipped

    def own_columns(self) -> tuple[Vector, Vector] | None:
        """Return mean and spread of the columns, less the treatment's centre and in its scales."""
        rule, found = self.treatment, self.columns_as_treated()
        if rule.center is None or rule.scale is None or found is None:
            return None
        bound = 1.0 if rule.row_norm is None else rule.row_norm
        return found[0] * bound, found[1] * bound

    def columns_as_treated(self) -> tuple[Vector, Vector] | None:
        """Return mean and spread of the treated rows' columns; None where that takes another pass."""
        made = self._moments
        if made is None or self.treatment.normalize or self._is_network:
            return None
        return made.mean, made.spread

    def mean(self) -> Vector:
        """Return the mean of the treated rows."""
        return self._summary().mean

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return the moment about `center` times the basis."""
        basis = require_basis(basis, self.source.n_features)
        if self.choice.kind == "moment":
            return self._moment().product(basis, center)
        return self._rows.product(basis, center)

    def trace(self, center: Vector | None = None) -> float:
        """Return the trace of the moment about `center`: the total second moment."""
        if self.choice.kind == "moment":
            return self._moment().trace(center)
        return self._rows.trace(center)

    def diagonal(self, center: Vector | None = None) -> Vector:
        """Return the diagonal of the moment about `center`: variances, where that is the mean."""
        return self._summary().diagonal(center)

    def moment(self, center: Vector | None = None) -> Matrix:
        """Return the d×d moment about `center`, or refuse one that does not fit."""
        if self.choice.kind == "product":
            self._require_room()
        return self._moment().about(center)

    def factor(self, center: Vector | None = None) -> Matrix:
        """Return F = Λ^½Uᵀ, q×d, of the moment about `center`: it is FᵀF; for fewer rows than columns."""
        n_rows, width = self.n_rows, self.source.n_features
        if network_of(self.source) is not None:
            raise InputError(
                f"the adjacency of {self.source.name} must be sent as it is, got a question for a factor "
                "of it; use the moment"
            )
        if n_rows > width or 8 * n_rows * width > MOST_FACTOR_BYTES:
            raise InputError(
                f"the moment of {self.source.name} must be of few rows to be sent as a factor, got "
                f"{n_rows} rows of {width} columns; use products"
            )
        assert isinstance(self._rows, RowSums)
        return moment_factor(self._rows.weighted_rows(center))

    def sums(self) -> ExactMoments:
        """Return the sums over the rows in whole numbers, exact: as secret as the rows."""
        found = self._moment()
        if not isinstance(found, ExactMoments):
            raise InputError(
                f"the rows of {self.source.name} must be read in whole numbers for a moment that is "
                "noised, got them read otherwise; read them with on_lattice=True"
            )
        return found

    def total(self, make: Callable[[], S], max_rows: int) -> S:
        """Return a sum over the rows, made where these are, by Dask's workers too."""
        assert isinstance(self._rows, RowSums), "a network has no rows to sum"
        return self._rows.total(make, max_rows)

    def _moment(self) -> Moments | ExactMoments:
        """Return the moments, made on first use."""
        if self._moments is None:
            if self._on_lattice:
                self._require_room()
            self._moments = self._rows.sums() if self._on_lattice else self._rows.moments()
        return self._moments

    def _require_room(self) -> None:
        """Refuse a moment that does not fit in memory."""
        need = moment_bytes(self.source.n_features, density=self.source.density)
        if need > self._limit:
            raise InputError(
                f"the moment of {self.source.name} must fit in {self._limit / 2**20:.3g} MiB, got "
                f"{need / 2**20:.3g} MiB for {self.source.n_features} columns; raise memory_limit or use "
                "products"
            )

    def _summary(self) -> Moments | ExactMoments:
        """Return what holds the mean and counts, by the chosen kernel."""
        use_moment = self._moments is not None or self.choice.kind == "moment"
        return self._moment() if use_moment else self._rows.summary()


def local_moment(
    source: RowSource,
    treatment: RowTreatment | None = None,
    *,
    rank: int,
    steps: int,
    density: float | None = None,
    memory_limit: int = MEMORY_LIMIT,
    device: Device | None = None,
    watch: Watch | None = None,
    workers: int = 1,
    fingerprinted: bool = False,
    on_lattice: bool = False,
    rereads: bool = False,
) -> LocalMoment:
    """Return a silo's moment by the kernel that is cheaper for `steps` products of `rank` columns."""
    treatment = RowTreatment() if treatment is None else treatment
    source = fill_missing(source, treatment.center)
    if treatment.low is not None and treatment.center is not None and device is None:
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
    return LocalMoment(
        source,
        treatment,
        choice=choice,
        memory_limit=memory_limit,
        device=device,
        watch=watch,
        workers=workers,
        fingerprinted=fingerprinted,
        on_lattice=on_lattice,
        rereads=rereads,
    )
