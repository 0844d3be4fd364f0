"""PLINK 2's ``.eigenvec`` and ``.eigenval``, to be read by ``--covar`` and by tools made for them.

``plink2 --pca`` decomposes the relationship matrix G = M Mᵀ/d of n samples and d variants, where M holds
the treated genotypes: it writes the eigenvectors, of norm 1 over the samples, and the eigenvalues of G.
The left singular vectors of M are its scores over its singular values σ, and the eigenvalues of G are
σ²/d. So scores are divided by the singular values of the fit, whose samples are those of all silos: each
silo writes the part of its own samples, and the parts under each other are the file of pooled data.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.report.findings import Findings
from fedpower.report.scores import Scores


def write_plink(result: Findings, scores: Scores, *, eigenvec: Path, eigenval: Path) -> int:
    """Write both files and return the number of samples.

    Parameters
    ----------
    result
        The fit.
    scores
        Scores of samples; their ids are the IIDs, and without ids samples are numbered from 1.
    eigenvec, eigenval
        Where to write.
    """
    empty = np.flatnonzero(~(result.singular_values > 0))
    if empty.size:
        raise InputError(
            "a component must have a positive variance to be an eigenvector of PLINK's, got 0 for "
            f"{result.score_names[empty[0]]}; fit fewer components, or with a larger epsilon"
        )
    values = result.singular_values**2 / result.n_features
    eigenval.write_text("".join(f"{value!r}\n" for value in values.tolist()), encoding="utf-8")
    count = 0
    seen: set[str] = set()
    with eigenvec.open("w", encoding="utf-8", newline="") as stream:
        names = (f"PC{place}" for place in range(1, result.n_components + 1))
        stream.write("\t".join(("#IID", *names)) + "\n")
        for cells, block in scores.blocks:
            rows = (block / result.singular_values).tolist()
            for name, row in zip(_ids(cells, count, len(rows), seen), rows, strict=True):
                stream.write("\t".join((name, *map(repr, row))) + "\n")
            count += len(rows)
    return count


def _ids(cells: Any, first: int, size: int, seen: set[str]) -> Iterator[str]:
    """Yield the samples' ids, each one word and not seen before; else their numbers."""
    if cells is None:
        yield from (str(first + place + 1) for place in range(size))
        return
    for place, cell in enumerate(cells.to_pylist()):
        name = "" if cell is None else str(cell)
        if name in ("", "0") or name.split() != [name]:
            raise _refusal("a word other than 0, without blanks", "another", first + place)
        if name in seen:
            raise _refusal("different from all others", "one for the second time", first + place)
        seen.add(name)
        yield name


def _refusal(must: str, got: str, row: int) -> InputError:
    return InputError(
        f"an id for PLINK must be {must}, got {got} at row {row + 1}; give another --id-column, or "
        "leave it out to have samples numbered"
    )
