"""`fedpower plan`: what each way of computing would cost and give, before anything is spent."""

import math
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fedpower.cli import values
from fedpower.cli.console import console, print_json, table
from fedpower.cli.options import EXTRA, Command, given_options, option, parameter, reading_of, reading_options
from fedpower.cli.paths import LEDGER, PATH, any_file
from fedpower.cli.progress import bar_of, counted, quiet_option
from fedpower.cli.silos import open_silos
from fedpower.errors import InputError
from fedpower.estimator.fitting import named_sources
from fedpower.estimator.plan import TRACE, Plan, plan, spectrum_of_gap, spectrum_of_result
from fedpower.estimator.terms import rules_of
from fedpower.options import from_flat
from fedpower.privacy.ledger import Ledger, rounded_down
from fedpower.privacy.statement import counted_as
from fedpower.report.codebook_file import read_code_book
from fedpower.report.result import Result, read_result
from fedpower.report.text import human_bytes
from fedpower.rows.units import UnitRows
from fedpower.rules.ruled import every_problem, match_tables


@click.command(
    cls=Command,
    name="plan",
    epilog="Example: fedpower plan --features 100 --silos 20x100000 -k 4 --epsilon 0.5 --gap 0.02",
)
@click.argument("files", nargs=-1, metavar="[FILE...]", shell_complete=any_file)
@parameter("n_components")
@parameter("epsilon")
@parameter("delta")
@option("--features", "n_features", group="main", type=click.IntRange(min=1),
        help="Number of columns, where neither FILES nor a code book or result tell it.")  # fmt: skip
@option("--silos", group="main", metavar="ROWS,ROWS,...|MxROWS",
        help="Rows of each silo, for instance 5000,8000 or 20x100000.")  # fmt: skip
@option("--groups", group="rows", metavar="COLUMN",
        help="Let each value of this column of one file be a silo.")  # fmt: skip
@option("--columns", group="rows", callback=values.names, metavar="NAME,NAME,...",
        help="Use these columns of FILES and no others.")  # fmt: skip
@option("--drop", group="rows", multiple=True, metavar="NAME",
        help="Leave out a column; repeatable.")  # fmt: skip
@reading_options
@EXTRA
@parameter("unit")
@parameter("rows_per_unit")
@parameter("center", help="Centre on the pooled mean (default).")
@parameter("standardize")
@parameter("aggregation")
@parameter("colluders")
@parameter("noise", help="What the fit would noise; all are shown.")
@parameter("energy")
@parameter("scores_epsilon")
@parameter("solver", help="Which solver the fit would take; all are shown.")
@parameter("weights")
@parameter("min_silos")
@parameter("iteration_rank")
@parameter("n_steps")
@parameter("local_steps")
@parameter("schedule")
@option("--gap", group="main", type=float,
        help="A guess of the eigengap, for rows of norm at most 1; in the units of the rows with "
             "--row-norm or --codebook.")  # fmt: skip
@option("--spectrum", group="main", metavar="RESULT|FILE|NUMBERS",
        help="The leading eigenvalues: the folder of an earlier result, or a guess in the units of "
             "--gap: a .npy file, or 0.03,0.02,...")  # fmt: skip
@option("--error", group="main", type=float, metavar="SINE",
        help="A wanted sin θ: tell which epsilon, or how many rows, it takes.")  # fmt: skip
@parameter("row_norm")
@parameter("normalize")
@option("--codebook", group="main", type=PATH, metavar="FILE",
        help="Code book from `fedpower prepare`, which the fit would be given.")  # fmt: skip
@option("--ledger", "ledgers", group="privacy", type=LEDGER, multiple=True,
        help="Tell what the fit would leave of this ledger; repeatable.")  # fmt: skip
@option("--json", "as_json", group="main", is_flag=True,
        help="Print one JSON object instead of a table.")  # fmt: skip
