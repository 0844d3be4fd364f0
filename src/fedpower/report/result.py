"""``Result``: what a fit ends with and what a folder gives back, in the units of the rows."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike

from fedpower.exceptions import InputError
from fedpower.files import new_folder, write_csv, write_whole
from fedpower.linalg import Array
from fedpower.protocol.solvers.angles import CONFIDENCE, DETERMINED, Directions
from fedpower.protocol.study import SolverChoice
from fedpower.report.covariance import Covariance, read_covariance
from fedpower.report.page import result_page
from fedpower.report.record import (
    ARRAYS,
    CODE_BOOK,
    COVARIANCE,
    PRIVACY,
    REPORT,
    RUN,
    AngleRecord,
    Record,
    Released,
    plain,
    read_folder,
    write_pages,
    write_record,
)
from fedpower.report.text import count
from fedpower.report.view import ScoreHistogram
from fedpower.rows.opening import open_source
from fedpower.rows.plink import PlinkSource
from fedpower.rows.source import RowSource, block_rows
from fedpower.rows.tables import TableSource
from fedpower.rows.units import with_gaps
from fedpower.rules.treatment import RowTreatment
from fedpower.values import Block, pl

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline

COMPONENTS, EIGENVALUES, SCORE_COUNTS = "components.csv", "eigenvalues.csv", "score_counts.csv"
FILES = (ARRAYS, COMPONENTS, EIGENVALUES, RUN, PRIVACY, REPORT)  # what every result folder holds
KNOWN = (*FILES, CODE_BOOK, SCORE_COUNTS, COVARIANCE)  # everything that one may hold


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result(Released):
    """The result of a fit: `FedPCA.result_`, or what `fedpower.load` returns.

    It has the attributes of `FedPCA` without the final underscore, and the same methods. ``record`` describes
    the run, and ``run`` is the content of ``run.json``. ``center`` and ``scale`` are public numbers of the
    columns. ``normalize`` states whether rows are scaled to norm 1. ``basis`` is None after loading.
    """

    components: Array
    explained_variance: Array
    explained_variance_ratio: Array
    singular_values: Array
    mean: Array
    scale: Array | None
    normalize: bool
    center: Array | None
    spectrum: Array | None
    denoised_variance: Array
    denoised_variance_ratio: Array
    basis: Array | None = None
    release: Covariance | None = None
    directions: Directions | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What draws the angles has no place in a pickle; the angles have.
        return {**self.__dict__, "record": self.whole_record, "directions": None}

    @cached_property
    def angles(self) -> AngleRecord:
        """The angles of the components, at 90% confidence: computed when first asked for."""
        if self.directions is None:
            assert self.record.angles is not None, "a folder has them"
            return self.record.angles
        angles = self.directions.angles
        content = {
            **angles._asdict(),
            "confidence": CONFIDENCE,
            "determined": angles.components <= DETERMINED,
            "variances": self.denoised_variance,
            "variance_ratios": self.denoised_variance_ratio,
        }
        return msgspec.convert(plain(content), AngleRecord)

    @property
    def has_directions(self) -> bool:
        """Whether a component is determined, or several together: mostly known before angles are."""
        drawn = "angles" in self.__dict__
        known = None if self.directions is None or drawn else self.directions.settle()
        return any(self.determined) or self.n_determined > 0 if known is None else known

    @property
    def whole_record(self) -> Record:
        """The record with the angles in it, as ``run.json`` holds it."""
        return structs.replace(self.record, angles=self.angles)

    def __repr__(self) -> str:
        return self._described(f"{self.n_components} components of {self.n_features} columns")

    @property
    def run(self) -> dict[str, Any]:
        """The record of the run in JSON's types: what ``run.json`` holds."""
        return self.whole_record.as_dict()

    @property
    def kernels(self) -> dict[str, str]:
        """By silo: how its products were computed, and why; empty where only the silos know."""
        return {silo.name: silo.kernel for silo in self.record.silos if silo.kernel}

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """A row per round, as ``FedPCA.history_`` has them; what was not measured is NaN."""
        rows = map(structs.asdict, self.record.rounds)
        return [{key: np.nan if cell is None else cell for key, cell in row.items()} for row in rows]

    @property
    def solver(self) -> SolverChoice:
        """The solver taken and the reason for it."""
        return self.record.solver

    @property
    def n_components(self) -> int:
        """The number of components, k."""
        return int(self.components.shape[0])

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of the columns of scores: pc1, pc2, ..."""
        return tuple(f"pc{place}" for place in range(1, self.n_components + 1))

    @property
    def component_angles(self) -> Array:
        """Degrees that each component may be off, at 90% confidence."""
        return np.array(self.angles.components)

    @property
    def subspace_angles(self) -> Array:
        """The same for the subspaces of the first component, of the first two and so on."""
        return np.array(self.angles.subspaces)

    @property
    def determined(self) -> list[bool]:
        """Whether each component is within 45° at that confidence."""
        return [angle <= DETERMINED for angle in self.angles.components]

    @property
    def n_determined(self) -> int:
        """The largest j for which the first j components are determined together, else 0.

        All columns do not count: together they span everything, whatever the rows are.
        """
        known = self.subspace_angles[: self.n_features - 1] <= DETERMINED
        return int(np.flatnonzero(np.append(True, known))[-1])

    @property
    def headline(self) -> str:
        """What was computed from how many rows, and which silos are missing from it."""
        components = count(self.n_components, "component")
        rows = count(self.n_samples, self.record.counted)
        return f"{components} of {rows} held by {count(len(self.record.silos), 'silo')}{self.record.without}"

    @property
    def score_counts(self) -> ScoreHistogram | None:
        """Counts of rows by their scores on the first two components; None where none were asked for."""
        return None if self.record.scores is None else ScoreHistogram.of(self.record.scores)

    def transform(self, rows: Any) -> Array:
        """Return the scores of rows on the components, as ``FedPCA.transform`` does.

        Parameters
        ----------
        rows
            Anything that `fedpower.rows.opening.open_source` takes: an array, a table, a path.
        """
        source = self.select(open_source(rows))
        return np.vstack([*map(self.scores, source.blocks(_rows_at_once(source)))])

    @property
    def whiten(self) -> bool:
        """Whether scores are divided by their standard deviations."""
        return bool(self.record.parameters.get("whiten"))

    @property
    def divisors(self) -> Array:
        """By component: what its scores are divided by, 1 unless they are whitened."""
        if not self.whiten:
            return np.ones(self.n_components)
        deviations = np.sqrt(np.maximum(self.explained_variance, 0.0))
        return np.asarray(np.maximum(deviations, np.finfo(np.float64).eps))  # as scikit-learn

    @property
    def axes(self) -> Array:
        """What treated rows about their mean are multiplied by to give scores."""
        return np.asarray(self.components.T / self._spread[:, np.newaxis] / self.divisors)

    @property
    def noise_variance(self) -> float:
        """The average variance outside the components, without the noise; NaN where the total is unknown."""
        n_left = min(self.n_samples, self.n_features) - self.n_components
        total = float(self.explained_variance.sum()) / (float(self.explained_variance_ratio.sum()) or np.nan)
        return max((total - float(self.denoised_variance.sum())) / n_left, 0.0) if n_left > 0 else 0.0

    def get_covariance(self) -> Array:
        """Return the covariance of the components, with the same variance in all other directions."""
        values, rest = self._model()
        return self._in_units((values - rest), rest, self._spread)

    def get_precision(self) -> Array:
        """Return the inverse of `get_covariance`; variances of 0 are raised to rounding error first."""
        values, rest = self._model()
        least = max(np.finfo(np.float64).eps * values.max(), np.finfo(np.float64).tiny)
        inverse = 1.0 / max(rest, least) if self.n_components < self.n_features else 0.0
        return self._in_units(1.0 / np.maximum(values, least) - inverse, inverse, 1.0 / self._spread)

    def score_samples(self, rows: Any) -> Array:
        """Return the log-likelihood of each row under a normal law with this mean and `get_covariance`.

        Parameters
        ----------
        rows
            As for `transform`.
        """
        precision, source = self.get_precision(), self.select(open_source(rows))
        constant = np.linalg.slogdet(precision)[1] - self.n_features * np.log(2.0 * np.pi)
        found = []
        for block in source.blocks(_rows_at_once(source)):
            treated: Any = self._treated(block)
            about = (treated.toarray() if hasattr(treated, "toarray") else np.asarray(treated)) - self.mean
            found.append((constant - np.einsum("ij,ij->i", about @ precision, about)) / 2.0)
        return np.concatenate(found)

    @property
    def _spread(self) -> Array:
        """By column: its unit, in which covariances are given."""
        is_unit = self.scale is None or self.normalize
        return np.ones(self.n_features) if is_unit else np.asarray(self.scale)

    def _model(self) -> tuple[Array, float]:
        """Return the variances of the components, and of every other direction."""
        rest = self.noise_variance
        if not np.isfinite(rest):
            must = "the fit must know the total variance for its covariance, got a fit without it"
            raise InputError(f"{must}; fit with noise='covariance'")
        return np.maximum(self.denoised_variance, rest), rest

    def _in_units(self, above: Array, rest: float, units: Array) -> Array:
        inner = (self.components.T * above) @ self.components + rest * np.eye(self.n_features)
        return np.asarray(inner * np.outer(units, units))

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Return rows that have the given scores and nothing outside the components.

        Parameters
        ----------
        X
            Scores, a column for each component.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Rows; unit rows where the fit normalised them.
        """
        scores = np.asarray(X, dtype=np.float64)
        width = scores.shape[1] if scores.ndim == 2 else 0
        if width != self.n_components:
            got = f"{width} columns; give what transform returns"
            raise InputError(f"X must have a score for each of the {self.n_components} components, got {got}")
        rows = (scores * self.divisors) @ self.components
        return np.asarray(rows * self._spread + self.mean)

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the result folder, with its report, whole or not at all, and return where it is.

        Parameters
        ----------
        folder
            A new or empty folder.
        force
            Whether an earlier result in the folder is replaced.
        """
        with new_folder(Path(folder), known=KNOWN, force=force) as place:
            self.write_into(place)
        return Path(folder)

    def report(self, path: str | PathLike[str] = "report.html") -> Path:
        """Write the report, one HTML page, to a file and return its path; an earlier file is replaced."""
        write_whole(Path(path), result_page(self))
        return Path(path)

    def write_into(self, place: Path) -> None:
        """Write the files of the result into an existing folder."""
        files = {ARRAYS: {name: getattr(self, name) for name in _ARRAY_NAMES}}
        release = {} if self.release is None else {COVARIANCE: self.release.arrays()}
        write_record(place, self.whole_record, files | release)
        columns = zip(self.names, *self.components.tolist(), strict=True)
        write_csv(place / COMPONENTS, ["feature", *self.score_names], columns)
        by_head = {
            "component": self.score_names,
            "explained_variance": self.explained_variance,
            "explained_variance_ratio": self.explained_variance_ratio,
            "singular_value": self.singular_values,
            "denoised_variance": self.denoised_variance,
            "denoised_variance_ratio": self.denoised_variance_ratio,
        }
        write_csv(place / EIGENVALUES, [*by_head], zip(*map(plain, by_head.values()), strict=True))
        if (counts := self.score_counts) is not None:
            heads = ["silo", "pc1_from", "pc1_to", "pc2_from", "pc2_to", "count"]
            cells = ((silo, *cell) for silo in counts.counts for cell in counts.cells(silo))
            write_csv(place / SCORE_COUNTS, heads, cells)
        write_pages(place, self.privacy, result_page(self))

    def to_sklearn(self) -> "PCA | Pipeline":
        """Return a :class:`sklearn.decomposition.PCA` that transforms as this does.

        Where rows are scaled or normalised, a pipeline does so first and ends in one; with
        ``normalize=True`` it has no ``inverse_transform``. ``noise_variance_`` is NaN where the total
        variance was not released.
        """
        from sklearn.decomposition import PCA  # noqa: PLC0415
        from sklearn.pipeline import Pipeline  # noqa: PLC0415
        from sklearn.preprocessing import Normalizer, StandardScaler  # noqa: PLC0415

        # A normalised row is centred by the PCA's mean; the public centre before that is its own step.
        before, scale = self.center if self.normalize else None, self.scale
        steps: list[tuple[str, Any]] = []
        if scale is not None or before is not None:  # public numbers, no statistic of the rows
            scaler = StandardScaler(with_mean=before is not None, with_std=scale is not None)
            scaler.mean_, scaler.scale_, scaler.var_ = before, scale, None
            scaler.n_samples_seen_ = self.n_samples
            steps.append(("scale", scaler))
        if self.normalize:
            steps.append(("normalize", Normalizer(copy=True)))
        pca = PCA(n_components=self.n_components, whiten=self.whiten)
        for name in ("components", "explained_variance", "explained_variance_ratio", "singular_values"):
            setattr(pca, f"{name}_", getattr(self, name).copy())
        pca.mean_ = self.mean.copy() if self.normalize or scale is None else self.mean / scale
        pca.noise_variance_ = self.noise_variance
        pca.n_components_, pca.n_samples_ = self.n_components, self.n_samples
        steps.append(("pca", pca))
        for _, step in steps:
            step.n_features_in_ = self.n_features
        if self.feature_names is not None:  # later steps get arrays, which have no names
            steps[0][1].feature_names_in_ = np.asarray(self.feature_names, dtype=object)
        return pca if len(steps) == 1 else Pipeline(steps)

    def to_anndata(self, adata: Any) -> Any:
        """Return an AnnData with this result in it, where scanpy looks for it; changed in place.

        Scores go to ``obsm["X_pca"]``, components to ``varm["PCs"]``, variances to ``uns["pca"]``.
        """
        for place, value in self.annotations(open_source(adata)).items():
            group, key = place.split("/")
            getattr(adata, group)[key] = value
        return adata

    def annotations(self, source: RowSource) -> dict[str, Any]:
        """Return what annotated data get, by place; loadings of columns that are not in the fit are 0."""
        scores, loadings = self.transform(source), np.zeros((source.n_features, self.n_components))
        order: Any = slice(None)
        if self.feature_names is not None and source.columns is not None:
            places = {name: place for place, name in enumerate(source.columns)}
            order = [places[name] for name in self.feature_names]
        loadings[order] = self.components.T
        center = self.record.parameters["center"] is not False
        return {
            "obsm/X_pca": scores,
            "varm/PCs": loadings,
            "uns/pca": {
                "params": {"zero_center": center, "mask_var": None},
                "variance": np.array(self.explained_variance),
                "variance_ratio": np.array(self.explained_variance_ratio),
            },
            "uns/fedpower": json.dumps(self.provenance(), allow_nan=False),
        }

    def provenance(self) -> dict[str, Any]:
        """Return the facts of a fit that its components do not show, ready for JSON."""
        return {
            "fedpower": self.record.versions["fedpower"],
            "study": self.record.study.hash,
            "private": self.record.privacy.is_private,
            "n_samples": self.n_samples,
            "normalize": self.normalize,
            "explained_variance": plain(self.explained_variance),
            "explained_variance_ratio": plain(self.explained_variance_ratio),
        }

    def select(self, source: RowSource) -> RowSource:
        """Return the source with the columns of the fit, as `Released.matched` does."""
        matched = self.matched(source)
        return with_gaps(matched) if self.takes_gaps or isinstance(matched, PlinkSource) else matched

    @property
    def takes_gaps(self) -> bool:
        """Whether missing numbers of new rows count for nothing, as by a code book or rules."""
        return self.code_book is not None or (self.record.rules is not None and not self.normalize)

    def scores(self, rows: Block) -> Array:
        """Return the scores of rows that are float64 and have the columns of the fit."""
        return np.asarray(self._treated(rows) @ self.axes - self.mean @ self.axes)

    def _treated(self, rows: Block) -> Block:
        """Return unit rows where the fit normalised them, with missing cells at the offset of the fit."""
        if isinstance(rows, np.ndarray) and np.isnan(np.sum(rows)):
            rows = np.where(np.isnan(rows), self.mean if self.center is None else self.center, rows)
        if not self.normalize:
            return rows
        return RowTreatment(center=self.center, scale=self.scale, normalize=True).apply(rows)[0]

    def scored(self, source: RowSource, id_column: str | None = None) -> Iterator["pl.DataFrame"]:
        """Yield the scores of a source by block, its ids first: those of a column, or of samples."""
        samples, done = source.samples if isinstance(source, PlinkSource) else None, 0
        for cells, block in self._labelled(source, id_column):
            ids = cells if samples is None else samples[done : done + len(block)]
            frame = pl.DataFrame(self.scores(block), list(self.score_names), orient="row")
            yield frame if ids is None else frame.insert_column(0, pl.Series(id_column or "IID", ids))
            done += len(block)

    def _labelled(self, source: RowSource, id_column: str | None) -> Iterable[tuple[Any, Block]]:
        """Return blocks of the columns of the fit, with the cells of an id column."""
        if id_column is None:
            selected = self.select(source)
            return ((None, block) for block in selected.blocks(_rows_at_once(selected)))
        if isinstance(source, PlinkSource):
            why = "whose samples have ids of their own"
            raise InputError(f"an id column must not be given with {source.name}, {why}")
        if not isinstance(source, TableSource):
            raise InputError(f"{source.name} must be a table with named columns to take {id_column!r} from")
        if id_column in self.score_names or id_column in (self.feature_names or ()):
            taken = "score" if id_column in self.score_names else "column"
            raise InputError(f"{id_column!r} is a {taken} of the fit: choose another id column")
        features = tuple(name for name in source.columns if name != id_column)
        labelled = self.select(source.select(features, extra="drop"))
        assert isinstance(labelled, TableSource), "selecting keeps the kind of a source"
        return labelled.labelled(id_column, _rows_at_once(labelled))


_ARRAY_NAMES = (
    "feature_names", "components", "explained_variance", "explained_variance_ratio", "singular_values",
    "mean", "scale", "normalize", "center", "spectrum",
)  # fmt: skip


def load(path: str | PathLike[str]) -> Result | Covariance:
    """Load a saved result, or a saved covariance.

    Parameters
    ----------
    path : str or path
        A folder that ``fedpower fit``, `FedPCA.save` or `FedCovariance.save` wrote.

    Returns
    -------
    Result or Covariance
        A `Covariance` if the folder holds only a released covariance.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> import fedpower
    >>> rows = np.random.default_rng(0).normal(size=(50, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = fedpower.FedPCA(2, epsilon=float("inf")).fit(rows).save(f"{folder}/result")
    ...     fedpower.load(path).n_components
    2
    """
    place = Path(path)
    only_released = (place / COVARIANCE).is_file() and not (place / ARRAYS).is_file()
    return read_covariance(place) if only_released else read_result(place)


def covariance_of(given: Any) -> Covariance:
    """Return the covariance of a release, a result, a fitted estimator, or the folder of one."""
    if isinstance(given, str | PathLike):
        given = load(given)
    release = given.release if isinstance(given, Result) else getattr(given, "release_", given)
    if release is None:
        raise InputError("the fit must keep its covariance, got one without it; fit with the solver 'upload'")
    if not isinstance(release, Covariance):
        must = "a released covariance, a fitted model or the folder of one must be given"
        raise InputError(f"{must}, got {type(given).__name__}; fit it first")
    return release


def read_result(folder: str | PathLike[str]) -> Result:
    """Return the result in a folder that `Result.save` or ``fedpower fit`` wrote; refuse any other."""
    place = Path(folder)
    record, arrays = read_folder(place, ARRAYS, command="fit")
    release = read_covariance(place) if (place / COVARIANCE).is_file() else None
    known: dict[str, Any] = {name: arrays.get(name) for name in _ARRAY_NAMES}
    assert record.angles is not None, "a folder has them"
    return Result(
        record=record,
        release=release,
        denoised_variance=np.array(record.angles.variances),
        denoised_variance_ratio=np.array(record.angles.variance_ratios, dtype=np.float64),
        **known,
    )


def _rows_at_once(source: RowSource) -> int:
    return block_rows(source.n_features, density=source.density or 1.0)
