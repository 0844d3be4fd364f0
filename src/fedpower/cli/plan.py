"""`fedpower inspect` and `plan`: what tables contain, and what a fit would cost, before anything is spent."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import chain, compress
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fedpower.cli.console import bar_of, counted, in_options, print_json, print_table, say
from fedpower.cli.options import READING, TEXT, Command, given_options, option, options, reading_of, shared
from fedpower.cli.silos import named_ledgers, open_silos
from fedpower.estimator.fitting import open_data
from fedpower.estimator.plan import Plan, eigenvalues_for, planned, sizes_of
from fedpower.exceptions import InputError
from fedpower.files import new_file
from fedpower.options import Options, from_flat
from fedpower.privacy.ledger import Ledger, rounded_down
from fedpower.privacy.statement import as_sentence
from fedpower.report.record import plain
from fedpower.report.result import Result, read_result
from fedpower.report.text import MISSING, and_more, count, human_bytes, listed, number
from fedpower.rows.inspecting import ColumnLook, drafted, look_at, stored_types, together
from fedpower.rows.opening import is_text, open_source


@click.command(
    cls=Command, epilog="Example: fedpower plan --n-features 100 --rows 20x5000 -k 4 --epsilon 1 --gap 0.02"
)
@click.argument("files", nargs=-1, metavar="[FILE...]", type=click.Path())
@options(
    "n_components epsilon delta",
    shared("n_features", help="Number of columns, without FILES.", group="main", type=click.IntRange(1)),
    option("--rows ROWS,...|MxROWS", "Rows of each silo, e.g. 5000,8000 or 20x100000.", name="sizes"),
    "unit aggregation codebook ranges columns drop",
    option("--gap", "Guess of the eigengap, for rows of norm at most --row-norm, or 1.", float),
    option(
        "--spectrum RESULT|FILE|NUMBERS",
        "The k + 1 leading eigenvalues: a result, a .npy file, or 0.3,0.2,...",
    ),
    option("--error SINE", "Find the epsilon, or the rows, for this error (sin θ).", float),
    shared("ledgers", help="Show what the fit would leave in these ledgers; repeatable."),
    option("--all", "Show every solver and kind of noise.", name="show_all"),
    "as_json quiet verbose",
    f"groups {READING} extra_columns rows_per_unit center standardize colluders",
    "noise energy scores_epsilon solver weights min_silos iteration_rank n_steps local_steps schedule",
    "row_norm normalize",
)
def plan(**given: Any) -> None:
    """Show what a fit costs and how accurate it will be, before anything is spent.

    A plan charges no ledger. From FILES it uses the columns and the numbers of rows; it reads cells only to
    count rows. It predicts the error of the components, without clipping, from a guess of their eigenvalues:
    give --gap or --spectrum.
    """
    wanted = from_flat(given_options(given))
    words = given["spectrum"]
    earlier = read_result(words) if words is not None and Path(words).is_dir() else None
    facts = _public_facts(given, wanted, earlier)
    sizes, spectrum = facts["sizes"], _spectrum(given, wanted, facts["n_features"], earlier)
    made = planned(wanted, **facts, spectrum=spectrum, error=given["error"])
    ledgers = named_ledgers(given["ledgers"], list(sizes) if given["files"] else None)
    left = {str(path): _left_after(path, given["epsilon"]) for path in ledgers.values()}
    if given["as_json"]:
        record = asdict(made) | {"epsilon": made.epsilon if math.isfinite(made.epsilon) else "inf"}
        print_json({**record, "ledgers": left})
    else:
        _print(made, left, show_all=given["show_all"])


def _public_facts(given: dict[str, Any], wanted: Options, earlier: Result | None) -> dict[str, Any]:
    """Return the silos' sizes and the columns: given, or of files or an earlier result."""
    if given["files"]:
        if given["sizes"] or given["n_features"]:
            raise InputError("--n-features and --rows must go without FILES, got both")
        data = open_data(open_silos(given), wanted, given["extra_columns"])
        with bar_of("rows") as advance:
            sizes = sizes_of(data, wanted, lambda blocks: counted(blocks, advance))
        return {"sizes": sizes, "n_features": data.n_features, "columns": data.columns}
    book, n_features, sizes = wanted.codebook, given["n_features"], {}
    if n_features is None and book is not None:
        n_features = len(book.rules.features) if book.is_draft and book.rules else book.low.size
    if earlier is not None:
        n_features, sizes = n_features or earlier.n_features, earlier.silo_sizes
    if given["sizes"]:
        sizes = _sizes(given["sizes"])
    if not sizes or not n_features:
        raise InputError("--n-features and --rows must be given where there are no FILES")
    return {"sizes": sizes, "n_features": n_features}


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
    words = given["spectrum"]
    try:
        guess: Any = earlier
        if words is not None and earlier is None:
            is_file = words.endswith(".npy")
            numbers = np.load(words, allow_pickle=False) if is_file else words.split(",")
            guess = np.asarray(numbers, dtype=np.float64)
    except (OSError, ValueError):
        raise InputError(
            f"--spectrum must be a result, a .npy file or numbers such as 0.03,0.02, got {words!r}"
        ) from None
    return eigenvalues_for(wanted, n_features, gap=given["gap"], spectrum=guess)


