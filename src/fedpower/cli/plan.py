"""`fedpower inspect` and `plan`: what tables contain, and what a fit would cost, before anything is spent."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fedpower.cli.console import bar_of, counted, print_json, print_table, say
from fedpower.cli.options import READING, TEXT, Command, given_options, option, options, reading_of, shared
from fedpower.cli.silos import open_silos
from fedpower.estimator.fitting import open_data
from fedpower.estimator.plan import Plan, spectrum_of_gap, spectrum_of_result
from fedpower.estimator.plan import plan as planned
from fedpower.exceptions import InputError
from fedpower.files import new_file
from fedpower.options import Options, from_flat
from fedpower.privacy.ledger import Ledger, rounded_down
from fedpower.privacy.statement import as_sentence, counted_as
from fedpower.report.record import plain
from fedpower.report.result import Result, read_result
from fedpower.report.text import count, human_bytes, number
from fedpower.rows.inspecting import ColumnLook, draft_of, look_at, stored_types
from fedpower.rows.opening import is_text, open_source
from fedpower.rows.ruled import every_problem
from fedpower.rows.units import UnitRows
from fedpower.rules.codebook import FORMAT
from fedpower.toml import as_toml, toml_key


@click.command(
    cls=Command,
    epilog="Example: fedpower plan --n-features 100 --rows 20x100000 -k 4 --epsilon 0.5 --gap 0.02",
)
@click.argument("files", nargs=-1, metavar="[FILE...]", type=click.Path())
@options(
    "n_components epsilon delta",
    shared("n_features", help="Number of columns, without FILES.", group="main", type=click.IntRange(1)),
    option("--rows ROWS,...|MxROWS", "Rows of each silo, e.g. 5000,8000 or 20x100000.", name="sizes"),
    "unit aggregation codebook columns drop",
    option("--gap", "A guess of the eigengap, for rows of norm at most --row-norm, or 1.", float),
    option("--spectrum RESULT|FILE|NUMBERS", "Leading eigenvalues: a result, a .npy file, or 0.03,0.02,..."),
    option("--error SINE", "Report the epsilon or rows for this sin θ.", float),
    shared("ledgers", help="Report what the fit would leave of a folder's ledgers, or of one; repeatable."),
    "as_json quiet",
    f"groups {READING} extra_columns rows_per_unit center standardize colluders",
    shared("noise", help="What the fit would noise; all are shown."),
    "energy scores_epsilon",
    shared("solver", help="Solver that the fit would use; all are shown."),
    "weights min_silos iteration_rank n_steps local_steps schedule",
    "row_norm normalize",
)
def plan(**given: Any) -> None:
    """Report rounds, bytes, noise and predicted error of every way a fit could be done.

    Nothing is charged and no row is used: of FILES only the numbers of rows and columns are read. With
    --gap or --spectrum the real solvers are rehearsed on made-up rows of that spectrum. A fit without
    --row-norm, --normalize or --codebook first finds them privately, out of the same epsilon.
    """
    wanted = from_flat(given_options(given))
    words = given["spectrum"]
    earlier = read_result(words) if words is not None and Path(words).is_dir() else None
    sizes, n_features = _public_facts(given, wanted, earlier)
    spectrum = _spectrum(given, wanted, n_features, earlier)
    made = planned(wanted, sizes=sizes, n_features=n_features, spectrum=spectrum, error=given["error"])
    left = {str(path): _left_after(path, given["epsilon"]) for path in _ledgers(given["ledgers"])}
    if given["as_json"]:
        record = asdict(made) | {"epsilon": made.epsilon if math.isfinite(made.epsilon) else "inf"}
        print_json({"silos": sizes, "n_features": n_features, **record, "ledgers": left})
    else:
        _print(made, sizes, n_features, left, given)


def _public_facts(
    given: dict[str, Any], wanted: Options, earlier: Result | None
) -> tuple[dict[str, int], int]:
    """Return the silos' sizes and the number of columns: given, or of files or an earlier result."""
    if given["files"]:
        if given["sizes"] or given["n_features"]:
            raise InputError("--n-features and --rows must go without FILES, got both")
        data = open_data(open_silos(given), wanted, given["extra_columns"])
        with bar_of("rows") as advance, every_problem(data.sources.values()):
            sizes = {
                name: source.n_units
                if isinstance(source, UnitRows)
                else source.n_rows
                or sum(int(block.shape[0]) for block in counted(source.blocks(65536), advance))
                for name, source in data.sources.items()
            }
        return sizes, data.n_features
    book, n_features, sizes = wanted.codebook, given["n_features"], {}
    if n_features is None and book is not None:
        n_features = len(book.rules.features) if book.is_draft and book.rules else book.low.size
    if earlier is not None:
        n_features, sizes = n_features or earlier.n_features, earlier.silo_sizes
    if given["sizes"]:
        sizes = _sizes(given["sizes"])
    if not sizes or not n_features:
        raise InputError("--n-features and --rows must be given where there are no FILES")
    return sizes, n_features


