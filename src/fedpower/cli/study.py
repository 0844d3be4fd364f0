"""`fedpower study`: the file that a consortium agrees on."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from fedpower.cli.console import print_facts, print_json
from fedpower.cli.options import PATH, READING, Command, by_name, names, option, options, reading_of, shared
from fedpower.cli.silos import read_nodes, read_vector
from fedpower.errors import InputError
from fedpower.federation.study_file import StudyFile, read_study, to_toml
from fedpower.options import FLAT
from fedpower.protocol.study import worst_epsilon
from fedpower.report.codebook_file import read_code_book
from fedpower.report.files import new_file
from fedpower.report.record import plain
from fedpower.rows.opening import open_source
from fedpower.rows.source import match_columns
from fedpower.rows.units import by_unit
from fedpower.rules.codebook import ranges_of
from fedpower.rules.rules import TableRules


@click.group()
def study() -> None:
    """Write, check and show the study file that a consortium agrees on."""


_AGREED = tuple(name for name, spec in FLAT.items() if spec.option is not None and spec.section)
"""Parameters of a fit that a consortium agrees on: each is an option, and a key of the study file."""

_OTHERWISE: dict[str, dict[str, Any]] = {
    "delta": {"default": 1e-6, "help": "The δ of (ε, δ)."},
    "deadline": {"default": 600.0},
    "min_silos": {"help": "Fewest silos that a round may continue with; all by default."},
}
"""What a study file must contain that a fit finds out by itself."""


@study.command(cls=Command)
@click.argument("path", type=PATH, default=Path("study.toml"))
@options(
    option("--name TEXT", "Name of the study.", required=True),
    option("--silos A,B,...", "Names of the silos.", callback=names, required=True),
    option("--columns A,B,...", "The columns, in this order.", callback=names),
    option("--columns-of FILE", "Take the columns of this file instead."),
    option(
        "--network", "Protect an edge of a network, or a row of its adjacency.", click.Choice(["edge", "row"])
    ),
    option("--nodes FILE", "Names of the nodes of networks, one per line."),
    option("--edge-weight W", "Public maximum at which weights are capped.", float),
    *(shared(name, **_OTHERWISE.get(name, {})) for name in _AGREED),
    "codebook ranges center_file scale_file",
    option(
        "--identity SILO=KEY",
        "A silo's public key; repeatable.",
        name="identities",
        group="privacy",
        callback=by_name("SILO=KEY"),
        multiple=True,
    ),
    option("--grace", "Seconds for stragglers once enough have answered.", float, group="rounds"),
    option("--host TEXT", "The coordinator's host name.", group="running", default="localhost"),
    option("--port", "The coordinator's port.", int, group="running", default=8002),
    f"{READING} force",
)
def init(path: Path, *, force: bool, **given: Any) -> None:
    """Write a study file to PATH, for all parties to read and agree on.

    Example: fedpower study init --name heart-2026 --silos north,south,east --columns-of north.csv
    -k 4 --epsilon 1 --row-norm 10 --host coordinator.example.org
    """
    with new_file(path, force=force) as place:
        place.write_text(to_toml(_content(given)), encoding="utf-8")
        made = read_study(place)
    click.echo(
        f"wrote {path}, study {made.digest}: read it, change what is to be changed, and send it to "
        "every party; `fedpower study check` looks it over"
    )


@study.command()
@click.argument("path", type=PATH)
@options("as_json")
def check(path: Path, *, as_json: bool) -> None:
    """Check the study in PATH."""
    read = read_study(path)
    if as_json:
        print_json({"study": str(path), "name": read.name, "hash": read.digest})
    else:
        click.echo(f"{path} is in order: study {read.name}, {read.digest}")


@study.command()
@click.argument("path", type=PATH)
@options("as_json")
def show(path: Path, *, as_json: bool) -> None:
    """Show the study in PATH with its defaults filled in, and its hash."""
    read = read_study(path)
    print_facts(f"Study {read.name}", _facts(read), as_json=as_json)
    if not as_json:
        click.echo(
            f'To agree to it and to no other, a silo has in its file:\n[agrees]\nstudy = "{read.digest}"'
        )


def _content(given: dict[str, Any]) -> dict[str, Any]:
    """Return a study file's content from the command's options."""
    book = None if given["codebook"] is None else read_code_book(given["codebook"])
    rules = None if book is None else book.table_rules
    columns = _columns(given, rules)
    features = columns if rules is None else rules.completed(columns).features
    files = {"offset": given["center_file"], "scale": given["scale_file"]}
    numbers = {name: read_vector(path, features).tolist() for name, path in files.items() if path is not None}
    tables: dict[str, dict[str, Any]] = {"rows": {"center": given["network"] is None}}
    for name, spec in FLAT.items():
        if spec.section not in (None, "columns") and given.get(name) is not None:
            tables.setdefault(spec.section, {})[name] = given[name]
    rows = tables["rows"]
    if given["network"] == "row":  # as the paper does
        rows.setdefault("normalize", True)
    if book is not None and not book.is_draft and not book.follows_rules:
        if numbers or given["ranges"] or {"row_norm", "normalize"} & rows.keys():
            raise InputError("--codebook must go without files, ranges and bounds, which it has, got both")
        book.check_columns(features, len(features))
        ranges = np.column_stack([book.low, book.high]).tolist()
        numbers = {"offset": book.offset.tolist(), "scale": book.scale.tolist(), "ranges": ranges}
        rows["row_norm"] = book.bound
    elif given["ranges"]:
        known = ranges_of(given["ranges"], features, len(features))
        numbers["ranges"] = [[] if ends is None else list(ends) for ends in known]
    if given["epsilon"] == float("inf"):
        del tables["privacy"]["delta"]
    if given["identities"]:
        tables["privacy"]["aggregation"] = "secure"
        tables["identities"] = given["identities"]
    if given["grace"] is not None:
        tables["rounds"]["grace"] = given["grace"]
    return {
        **tables,
        "name": given["name"],
        "columns": {"names": list(columns), **numbers},
        **({} if rules is None else {"rules": rules.as_content()}),
        "silos": {"names": list(given["silos"])},
        "coordinator": {"host": given["host"], "port": given["port"]},
    }


def _columns(given: dict[str, Any], rules: TableRules | None) -> tuple[str, ...]:
    """Return the tables' columns that the study has, those that rules drop left out."""
    columns, file = given["columns"], given["columns_of"]
    if (given["network"] is None) != (given["nodes"] is None):
        raise InputError("--network and --nodes must go together, got one of them")
    if given["nodes"] is not None:
        if columns or file:
            raise InputError("--nodes must go without --columns and --columns-of, got both")
        return tuple(read_nodes(given["nodes"]))
    if columns is None and file is None and rules is not None:
        columns = rules.columns
    elif (columns is None) == (file is None):
        raise InputError("either --columns or --columns-of must be given, got both or neither")
    if columns is None:
        source = open_source(file, **reading_of(given, "rename"))
        columns, _ = match_columns([source if given["unit"] is None else by_unit(source, given["unit"])])
        if columns is None:
            raise InputError(f"{file} must have column names, got none; list them with --columns")
    if rules is not None:
        columns = tuple(name for name in columns if name not in rules.dropped)
        missing = [name for name in rules.columns if name not in columns]
        if missing:
            raise InputError(f"--columns must be those with rules in the code book, got no {missing[0]!r}")
    return tuple(columns)


