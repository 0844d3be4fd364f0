"""The command line: `fedpower plan`, `fit`, `transform`, `compare`, `budget` and the rest."""

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

import fedpower
from fedpower.cli.failures import INTERRUPTED, PipeClosedError, exit_status

COMMANDS = {
    "inspect": ("fedpower.cli.inspect:inspect", "What tables hold, and a draft of rules for them."),
    "plan": ("fedpower.cli.plan:plan_command", "What a fit would cost and give, before it is run."),
    "prepare": ("fedpower.cli.fit:prepare", "Offsets, scales and bound of columns, found privately."),
    "fit": ("fedpower.cli.fit:fit", "Principal components of rows that silos do not pool."),
    "release": ("fedpower.cli.fit:release", "The pooled moment itself, paid for once, to analyse for ever."),
    "communities": (
        "fedpower.cli.communities:communities",
        "Communities of networks that silos do not pool.",
    ),
    "derive": ("fedpower.cli.derive:derive", "Analyses of a released moment, at no cost."),
    "study": ("fedpower.cli.study:study", "The file that a consortium agrees on."),
    "federation": ("fedpower.cli.federation:federation", "Make a kit for every party of a study."),
    "coordinator": ("fedpower.cli.parties:coordinator", "Run the coordinator of a study."),
    "silo": ("fedpower.cli.parties:silo", "Run this organisation's silo."),
    "run": ("fedpower.cli.run:run", "Run a study over its federation."),
    "status": ("fedpower.cli.run:status", "Who is connected, and how far a run is."),
    "report": ("fedpower.cli.report:report", "Make a result's page anew, and open it."),
    "transform": ("fedpower.cli.transform:transform", "Project rows onto fitted components."),
    "export": ("fedpower.cli.export:export", "A result in the formats of other tools."),
    "compare": ("fedpower.cli.compare:compare", "Principal angles between two results."),
    "simulate": ("fedpower.cli.simulate:simulate", "Write silo files of the paper's data models."),
    "budget": ("fedpower.cli.budget:budget", "What a silo has spent on what, and what is left."),
    "identity": ("fedpower.cli.identity:identity", "A silo's signing key, for secure sums."),
    "audit": ("fedpower.cli.audit:audit", "Measure the privacy that is really delivered."),
    "attack": ("fedpower.cli.attack:attack", "Rebuild a silo's moment from its messages."),
    "doctor": ("fedpower.cli.doctor:doctor", "Whether fedpower is sound here, and what is missing."),
    "completion": ("fedpower.cli.completion:completion", "Words completed by bash, zsh or fish."),
}
"""By command: where it is, and its line in the listing."""

NAME = "fedpower"
TRACEBACK = "--traceback"


class CommandLine(click.Group):
    """Commands that are imported when invoked, and errors that are one sentence."""

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
        if status == INTERRUPTED:  # a second Ctrl-C, while threads end, is to end them without a word
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit(status)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of its output who has gone ends it, and is no error."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise PipeClosedError from None
        return status

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names, or say which one is like it."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], COMMANDS)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, from the map, without importing one."""
        named = [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the listing from the map, without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=CommandLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="After an unexpected error, --traceback (or FEDPOWER_TRACEBACK=1) shows where it arose.",
)
@click.version_option(fedpower.__version__, prog_name=NAME)
@click.pass_context
def main(ctx: click.Context) -> None:
    """PCA across organisations that cannot pool their rows, with differential privacy."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