def _sizes(words: str) -> dict[str, int]:
    try:
        silos, sign, rows = words.rpartition("x")
        numbers = [int(rows)] * int(silos) if sign else [int(word) for word in words.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InputError(f"--rows must be numbers of rows such as 5000,8000 or 20x100000, got {words!r}")
    return {f"silo-{place}": rows for place, rows in enumerate(numbers, start=1)}


def _spectrum(
    given: dict[str, Any], wanted: Options, n_features: int, earlier: Result | None
) -> NDArray[np.float64] | None:
    """Return the eigenvalues that were guessed or found earlier, for rows of norm at most 1."""
    words, gap, k = given["spectrum"], given["gap"], given["n_components"]
    if words is not None and gap is not None:
        raise InputError("--gap and --spectrum must not be given together, got both")
    bound, trace = given["row_norm"], 1.0
    if wanted.book is not None:
        bound = wanted.book.bound
        trace = min(1.0, n_features / bound**2)  # columns of variance 1
    if earlier is not None:
        if earlier.n_features != n_features:
            raise InputError(f"--spectrum must have {n_features} columns, got {earlier.n_features}")
        return spectrum_of_result(earlier, row_norm=bound)
    unit = 1.0 if bound is None else bound**2
    if gap is not None:
        if not isinstance(k, int):
            raise InputError(f"--gap must go with a number of components, got -k {k}; see --spectrum")
        return spectrum_of_gap(gap / unit, k, n_features, trace)
    if words is None:
        return None
    try:
        is_file = words.endswith(".npy")
        numbers = np.load(words, allow_pickle=False) if is_file else words.split(",")
        return np.asarray(numbers, dtype=np.float64) / unit
    except (OSError, ValueError):
        raise InputError(
            f"--spectrum must be a result, a .npy file or numbers such as 0.03,0.02, got {words!r}"
        ) from None


def _ledgers(words: Iterable[str]) -> Iterator[Path]:
    for word in words:
        _, _, path = word.partition("=")
        one = Path(word if Path(word).exists() or not path else path)
        yield from sorted(one.glob("*.ledger")) if one.is_dir() else [one]


def _left_after(path: Path, epsilon: float) -> dict[str, Any]:
    with Ledger.open(path, read_only=True) as ledger:
        if not math.isfinite(epsilon):
            return {"fits": False, "left": ledger.spent().left}
        forecast = ledger.what_if(epsilon)
        return {"fits": forecast.fits, "left": forecast.left if forecast.fits else ledger.spent().left}


def _print(
    made: Plan, sizes: dict[str, int], n_features: int, left: dict[str, dict[str, Any]], given: dict[str, Any]
) -> None:
    promise = f"epsilon={made.epsilon:g}, delta={made.delta:g}"
    if not math.isfinite(made.epsilon):
        promise = "NOT PRIVATE (epsilon = inf)"
    rows = f"{sum(sizes.values()):,} {counted_as(given)}s of {n_features} columns"
    say(f"{count(len(sizes), 'silo')}, {rows}; {promise}.")
    numbers = ("rounds", "up a silo", "down a silo", "noise", "predicted sin θ")
    shown = [
        (
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
        for way in made.candidates
    ]
    print_table(None, ("", "solver", "noise mode", "sum", *numbers), shown, numbers=numbers)
    lines = [f"→ is what a fit would take: {made.choice.reason}"]
    if made.preparation:
        lines.append(
            "It would first find offset, scale and bound of the columns privately: "
            f"{made.preparation:.0%} of the budget, and some of the rounds. "
            "The prediction ignores error in these estimates"
        )
    lines += made.remarks
    ranks = [way.rank for way in made.candidates if way.chosen and way.rank is not None]
    if ranks and not isinstance(given["n_components"], int):
        k = ranks[0]
        would = f"find {count(k, 'component')}" if k else "determine no component"
        lines.append(f"It would {would} for -k {given['n_components']}")
    lines += [] if made.missing is None else [made.missing]
    lines += [] if made.needed is None else [made.needed.sentence]
    say(*map(as_sentence, lines))
    for path, after in left.items():
        verdict = "would be left" if after["fits"] else "is left, too little for this fit"
        say(f"{path}: epsilon={rounded_down(after['left'], 4)} {verdict}.")


# --- inspect ----------------------------------------------------------------------------------------

_SHOWN, _LONGEST = 5, 24  # levels that are shown of a column, and letters of a level

_FACTS = ("name", "type", "n_rows", "n_missing", "n_odd", "low", "high", "levels", "doubts")

_PUBLIC = "# Drafted from names and stored types alone: no row has a part in it.\n"
_CONFIDENTIAL = (
    "# Confidential: drafted from rows. Do not send; propose a code book from what you know instead.\n"
)


@click.command(cls=Command, epilog="Example: fedpower inspect north.csv --draft codebook.toml")
@options(
    "files",
    option("--draft FILE", "Draft rules from names and stored types here."),
    option("--from-rows", "With --draft: guess kinds from rows; the draft is confidential."),
    f"{TEXT} force as_json",
)
def inspect(
    files: tuple[str, ...], *, draft: Path | None, from_rows: bool, force: bool, as_json: bool, **reading: Any
) -> None:
    """Inspect the columns of FILES: types, missing cells, levels, and doubtful columns.

    It is for your eyes: what it prints is read from rows, and nothing of it leaves this screen. A draft
    has names and stored types only. Text files store no types: fill in the kind of each column.
    """
    if from_rows and draft is None:
        raise InputError("--from-rows must go with --draft, got no file for it")
    text = reading_of(reading)
    sources = {name: open_source(Path(name), **(text if is_text(name) else {})) for name in files}
    columns = {name: look_at(source) for name, source in sources.items()}
    if draft is not None:
        types = [
            {look.name: look.type for look in columns[name]} if from_rows else stored_types(source)
            for name, source in sources.items()
        ]
        with new_file(draft, force=force) as place:
            place.write_text(_drafted(types, from_rows=from_rows), encoding="utf-8")
    if as_json:
        record: dict[str, Any] = {"draft": None if draft is None else str(draft)}
        record["files"] = {
            name: [{fact: plain(getattr(look, fact)) for fact in _FACTS} for look in looks]
            for name, looks in columns.items()
        }
        print_json(record)
        return
    headings = ("column", "type", "missing", "values", "to think of")
    for name, looks in columns.items():
        title = f"{name}: {looks[0].n_rows if looks else 0} rows of {len(looks)} columns"
        rows = [
            (look.name, look.type, f"{look.n_missing or ''}", _cells_of(look), "; ".join(look.doubts))
            for look in looks
        ]
        print_table(title, headings, rows, numbers=("missing",))
    click.echo("This was read from rows: it is for your eyes, and is kept nowhere.")
    if draft is not None and from_rows:
        click.echo(f"wrote {draft} from rows: it is confidential; keep it where the rows are")
    elif draft is not None:
        click.echo(
            f"wrote {draft}: names and stored types only; fill it in with the others, then give it to "
            "`fedpower fit` or `study init` with --codebook"
        )


def _drafted(types: list[dict[str, Any]], *, from_rows: bool) -> str:
    help = resources("fedpower.report").joinpath("templates", "draft.toml").read_text(encoding="utf-8")
    head = (_CONFIDENTIAL if from_rows else _PUBLIC) + help
    lines = [f"{head}format = {as_toml(FORMAT)}", "", "[rules]"]
    for column, (rule, hint) in draft_of(types).items():
        lines.append(f"{toml_key(column)} = {as_toml(rule)}{f'  # {hint}' if hint else ''}")
    return "\n".join(lines) + "\n"


def _cells_of(look: ColumnLook) -> str:
    if look.type == "number" and look.low is not None and look.high is not None:
        return f"{number(look.low)} to {number(look.high)}"
    if look.type == "nothing":
        return ""
    if look.levels is None:
        return "many levels"
    if look.type == "date":
        return f"{len(look.levels)} different"
    words = [word if len(word) <= _LONGEST else f"{word[:_LONGEST]}…" for word in look.levels]
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    many = "1 level" if len(words) == 1 else f"{len(words)} levels"
    return f"{many}: {', '.join(words[:_SHOWN])}{more}"