@quiet_option
def plan_command(**options: Any) -> None:
    """Tell rounds, bytes, noise and predicted error of every way a fit could be done.

    Nothing is charged and no row is used: of FILES only the numbers of rows and columns are read. With
    --gap or --spectrum the real solvers are rehearsed on made-up rows of that spectrum. A fit that is
    told no --row-norm, --normalize or --codebook first finds them privately, out of the same epsilon.
    """
    earlier = _earlier(options["spectrum"])
    sizes, n_features = _public_facts(options, earlier)
    made = plan(
        from_flat(given_options(options)),
        sizes=sizes,
        n_features=n_features,
        spectrum=_spectrum(options, n_features, earlier),
        error=options["error"],
    )
    left = {str(path): _left_after(path, options["epsilon"]) for path in options["ledgers"]}
    if options["as_json"]:
        record = made.as_dict()
        record["epsilon"] = made.epsilon if math.isfinite(made.epsilon) else "inf"
        print_json({"silos": sizes, "n_features": n_features, **record, "ledgers": left})
    else:
        _print(made, sizes, n_features, left, options["n_components"], thing=counted_as(options))


def _earlier(words: str | None) -> Result | None:
    """Return the result whose folder was given as a spectrum; None where it is none."""
    return read_result(words) if words is not None and Path(words).is_dir() else None


def _public_facts(options: dict[str, Any], earlier: Result | None) -> tuple[dict[str, int], int]:
    """Return the silos' sizes and the number of columns: given, or of files or an earlier result."""
    if options["files"]:
        if options["silos"] or options["n_features"]:
            raise InputError(
                "FILES must stand alone or --features and --silos without them, got both; leave one out"
            )
        silos = open_silos(
            options["files"],
            groups=options["groups"],
            columns=options["columns"],
            drop=options["drop"],
            **reading_of(options),
        )
        given = from_flat(given_options(options))
        opened = named_sources(silos, given)
        _, matched = match_tables(opened, rules_of(given), extra=options["extra_columns"])
        with bar_of("rows") as advance, every_problem(matched.values()):
            sizes = {
                name: source.n_units
                if isinstance(source, UnitRows)
                else source.n_rows
                or sum(int(block.shape[0]) for block in counted(source.blocks(65536), advance))
                for name, source in matched.items()
            }
        return sizes, next(iter(matched.values())).n_features
    n_features, sizes = options["n_features"], {}
    if n_features is None and options["codebook"] is not None:
        book = read_code_book(options["codebook"])
        n_features = len(book.rules.features) if book.is_draft and book.rules else book.low.size
    if earlier is not None:
        n_features, sizes = n_features or earlier.n_features, earlier.silo_sizes
    if options["silos"]:
        sizes = _sizes(options["silos"])
    if not sizes or not n_features:
        raise InputError(
            "a plan must know the silos' sizes and columns, got neither files nor both --features "
            "and --silos; give for instance --features 100 --silos 20x100000"
        )
    return sizes, n_features


