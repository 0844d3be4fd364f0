"""What documents show of results: tables cut to what a reader needs, claims, and findings in sentences.

No number is typed: all are computed from ``results`` and from ``docs/reproduction``.
"""

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import runner
from benchmarks.runner import HERE, distinct, having, kept, markdown, read_json

ROOT = HERE.parent
REPRODUCTION = ROOT / "docs" / "reproduction"
PLACE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PLACES: dict[str, Callable[[], str]] = {}
"""By name: what else fills a marked place of a document, in addition to results."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What documents show of a recorded table: its columns, or some, and its rows, or those that match."""

    columns: Sequence[str] = ()
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)


FITTED = ("way", "method", "seconds", "sin θ to the exact subspace", "peak MB above the interpreter")
SURE = View(columns=("epsilon", "determined", "of these hold"), where={"case": ("all",)})
VIEWS = {
    "fit_memory": View(columns=("way", "seconds", "× scikit-learn PCA")),
    "libraries": View(
        columns=FITTED,
        where={
            "method": (
                "fedpower, exact, 1 silo", "fedpower, private, 20 silos", "PCA, auto", "PCA, randomized",
                "IncrementalPCA, batches of 10,000", "Dask svd_compressed, 4 power steps",
                "torch.pca_lowrank, q = k + 10, niter = 6",
            )
        },
    ),
    "fit_files": View(
        columns=(
            "file", "way", "seconds", "× Polars + scikit-learn PCA, processor time",
            "peak MB above a bare interpreter",
        ),
    ),
    "flights": View(columns=("file", "way", "seconds")),
    "silos": View(columns=("data", "way", "seconds", "× one silo")),
    "gpu": View(columns=("columns", "way", "seconds")),
    "growth": View(columns=("what grows", "from … to", "exponent of the time")),
    "federation": View(
        columns=("silos", "kB up, down a silo", "a round: median s", "an echo: median s"),
    ),
    "preparation": View(columns=("data", "rows", "ε", "only ε", "told nothing", "all known")),
    "predictions": View(where={"ε": ("1",), "problem": ("Model I",)}),
    "persons": View(columns=("what is protected, and fitted", "sin θ₃")),
    "secure": View(columns=("model", "ε", "curator", "secure", "each silo by itself")),
    "clipped": View(columns=("law", "d", "n", "covariance", "clipped")),
    "tables": View(columns=("ACTG175", "sum", "ε", "captured, median", "least")),
    "units": View(
        columns=(
            "components of", "ε",
            "degrees to the exact ones, median (most)", "variances off by, median (most)",
        ),
    ),
    "angles_tables": SURE,
    "angles_bound": SURE,
    "correlations": View(
        columns=("table", "error as released", "error shrunk", "intervals that hold"),
        where={
            "ε": ("1",),
            "table": ("bfi, 2,436 × 25", "breast cancer, 569 × 30", "fair, 6,366 × 9", "ACTG175, 1,342 × 26"),
        },
    ),
    "completion": View(
        columns=("ratings", "persons", "ε", "sums", "error, median", "of released means"),
        where={"ratings": ("simulated", "bfi"), "persons": ("10,000", "2,240")},
    ),
    "ranking": View(columns=("comparisons", "scores that hold", "places that hold")),
    "networks": View(
        columns=("protected", "sum", "ε", "placed as the atlas says"), where={"ε": ("inf", "1.0")}
    ),
    "rounds": View(
        columns=("σ_{k+1}/σ_k", "method", "rounds to 1e-02", "rounds to 1e-06"),
        where={"η": ("0.200",), "method": ("Algorithm 1", "LocalPower p=8 decaying", "krylov cold")},
    ),
    "accuracy_real": View(where={"ε": ("1",), "split": ("by label",)}),
    "localpower_tables": View(where={"split": ("by label",)}),
    "a9a_localpower": View(
        columns=("method", "rounds", "MB up", "sin θ, 5 columns"),
        where={
            "method": (
                "LocalPower p=4, procrustes", "decaying p=4", "FedPCA(5), solver auto: upload", "UDA", "WDA",
            )
        },
    ),
    "model1_modes": View(columns=("noise", "sin θ_k to the pooled rows'")),
}  # fmt: skip
"""By case: what is shown; of other cases the whole first table. The rest is in ``results``."""

