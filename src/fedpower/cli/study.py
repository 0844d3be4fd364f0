"""`fedpower study`: the file that a consortium agrees on."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from fedpower.cli import values
from fedpower.cli.console import print_facts, print_json
from fedpower.cli.options import Command, declared, option, parameter, reading_of, reading_options
from fedpower.cli.silos import read_nodes, read_vector
from fedpower.errors import InputError
from fedpower.federation.study_file import StudyFile, read_study, to_toml
from fedpower.options import FLAT
from fedpower.protocol.study import worst_epsilon
from fedpower.report.codebook_file import read_code_book
from fedpower.report.files import new_file
from fedpower.report.record import plain
from fedpower.rows.columns import match_columns
from fedpower.rows.opening import open_source
from fedpower.rows.units import by_unit
from fedpower.rules.codebook import ranges_of
from fedpower.rules.rules import TableRules

PATH = click.Path(path_type=Path)


@click.group()
def study() -> None:
    """Write, check and show the study file that a consortium agrees on."""


_AGREED = tuple(name for name, spec in FLAT.items() if spec.option is not None and spec.section)
"""Parameters of a fit that a consortium agrees on: each is an option, and a key of the study file."""

_OTHERWISE: dict[str, dict[str, Any]] = {
    "delta": {"default": 1e-6, "show_default": True, "help": "The δ of (ε, δ)."},
    "deadline": {"default": 600.0, "show_default": True},
    "min_silos": {"help": "Fewest silos a round may go on with; all by default."},
}
"""What a study file must say that a fit finds out by itself."""

_INIT = (
    option("--name", group="main", required=True, help="What the consortium calls the study."),
    option("--silos", group="main", callback=values.names, required=True, metavar="A,B,...",
           help="Who takes part."),
    option("--columns", group="main", callback=values.names, metavar="A,B,...",
           help="The columns, in this order."),
    option("--columns-of", group="main", type=PATH, metavar="FILE",
           help="Take the columns of this file instead."),
    option("--network", group="main", type=click.Choice(["edge", "row"]),
           help="Silos hold networks: an edge is protected, or a row of the adjacency."),
    option("--nodes", group="main", type=PATH, metavar="FILE",
           help="The names of their nodes, one a line, in place of columns."),
    option("--edge-weight", group="main", type=float, metavar="W",
           help="Public maximum at which weights of edges are capped."),
    *(parameter(name, **_OTHERWISE.get(name, {})) for name in _AGREED),
    option("--codebook", group="main", type=PATH, metavar="FILE",
           help="Code book: rules of columns, and offsets, scales, ranges and bound where it has them."),
    option("--range", "ranges", group="main", callback=values.ranges, multiple=True,
           metavar="COLUMN=LOW:HIGH", help="What a column's cells lie between; repeatable."),
    option("--center-file", group="rows", type=PATH, metavar="FILE",
           help="Public centres: lines of name,value."),
    option("--scale-file", group="rows", type=PATH, metavar="FILE",
           help="Public divisors: lines of name,value."),
    option("--identity", "identities", group="privacy", callback=values.named_keys, multiple=True,
           metavar="SILO=KEY",
           help="A silo's public key for a secure sum, as `fedpower identity show` prints it; "
           "repeatable."),
    option("--grace", group="rounds", type=float,
           help="Seconds for stragglers once enough have answered."),
    option("--host", group="running", default="localhost", show_default=True,
           help="The coordinator's host name."),
    option("--port", group="running", type=int, default=8002, show_default=True,
           help="The coordinator's port."),
    option("--force", group="running", is_flag=True, help="Replace the file."),
)  # fmt: skip


@study.command(cls=Command)
@click.argument("path", type=PATH, default=Path("study.toml"))
@declared(_INIT)
@reading_options
def init(path: Path, *, force: bool, **options: Any) -> None:
    """Write a study file to PATH, for all parties to read and agree on.

    Example: fedpower study init --name heart-2026 --silos north,south,east --columns-of north.csv
    -k 4 --epsilon 1 --row-norm 10 --host coordinator.example.org
    """
    with new_file(path, force=force) as place:
        place.write_text(to_toml(_content(options)), encoding="utf-8")
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
    book = None if options["codebook"] is None else read_code_book(options["codebook"])
    rules = None if book is None else book.table_rules
    columns = _columns(options, rules)
    features = tuple(columns) if rules is None else rules.completed(columns).features
    given = {
        name: read_vector(path, features).tolist()
        for name, path in (("offset", options["center_file"]), ("scale", options["scale_file"]))
        if path is not None
    }
    tables = _agreed(options)
    rows = tables.setdefault("rows", {})
    if book is not None and not book.is_draft and not book.follows_rules:
        if given or options["ranges"] or {"row_norm", "normalize"} & rows.keys():
            raise InputError(
                "--codebook must be given alone, for it says what files, ranges and bounds would, got "
                "one of them beside it; leave them out"
            )
        book.check_columns(features, len(features))
        given = {"offset": book.offset.tolist(), "scale": book.scale.tolist()}
        given["ranges"] = np.column_stack([book.low, book.high]).tolist()
        tables["rows"] = {"row_norm": book.bound, **rows}
    elif options["ranges"]:
        known = ranges_of(options["ranges"], features, len(features))
        given["ranges"] = [[] if each is None else list(each) for each in known]
    if options["epsilon"] == float("inf"):
        del tables["privacy"]["delta"]
    if options["identities"]:
        tables["privacy"]["aggregation"] = "secure"
        tables["identities"] = options["identities"]
    if options["grace"] is not None:
        tables["rounds"]["grace"] = options["grace"]
    return {
        **tables,
        "name": options["name"],
        "columns": {"names": list(columns), **given},
        **({} if rules is None else {"rules": rules.as_content()}),
        "rows": {"center": options["network"] is None, **tables["rows"]},
        "silos": {"names": list(options["silos"])},
        "coordinator": {"host": options["host"], "port": options["port"]},
    }


def _columns(options: dict[str, Any], rules: TableRules | None) -> tuple[str, ...]:
    """Return the tables' columns that the study has, those that rules drop left out."""
    columns = options["columns"]
    if (options["network"] is None) != (options["nodes"] is None):
        raise InputError(
            "--network and --nodes must go together, got one of them; say what is protected and name the "
            "nodes"
        )
    if options["nodes"] is not None:
        if columns or options["columns_of"]:
            raise InputError(
                "--nodes must go without columns, for nodes are those of a network, got both; leave one out"
            )
        return tuple(read_nodes(options["nodes"]))
    if columns is None and options["columns_of"] is None and rules is not None:
        columns = rules.columns
    elif (columns is None) == (options["columns_of"] is None):
        raise InputError(
            "the columns must be given once, got --columns and --columns-of both or neither; give one"
        )
    if columns is None:
        found = open_source(options["columns_of"], **reading_of(options))
        if options["unit"] is not None:
            found = by_unit(found, options["unit"])
        columns, _ = match_columns([found])
        if columns is None:
            raise InputError(
                f"{options['columns_of']} must have column names, got none; list them with --columns"
            )
    if rules is not None:
        columns = tuple(name for name in columns if name not in rules.dropped)
        without = [name for name in rules.columns if name not in columns]
        if without:
            raise InputError(
                "the columns must be those that the code book has rules for, got none named "
                f"{without[0]!r}; add it, or drop it in {options['codebook']}"
            )
    return tuple(columns)


def _agreed(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parameters that were given, by table of the study file."""
    tables: dict[str, dict[str, Any]] = {}
    for name in _AGREED:
        section, value = FLAT[name].section, options[name]
        if value is not None:
            assert section is not None
            tables.setdefault(section, {})[name] = value
    for name in ("network", "edge_weight"):
        if options[name] is not None:
            tables.setdefault("rows", {})[name] = options[name]
    if options["network"] == "row":  # as the paper does
        tables["rows"].setdefault("normalize", True)
    return tables


def _facts(read: StudyFile) -> dict[str, Any]:
    terms, _, choice = read.terms()
    given = read.options
    attempts: dict[str, Any] = {}
    if terms.aggregation == "secure":
        attempts = {
            "attempts": terms.attempts,
            "epsilon_of_all_attempts": float(f"{worst_epsilon(terms):.4g}"),
        }
    return {
        "name": read.name,
        "hash": read.digest,
        **({"hash_in_ledgers": terms.ledger_name} if terms.is_private else {}),
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
        **attempts,
        "solver": choice.solver,
        "why_this_solver": choice.reason,
        "deadline": read.deadline,
        "grace": read.grace,
        "coordinator": f"{read.host}:{read.port}",
    }
