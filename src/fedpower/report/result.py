"""``Result``: what a fit ends with and what a folder gives back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedpower.report.atomic import new_folder
from fedpower.report.files import KNOWN, write_files
from fedpower.report.findings import Findings
from fedpower.report.moment import of_run
from fedpower.report.record import with_origin

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result(Findings):
    """What a fit ends with: `FedPCA.result_` and `read_result` give it, with the same methods.

    Its numbers and the scores of new rows are those of `fedpower.report.findings.Findings`; here are the
    ways to keep it.
    """

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
