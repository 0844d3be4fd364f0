"""Command-line options: those of a fit come from `fedpower.options`, others that commands share are here."""

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpower.options import FLAT, option_name
from fedpower.report.codebook_file import read_code_book

if TYPE_CHECKING:
    from fedpower.rows.opening import Reading

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_Callback = Callable[[click.Context, click.Parameter, Any], Any]

PATH = click.Path(path_type=Path)
_HEADINGS = {
    "main": "Options",
    "rows": "Rows and columns",
    "privacy": "Privacy",
    "solver": "Solvers",
    "paper": "The paper's method",
    "rounds": "Rounds",
    "running": "Running",
}
"""By group, in the order in which help lists them."""


# --- values ----------------------------------------------------------------------------------------


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _epsilon(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    if text is not None and not _number(text) > 0:
        raise click.BadParameter(f"must be a number above 0, or inf for no privacy, got {text!r}")
    return None if text is None else _number(text)


def _rank(ctx: click.Context, param: click.Parameter, text: str | None) -> int | float | str | None:
    if text is None or text == "auto":
        return text
    value = _number(text)
    if text.isdecimal() and value >= 1:
        return int(text)
    if 0 < value < 1:
        return value
    raise click.BadParameter(f"must be a number such as 4, a fraction such as 0.9, or auto, got {text!r}")


def _schedule(ctx: click.Context, param: click.Parameter, text: str | None) -> str | list[int] | None:
    if text is None or text in ("every", "decaying", "halving"):
        return text
    try:
        return [int(step) for step in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"must be every, decaying, halving or steps such as 2,4,5, got {text!r}"
        ) from None


def names(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Return names with commas between them; one that holds a comma is quoted."""
    if text is None:
        return None
    listed = tuple(name.strip() for row in csv.reader([text]) for name in row)
    if not listed or "" in listed:
        raise click.BadParameter(f"must be names with commas between them, got {text!r}")
    return listed


def _range(text: str) -> tuple[float, float] | None:
    low, high = (_number(end) for end in (text.partition(":")[0], text.partition(":")[2]))
    return (low, high) if math.isfinite(low) and math.isfinite(high) and low < high else None


def by_name(form: str, read: Callable[[str], Any] = str) -> _Callback:
    """Return a callback that reads words NAME=VALUE into a dict, or None where there are none.

    A column's name may hold an equals sign, a silo's may not.
    """
    split = str.rpartition if form.startswith(("COLUMN", "OLD")) else str.partition

    def callback(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> dict[str, Any] | None:
        values: dict[str, Any] = {}
        for word in words:
            name, _, text = split(word, "=")
            value = read(text) if text else None
            if not name or value is None:
                raise click.BadParameter(f"must be {form}, got {word!r}")
            if name in values:
                raise click.BadParameter(f"must name each once, got {name!r} twice")
            values[name] = value
        return values or None

    return callback


def _versions(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> Any:
    if len(words) == 1 and "=" not in words[0]:
        return words[0]
    return by_name("NAME=VERSION")(ctx, param, words)


# --- declarations ----------------------------------------------------------------------------------

_OF_A_FIT: dict[str, dict[str, Any]] = {
    "n_components": {"callback": _rank, "required": True, "metavar": "K"},
    "epsilon": {"type": str, "callback": _epsilon, "required": True, "metavar": "NUMBER|inf"},
    "schedule": {"callback": _schedule, "metavar": "every|decaying|halving|STEPS"},
    "random_state": {"type": click.IntRange(0, 2**32 - 1)},
    "device": {"metavar": "NAME"},
}
"""How the command line reads options of a fit that are not plain numbers or words."""


class Option(click.Option):
    """An option that knows under which heading it is listed."""

    def __init__(self, *words: Any, group: str = "main", **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.group = group


class Command(click.Command):
    """A command whose help lists options by heading, those that most people need first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every heading with its options."""
        listed: dict[str, list[tuple[str, str]]] = {group: [] for group in _HEADINGS}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None and isinstance(parameter, click.Option):
                listed[getattr(parameter, "group", "running")].append(line)
        for group, lines in listed.items():
            if lines:
                with formatter.section(_HEADINGS[group]):
                    formatter.write_dl(lines)


def option(*words: str, group: str = "main", **settings: Any) -> _Decorator:
    """Return the declaration of an option that one command has."""
    return click.option(*words, cls=Option, group=group, **settings)


def _flag(words: str, help: str, group: str = "main") -> _Decorator:
    return option(*words.split(), group=group, is_flag=True, help=help)


def _set_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta["fedpower.quiet"] = value


_REPEATED: dict[str, Any] = {"multiple": True}
_SHARED: dict[str, _Decorator] = {
    "files": click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path()),
    "as_json": _flag("--json as_json", "Print one JSON object."),
    "force": _flag("--force", "Replace earlier output."),
    "verbose": _flag("--verbose", "Print the whole privacy statement."),
    "quiet": option(
        "--quiet", is_flag=True, expose_value=False, callback=_set_quiet, help="Show no progress."
    ),
    "codebook": option("--codebook", type=PATH, metavar="FILE", help="Rules and numbers of columns."),
    "ranges": option(
        "--range",
        "ranges",
        callback=by_name("COLUMN=LOW:HIGH, LOW first", _range),
        metavar="COLUMN=LOW:HIGH",
        help="Range of a column's cells; repeatable.",
        **_REPEATED,
    ),
    "center_file": option(
        "--center-file",
        type=PATH,
        metavar="FILE",
        help="Public numbers to subtract from columns: name,value lines, or .npy.",
    ),
    "scale_file": option(
        "--scale-file",
        type=PATH,
        metavar="FILE",
        help="Public divisors of columns: name,value lines, or .npy.",
    ),
    "variants": option(
        "--variants",
        type=PATH,
        metavar="FILE",
        help="Public variants of .bed files: ids, or .afreq for centring and scaling.",
    ),
    "n_features": option("--n-features", group="rows", type=int, help="Number of columns of svmlight files."),
    "groups": option("--groups", group="rows", metavar="COLUMN", help="One file; this column names silos."),
    "columns": option(
        "--columns",
        group="rows",
        callback=names,
        metavar="A,B,...",
        help="Use only these columns; names the columns of files without names.",
    ),
    "drop": option("--drop", group="rows", metavar="COLUMN", help="Leave it out; repeatable.", **_REPEATED),
    "extra_columns": option(
        "--extra",
        "extra_columns",
        group="rows",
        type=click.Choice(["refuse", "drop"]),
        help="What to do with columns that not every silo has; refuse by default.",
    ),
    "separator": option("--separator", group="rows", metavar="SIGN", help="Separator of text files."),
    "decimal": option("--decimal", group="rows", metavar=".|,", help="Decimal sign of text files."),
    "encoding": option(
        "--encoding",
        group="rows",
        metavar="NAME",
        help="Encoding of text files, e.g. cp1252; UTF-8 by default.",
    ),
    "rename": option(
        "--rename",
        group="rows",
        callback=by_name("OLD=NEW"),
        metavar="OLD=NEW",
        help="Rename a column; repeatable.",
        **_REPEATED,
    ),
    "ledgers": option("--ledgers", type=PATH, metavar="FOLDER", help="Folder with a SILO.ledger per silo."),
    "named_ledgers": option(
        "--ledger",
        "named_ledgers",
        group="privacy",
        callback=by_name("NAME=PATH", Path),
        metavar="NAME=PATH",
        help="A silo's ledger; repeatable.",
        **_REPEATED,
    ),
    "data_version": option(
        "--data-version",
        group="privacy",
        callback=_versions,
        metavar="[NAME=]VERSION",
        help="Public version of the rows; a new one is charged again.",
        **_REPEATED,
    ),
    "data_set": option("--data-set", group="privacy", metavar="NAME", help="Data set of the ledgers."),
    "identities": option(
        "--identity",
        "identities",
        group="privacy",
        callback=by_name("NAME=PATH", Path),
        metavar="NAME=PATH",
        help="A silo's key for secure sums; repeatable.",
        **_REPEATED,
    ),
}
"""Options that several commands have and that are not of a fit, by the name of their value."""

TEXT = ("separator", "decimal", "encoding")
READING = (*TEXT, "rename")
CHARGED = ("ledgers", "named_ledgers", "data_version", "data_set", "identities")


def options(*wanted: str | _Decorator) -> _Decorator:
    """Declare options on a command, in the order in which help lists them; shared ones by name."""

    def declare(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(wanted):
            command = (shared(each) if isinstance(each, str) else each)(command)
        return command

    return declare


def shared(name: str, **changed: Any) -> _Decorator:
    """Return the declaration of an option by its name; one of a fit that is not given keeps its default."""
    if name in _SHARED:
        return _SHARED[name]
    spec = FLAT[name]
    settings: dict[str, Any] = {"help": spec.help}
    if spec.choices:
        settings["type"] = click.Choice(spec.choices)
    elif spec.kind is bool:
        settings |= {"is_flag": True, "default": None}
    elif spec.kind is not None and spec.kind is not str:
        settings["type"] = spec.kind
    settings |= {**_OF_A_FIT.get(name, {}), **changed}
    return option(spec.option or option_name(name), name, group=spec.group, **settings)


def output(default: str | None = None, help: str = "Folder for the result.") -> _Decorator:
    """Return the declaration of -o."""
    return option("-o", "--output", type=PATH, default=None if default is None else Path(default), help=help)


def given_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a fit among those of a command, without those that were not given."""
    flat = {name: given[name] for name in FLAT if given.get(name) is not None}
    if isinstance(flat.get("codebook"), Path):
        flat["codebook"] = read_code_book(flat["codebook"])
    return flat


def reading_of(given: Mapping[str, Any], *more: str) -> "Reading":
    """Return how text files are written, from the options of a command."""
    return {name: given[name] for name in (*TEXT, *more)}  # type: ignore[return-value]
