"""Command-line options: those of a fit come from `fedpower.options`, others that commands share are here."""

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpower.exceptions import InputError
from fedpower.options import FLAT, Setting, option_name
from fedpower.rules.codebook import CodeBook

if TYPE_CHECKING:
    from fedpower.rows.opening import Reading

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_Callback = Callable[[click.Context, click.Parameter, Any], Any]

PATH = click.Path(path_type=Path)
_HEADINGS = {  # by group, in the order in which help lists them
    "main": "Options",
    "rows": "Rows and columns",
    "privacy": "Privacy",
    "solver": "Solvers",
    "paper": "The paper's method",
    "rounds": "Rounds",
    "running": "Running",
}


# --- values ----------------------------------------------------------------------------------------


def read_number(text: str) -> float:
    """Return a number; NaN for other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _rank(ctx: click.Context, param: click.Parameter, text: str | None) -> int | float | str | None:
    if text is None or text == "auto":
        return text
    value = read_number(text)
    if not (0 < value < 1 or (text.isdecimal() and value >= 1)):
        raise click.BadParameter(f"must be a number such as 4, a fraction such as 0.9, or auto, got {text!r}")
    return int(text) if text.isdecimal() else value


def _schedule(ctx: click.Context, param: click.Parameter, text: str | None) -> str | list[int] | None:
    steps = [] if text is None else text.split(",")
    return [int(step) for step in steps] if all(map(str.isdecimal, steps)) and steps else text


def names(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Return names with commas between them; one that holds a comma is quoted."""
    listed = tuple(name.strip() for row in csv.reader([] if text is None else [text]) for name in row)
    if text is not None and not all(listed or [""]):
        raise click.BadParameter(f"must be names with commas between them, got {text!r}")
    return listed or None


def _range(text: str) -> tuple[float, float] | None:
    low, high = (read_number(end) for end in (text.partition(":")[0], text.partition(":")[2]))
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
    """A command whose help lists what most people need, and with --help-all the rest, by heading.

    Such a command also takes its options from a file, with --config.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        if any(getattr(param, "group", "main") != "main" for param in self.params):
            self.params += [_CONFIG, _HELP_ALL]
            self.epilog = (
                f"{self.epilog or ''}\n\n--help-all lists all options; --config reads them from a file."
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed: dict[str, list[tuple[str, str]]] = {group: [] for group in _HEADINGS}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None and isinstance(parameter, click.Option):
                listed[getattr(parameter, "group", "main")].append(line)
        for group, lines in listed.items():
            if lines and (group == "main" or ctx.meta.get("fedpower.help_all")):
                with formatter.section(_HEADINGS[group]):
                    formatter.write_dl(lines)


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta["fedpower.help_all"] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Take the options of a TOML file as defaults; its keys are options without their dashes."""
    import tomllib  # noqa: PLC0415 - only where there is such a file

    if path is None:
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} must be a TOML file of options, got {error}") from None
    known = {
        word.lstrip("-"): param
        for param in ctx.command.params
        if isinstance(param, click.Option) and param.expose_value
        for word in (*param.opts, *param.secondary_opts)
    }
    defaults: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known or isinstance(value, dict):
            raise InputError(f"{path} must have options of `{ctx.command_path}`, got {key!r}")
        param = known[key]
        joined = isinstance(value, list) and not param.multiple
        given = ",".join(f'"{item}"' for item in value) if joined else value
        given = [given] if param.multiple and not isinstance(given, list) else given
        defaults[str(param.name)] = not given if f"--{key}" in param.secondary_opts else given
    ctx.default_map = defaults


_CONFIG = Option(
    ["--config"], group="running", help="Read options from a TOML file; the command line overrides it.",
    type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE", is_eager=True,
    expose_value=False, callback=_read_config,
)  # fmt: skip
_HELP_ALL = Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
    help="Show all options and exit.",
)  # fmt: skip


def option(
    words: str,
    help: str,
    type: Any = None,
    *,
    name: str | None = None,
    group: str = "main",
    metavar: str | None = None,
    **settings: Any,
) -> _Decorator:
    """Return the declaration of an option, from its words, such as "-o --output FILE", and its help."""
    flags = words.split()
    if not flags[-1].startswith("-"):
        placeholder = flags.pop()
        metavar = placeholder if metavar is None else metavar
    elif metavar is None and type is None:
        settings |= {"is_flag": True}
    if metavar in ("FILE", "FOLDER") and type is None:
        type = click.Path(path_type=Path, file_okay=metavar == "FILE")
    names = flags if name is None else [*flags, name]
    return click.option(*names, cls=Option, group=group, help=help, type=type, metavar=metavar, **settings)


def _set_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta["fedpower.quiet"] = value