RENAMED = {
    "FedPCA(5), solver auto: upload": "FedPCA",
    "a round: median s": "seconds per round",
    "all known": "exact numbers",
    "an echo: median s": "seconds per echo",
    "degrees to the exact ones, median (most)": "degrees to the exact ones",
    "each silo by itself": "plain",
    "epsilon": "ε",
    "peak MB above the interpreter": "peak MB",
    "sin θ to the exact subspace": "sin θ",
    "sin θ, 5 columns": "sin θ",
    "sin θ_k to the pooled rows'": "sin θ",
    "told nothing": "only ε",
    "variances off by, median (most)": "variances off by",
    "way": "method",
}
"""Recorded headings and cells under the names that documents use."""


def documents() -> list[Path]:
    """Return the documents that have marked places."""
    pages = [HERE / "README.md", ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if PLACE.search(page.read_text(encoding="utf-8"))]


def place(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def register(write: Callable[[], str]) -> Callable[[], str]:
        PLACES[name] = write
        return write

    return register


def render(*, check: bool = False, pages: Iterable[Path] | None = None) -> list[str]:
    stale = []
    for path in documents() if pages is None else pages:
        old = path.read_text(encoding="utf-8")
        new = PLACE.sub(lambda found: f"{found[1]}\n{section(found[2])}\n\n{found[3]}", old)
        if new != old:
            stale.append(path.name)
            if not check:
                path.write_text(new, encoding="utf-8")
    return stale


def section(name: str) -> str:
    if name in PLACES:
        return PLACES[name]()
    if not (runner.RESULTS / f"{name}.json").exists():
        return f"Not measured yet: `python -m benchmarks {name}`."
    found = kept(name)
    return f"{shown(name, found['table'])}\n\n<sub>{_source(name, found)}</sub>"


def shown(name: str, table: Mapping[str, Any]) -> str:
    view, recorded = VIEWS.get(name, View()), table["columns"]
    rows = [dict(zip(recorded, map(str, row), strict=True)) for row in table["rows"]]
    rows = [row for row in rows if all(row[key] in wanted for key, wanted in view.where.items())]
    columns = [column for column in view.columns or recorded if column in recorded]
    headings = [RENAMED.get(column, column) for column in columns]
    return markdown(headings, [[_brief(row[column]) for column in columns] for row in rows])


def _brief(cell: str) -> str:
    """Return a cell without its range or spread, under today's name."""
    return re.sub(r"(?<=[\d%°]) (\([^)]*\)|± \S+)", "", RENAMED.get(cell, cell))


def _source(name: str, found: Mapping[str, Any]) -> str:
    facts = found["machine"]
    cores = f"{facts['cores']} core{'s' * (facts['cores'] > 1)}" if "cores" in facts else ""
    cpu = re.sub(r"\(R\)| Processor| @.*", "", facts["cpu"])
    busy = "a busy machine" if any("other work" in note.lower() for note in found["notes"]) else ""
    parts = (f"`python -m benchmarks {name}`", facts.get("date", ""), cores, cpu, busy)
    return ", ".join(part for part in parts if part and part != "unknown") + "."


@place("findings")
def findings() -> str:
    sentences = [
        *on_claims(_claims(REPRODUCTION)),
        *on_real_data(kept("accuracy_real")["measured"]),
        *against_peers(kept("accuracy_peers")),
        with_secure_sums(kept("secure")),
    ]
    return "\n".join(f"- {sentence}" for sentence in sentences)


HEADLINES = (
    ("Error at ε = 1 with secure sums, Model I", "secure", ("Model I", "1"), "secure", "curator"),
    ("Private fit of 1,000,000 × 50 numbers, s", "fit_memory", (), "private, public bound",
     "scikit-learn PCA"),
    ("337,000 flights with dates and gaps, s", "flights", ("csv",), "fedpower, private",
     "pandas + scikit-learn PCA"),
    ("`fedpower fit` of three small files, s", "start", (), "fedpower fit, only ε",
     "polars + scikit-learn in a script"),
)  # fmt: skip
"""What the README compares: a sentence, a case, the rows' first cells, and two ways or columns."""


@place("headline")
def headline() -> str:
    rows = []
    for sentence, case, keys, *pair in HEADLINES:
        table = kept(case)["table"]
        for number, name in enumerate(pair):
            column = name if name in table["columns"] else "seconds"
            key = list(keys) + [name] * (column == "seconds")
            row = next(row for row in table["rows"] if row[: len(key)] == key)
            value = row[table["columns"].index(column)].split()[0]
            pair[number] = f"{value} ({name.replace(' + ', ' and ')})" if number else value
        rows.append([sentence, *pair])
    return markdown(["measured", "fedpower", "compared with"], rows)


@place("claims")
def claims(folder: Path = REPRODUCTION) -> str:
    columns = ["claim", "whose", "figure", "holds", "measured", "bound"]
    rows = [
        [
            claim["id"],
            claim["whose"],
            claim["figure"],
            "yes" if claim["holds"] else "**no**",
            f"{claim['test']['value']:.3g}",
            claim["threshold"],
        ]
        for claim in _claims(folder)
    ]
    return markdown(columns, rows) if rows else "The paper's figures and claims: `make reproduce` makes them."


def _claims(folder: Path) -> list[dict[str, Any]]:
    file = folder / "claims.json"
    found: list[dict[str, Any]] = read_json(file)["claims"] if file.exists() else []
    return found


@place("peers")
def peers() -> str:
    """Return what each method captures of the exact subspace's variance, by data set."""
    rows = kept("accuracy_peers")["measured"]["fits"]
    found = _means(rows, "captured", "method", "data", epsilon=USUAL)
    sets = distinct(rows, "data")
    cells = [
        [method, *(f"{found[method, data]:.3f}" if (method, data) in found else "–" for data in sets)]
        for method in distinct(rows, "method")
    ]
    table = markdown(["method", *sets], cells)
    return f"{table}\n\n<sub>{_source('accuracy_peers', kept('accuracy_peers'))}</sub>"


def on_claims(claims: Sequence[dict[str, Any]]) -> list[str]:
    sentences = []
    for whose, name in (("paper", "the paper"), ("fedpower", "fedpower")) if claims else ():
        holds = [claim["holds"] for claim in claims if claim["whose"] == whose]
        sentences.append(f"Of {len(holds)} tested claims of {name}, {sum(holds)} hold.")
    return sentences


USUAL = 1.0
"""The ε that a single sentence is about."""

LOST = 0.5
"""An error sin θ_k above this means that a direction of the subspace is lost."""


def _means(rows: Any, value: str, *keys: str, **where: Any) -> dict[Any, float]:
    groups: dict[Any, list[float]] = {}
    for row in having(rows, **where):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row[value])
    return {key if len(keys) > 1 else key[0]: statistics.fmean(found) for key, found in groups.items()}


