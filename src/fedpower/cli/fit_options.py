"""The options of `fedpower fit`: the parameters of a fit, and where rows, ledgers and result are."""

from pathlib import Path

import click

from fedpower.cli import values
from fedpower.cli.options import declared, option, parameter
from fedpower.cli.paths import PATH, any_file
from fedpower.cli.progress import quiet_option
from fedpower.parameters import SPECS

PASSED_ON = tuple(name for name, spec in SPECS.items() if spec.option and name != "n_components")
"""Options that are parameters of a fit; one that is not given keeps its default."""

_BOTH = (
    click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=any_file),
    option("--drop", group="main", multiple=True, metavar="COLUMN",
           help="Leave a column out; repeatable."),
    option("--ledgers", group="main", type=PATH, metavar="FOLDER",
           help="Folder with a SILO.ledger for every silo."),
    option("--columns", group="rows", callback=values.names, metavar="A,B,...",
           help="Use these columns and no others; where columns have no names (.npy), name them."),
    option("--ledger", "named_ledgers", group="privacy", callback=values.named_paths,
           multiple=True, metavar="NAME=PATH", help="A silo's ledger; repeatable."),
    option("--data-version", group="privacy", callback=values.versions, multiple=True,
           metavar="[NAME=]VERSION",
           help="What the ledgers call these rows: public; a new one is a new charge. 1 by default."),
    option("--data-set", group="privacy", metavar="NAME",
           help="The data set that the ledgers are for."),
    option("--json", "as_json", group="main", is_flag=True,
           help="Print one JSON object instead of tables."),
    option("--range", "ranges", group="main", callback=values.ranges, multiple=True,
           metavar="COLUMN=LOW:HIGH", help="What a column's cells lie between; repeatable."),
    quiet_option,
)  # fmt: skip

_HERE = (
    parameter("n_components"),
    parameter("epsilon"),
    parameter("row_norm"),
    option("--codebook", group="main", type=PATH, metavar="FILE",
           help="Code book from `fedpower prepare`: offsets, scales, ranges and bound."),
    option("--center-file", group="main", type=PATH, metavar="FILE",
           help="Public numbers to take off the columns first: name,value lines, or .npy."),
    option("--scale-file", group="main", type=PATH, metavar="FILE",
           help="Public divisors of columns: name,value lines, or .npy."),
    option("-o", "--output", group="main", type=PATH, default=Path("result"), show_default=True,
           help="Folder for the result."),
    option("--force", group="main", is_flag=True, help="Replace an earlier result in that folder."),
    option("--n-features", group="rows", type=int, help="Number of columns of svmlight files."),
    option("--groups", group="rows", metavar="COLUMN",
           help="One file; this column names each row's silo."),
    option("--center/--no-center", group="rows", default=True,
           help="Centre on the pooled mean (default), also after --center-file."),
    option("--identity", "identities", group="privacy", callback=values.named_paths,
           multiple=True, metavar="NAME=PATH",
           help="A silo's key for secure sums; repeatable. Made for the fit unless given."),
)  # fmt: skip

fit_options = declared(
    (
        _BOTH[0],
        *_HERE,
        *_BOTH[1:],
        *(parameter(name) for name in PASSED_ON if name not in ("epsilon", "row_norm")),
    )
)
"""Declares all of them on a command."""

prepare_options = declared(
    (
        _BOTH[0],
        parameter("epsilon"),
        option("-o", "--output", group="main", type=PATH, default=Path("codebook.toml"),
               show_default=True, help="The code book."),
        option("--force", group="main", is_flag=True, help="Replace that file."),
        *_BOTH[1:],
        parameter("delta"),
        parameter("extra_columns"),
    )
)  # fmt: skip
"""Declares those of `fedpower prepare`."""
