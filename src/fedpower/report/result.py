"""``Result``: what a fit ends with and what a folder gives back, in the units of the rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpower.errors import InputError
from fedpower.privacy.statement import PrivacyStatement, counted_as
from fedpower.protocol.choice import SolverChoice
from fedpower.protocol.clipping import told
from fedpower.protocol.solvers.angles import DETERMINED
from fedpower.protocol.study import Study
from fedpower.report.atomic import new_folder
from fedpower.report.codebook_file import code_book_of_record, rules_of_record
from fedpower.report.moment import Moment, of_run
from fedpower.report.record import privacy_of, rounds_of, standardized, study_of, with_origin, without
from fedpower.report.score_counts import ScoreHistogram, histogram_of
from fedpower.rows.columns import columns_of_fit
from fedpower.rows.opening import open_source
from fedpower.rows.plink import fill_missing
from fedpower.rows.source import Block, RowSource
from fedpower.rows.tables import TableSource
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import features_of
from fedpower.rules.codebook import CodeBook
from fedpower.rules.ruled import ruled
from fedpower.rules.rules import TableRules
from fedpower.sums.kernel import block_rows

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result:
    """What a fit ends with: `FedPCA.result_` and `read_result` give it, with the same methods.

    Components and all that goes with them, the scores of new rows, and the ways to keep it.

    Attributes
    ----------
    components
        k×d, orthonormal rows by decreasing variance; each one's largest loading is positive.
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
        The public centre of the rows; None where there was none.
    spectrum
        All eigenvalues that the release gives, by decreasing size and in the units of
        ``explained_variance``; None where it is not known.
    run
        The record of the run: what ``run.json`` holds, in JSON's types.
    basis
        The iterated basis, d×r; None in a result read back.
    moment
        The pooled moment, where the fit was to keep it; None in a result read back: see `read_moment`.
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
    basis: Array | None = None
    moment: Moment | None = None

    def __repr__(self) -> str:
        statement = self.run.get("privacy")
        private = isinstance(statement, dict) and statement.get("private")
        promise = f"epsilon={statement.get('asked_epsilon')}" if statement and private else "not private"
        things = f"{counted_as(self.run.get('parameters') or {})}s"
        return (
            f"<{type(self).__name__}: {self.n_components} components of {self.n_features} columns, "
            f"{self.run.get('n_samples')} {things}{without(self.run)}, {promise}>"
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
    def component_angles(self) -> Array | None:
        """Degrees that each component may be off, at 90%; None in results of older versions."""
        return self._of_angles("components")

    @property
    def subspace_angles(self) -> Array | None:
        """The same for the subspaces of the first component, of the first two and so on."""
        return self._of_angles("subspaces")

    @property
    def determined(self) -> list[bool]:
        """Of each component, whether it is within 45° at that confidence; [] without angles."""
        angles = self.component_angles
        return [] if angles is None else [bool(angle <= DETERMINED) for angle in angles]

    @property
    def n_determined(self) -> int:
        """The largest j for which the first j components are determined together, else 0.

        All columns do not count: together they span everything, whatever the rows are.
        """
        angles = self.subspace_angles
        known = np.zeros(0) if angles is None else angles[: self.n_features - 1] <= DETERMINED
        return int(np.flatnonzero(np.append(True, known))[-1])

    @property
    def denoised_variance(self) -> Array | None:
        """The variances without what noise adds to them; None in results of older versions."""
        return self._of_angles("variances")

    @property
    def denoised_variance_ratio(self) -> Array | None:
        """Their shares of all variance; NaN where the total was not released."""
        return self._of_angles("variance_ratios")

    @property
    def standardized(self) -> bool:
        """Whether components are those of correlations, else of covariances in units of `scale`."""
        return standardized(self.run)

    def _of_angles(self, name: str) -> Array | None:
        found = self.run.get("angles")
        return None if found is None else np.array(found[name], dtype=np.float64)

    @property
    def clipping(self) -> str | None:
        """What the bound did to the rows, by what was released; None where nothing is known of it."""
        record = self.run.get("clipping")
        by_person = bool(self.run["parameters"].get("unit"))
        return None if record is None else told(record, by_person=by_person)

    @property
    def score_names(self) -> tuple[str, ...]:
        """What the columns of scores are called: pc1, pc2, ..."""
        return tuple(f"pc{place}" for place in range(1, self.n_components + 1))

    @property
    def n_samples(self) -> int:
        """The number of rows of the fit, of all silos together."""
        return int(self.run["n_samples"])

    @property
    def n_steps(self) -> int:
        """Steps taken."""
        return int(self.run["n_steps"])

    @property
    def silo_sizes(self) -> dict[str, int]:
        """Rows by silo, of those whose rows counted."""
        return {each["name"]: each["rows"] for each in self.run["silos"] if each.get("rows") is not None}

    @property
    def absent(self) -> tuple[str, ...]:
        """Silos of the study that were lost before their rows counted; the result is without them."""
        return tuple(self.run.get("absent") or ())

    @property
    def headline(self) -> str:
        """What was computed on how much of whose data, and which silos are missing from it."""
        run = self.run
        parts = (
            _plural(self.n_components, "component"),
            _plural(run["n_samples"], counted_as(run["parameters"])),
            _plural(len(run["silos"]), "silo"),
        )
        return "{} of {} held by {}".format(*parts) + without(run)

    @property
    def kernels(self) -> dict[str, str]:
        """By silo: how its products were computed, and why; empty where only the silos know."""
        return {each["name"]: each["kernel"] for each in self.run["silos"] if each.get("kernel")}

    @property
    def warnings(self) -> list[str]:
        """What is to be known before numbers are trusted."""
        return list(self.run.get("remarks") or ())

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the fit, in JSON's types."""
        return dict(self.run["parameters"])

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """A row a round, as ``FedPCA.history_`` has them."""
        return rounds_of(self.run)

    @property
    def solver(self) -> SolverChoice:
        """The solver taken and the reason for it."""
        return SolverChoice(**self.run["solver"])

    @property
    def study(self) -> Study:
        """The terms of the fit, held against the hash that the record gives."""
        return study_of(self.run)

    @property
    def code_book(self) -> CodeBook | None:
        """Offsets, scales, ranges and bound that the fit found privately; None where it found none."""
        return code_book_of_record(self.run)

    @property
    def score_counts(self) -> ScoreHistogram | None:
        """Counts of rows by their scores on the first two components; None where none were asked for."""
        return histogram_of(self.run)

    @property
    def privacy(self) -> PrivacyStatement:
        """What is promised about the rows; print it."""
        return privacy_of(self.run)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[np.object_]:
        """Return what the columns of scores are called, pc1, pc2, ..., as scikit-learn gives names.

        Parameters
        ----------
        input_features
            Ignored: here for scikit-learn's sake.
        """
        del input_features
        return np.asarray(self.score_names, dtype=object)

    def transform(self, rows: Any) -> Array:
        """Return the scores of rows on the components, as ``FedPCA.transform`` does.

        Parameters
        ----------
        rows
            Anything that `fedpower.rows.opening.open_source` takes: an array, a table, a path.
        """
        return np.vstack(list(self.score_blocks(self.select(open_source(rows)))))

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
            raise InputError(
                f"X must have a score for each of the {self.n_components} components, got "
                f"{width} columns; give what transform returns"
            )
        rows = scores @ self.components
        if self.scale is not None and not self.normalize:
            rows = rows * self.scale
        return np.asarray(rows + self.mean)

    @property
    def rules(self) -> TableRules | None:
        """What turned tables into the columns of the fit; None where nothing did."""
        return rules_of_record(self.run)

    def with_origin(
        self,
        *,
        command: Sequence[str] | None = None,
        silos: Mapping[str, Mapping[str, Any]] | None = None,
        started: datetime | None = None,
    ) -> Self:
        """Return the result with a record that also says where its fit came from.

        Parameters
        ----------
        command
            The words of the command line, where there was one.
        silos
            By silo: what else is to be told about it, for instance ``source``.
        started
            When the fit began.
        """
        run = with_origin(self.run, command=command, silos=silos, started=started)
        moment = None if self.moment is None else of_run(self.moment, run)
        return replace(self, run=run, moment=moment)

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the result folder, with its report, whole or not at all, and return where it is.

        Parameters
        ----------
        folder
            A new or empty folder.
        force
            Whether an earlier result in the folder is replaced.
        """
        # The folder and its page are made of results: they cannot be known here before.
        from fedpower.report.files import KNOWN, write_files  # noqa: PLC0415

        with new_folder(Path(folder), known=KNOWN, force=force) as place:
            write_files(place, self)
        return Path(folder)

    def to_sklearn(self) -> "PCA | Pipeline":
        """Return the fit in scikit-learn's own objects, for tools that want nothing else.

        Returns
        -------
        PCA or Pipeline
            A :class:`sklearn.decomposition.PCA` that transforms as this does. Where rows are scaled or
            normalised, a pipeline that does so first and ends in one; with ``normalize=True`` it has no
            ``inverse_transform``. ``noise_variance_`` is NaN where the total variance was not released.
        """
        from fedpower.report.export import as_sklearn  # noqa: PLC0415 - as are all exports

        return as_sklearn(self)

    def to_anndata(self, adata: Any) -> Any:
        """Return an AnnData with this result in it, where scanpy looks for it; changed in place.

        Scores go to ``obsm["X_pca"]``, components to ``varm["PCs"]``, variances to ``uns["pca"]``.
        """
        from fedpower.report.export import annotate  # noqa: PLC0415

        return annotate(self, adata)

    def select(self, source: RowSource) -> RowSource:
        """Return the source with the columns of the fit: by name where both have names.

        The cells of a table become numbers by the rules of the fit, if it had any; one whose columns are
        the features already is taken as it is. For a missing genotype stands what stood for it in the
        fit, the public offset, or else the mean.
        """
        rules, names = self.rules, source.columns or ()
        if rules is not None and not (
            set(self.feature_names or ()) <= set(names) and not set(rules.columns) <= set(names)
        ):
            # columns without a name are features already, in their order
            source = source if source.columns is None else _by_rules(source, rules)
        selected = columns_of_fit(source, self.feature_names, self.n_features)
        return fill_missing(selected, self.mean if self.center is None else self.center)

    def scores(self, rows: Block) -> Array:
        """Return the scores of rows that are float64 and have the columns of the fit."""
        return self._projection()(rows)

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
            A column of it that is no feature of the fit; its cells come as a Polars series.
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


def _plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _by_rules(source: RowSource, rules: TableRules) -> RowSource:
    return features_of(ruled(columns_of_fit(source, rules.columns, len(rules.columns)), rules))


def _rows_at_once(source: RowSource) -> int:
    return block_rows(source.n_features, density=source.density or 1.0)
