"""A clinical table as it is: flags as categories, missing cells, ids; three hospitals of uneven size.

ACTG175 comes from the PyPI package `lifelines` (install it for this). Its rules are from the trial's
own description, none from rows. Measured is the variance that a private fit's components capture of what
the exact correlation PCA's capture, and whether every component that is said to be determined is within
45° of the exact one.
"""

import argparse
import importlib.util
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from benchmarks.common import parser, report
from fedpower import CodeBook, FedPCA
from fedpower.estimator.fit_warnings import NoiseWarning
from fedpower.rows.opening import open_source
from fedpower.rules.ruled import ruled
from fedpower.rules.rules import table_rules

Array = NDArray[np.float64]

RANK, DELTA, TARGET = 3, 1e-6, 0.95
SHARES = (0.6, 0.25, 0.15)
"""Of the rows, by hospital."""

FLAGS = (
    *("hemo", "homo", "drugs", "oprior", "z30", "race", "gender", "str2"),
    *("symptom", "treat", "offtrt", "r", "cens"),
)
RANGES = {
    "age": [12, 90],
    "wtkg": [30, 160],
    "karnof": [0, 100],
    "preanti": [0, 3000],
    "cd40": [0, 1500],
    "cd420": [0, 1500],
    "cd80": [0, 6000],
    "cd820": [0, 6000],
    "days": [0, 1300],
}
RULES: dict[str, Any] = {
    "": "drop",
    "pidnum": "drop",
    "zprior": "drop",  # everybody had zidovudine before
    **{name: {"kind": "number", "range": ends} for name, ends in RANGES.items()},
    # in the middle of what a patient needed to be taken in, 200 to 500
    "cd496": {"kind": "number", "range": [0, 1500], "missing": 350},
    "strat": {"levels": [1, 2, 3]},
    "arms": {"levels": [0, 1, 2, 3]},
}
FORMS = {"flags as levels": {"levels": [0, 1]}, "flags as yes/no": {"kind": "yes/no"}}


def table(path: Path | None) -> pa.Table:
    """Return ACTG175 as `lifelines` has it, from its package or from a file of it."""
    if path is None:
        found = importlib.util.find_spec("lifelines")
        if found is None or found.origin is None:
            raise SystemExit("lifelines must be installed, or --csv must name its ACTG175.csv")
        path = Path(found.origin).parent / "datasets" / "ACTG175.csv"
    text = pa.csv.ConvertOptions(column_types=dict.fromkeys(["cd496"], pa.string()))
    return pa.csv.read_csv(path, convert_options=text)


@contextmanager
def hospitals(rows: pa.Table) -> Iterator[dict[str, Path]]:
    """Give three files of uneven size, in an order that is drawn once."""
    order = np.random.default_rng(0).permutation(rows.num_rows)
    ends = np.cumsum([0, *(round(share * rows.num_rows) for share in SHARES[:-1])]).tolist()
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, part in zip(("north", "south", "east"), np.split(order, ends[1:]), strict=True):
            files[name] = Path(folder) / f"{name}.csv"
            pa.csv.write_csv(rows.take(part), files[name])
        yield files


def correlations(files: dict[str, Path], book: CodeBook) -> tuple[Array, Array]:
    """Return the exact correlations, a category's levels scaled together, and their components."""
    exact = FedPCA(RANK, epsilon=float("inf"), standardize=True, codebook=book).fit_silos(files)
    assert book.rules is not None
    parts = [ruled(open_source(path), book.rules) for path in files.values()]
    rows = np.vstack([np.asarray(block) for part in parts for block in part.blocks(2**16)])
    return np.cov((rows / exact.result_.scale).T), exact.components_


def measure(files: dict[str, Path], book: CodeBook, seeds: int, **told: Any) -> dict[str, Any]:
    """Return what so many private fits capture of what the exact one does, and what they determine."""
    moment, exact = correlations(files, book)
    best = float(np.trace(exact @ moment @ exact.T))
    captured, determined, true = [], [], 0
    for _ in range(seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoiseWarning)
            model = FedPCA(RANK, delta=DELTA, codebook=book, **told).fit_silos(files)
        held = np.einsum("ij,jl,il->i", model.components_, moment, model.components_)
        cosines = np.abs(np.sum(model.components_ * exact, axis=1))
        said = model.result_.determined
        captured.append(float(held.sum()) / best)
        determined.append(sum(said))
        true += bool((cosines[said] >= np.sqrt(0.5)).all())
    return {"captured": captured, "determined": determined, "true": true, "columns": len(moment)}


def main() -> None:
    """Run it from the command line."""
    made = parser(__doc__)
    made.add_argument("--seeds", type=int, default=20, help="fits of each kind")
    made.add_argument("--csv", type=Path, help="ACTG175.csv, where lifelines is not installed")
    options: argparse.Namespace = made.parse_args()
    read = table(options.csv)
    rows, raw = [], []
    with hospitals(read) as files:
        for form, flag in FORMS.items():
            rules = table_rules({**RULES, **dict.fromkeys(FLAGS, flag)}, "the benchmark")
            book = CodeBook(rules=rules)
            for aggregation, epsilon in (("plain", 4.0), ("secure", 4.0), ("secure", 1.0)):
                told = {"aggregation": aggregation, "epsilon": epsilon}
                found = measure(files, book, options.seeds, **told)
                raw.append({"flags": form, **told, **found})
                rows.append(
                    (
                        f"{form}, {found['columns']} columns",
                        aggregation,
                        epsilon,
                        f"{statistics.median(found['captured']):.3f}",
                        f"{min(found['captured']):.3f}",
                        f"{TARGET:.2f}" if epsilon == 4 else "–",
                        f"{statistics.median(found['determined']):g}",
                        f"{found['true']} of {options.seeds}",
                    )
                )
    report(
        options,
        name="tables",
        settings={
            "seeds": options.seeds,
            "rows": read.num_rows,
            "hospitals": ", ".join(f"{share:.0%}" for share in SHARES),
            "delta": DELTA,
            "rank": RANK,
        },
        columns=(
            "ACTG175",
            "sum",
            "ε",
            "captured, median",
            "least",
            "target",
            "determined, median",
            "fits whose determined components are within 45°",
        ),
        rows=rows,
        raw=raw,
    )


if __name__ == "__main__":
    main()
