"""Whether the angles that fits claim hold, against the exact components of the same rows.

Components and leading subspaces count alike. Noise is the operating system's, so runs differ.
"""

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.data_sets import Array, model_one, packaged
from benchmarks.fits import fed_pca
from benchmarks.preparation import leading
from benchmarks.public_tables import TABLES, tables
from benchmarks.runner import Record, Table, case, say
from fedpower import FedPCA

RANK, DELTA, DETERMINED, NEAR = 4, 1e-6, 45.0, 15.0
"""A component is determined up to 45°, and should be within 15° of the exact one."""

WAYS = {"one silo": (1, "plain"), "3 plain": (3, "plain"), "3 secure": (3, "secure")}


def claims(model: FedPCA, wanted: Array) -> list[tuple[float, float]]:
    """Return what is claimed and what is true, of components and of leading subspaces, in degrees."""
    cosines = model.components_ @ wanted
    alone = np.abs(np.diagonal(cosines))
    together = [np.linalg.svd(cosines[:k, :k], compute_uv=False)[-1] for k in range(1, len(cosines) + 1)]
    true = np.degrees(np.arccos(np.clip([*alone, *together], 0.0, 1.0)))
    claimed = np.append(model.component_angles_, model.subspace_angles_)
    return list(zip(claimed.tolist(), true.tolist(), strict=True))


def summary(found: list[tuple[float, float]]) -> Record:
    determined = [(claim, true) for claim, true in found if claim <= DETERMINED]
    near = [claim for claim, true in found if true <= NEAR]
    return {
        "claims": len(found),
        "determined": len(determined) / len(found),
        "hold": _share([true <= claim for claim, true in determined]),
        "far off": _share([true > DETERMINED for _, true in determined]),
        "near, not determined": sum(claim > DETERMINED for claim in near) / len(found),
        "of those near": _share([claim > DETERMINED for claim in near]),
        "claim": statistics.median([claim for claim, _ in determined] or [float("nan")]),
        "true": statistics.median([true for _, true in determined] or [float("nan")]),
    }


def _share(held: list[bool]) -> float:
    return sum(held) / len(held) if held else float("nan")


def _problems(part: str, small: bool) -> Iterator[tuple[str, str, Array, int, Record]]:
    """Yield names, ways, rows, numbers of silos and what is public of them."""
    if part == "tables":
        names = {name: path for name, path in TABLES.items() if not small or path.startswith("sklearn")}
        yield from ((name, str(rows.shape), rows, 1, {}) for name, rows in tables(names))
        return
    from sklearn.datasets import load_breast_cancer

    data = {"breast cancer": load_breast_cancer().data, "Model I": model_one(2000, 50)}
    if not small:
        data["bfi"] = packaged("bfi").iloc[:, :25].dropna().to_numpy(float)
        data["diamonds"] = packaged("diamonds").select_dtypes("number").to_numpy(float)
    for name, rows in data.items():
        norms = np.linalg.norm((rows - rows.mean(0)) / rows.std(0), axis=1)
        public = {"offset": rows.mean(0), "scale": rows.std(0), "row_norm": 1.001 * float(norms.max())}
        mixed = rows[np.random.default_rng(1).permutation(len(rows))]
        for way, (silos, aggregation) in WAYS.items():
            yield name, way, mixed, silos, {"aggregation": aggregation, **public}


@case(
    "angles_bound",
    about="claimed angles where noise is the only error",
    part="bound",
    quick={"releases": 1, "small": True, "epsilons": (4.0,)},
)
@case("angles_tables", quick={"releases": 1, "epsilons": (4.0,), "small": True})
def angles(
    *, part: str = "tables", releases: int = 20, epsilons: tuple[float, ...] = (1.0, 4.0), small: bool = False
) -> Table:
    """Claim angles with nothing but ε, on tables that nothing was calibrated on."""
    records: list[Record] = []
    for name, way, rows, silos, given in _problems(part, small):
        wanted = leading(rows, min(RANK, rows.shape[1] - 1))
        for epsilon in epsilons:
            model, found = fed_pca(wanted.shape[1], epsilon=epsilon, delta=DELTA, **given), []
            for _ in range(releases):
                found += claims(model.fit_silos(np.array_split(rows, silos)), wanted)
            rounded = [[round(part, 2) for part in pair] for pair in found]
            about = {"case": name, "way": way, "epsilon": epsilon}
            records.append({**about, "found": rounded, **summary(found)})
            say(f"{name}, {way}, ε = {epsilon:g}")
    whole = []
    for epsilon in sorted({each["epsilon"] for each in records}):
        pairs: list[Any] = [pair for each in records if each["epsilon"] == epsilon for pair in each["found"]]
        whole.append({"case": "all", "way": "", "epsilon": epsilon, **summary(pairs)})
    by_case = [each["hold"] for each in records if np.isfinite(each["hold"])]
    titles = (
        "case", "rows and columns, or silos", "epsilon", "determined", "of these hold",
        "of these over 45° off", "within 15°, not determined", "as a share of those within 15°",
        "claimed, true (median)",
    )  # fmt: skip
    mean = f"{np.mean(by_case):.3f}" if by_case else "–"
    return Table(
        columns=titles,
        rows=[_line(each) for each in [*records, *whole]],
        measured=records,
        notes=[f"Mean over cases of the share of claims up to 45° that hold: {mean}."],
        settings={"k": RANK, "delta": DELTA, "confidence": 0.9},
    )


def _line(each: Record) -> tuple[str, ...]:
    shares = (f"{each[name]:.1%}" for name in ("far off", "near, not determined", "of those near"))
    first = (f"{each['epsilon']:g}", f"{each['determined']:.0%}", f"{each['hold']:.3f}")
    return (each["case"], each["way"], *first, *shares, f"{each['claim']:.0f}°, {each['true']:.0f}°")
