"""A fitted result without the estimator: what is needed to look at it and to project new rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpower.data import (
    Block,
    RowSource,
    RowTreatment,
    block_rows,
    columns_of_fit,
    open_source,
)
from fedpower.data.tables import TableSource
from fedpower.errors import InputError

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline

Array = NDArray[np.float64]

WELL_ABOVE = 2.0
"""A component whose variance is so many times the noise's stands well above it."""


def standings(variances: Array, *, edge: float, n_above: int | None) -> list[str]:
    """Return of each component whether it is ``signal``, ``near`` the noise, ``noise`` or ``unknown``.

    Signal is what counts by the one rule that has a proof (`protocol.solvers.signal`); without its count
    nothing is assessed. Noise is what shows no more variance than noise alone would. What shows less
    than twice as much is near it: a single direction under symmetric noise that shows twice the edge has
    cos² = 0.93 with the direction that is found; at the edge itself, 0. So are components beyond those
    that stand above the noise for certain: they may be several alike, of which the noise made one.

    Parameters
    ----------
    variances
        By decreasing size.
    edge
        The largest variance that noise alone would show; 0 without noise, and then all is signal.
    n_above
        How many stand above the noise for certain; None where that was not assessed.
    """
    if edge > 0 and n_above is None:
        return ["unknown"] * len(variances)
    counted = len(variances) if n_above is None or edge == 0 else n_above
    return [
        "noise" if edge > 0 and variance <= edge
        else "near" if variance < WELL_ABOVE * edge or place >= counted
        else "signal"
        for place, variance in enumerate(variances)
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result:
    """Components and what goes with them, as `read_result` finds them in a folder.

    Attributes
    ----------
    components
        k×d, orthonormal rows by decreasing variance.
    explained_variance, explained_variance_ratio, singular_values
        One per component; the ratio is NaN where the total was not released.
    mean
        What is subtracted from rows (from unit rows where the fit normalised them).
    feature_names
        Names of the columns in order; None where they have none.
    scale
        Public divisors of the columns; None for ones.
    normalize
        Whether rows are scaled to norm 1 before they are projected.
    center
        The public centre of a fit that normalised rows; None where there was none.
    spectrum
        All eigenvalues that the release gives, by decreasing size and in the units of
        ``explained_variance``; None where it is not known.
    run
        The run's record, ``run.json``.
    """

    components: Array
    explained_variance: Array
    explained_variance_ratio: Array
    singular_values: Array
    mean: Array
    feature_names: tuple[str, ...] | None
    scale: Array | None
    normalize: bool
    center: Array | None
    spectrum: Array | None
    run: dict[str, Any]

    def __repr__(self) -> str:
        told = self.run.get("privacy")
        private = isinstance(told, dict) and told.get("private")
        promise = f"epsilon={told.get('asked_epsilon')}" if told and private else "not private"
        return (
            f"<Result: {self.n_components} components of {self.n_features} columns, "
            f"{self.run.get('n_samples')} rows, {promise}>"
        )

    @property
    def n_components(self) -> int:
        """The number of components, k."""
        return int(self.components.shape[0])

    @property
    def n_features(self) -> int:
        """The number of columns, d."""
        return int(self.components.shape[1])

    @property
    def noise_edge(self) -> float:
        """About the largest variance that privacy noise alone would show; 0 where there is none."""
        return float(self.run.get("noise_edge") or 0.0)

    @property
    def standings(self) -> list[str]:
        """How each component stands to the privacy noise: see `standings`."""
        return standings(
            self.explained_variance, edge=self.noise_edge, n_above=self.run.get("n_above_noise")
        )

    @property
    def score_names(self) -> tuple[str, ...]:
        """What the columns of scores are called: pc1, pc2, ..."""
        return tuple(f"pc{place}" for place in range(1, self.n_components + 1))

    @property
    def n_samples(self) -> int:
        """The number of rows of the fit, of all silos together."""
        return int(self.run["n_samples"])

    def to_sklearn(self) -> "PCA | Pipeline":
        """Return a scikit-learn PCA that transforms as this does, as ``FedPCA.to_sklearn`` would."""
        from fedpower.estimator.conversion import as_sklearn  # noqa: PLC0415 - reading takes none

        return as_sklearn(
            components=self.components,
            mean=self.mean,
            explained_variance=self.explained_variance,
            explained_variance_ratio=self.explained_variance_ratio,
            singular_values=self.singular_values,
            n_samples=self.n_samples,
            feature_names=self.feature_names,
            scale=self.scale,
            normalize=self.normalize,
            center=self.center,
        )

    def to_anndata(self, adata: Any) -> Any:
        """Return an AnnData with this result in it, where scanpy looks for it; changed in place.

        Scores go to ``obsm["X_pca"]``, components to ``varm["PCs"]``, variances to ``uns["pca"]``.
        """
        from fedpower.report.export.cells import annotate  # noqa: PLC0415

        return annotate(self, adata)

    def transform(self, rows: Any) -> Array:
        """Return the scores of rows on the components, as ``FedPCA.transform`` would.

        Parameters
        ----------
        rows
            Anything that `fedpower.data.open_source` takes: an array, a table, a path.
        """
        return np.vstack(list(self.score_blocks(self.select(open_source(rows)))))

    def select(self, source: RowSource) -> RowSource:
        """Return the source with the columns of the fit: by name where both have names."""
        return columns_of_fit(source, self.feature_names, self.n_features)

    def score_blocks(self, source: RowSource) -> Iterator[Array]:
        """Yield the scores of a selected source, block by block."""
        project = self._projection()
        for block in source.blocks(_rows_at_once(source)):
            yield project(block)

    def labelled_scores(self, source: RowSource, column: str) -> Iterator[tuple[Any, Array]]:
        """Return the cells of a column of ids beside the scores of a source, block by block.

        Parameters
        ----------
        source
            The rows of a table; columns beyond those of the fit are left out.
        column
            A column of it that is no feature of the fit; its cells come as an Arrow array.
        """
        if not isinstance(source, TableSource):
            raise InputError(
                f"{source.name} must be a table with named columns to take {column!r} from, got rows "
                "without them; give a CSV, Parquet or Feather file, or leave the id column out"
            )
        taken = dict.fromkeys(self.score_names, "the name of a score")
        taken |= dict.fromkeys(self.feature_names or (), "a feature of the fit")
        if column in taken:
            raise InputError(
                "an id column must be neither a feature of the fit nor named as a score is, got "
                f"{column!r}, {taken[column]}; name another column"
            )
        features = tuple(name for name in source.columns if name != column)
        labelled = self.select(source.select(features, extra="drop"))
        assert isinstance(labelled, TableSource), "selecting keeps the kind of a source"
        project = self._projection()
        pairs = labelled.labelled(column, _rows_at_once(labelled))
        return ((cells, project(block)) for cells, block in pairs)

    def _projection(self) -> Callable[[Block], Array]:
        """Return what turns a block of rows into their scores."""
        treatment = RowTreatment(center=self.center, scale=self.scale, normalize=True)
        axes = self.components.T
        if self.scale is not None and not self.normalize:
            axes = axes / self.scale[:, np.newaxis]
        offset = self.mean @ axes

        def project(block: Block) -> Array:
            rows = treatment.apply(block)[0] if self.normalize else block
            return np.asarray(rows @ axes - offset)

        return project


def _rows_at_once(source: RowSource) -> int:
    return block_rows(source.n_features, density=source.density or 1.0)
