"""Command-line options made from the options of a fit, listed under headings: what most people need first."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fedpower.cli import values
from fedpower.options import FLAT, option_name
from fedpower.report.codebook_file import read_code_book

if TYPE_CHECKING:
    from fedpower.rows.opening import Reading

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

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

_READ: dict[str, dict[str, Any]] = {
    "n_components": {"callback": values.rank, "required": True, "metavar": "K"},
    # Its callback reads the number, and says what it must be.
    "epsilon": {"type": str, "callback": values.epsilon, "required": True, "metavar": "NUMBER|inf"},
    "schedule": {"callback": values.schedule, "metavar": "every|decaying|halving|STEPS"},
    "random_state": {"type": click.IntRange(0, 2**32 - 1)},
    "device": {"metavar": "NAME"},
}
"""How the command line reads what is not a plain number or word."""


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


def option(*words: str, group: str, **settings: Any) -> _Decorator:
    """Return the declaration of an option that is not one of a fit."""
    return click.option(*words, cls=Option, group=group, **settings)


def parameter(name: str, **changed: Any) -> _Decorator:
    """Return the declaration of an option of a fit; one that is not given keeps its default."""
    spec = FLAT[name]
    settings: dict[str, Any] = {"help": spec.help}
    if spec.choices:
        settings["type"] = click.Choice(spec.choices)
    elif spec.kind is bool:
        settings |= {"default": None} if "/" in (spec.option or "") else {"is_flag": True, "default": None}
    elif spec.kind is not None and spec.kind is not str:
        settings["type"] = spec.kind
    settings |= {**_READ.get(name, {}), **changed}
    return click.option(spec.option or option_name(name), name, cls=Option, group=spec.group, **settings)


def given_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a fit among those of a command, without those that were not given."""
    flat = {name: given[name] for name in FLAT if given.get(name) is not None}
    if isinstance(flat.get("codebook"), str) or hasattr(flat.get("codebook"), "__fspath__"):
        flat["codebook"] = read_code_book(flat["codebook"])
    return flat


def declared(declarations: Sequence[_Decorator]) -> _Decorator:
    """Return what declares all of them on a command, in the order in which help lists them."""

    def declare(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(declarations):
            command = each(command)
        return command

    return declare


EXTRA = option("--extra", "extra_columns", group="rows", type=click.Choice(["refuse", "drop"]),
               default="refuse", help="What to do with columns that not every silo has.")  # fmt: skip
verbose_option = option("--verbose", group="main", is_flag=True,
                        help="Print the whole privacy statement, as privacy.txt has it.")  # fmt: skip
_READING = (
    option("--separator", group="rows", metavar="SIGN",
           help="What is between the cells of text files, where their first lines leave a doubt."),
    option("--decimal", group="rows", metavar=".|,", help="The sign before decimals in text files."),
    option("--encoding", group="rows", metavar="NAME",
           help="How text files are written, e.g. cp1252; UTF-8 by default."),
)  # fmt: skip
RENAME = option("--rename", group="rows", callback=values.renames, multiple=True,
                metavar="OLD=NEW", help="Call a column otherwise, where it is; repeatable.")  # fmt: skip
text_options = declared(_READING)
reading_options = declared((*_READING, RENAME))


def text_reading(options: Mapping[str, Any]) -> "Reading":
    """Return how text files are written, from the options of a command."""
    return {name: options[name] for name in ("separator", "decimal", "encoding")}  # type: ignore[return-value]


def reading_of(options: Mapping[str, Any]) -> "Reading":
    """Return how files are to be read, from the options of a command."""
    return {**text_reading(options), "rename": options["rename"]}