SHARED: dict[str, tuple[str, str, str]] = {
    "as_json": ("--json", "main", "Print one JSON object."),
    "force": ("--force", "main", "Replace earlier output."),
    "quiet": ("-q --quiet", "main", "Show no progress."),
    "verbose": ("--verbose", "main", "Print all details."),
    "ledgers": (
        "--ledger FOLDER|NAME=PATH",
        "main",
        "Folder with a SILO.ledger per silo, or one; repeatable.",
    ),
    "codebook": ("--codebook FILE", "main", "Code book: rules for the columns."),
    "ranges": ("--range COLUMN=LOW:HIGH", "main", "Public range of a column; repeatable."),
    "columns": ("--columns A,B,...", "main", "Use only these columns."),
    "drop": ("--drop COLUMN", "main", "Leave a column out; repeatable."),
    "extra_columns": ("--extra-columns refuse|drop", "rows", "Columns that not every silo has."),
    "center_file": ("--center-file FILE", "rows", "Public offsets: name,value lines, or .npy."),
    "scale_file": ("--scale-file FILE", "rows", "Public scales: name,value lines, or .npy."),
    "variants": ("--variants FILE", "rows", "Public variants of .bed files: ids, or .afreq for scales."),
    "n_features": ("--n-features NUMBER", "rows", "Number of columns of svmlight files."),
    "groups": ("--groups COLUMN", "rows", "Split one file into silos by this column."),
    "separator": ("--separator SIGN", "rows", "Separator of text files."),
    "decimal": ("--decimal SIGN", "rows", "Decimal sign of text files: a point or a comma."),
    "encoding": ("--encoding NAME", "rows", "Encoding of text files, e.g. cp1252; UTF-8 by default."),
    "rename": ("--rename OLD=NEW", "rows", "Rename a column; repeatable."),
    "nodes": ("--nodes FILE", "rows", "Public names of all nodes of a network, one per line."),
    "data_version": ("--data-version [NAME=]VERSION", "privacy", "Public version of the rows; 1 by default."),
    "data_set": ("--data-set NAME", "privacy", "Data set that the ledger belongs to."),
    "identities": ("--identity NAME=PATH", "privacy", "Key of a silo for secure sums; repeatable."),
}
"""Options of several commands that are not of a fit: words, heading and help, by the name of their value."""

_READ: dict[str, dict[str, Any]] = {
    "n_components": {"callback": _rank, "default": "auto", "metavar": "K"},
    "unit": {"group": "main", "metavar": "COLUMN"},
    "aggregation": {"group": "main"},
    "epsilon": {"required": True, "metavar": "NUMBER|inf"},
    "schedule": {"callback": _schedule, "metavar": "every|decaying|halving|STEPS"},
    "random_state": {"type": click.IntRange(0, 2**32 - 1)},
    "device": {"metavar": "NAME"},
    "quiet": {"expose_value": False, "callback": _set_quiet},
    "ranges": {"callback": by_name("COLUMN=LOW:HIGH, LOW first", _range), "multiple": True},
    "n_features": {"type": int},
    "columns": {"callback": names},
    "drop": {"multiple": True},
    "extra_columns": {"type": click.Choice(["refuse", "drop"]), "default": "refuse"},
    "rename": {"callback": by_name("OLD=NEW"), "multiple": True},
    "ledgers": {"multiple": True},
    "data_version": {"callback": _versions, "multiple": True},
    "identities": {"callback": by_name("NAME=PATH", Path), "multiple": True},
}
"""How the command line reads what is not a plain number, word or path."""

TEXT = "separator decimal encoding"
READING = f"{TEXT} rename"  # names of options that go together


def options(*wanted: str | _Decorator) -> _Decorator:
    """Declare options on a command, in the order in which help lists them; shared ones by their names.

    Words in capitals are paths, written as usage shows them: ``KIT [SILO_FILE]`` or ``FOLDERS...``.
    """
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
    """Return the declaration of an option by its name, or of an argument."""
    if name == "files":
        return click.argument(name, nargs=-1, required=True, metavar="FILE...", type=click.Path())
    if name.isupper():
        nargs, required = -1 if name.endswith("...") else 1, not name.startswith("[")
        return click.argument(name.strip("[.]").lower(), type=PATH, nargs=nargs, required=required)
    if name not in SHARED:
        return declared(name, FLAT[name], **{**_READ.get(name, {}), **changed})
    words, group, help = SHARED[name]
    given = {"group": group, "help": help, **_READ.get(name, {}), **changed}
    return option(words, name=name, **given)


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
    group = given.pop("group", "rows" if spec.group == "main" and spec.section == "rows" else spec.group)
    return option(words, given.pop("help", spec.help), name=name, group=group, **given)


def output(default: str | None = None, help: str = "Folder for the result.") -> _Decorator:
    """Return the declaration of -o."""
    return option("-o --output", help, PATH, default=None if default is None else Path(default))


def given_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a fit among those of a command, without those that were not given."""
    flat = {name: given[name] for name in FLAT if given.get(name) is not None}
    if isinstance(flat.get("codebook"), Path):
        flat["codebook"] = CodeBook.load(flat["codebook"])
    return flat


def reading_of(given: Mapping[str, Any], *more: str) -> "Reading":
    """Return how text files are written, from the options of a command."""
    return {name: given[name] for name in (*TEXT.split(), *more)}  # type: ignore[return-value]