def _facts(read: StudyFile) -> dict[str, Any]:
    terms, _, choice = read.terms()
    given = read.options
    facts: dict[str, Any] = {"name": read.name, "hash": read.digest}
    if terms.is_private:
        facts["hash_in_ledgers"] = terms.ledger_name
    facts |= {
        "silos": list(read.silos),
        "min_silos": read.min_silos,
        "nodes" if terms.network else "columns": list(read.columns),
        **({} if read.rules is None else {"columns_of_tables": list(read.table_columns)}),
        "row_norm": given.public.row_norm,
        "normalize": bool(given.public.normalize),
        "center": given.centers,
        **({"network": terms.network, "edge_weight": terms.edge_weight} if terms.network else {}),
        **({"unit": terms.unit, "rows_per_unit": terms.rows_per_unit} if terms.unit else {}),
        "offset": plain(given.public.offset),
        "ranges": plain(given.ranges),
        "prepared_privately": bool(terms.preparation),
        "n_components": given.n_components,
        "iteration_rank": terms.iteration_rank,
        "epsilon": plain(terms.epsilon),
        "delta": terms.delta,
        "noise": terms.noise,
        "aggregation": terms.aggregation,
    }
    if terms.aggregation == "secure":
        facts |= {"attempts": terms.attempts, "epsilon_of_all_attempts": float(f"{worst_epsilon(terms):.4g}")}
    return facts | {
        "solver": choice.solver,
        "why_this_solver": choice.reason,
        "deadline": read.deadline,
        "grace": read.grace,
        "coordinator": f"{read.host}:{read.port}",
    }