def _sizes(words: str) -> dict[str, int]:
    try:
        if "x" in words:
            count, rows = (int(word) for word in words.split("x"))
            numbers = [rows] * count
        else:
            numbers = [int(word) for word in words.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InputError(
            f"--silos must be numbers of rows such as 5000,8000 or 20x100000, got {words!r}; "
            "give one number for each silo"
        )
    return {f"silo-{place}": rows for place, rows in enumerate(numbers, start=1)}


def _spectrum(options: dict[str, Any], n_features: int, earlier: Result | None) -> NDArray[np.float64] | None:
    """Return the eigenvalues that were guessed or found earlier, for rows of norm at most 1."""
    words, gap = options["spectrum"], options["gap"]
    if words is not None and gap is not None:
        raise InputError("--gap and --spectrum must not be given together, got both; choose one")
    bound, trace = options["row_norm"], TRACE
    book = options["codebook"] and read_code_book(options["codebook"])
    if book and not book.is_draft:
        bound = book.bound
        trace = min(TRACE, n_features / bound**2)  # columns of variance 1
    if earlier is not None:
        if earlier.n_features != n_features:
            raise InputError(
                f"--spectrum must be a result of as many columns as the plan has, {n_features}, got "
                f"{earlier.n_features}; give numbers instead"
            )
        return spectrum_of_result(earlier, row_norm=bound)
    unit = 1.0 if bound is None else bound**2
    if gap is not None:
        if not isinstance(options["n_components"], int):
            raise InputError(
                "--gap must go with a number of components, after which the gap is, got "
                f"-k {options['n_components']}; give the eigenvalues with --spectrum"
            )
        return spectrum_of_gap(gap / unit, options["n_components"], n_features, trace)
    if words is None:
        return None
    try:
        if words.endswith(".npy"):
            return np.asarray(np.load(words, allow_pickle=False), dtype=np.float64) / unit
        return np.array([float(word) for word in words.split(",")]) / unit
    except (OSError, ValueError):
        raise InputError(
            "--spectrum must be the folder of a result, a .npy file or numbers with commas between "
            f"them, got {words!r}; give for instance 0.03,0.02,0.01"
        ) from None


def _left_after(path: Path, epsilon: float) -> dict[str, Any]:
    with Ledger.open(path, read_only=True) as ledger:
        if not math.isfinite(epsilon):
            return {"fits": False, "left": ledger.left()}
        forecast = ledger.what_if(epsilon)
        return {"fits": forecast.fits, "left": forecast.left if forecast.fits else ledger.left()}


def _print(
    made: Plan,
    sizes: dict[str, int],
    n_features: int,
    left: dict[str, dict[str, Any]],
    asked: int | float | str,
    *,
    thing: str,
) -> None:
    out = console()
    promise = (
        f"epsilon={made.epsilon:g}, delta={made.delta:g}"
        if math.isfinite(made.epsilon)
        else "NOT PRIVATE (epsilon = inf)"
    )
    silos = f"{len(sizes)} silo{'s' if len(sizes) > 1 else ''}"
    rows = f"{sum(sizes.values()):,} {thing}s of {n_features} columns"
    out.print(f"{silos}, {rows}; {promise}.", soft_wrap=True)
    numbers = ("rounds", "up a silo", "down a silo", "noise", "predicted sin θ")
    shown = table(None, "", "solver", "noise mode", "sum", *numbers, numbers=numbers)
    for way in made.ways:
        shown.add_row(
            "→" if way.chosen else "",
            way.solver,
            way.noise,
            way.aggregation,
            "–" if way.rounds is None else str(way.rounds),
            "–" if way.bytes_up is None else human_bytes(way.bytes_up),
            "–" if way.bytes_down is None else human_bytes(way.bytes_down),
            f"{way.noise_level:.2e}",
            "–" if way.error is None else f"{way.error:.2e}",
        )
    out.print(shown)
    out.print(f"→ is what a fit would take: {made.choice.reason}.", soft_wrap=True)
    if made.preparation:
        out.print(
            "It would first find offset, scale and bound of the columns privately: "
            f"{made.preparation:.0%} of the budget, and some of the rounds. What errs in these is not "
            "predicted.",
            soft_wrap=True,
        )
    for remark in made.remarks:
        out.print(f"{remark[0].upper()}{remark[1:]}.", soft_wrap=True)
    found = [way.rank for way in made.ways if way.chosen and way.rank is not None]
    if found and not isinstance(asked, int):
        k = found[0]
        would = f"find {k} component{'' if k == 1 else 's'}" if k else "determine no component"
        out.print(f"It would {would} for -k {asked}.", soft_wrap=True)
    for last in (made.missing, None if made.needed is None else made.needed.sentence):
        if last is not None:
            out.print(f"{last[0].upper()}{last[1:]}.", soft_wrap=True)
    for path, after in left.items():
        verdict = "would be left" if after["fits"] else "is left, too little for this fit"
        out.print(f"{path}: epsilon={rounded_down(after['left'], 4)} {verdict}.", soft_wrap=True)
