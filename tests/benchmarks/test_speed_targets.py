"""Targets: the worst case of what was measured decides, and nothing is typed."""

from typing import Any

from benchmarks.speed import cold, end_to_end, kernel, methods, wide
from benchmarks.speed.sizes import QUICK
from benchmarks.speed.targets import MET, NOT_MET, TARGETS, settled, tables

PRIVATE, READER = end_to_end.PRIVATE, "pandas + PCA, covariance_eigh"


def timed(way: str, seconds: float, **about: Any) -> list[dict[str, Any]]:
    return [{"way": way, "repeat": repeat, "seconds": seconds, **about} for repeat in range(3)]


def kernels(**seconds: float) -> list[dict[str, Any]]:
    found = []
    for shape in ("10 × 8", "10 × 16"):
        for way, taken in {**dict.fromkeys(kernel.EXACT, 1.0), kernel.PLAIN: 1.0, **seconds}.items():
            found += timed(way, taken, rows="float64", shape=shape)
    return found


def peers(private: float) -> list[dict[str, Any]]:
    return [*timed(methods.PLAIN, 1.0), *timed(methods.ONE_PRIVATE, private)]


def fits(memory: float, pandas: float, polars: float) -> list[dict[str, Any]]:
    return [
        *timed(PRIVATE, 1.0, **{"from": "memory"}),
        *timed("PCA, covariance_eigh", memory, **{"from": "memory"}),
        *timed("PCA, randomized", 2 * memory, **{"from": "memory"}),
        *timed("PCA, arpack", 3 * memory, **{"from": "memory"}),
        *timed(PRIVATE, 1.0, **{"from": "Parquet"}),
        *timed(READER, pandas, **{"from": "Parquet"}),
        *timed(READER.replace("pandas", "polars"), polars, **{"from": "Parquet"}),
        *timed(PRIVATE, 1.0, **{"from": "CSV"}),
        *timed(READER, pandas, **{"from": "CSV"}),
        *timed(READER.replace("pandas", "polars"), polars / 2.5, **{"from": "CSV"}),
    ]


def grown(power: float, many: float) -> list[dict[str, Any]]:
    return [
        {"curve": "rows n", "size": size, "repeat": repeat, "seconds": float(size) ** power}
        for size in QUICK.grown_rows
        for repeat in range(3)
    ] + [
        {"curve": curve, "size": size, "repeat": repeat, "seconds": seconds}
        for curve in ("silos m", "silos m, exact")
        for size, seconds in zip(QUICK.grown_silos, (1.0, 1.0, many), strict=True)
        for repeat in range(3)
    ]


def starts(package: float, estimator: float, shown: float) -> list[dict[str, Any]]:
    return [
        *timed(cold.LIBRARIES, 1.0),
        *timed(cold.PACKAGE, package),
        *timed(cold.ESTIMATOR, estimator),
        *timed(cold.HELP, shown),
    ]


def wide_fits(memory: float, parquet: float, step: float, bases: float) -> list[dict[str, Any]]:
    exact = {"memory_over_pooled": memory, "Parquet_over_pooled": parquet}
    steps = {"step_over_read": step, "bases_beside": bases}
    return [
        found
        for repeat in range(3)
        for found in (
            {"kind": wide.EXACT, "repeat": repeat, **exact},
            {"kind": "float32 .npy, 5 × 9", "repeat": repeat, **steps},
        )
    ]


def test_targets_are_met_up_to_their_bounds() -> None:
    parts = {
        "kernel": kernels(**{kernel.EXACT[0]: 1.05}),
        "peers": peers(1.1),
        "end_to_end": fits(3.0, 2.5, 2.5),
        "growth": grown(1.04, 3.0),
        "cold": starts(0.1, 1.3, 0.6),
        "wide": wide_fits(1.0, 3.0, 25.0, 6.0),
    }
    lines = tables(QUICK, parts).rows
    assert [line[-1] for line in lines] == [MET] * len(TARGETS)
    assert settled(lines) == "12 of 12 targets met"


def test_the_worst_case_decides_and_is_named() -> None:
    parts = {
        "kernel": kernels(**{kernel.EXACT[2]: 1.2}),
        "peers": peers(1.15),
        "end_to_end": fits(2.9, 2.5, 1.5),
        "growth": grown(1.1, 3.2),
        "cold": starts(0.1, 1.4, 0.7),
        "wide": wide_fits(1.0, 3.1, 26.0, 6.5),
    }
    lines = tables(QUICK, parts).rows
    assert [line[-1] for line in lines] == [NOT_MET] * len(TARGETS)
    measured = ["1.2", "1.15", "2.9", "1.5", "0.6", "1.1", "3.2", "1.4", "0.7", "3.1", "26", "6.5"]
    assert [line[2] for line in lines] == measured
    assert lines[9][3] == "from Parquet"
    assert "normalised" in str(lines[0][3])
    assert lines[2][3] == "PCA, covariance_eigh"
    assert str(lines[3][3]).startswith("polars")
    assert settled(lines) == "0 of 12 targets met"


def test_the_fastest_solver_is_the_one_to_beat() -> None:
    measured = fits(3.0, 2.0, 2.0)
    assert end_to_end.fastest(measured) == "PCA, covariance_eigh"
    slower = [each for each in measured if each["way"] != "PCA, covariance_eigh"]
    assert end_to_end.fastest(slower) == "PCA, randomized"


def test_what_did_not_finish_is_not_met() -> None:
    measured = fits(3.0, 2.5, 2.5)
    for each in measured:
        if each["way"] == READER and each["from"] == "Parquet":
            each["ended"] = f"did not finish in {each.pop('seconds')} s"
    lines = tables(QUICK, {"end_to_end": measured}).rows
    assert [line[-1] for line in lines] == [MET, NOT_MET, MET]
    assert lines[1][2:4] == ["did not finish", READER]


def test_only_parts_that_were_measured_have_targets() -> None:
    assert tables(QUICK, {}).rows == []
    lines = tables(QUICK, {"cold": starts(1.0, 1.0, 0.5)}).rows
    assert [line[0] for line in lines] == ["import / the libraries", "help / the libraries"]
