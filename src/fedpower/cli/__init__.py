"""The command line: `fedpower plan`, `fit`, `transform`, `compare`, `budget` and the rest."""

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
from fedpower.cli.failures import INTERRUPTED, PipeClosedError, exit_status

COMMANDS = {
    "inspect": ("inspect:inspect", "What a table contains; drafts a code book."),
    "plan": ("plan:plan_command", "Cost and expected accuracy of a fit, before anything is spent."),
    "prepare": ("fit:prepare", "Offsets, scales and bound of columns, found privately."),
    "fit": ("fit:fit", "Private principal components of several silos."),
    "release": ("fit:release", "The pooled covariance, paid for once, to analyse at no cost."),
    "communities": ("fit:communities", "Communities of networks that silos do not pool."),
    "analyze": ("analyze:analyze", "Correlations, factors, regression, … of a result."),
    "show": ("results:show", "Print or open a result; compare two with --against."),
    "transform": ("results:transform", "Project rows onto fitted components."),
    "export": ("results:export", "A result in the formats of other tools."),
    "ledger": ("privacy:ledger", "Create and show a silo's ledger, and set its cap."),
    "audit": ("privacy:audit", "Measure the privacy that the code delivers."),
    "study": ("study:study", "The file that a consortium agrees on."),
    "federation": ("federation:federation", "Keys and certificates for the parties of a study."),
    "coordinator": ("parties:coordinator", "Run the coordinator of a study."),
    "silo": ("parties:silo", "Run this organisation's silo."),
    "run": ("run:run", "Run a study over its federation."),
    "status": ("run:status", "Who is connected, and how far a run is."),
    "identity": ("federation:identity", "A silo's signing key, for secure sums."),
    "doctor": ("doctor:doctor", "Check this installation."),
}
"""By command: its module and function, and its line in the listing."""

NAME = "fedpower"
TRACEBACK = "--traceback"


class LazyGroup(click.Group):
    """Commands that are listed and completed without being imported."""

    def lines(self) -> Mapping[str, str]:
        """Return the line of each command in the listing."""
        raise NotImplementedError

    def load(self, name: str) -> click.Command:
        """Return a command, imported now."""
        raise NotImplementedError

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
        """Write the listing."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines().items()))


class CommandLine(LazyGroup):
    """The commands, and errors that are one sentence."""

    def lines(self) -> Mapping[str, str]:
        """Return the line of each command in the listing."""
        return {name: line for name, (_, line) in COMMANDS.items()}

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
        module, function = COMMANDS[name][0].split(":")
        command: click.Command = getattr(importlib.import_module(f"fedpower.cli.{module}"), function)
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
