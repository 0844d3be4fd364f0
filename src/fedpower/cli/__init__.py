"""The command line: twelve commands in four groups."""

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

import fedpower
from fedpower.cli.console import INTERRUPTED, PipeClosedError, exit_status

_GROUPS = {
    "Analyse": {
        "inspect": ("plan", "What a table contains; drafts a code book."),
        "plan": ("plan", "Cost and expected accuracy of a fit, before anything is spent."),
        "fit": ("fit", "Private principal components of several silos."),
        "analyze": ("analyze", "Correlations, factors, regression, … of a result."),
    },
    "Results": {
        "show": ("results", "Print or open a result; compare two with --against."),
        "transform": ("results", "Project rows onto fitted components."),
        "export": ("results", "Write a result in the formats of other tools."),
    },
    "Privacy": {
        "ledger": ("privacy", "Create and show a silo's ledger, and set its cap."),
        "audit": ("privacy", "Measure the privacy that the code delivers."),
    },
    "Federate": {
        "study": ("study", "Write, check, show and run a study."),
        "node": ("node", "Make keys and certificates, and start a party."),
        "doctor": ("doctor", "Check this installation."),
    },
}
COMMANDS = {name: found for group in _GROUPS.values() for name, found in group.items()}
"""By command, which is a function of that name: its module, and its line in the listing."""

NAME = "fedpower"
TRACEBACK = "--traceback"


class LazyGroup(click.Group):
    """Commands that are listed and completed without being imported."""

    def groups(self) -> Mapping[str, Mapping[str, str]]:
        """Return by heading the line of each command in the listing."""
        raise NotImplementedError

    def load(self, name: str) -> click.Command:
        """Return a command, imported now."""
        raise NotImplementedError

    def lines(self) -> dict[str, str]:
        """Return the line of each command."""
        return {name: line for lines in self.groups().values() for name, line in lines.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(self.lines())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None where there is none of that name."""
        return self.load(cmd_name) if cmd_name in self.lines() else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so."""
        named = [CompletionItem(name, help=line) for name, line in self.lines().items()]
        matching = [item for item in named if item.value.startswith(incomplete)]
        return matching + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the listing, by heading."""
        for heading, lines in self.groups().items():
            with formatter.section(heading):
                formatter.write_dl(list(lines.items()))


class CommandLine(LazyGroup):
    """The commands, and errors that are one sentence."""

    def groups(self) -> Mapping[str, Mapping[str, str]]:
        """Return by heading the line of each command in the listing."""
        return {group: {name: line for name, (_, line) in found.items()} for group, found in _GROUPS.items()}

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and end the process with 0, 1 (our fault), 2 (refused), 130 or 141."""
        words = list(sys.argv[1:] if args is None else args)
        traceback = TRACEBACK in words or os.environ.get("FEDPOWER_TRACEBACK", "") not in ("", "0")
        words = [word for word in words if word != TRACEBACK]
        status = exit_status(
            lambda: super(CommandLine, self).main(
                words, NAME, complete_var, standalone_mode=False, obj=[NAME, *words], **extra
            ),
            traceback=traceback,
            command=" ".join(words[:2]),
        )
        if not standalone_mode:
            return status
        if status == INTERRUPTED:  # a second Ctrl-C, while threads end, ends them without a word
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit(status)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a closed pipe ends it, and is no error."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise PipeClosedError from None
        return status

    def load(self, name: str) -> click.Command:
        """Return a command, imported now."""
        module = importlib.import_module(f"fedpower.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names, or suggest one that is like it."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], COMMANDS)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=CommandLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="After an unexpected error, --traceback (or FEDPOWER_TRACEBACK=1) shows where it arose.",
)
@click.version_option(fedpower.__version__, prog_name=NAME)
@click.pass_context
def main(ctx: click.Context) -> None:
    """PCA across organisations that cannot pool their rows, with differential privacy."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