def _left_after(path: Path, epsilon: float) -> dict[str, Any]:
    with Ledger.open(path, read_only=True) as ledger:
        if not math.isfinite(epsilon):
            return {"fits": False, "left": ledger.spent().left}
        forecast = ledger.what_if(epsilon)
        return {"fits": forecast.fits, "left": forecast.left if forecast.fits else ledger.spent().left}


def _print(made: Plan, left: dict[str, dict[str, Any]], *, show_all: bool) -> None:
    say(made.terms)
    findings = made.findings
    if show_all:
        _print_candidates(made)
        findings[0] = as_sentence(made.choice.reason)
    say(*(in_options(line).replace("a spectrum, or a gap", "--gap or --spectrum") for line in findings))
    for path, after in left.items():
        verdict = "would be left" if after["fits"] else "is left, too little for this fit"
        say(f"{path}: ε = {rounded_down(after['left'], 3)} {verdict}.")


def _print_candidates(made: Plan) -> None:
    numbers = ("rounds", "sent", "received", "noise", "error")
    shown = [
        (
            f"{'→' if way.chosen else ' '} {way.solver}",
            way.noise,
            way.aggregation,
            MISSING if way.rounds is None else str(way.rounds),
            MISSING if way.bytes_up is None else human_bytes(way.bytes_up),
            MISSING if way.bytes_down is None else human_bytes(way.bytes_down),
            f"{way.noise_level:.1e}",
            MISSING if way.error is None else f"{way.error:.2g}",
        )
        for way in made.candidates
    ]
    print_table(None, ("  solver", "noise of", "sums", *numbers), shown, numbers=numbers)
    say("Sent and received: by each silo. Error: expected sin θ. → is what a fit takes.")


# --- inspect ----------------------------------------------------------------------------------------

_SHOWN, _LONGEST = 5, 24  # levels that are shown of a column, and letters of a level
_OTHER_UNIT = 1.8  # times the largest value of another file: kilograms and pounds differ by 2.2

_FACTS = ("name", "type", "n_rows", "n_missing", "n_odd", "low", "high", "levels", "doubts")


@click.command(cls=Command, epilog="Example: fedpower inspect north.csv south.csv --draft codebook.toml")
@options(
    "files",
    option("--draft FILE", "Write a draft of a code book, from names and stored types."),
    option("--from-rows", "With --draft: also guess kinds from rows; the draft is confidential."),
    f"{TEXT} force as_json",
)
def inspect(
    files: tuple[str, ...], *, draft: Path | None, from_rows: bool, force: bool, as_json: bool, **reading: Any
) -> None:
    """Show what the columns of FILES hold: types, missing cells, values and what to check.

    All of it is read from your rows: do not pass it on. A draft has only names and stored types, so it
    may be shared. Text files store no types: fill in the kind of each column.
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
            place.write_text(drafted(types, from_rows=from_rows), encoding="utf-8")
    if as_json:
        record: dict[str, Any] = {"draft": None if draft is None else str(draft)}
        record["files"] = {
            name: [{fact: plain(getattr(look, fact)) for fact in _FACTS} for look in looks]
            for name, looks in columns.items()
        }
        print_json(record)
        return
    for group, rows in _tables_of(columns):
        sizes = [f"{name} ({count(columns[name][0].n_rows, 'row')})" for name in group if columns[name]]
        has_missing, has_doubts = (any(row[place] for row in rows) for place in (2, 4))
        keep = [True, True, has_missing, True, has_doubts]
        kept = [
            list(compress(row, keep)) for row in [("column", "type", "missing", "values", "check"), *rows]
        ]
        print_table(f"{listed(sizes)}, {count(len(rows), 'column')}", kept[0], kept[1:], numbers=("missing",))
    if draft is not None and from_rows:
        say(f"Draft: {draft}. It is confidential, as it comes from rows.")
    elif draft is not None:
        say(
            f"Draft: {draft}. It has names and stored types only. Fill it in, then give it to "
            "`fedpower fit --codebook`."
        )


def _tables_of(columns: dict[str, list[ColumnLook]]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield files whose columns have the same names and types, and one table for all of them."""
    groups: dict[Any, list[str]] = {}
    for name, looks in columns.items():
        groups.setdefault(frozenset((look.name, look.type) for look in looks), []).append(name)
    for group in groups.values():
        held = [{look.name: look for look in columns[name]} for name in group]
        rows = []
        for column in held[0]:
            same = [looks[column] for looks in held]
            missing, look = sum(look.n_missing for look in same), together(same)
            doubts = _doubts_of(dict(zip(group, same, strict=True)))
            rows.append([column, look.type, f"{missing or ''}", _cells_of(look), "; ".join(doubts)])
        yield group, rows


def _doubts_of(looks: Mapping[str, ColumnLook]) -> Iterator[str]:
    """Yield what to check of a column, with the files where it is not so in all of them."""
    for doubt in dict.fromkeys(chain.from_iterable(look.doubts for look in looks.values())):
        held = [name for name, look in looks.items() if doubt in look.doubts]
        yield doubt if len(held) == len(looks) else f"{doubt} ({', '.join(and_more(held))})"
    most = {name: look.high for name, look in looks.items() if look.high is not None and look.high > 0}
    if most:
        largest, least = max(most, key=lambda name: most[name]), min(most, key=lambda name: most[name])
        if most[largest] >= _OTHER_UNIT * most[least]:
            ends = [f"{number(most[name])} in {name}" for name in (largest, least)]
            yield f"max {', '.join(ends)}: units?"


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
