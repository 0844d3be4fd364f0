"""`fedpower study`: the file that a consortium agrees on."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from fedpower.cli.console import print_facts, print_json
from fedpower.cli.silos import read_vector
from fedpower.cli.values import named_keys, names, ranges, rank
from fedpower.data import match_columns, open_source
from fedpower.data.codebook import ranges_of
from fedpower.errors import InputError
from fedpower.federation.study_file import StudyFile, read_study, rendered
from fedpower.protocol.private_study import worst_epsilon
from fedpower.report.atomic import new_file
from fedpower.report.codebook_file import read_code_book
from fedpower.report.record import plain

PATH = click.Path(path_type=Path)


@click.group()
def study() -> None:
    """Write, check and show the study file that a consortium agrees on."""


@study.command()
@click.argument("path", type=PATH, default=Path("study.toml"))
@click.option("--name", required=True, help="What the consortium calls the study.")
@click.option("--silos", callback=names, required=True, metavar="A,B,...", help="Who takes part.")
@click.option("--columns", callback=names, metavar="A,B,...", help="The columns, in this order.")
@click.option(
    "--columns-of", type=PATH, metavar="FILE", help="Take the columns of this file instead."
)
@click.option(
    "-k",
    "n_components",
    callback=rank,
    required=True,
    metavar="K",
    help="Number of components, a fraction of variance, or noise: those that stand above it.",
)
@click.option("--epsilon", type=float, required=True, help="Each silo's budget; inf for none.")
@click.option("--delta", type=float, default=1e-6, show_default=True, help="The δ of (ε, δ).")
@click.option(
    "--center-file", type=PATH, metavar="FILE", help="Public centres: lines of name,value."
)
@click.option(
    "--scale-file", type=PATH, metavar="FILE", help="Public divisors: lines of name,value."
)
@click.option("--row-norm", type=float, help="Public bound on a row's norm.")
@click.option(
    "--codebook", type=PATH, metavar="FILE", help="Code book from `fedpower prepare` instead."
)
@click.option(
    "--range",
    "ranges",
    callback=ranges,
    multiple=True,
    metavar="COLUMN=LOW:HIGH",
    help="What a column's cells lie between; repeatable.",
)
@click.option("--normalize", is_flag=True, help="Scale every row to norm 1 instead.")
@click.option(
    "--identity",
    "identities",
    callback=named_keys,
    multiple=True,
    metavar="SILO=KEY",
    help="A silo's public key for a secure sum, as `fedpower identity show` prints it; repeatable.",
)
@click.option("--min-silos", type=int, help="Fewest silos a round may go on with; all by default.")
@click.option("--deadline", type=float, default=600.0, show_default=True, help="Seconds a round.")
@click.option("--grace", type=float, help="Seconds for stragglers once enough have answered.")
@click.option("--host", default="localhost", show_default=True, help="The coordinator's host name.")
@click.option("--port", type=int, default=8002, show_default=True, help="The coordinator's port.")
@click.option("--force", is_flag=True, help="Replace the file.")
def init(path: Path, *, force: bool, **options: Any) -> None:
    """Write a study file to PATH, for all parties to read and agree on.

    Example: fedpower study init --name heart-2026 --silos north,south,east --columns-of north.csv
    -k 4 --epsilon 1 --row-norm 10 --host coordinator.example.org
    """
    with new_file(path, force=force) as place:
        place.write_text(rendered(_content(options)), encoding="utf-8")
        made = read_study(place)
    click.echo(
        f"wrote {path}, study {made.digest}: read it, change what is to be changed, and send it to "
        "every party; `fedpower study check` looks it over"
    )


@study.command()
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(path: Path, *, as_json: bool) -> None:
    """Look over the study in PATH: what is wrong with it is said in one sentence."""
    read = read_study(path)
    if as_json:
        print_json({"study": str(path), "name": read.name, "hash": read.digest})
        return
    click.echo(f"{path} is in order: study {read.name}, {read.digest}")


@study.command()
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(path: Path, *, as_json: bool) -> None:
    """Show what the study in PATH comes to, its defaults filled in, and its hash."""
    read = read_study(path)
    print_facts(f"Study {read.name}", _facts(read), as_json=as_json)
    if not as_json:
        click.echo(
            f'To agree to it and to no other, a silo has in its file:\n[agrees]\nstudy = "{read.digest}"'
        )


def _content(options: dict[str, Any]) -> dict[str, Any]:
    """Return a study file's content from the command's options."""
    columns = options["columns"]
    if (columns is None) == (options["columns_of"] is None):
        raise InputError(
            "the columns must be given once, got --columns and --columns-of both or neither; give one"
        )
    if columns is None:
        columns, _ = match_columns([open_source(options["columns_of"])])
        if columns is None:
            raise InputError(
                f"{options['columns_of']} must have column names, got none; list them with --columns"
            )
    given = {
        name: read_vector(path, tuple(columns)).tolist()
        for name, path in (("offset", options["center_file"]), ("scale", options["scale_file"]))
        if path is not None
    }
    rows = {"row_norm": options["row_norm"], "normalize": options["normalize"] or None}
    if options["codebook"] is not None:
        if given or options["ranges"] or any(rows.values()):
            raise InputError(
                "--codebook must be given alone, for it says what files, ranges and bounds would, got "
                "one of them beside it; leave them out"
            )
        book = read_code_book(options["codebook"])
        book.check_columns(tuple(columns), len(columns))
        given = {"offset": book.offset.tolist(), "scale": book.scale.tolist()}
        given["ranges"] = np.column_stack([book.low, book.high]).tolist()
        rows |= {"row_norm": book.bound, "standardize": True}
    elif options["ranges"]:
        known = ranges_of(options["ranges"], tuple(columns), len(columns))
        given["ranges"] = [[] if each is None else list(each) for each in known]
    rounds = {name: options[name] for name in ("min_silos", "deadline", "grace")}
    privacy: dict[str, Any] = {"epsilon": options["epsilon"], "delta": options["delta"]}
    if options["epsilon"] == float("inf"):
        del privacy["delta"]
    secure = {}
    if options["identities"]:
        privacy["aggregation"] = "secure"
        secure = {"identities": options["identities"]}
    return {
        "name": options["name"],
        "columns": {"names": list(columns), **given},
        "rows": {"center": True, **_given(rows)},
        "components": {"n_components": options["n_components"]},
        "privacy": privacy,
        "rounds": _given(rounds),
        "silos": {"names": list(options["silos"])},
        **secure,
        "coordinator": {"host": options["host"], "port": options["port"]},
    }


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _facts(read: StudyFile) -> dict[str, Any]:
    terms, _, choice = read.terms()
    given = read.parameters
    attempts: dict[str, Any] = {}
    if terms.aggregation == "secure":
        attempts = {"attempts": terms.attempts}
        if terms.is_private:
            attempts["epsilon_of_all_attempts"] = float(f"{worst_epsilon(terms):.4g}")
    return {
        "name": read.name,
        "hash": read.digest,
        "silos": list(read.silos),
        "min_silos": read.min_silos,
        "columns": list(read.columns),
        "row_norm": given.row_norm,
        "normalize": bool(given.normalize),
        "center": given.centers,
        "offset": plain(given.public_offset),
        "ranges": plain(given.ranges),
        "prepared_privately": bool(terms.preparation),
        "n_components": given.n_components,
        "iteration_rank": terms.iteration_rank,
        "epsilon": plain(terms.epsilon),
        "delta": terms.delta,
        "noise": terms.noise,
        "aggregation": terms.aggregation,
        **attempts,
        "solver": choice.solver,
        "why_this_solver": choice.reason,
        "deadline": read.deadline,
        "grace": read.grace,
        "coordinator": f"{read.host}:{read.port}",
    }
