"""Command-line options: those of a fit come from `fedpower.options`, others that commands share are here."""

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpower.options import FLAT, Setting, option_name
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


def option(
    words: str, help: str, type: Any = None, *, name: str | None = None, group: str = "main", **settings: Any
) -> _Decorator:
    """Return the declaration of an option, from its words, such as "-o --output FILE", and its help."""
    *flags, last = words.split()
    metavar = None if last.startswith("-") else last
    if metavar is None:
        flags.append(last)
        settings |= {"is_flag": True} if type is None else {}
    if metavar in ("FILE", "FOLDER") and type is None:
        type = click.Path(path_type=Path, file_okay=metavar == "FILE")
    names = [*flags, *([] if name is None else [name])]
    return click.option(*names, cls=Option, group=group, help=help, type=type, metavar=metavar, **settings)


def _set_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta["fedpower.quiet"] = value


_SHARED: dict[str, tuple[str, str, str]] = {
    "as_json": ("--json", "main", "Print one JSON object."),
    "force": ("--force", "main", "Replace earlier output."),
    "verbose": ("--verbose", "main", "Print the whole privacy statement."),
    "quiet": ("--quiet", "main", "Show no progress."),
    "codebook": ("--codebook FILE", "main", "Rules and numbers of columns."),
    "ranges": ("--range COLUMN=LOW:HIGH", "main", "Range of a column's cells; repeatable."),
    "center_file": ("--center-file FILE", "main", "Public numbers to subtract: name,value lines, or .npy."),
    "scale_file": ("--scale-file FILE", "main", "Public divisors of columns: name,value lines, or .npy."),
    "variants": ("--variants FILE", "main", "Public variants of .bed files: ids, or .afreq for scaling."),
    "n_features": ("--n-features NUMBER", "rows", "Number of columns of svmlight files."),
    "groups": ("--groups COLUMN", "rows", "One file; this column names each row's silo."),
    "columns": ("--columns A,B,...", "rows", "Use only these columns; names those of files without names."),
    "drop": ("--drop COLUMN", "rows", "Leave a column out; repeatable."),
    "extra_columns": ("--extra refuse|drop", "rows", "What to do with columns that not every silo has."),
    "separator": ("--separator SIGN", "rows", "Separator of text files."),
    "decimal": ("--decimal SIGN", "rows", "Decimal sign of text files, a point or a comma."),
    "encoding": ("--encoding NAME", "rows", "Encoding of text files, e.g. cp1252; UTF-8 by default."),
    "rename": ("--rename OLD=NEW", "rows", "Rename a column; repeatable."),
    "ledgers": ("--ledgers FOLDER", "main", "Folder with a SILO.ledger for every silo."),
    "named_ledgers": ("--ledger NAME=PATH", "privacy", "A silo's ledger; repeatable."),
    "data_version": ("--data-version [NAME=]VERSION", "privacy", "Public version of the rows; 1 by default."),
    "data_set": ("--data-set NAME", "privacy", "Data set of the ledgers."),
    "identities": ("--identity NAME=PATH", "privacy", "A silo's key for secure sums; repeatable."),
}
"""Options of several commands that are not of a fit: words, heading and help, by the name of their value."""

_READ: dict[str, dict[str, Any]] = {
    "n_components": {"callback": _rank, "required": True, "metavar": "K"},
    "epsilon": {"type": str, "callback": _epsilon, "required": True, "metavar": "NUMBER|inf"},
    "schedule": {"callback": _schedule, "metavar": "every|decaying|halving|STEPS"},
    "random_state": {"type": click.IntRange(0, 2**32 - 1)},
    "device": {"metavar": "NAME"},
    "quiet": {"expose_value": False, "callback": _set_quiet},
    "ranges": {"callback": by_name("COLUMN=LOW:HIGH, LOW first", _range), "multiple": True},
    "n_features": {"type": int},
    "columns": {"callback": names},
    "drop": {"multiple": True},
    "extra_columns": {"type": click.Choice(["refuse", "drop"])},
    "rename": {"callback": by_name("OLD=NEW"), "multiple": True},
    "named_ledgers": {"callback": by_name("NAME=PATH", Path), "multiple": True},
    "data_version": {"callback": _versions, "multiple": True},
    "identities": {"callback": by_name("NAME=PATH", Path), "multiple": True},
}
"""How the command line reads what is not a plain number, word or path."""

TEXT = "separator decimal encoding"
READING = f"{TEXT} rename"
CHARGED = "ledgers named_ledgers data_version data_set identities"
"""Names of options that go together."""


def options(*wanted: str | _Decorator) -> _Decorator:
    """Declare options on a command, in the order in which help lists them; shared ones by their names."""
    declared = [
        declaration
        for item in wanted
        for declaration in (map(shared, item.split()) if isinstance(item, str) else [item])
    ]

    def declare(command: Callable[..., Any]) -> Callable[..., Any]:
        for declaration in reversed(declared):
            command = declaration(command)
        return command

    return declare


def shared(name: str, **changed: Any) -> _Decorator:
    """Return the declaration of an option by its name."""
    if name == "files":
        return click.argument(name, nargs=-1, required=True, metavar="FILE...", type=click.Path())
    if name not in _SHARED:
        return declared(name, FLAT[name], **{**_READ.get(name, {}), **changed})
    words, group, help = _SHARED[name]
    return _declared(words, help, name, group, **{**_READ.get(name, {}), **changed})


def declared(name: str, spec: Setting, **changed: Any) -> _Decorator:
    """Return the declaration of an option from its setting; one that is not given keeps its default."""
    settings: dict[str, Any] = {"type": PATH if spec.kind is Path else spec.kind or str}
    if spec.choices:
        settings = {"type": click.Choice(list(spec.choices))}
    elif spec.kind is bool:
        settings = {"default": None}
    elif spec.kind is list:
        settings = {"callback": names}
    if spec.parse is not None:
        parse = spec.parse
        settings["callback"] = lambda ctx, param, value: None if value in (None, ()) else parse(value)
    more = {"required": spec.default is MISSING, "multiple": spec.multiple, "metavar": spec.metavar}
    words, given = spec.option or option_name(name), {**settings, **more, **changed}
    if spec.kind is bool and spec.default is not False:
        words = f"{words}/--no-{words.removeprefix('--')}"
    return _declared(words, given.pop("help", spec.help), name, spec.group, **given)


def _declared(words: str, help: str, name: str, group: str, **settings: Any) -> _Decorator:
    metavar = settings.pop("metavar", None)
    return option(
        words if metavar is None else f"{words} {metavar}", help, name=name, group=group, **settings
    )


def output(default: str | None = None, help: str = "Folder for the result.") -> _Decorator:
    """Return the declaration of -o."""
    return option("-o --output", help, PATH, default=None if default is None else Path(default))


def given_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a fit among those of a command, without those that were not given."""
    flat = {name: given[name] for name in FLAT if given.get(name) is not None}
    if isinstance(flat.get("codebook"), Path):
        flat["codebook"] = read_code_book(flat["codebook"])
    return flat


def reading_of(given: Mapping[str, Any], *more: str) -> "Reading":
    """Return how text files are written, from the options of a command."""
    return {name: given[name] for name in (*TEXT.split(), *more)}  # type: ignore[return-value]
