"""How time, memory, rounds and bytes of a fit grow with rows, columns, silos and rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Tables
from benchmarks.measuring import Measured, exponents, in_turn, most, of_way, ratios, reported, times
from benchmarks.processes import Runner, scratch
from benchmarks.speed.methods import fed_pca
from benchmarks.speed.rows import WARM_ROWS, drawn, model, timed
from benchmarks.speed.sizes import PRIVATE_FIT, SEED, Sizes

TITLE = "Growth"
SILOS, EXACT_SILOS = "silos m", "silos m, exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One quantity that grows while the others stay.

    Attributes
    ----------
    sizes
        Its values, from the smallest.
    fixed
        What stays, in words.
    """

    sizes: tuple[int, ...]
    fixed: str

    def upper(self) -> tuple[int, ...]:
        """Return the larger half of the sizes, where what a fit costs in any case matters less."""
        return self.sizes[-((len(self.sizes) + 1) // 2) :]


def curves(sizes: Sizes) -> dict[str, Curve]:
    """Return what grows, by its name."""
    return {
        "rows n": Curve(sizes=sizes.grown_rows, fixed=f".npy file, d = {sizes.grown_rows_columns}, one silo"),
        "columns d": Curve(
            sizes=sizes.grown_columns, fixed=f"memory, n = {sizes.grown_columns_rows:,}, one silo"
        ),
        SILOS: Curve(sizes=sizes.grown_silos, fixed=f"memory, {_shape(sizes.grown_silos_shape)} shared out"),
        EXACT_SILOS: Curve(
            sizes=sizes.grown_silos,
            fixed=f"memory, {_shape(sizes.grown_silos_shape)} shared out, epsilon = inf",
        ),
        "rank r": Curve(
            sizes=sizes.grown_ranks,
            fixed=f"memory, {_shape(sizes.grown_ranks_shape)}, every step noised, one silo",
        ),
    }


def measure(sizes: Sizes, run: Runner) -> list[dict[str, Any]]:
    """Return every fit's time, peak, rounds and bytes."""
    found: list[dict[str, Any]] = []
    for name, curve in curves(sizes).items():
        with scratch("growth") as folder:
            asked = {size: _asked(name, size, sizes, folder) for size in curve.sizes}
            if name == "rows n":
                run.say(f"writing files of up to {curve.sizes[-1]:,} rows")
                _write(asked, sizes)
            for repeat, size in in_turn(curve.sizes, sizes.repeats):
                label = f"{name} = {size:,}, repeat {repeat + 1} of {sizes.repeats}"
                measured = run("benchmarks.speed.growth:fit_grown", label=label, **asked[size])
                about = {"curve": name, "size": size, "repeat": repeat}
                found.append(about | measured)
    return found


def tables(sizes: Sizes, measured: Sequence[Measured]) -> Tables:
    """Return exponents first, then every point."""
    summary, points = [], []
    for name, curve in curves(sizes).items():
        here = of_way(measured, curve=name)
        least, largest = curve.sizes[0], curve.sizes[-1]
        summary.append(
            [
                name,
                f"{least:,} to {largest:,}",
                curve.fixed,
                reported(exponents(here, curve.sizes)),
                reported(exponents(here, curve.upper())),
                f"{_memory(here, least)} and {_memory(here, largest)}",
            ]
        )
        for size in curve.sizes:
            fits = of_way(here, size=size)
            points.append(
                [
                    name,
                    f"{size:,}",
                    times(fits),
                    most(fits, "above_mb", ",.0f"),
                    most(fits, "rise_mb", ",.0f"),
                    fits[0].get("solver", ""),
                    most(fits, "rounds", "d"),
                    most(fits, "mb_up", ",.3g"),
                    most(fits, "mb_down", ",.3g"),
                ]
            )
    many = sizes.grown_silos[-1]
    private, exact = (reported(many_over_one(sizes, measured, curve)) for curve in (SILOS, EXACT_SILOS))
    return Tables(
        settings={"fit": PRIVATE_FIT, "repeats": sizes.repeats, "seed": SEED},
        columns=[
            "what grows",
            "from … to",
            "what stays",
            "exponent of the time",
            "exponent, larger half",
            "fit's own MB, smallest and largest",
        ],
        rows=summary,
        notes=[
            "Exponent: the slope of log time on log size by least squares within a repeat, median "
            f"(range) of {sizes.repeats} repeats; 1 is linear, and what every fit costs in any case "
            "makes it smaller. Larger half: over the larger half of the sizes only.",
            f"{many:,} silos take {private} times as long as one that holds all "
            f"{sizes.grown_silos_shape[0]:,} rows, and {exact} times without privacy: no silo makes "
            "noise or keeps a ledger.",
            "![Time and memory against rows, columns, silos and rank](../docs/speed.svg)",
        ],
        more=[
            (
                "Every point:",
                [
                    "what grows",
                    "to",
                    "seconds",
                    "peak MB above the interpreter",
                    "of which the fit's own",
                    "solver",
                    "rounds",
                    "MB up",
                    "MB down",
                ],
                points,
            )
        ],
    )


def many_over_one(sizes: Sizes, measured: Sequence[Measured], curve: str) -> list[float]:
    """Return the time of the most silos over that of one with the same rows, in each repeat."""
    here = of_way(measured, curve=curve)
    return ratios(of_way(here, size=sizes.grown_silos[-1]), of_way(here, size=sizes.grown_silos[0]))


def fit_grown(
    *,
    path: str | None = None,
    shape: tuple[int, int] | None = None,
    silos: int = 1,
    rank: int | None = None,
    private: bool = True,
) -> dict[str, Any]:
    """Return time, peak, rounds and bytes of one fit, of a file or of rows drawn before."""
    settings: dict[str, Any] = {} if rank is None else {"iteration_rank": rank, "noise": "step"}
    if path is not None:
        parts: list[Any] = [path]
    else:
        assert shape is not None
        parts = np.array_split(drawn(*shape), silos)
    warm = {"noise": "step"} if rank else {}
    fed_pca(private=private, **warm).fit_silos([drawn(WARM_ROWS, 8)])
    found, fitted = timed(lambda: fed_pca(private=private, **settings).fit_silos(parts))
    return found | {
        "solver": fitted.solver_.solver,
        "rounds": len(fitted.history_),
        "mb_up": sum(each["bytes_up"] for each in fitted.history_) / 1e6,
        "mb_down": sum(each["bytes_down"] for each in fitted.history_) / 1e6,
    }


def _asked(name: str, size: int, sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Return the arguments of `fit_grown` for one point."""
    if name == "rows n":
        return {"path": str(folder / f"{size}.npy")}
    if name == "columns d":
        return {"shape": (sizes.grown_columns_rows, size)}
    if name in {SILOS, EXACT_SILOS}:
        return {"shape": sizes.grown_silos_shape, "silos": size, "private": name == SILOS}
    return {"shape": sizes.grown_ranks_shape, "rank": size}


def _write(asked: dict[int, dict[str, Any]], sizes: Sizes) -> None:
    """Write the files of rows, of which the smaller ones are the largest one's beginning."""
    largest = max(asked)
    rows = np.lib.format.open_memmap(
        asked[largest]["path"], mode="w+", shape=(largest, sizes.grown_rows_columns)
    )
    start = 0
    for block in model(largest, sizes.grown_rows_columns).blocks(0, 2**16):
        rows[start : start + len(block)] = block
        start += len(block)
    for size, each in asked.items():
        if size != largest:
            np.save(each["path"], rows[:size])


def _memory(measured: Sequence[Measured], size: int) -> str:
    return most(of_way(measured, size=size), "rise_mb", ",.0f")


def _shape(shape: tuple[int, int]) -> str:
    return " × ".join(f"{size:,}" for size in shape)