def on_real_data(rows: Any) -> list[str]:
    shares = {
        method: list(_means(rows, "captured", "data", method=method, epsilon=USUAL).values())
        for method in distinct(rows, "method")
    }
    ours = _range(shares.pop("fedpower"))
    reported = ", ".join(f"`{method}` {_range(each)}" for method, each in shares.items())
    at_random, by_label = (
        _means(rows, "captured", "data", "epsilon", method="fedpower", split=split)
        for split in distinct(rows, "split")
    )
    changed = max(abs(at_random[key] - by_label[key]) for key in at_random)
    errors, lost = _means(rows, "error", "epsilon", "data", method="fedpower"), []
    for epsilon in distinct(rows, "epsilon"):
        sets = [data for (at, data), error in errors.items() if at == epsilon and error > LOST]
        lost.append(f"at ε = {epsilon:g} on {', '.join(sets) or 'none'}")
    return [
        f"On {len(distinct(rows, 'data'))} real data sets at ε = {USUAL:g}, the default captures {ours} of "
        f"the variance that the exact subspace captures ({reported}).",
        f"How rows are split changes what the default captures by at most {changed:.1e}.",
        f"A direction is lost (mean sin θ above {LOST:g}) {'; '.join(lost)}.",
    ]


def against_peers(found: dict[str, Any]) -> list[str]:
    rows, given = found["measured"]["fits"], found["settings"]
    asked = len(distinct(rows, "data")) * len(given["epsilons"]) * len(given["seeds"])
    opendp, diffprivlib = (len(having(rows, method=peer)) for peer in ("OpenDP", "diffprivlib"))
    errors = _means(rows, "error", "method", "data", epsilon=USUAL)
    ratios = [errors["fedpower", data] / errors["Analyze-Gauss", data] for data in distinct(rows, "data")]
    return [
        "A trusted curator who holds all rows (Analyze-Gauss) is more accurate: with plain sums fedpower's "
        f"error is {min(ratios):.2g} to {max(ratios):.2g} times the curator's at ε = {USUAL:g}.",
        f"Within {given['limit_s']:g} core seconds per data set, OpenDP's PCA finished {opendp} of {asked} "
        f"fits and diffprivlib's {diffprivlib}.",
    ]


def with_secure_sums(found: dict[str, Any]) -> str:
    columns, rows = found["table"]["columns"], found["table"]["rows"]
    ratios = [float(row[columns.index("secure / curator")]) for row in rows]
    return (
        f"With secure aggregation the error is {min(ratios):.3g} to {max(ratios):.3g} times the curator's, "
        "and nobody has to be trusted."
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
