"""What was asked for, what was measured, and whether that is enough: computed from the results."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common import Tables
from benchmarks.measuring import Measured, exponents, of_way, ratios, values
from benchmarks.speed import cold, end_to_end, growth, kernel, methods, wide
from benchmarks.speed.sizes import Sizes

TITLE = "Targets"
MET, NOT_MET = "met", "not met"
Parts = Mapping[str, Sequence[Measured]]
"""By part: what it measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing asked for.

    Attributes
    ----------
    part
        Whose measurements decide.
    what
        In words.
    asked
        The bound, on the median.
    at_most
        Whether it is an upper one.
    measured
        Returns the ratios (or exponents) of every repeat, a list for each case; the worst case counts.
    """

    part: str
    what: str
    asked: float
    at_most: bool
    measured: Callable[[Sizes, Sequence[Measured]], dict[str, list[float]]]

    def line(self, sizes: Sizes, parts: Parts) -> list[str]:
        """Return what was asked, measured and found."""
        asked = f"{'≤' if self.at_most else '≥'} {self.asked:g}"
        found = self.measured(sizes, parts[self.part])
        unfinished = [case for case, ratios in found.items() if not ratios]
        if unfinished or not found:
            return [self.what, asked, "did not finish", ", ".join(unfinished), NOT_MET]
        cases = {case: statistics.median(ratios) for case, ratios in found.items()}
        worst = (max if self.at_most else min)(cases, key=cases.__getitem__)
        met = cases[worst] <= self.asked if self.at_most else cases[worst] >= self.asked
        return [self.what, asked, f"{cases[worst]:.3g}", worst, MET if met else NOT_MET]


def moment_over_plain(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the time of a private fit's moment over the plain product's, for every width of float64."""
    del sizes
    found = {}
    for shape in dict.fromkeys(each["shape"] for each in of_way(measured, rows="float64")):
        here = of_way(measured, rows="float64", shape=shape)
        for way in kernel.EXACT:
            plain = of_way(here, way=kernel.PLAIN)
            found[f"{shape}, {way}"] = ratios(of_way(here, way=way), plain)
    return found


def private_over_plain(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the time of a whole private fit of one silo in memory over that of the plain product."""
    del sizes
    plain = of_way(measured, way=methods.PLAIN)
    return {methods.ONE_PRIVATE: ratios(of_way(measured, way=methods.ONE_PRIVATE), plain)}


def pooled_over_ours(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the time of scikit-learn's fastest solver over fedpower's private fit, from memory."""
    del sizes
    best = end_to_end.fastest(measured)
    return {best: _over_ours(measured, "memory", best)}


def parquet_over_ours(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the time of each reader with scikit-learn over fedpower's private fit, from Parquet."""
    del sizes
    ways = dict.fromkeys(each["way"] for each in measured if each["from"] == "Parquet")
    return {way: _over_ours(measured, "Parquet", way) for way in ways if " + PCA" in way}


def csv_over_ours(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the time of polars with scikit-learn over fedpower's private fit, from CSV."""
    del sizes
    ways = dict.fromkeys(each["way"] for each in measured if each["from"] == "CSV")
    return {way: _over_ours(measured, "CSV", way) for way in ways if way.startswith("polars")}


def exponents_in_rows(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the exponent in n over all sizes and over the larger half."""
    here = of_way(measured, curve="rows n")
    curve = growth.curves(sizes)["rows n"]
    return {"all sizes": exponents(here, curve.sizes), "the larger half": exponents(here, curve.upper())}


def many_silos_over_one(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the time of the most silos over that of one."""
    many = f"{sizes.grown_silos[-1]:,} silos"
    return {
        many: growth.many_over_one(sizes, measured, growth.SILOS),
        f"{many}, exact": growth.many_over_one(sizes, measured, growth.EXACT_SILOS),
    }


def imports_over_libraries(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the imports' time over the libraries'."""
    del sizes
    base = of_way(measured, way=cold.LIBRARIES)
    ways = (cold.PACKAGE, cold.ESTIMATOR)
    return {f"`{way}`": ratios(of_way(measured, way=way), base) for way in ways}


def help_over_libraries(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the help's time over the libraries'."""
    del sizes
    base = of_way(measured, way=cold.LIBRARIES)
    return {f"`{cold.HELP}`": ratios(of_way(measured, way=cold.HELP), base)}


def wide_over_pooled(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the time of an exact fit of few wide rows over that of scikit-learn on the pooled rows."""
    del sizes
    here = of_way(measured, kind=wide.EXACT)
    return {f"from {place}": values(here, f"{place}_over_pooled") for place in wide.PLACES}


def wide_step_over_read(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the time of a noised step over that of a read of the same dense file."""
    return _of_dense(sizes, measured, "step_over_read")


def wide_bases(sizes: Sizes, measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the memory of a fit with noised steps, less a block of rows and its copy, in bases."""
    return _of_dense(sizes, measured, "bases_beside")


def _of_dense(sizes: Sizes, measured: Sequence[Measured], key: str) -> dict[str, list[float]]:
    del sizes
    kinds = dict.fromkeys(each["kind"] for each in measured if ".npy" in each["kind"])
    return {kind: values(of_way(measured, kind=kind), key) for kind in kinds}


def _over_ours(measured: Sequence[Measured], place: str, way: str) -> list[float]:
    here = of_way(measured, **{"from": place})
    return ratios(of_way(here, way=way), of_way(here, way=end_to_end.PRIVATE))


TARGETS = tuple(
    Target(part=part, what=what, asked=asked, at_most=at_most, measured=measured)
    for part, what, asked, at_most, measured in (
        ("kernel", "private moment / plain X.T @ X, float64", 1.05, True, moment_over_plain),
        ("peers", "private fit / X.T @ X and eigh, one silo", 1.1, True, private_over_plain),
        ("end_to_end", "scikit-learn / private fit, from memory", 3.0, False, pooled_over_ours),
        ("end_to_end", "scikit-learn / private fit, from Parquet", 2.5, False, parquet_over_ours),
        ("end_to_end", "polars + scikit-learn / private fit, from CSV", 1.0, False, csv_over_ours),
        ("growth", "exponent of the time in n", 1.05, True, exponents_in_rows),
        ("growth", "many silos / one silo, the same rows", 3.0, True, many_silos_over_one),
        ("cold", "import / the libraries", 1.3, True, imports_over_libraries),
        ("cold", "help / the libraries", 0.6, True, help_over_libraries),
        ("wide", "exact fit / pooled arpack, few wide rows", 3.0, True, wide_over_pooled),
        ("wide", "noised step / read of the file", 25.0, True, wide_step_over_read),
        ("wide", "memory of noised steps beside a block of rows, in bases", 6.0, True, wide_bases),
    )
)


def tables(sizes: Sizes, parts: Parts) -> Tables:
    """Return the targets of the parts that were measured."""
    return Tables(
        settings={"parts": ", ".join(parts)},
        columns=["target", "asked", "measured", "worst case", "verdict"],
        rows=[target.line(sizes, parts) for target in TARGETS if target.part in parts],
        notes=[
            "Medians of ratios within repeats, the worst case of each target, from the same "
            "measurements as the tables below."
        ],
    )


def settled(lines: Sequence[Sequence[Any]]) -> str:
    """Return how many targets are met, in words."""
    met = sum(line[-1] == MET for line in lines)
    return f"{met} of {len(lines)} targets met"
