"""The command line: twelve commands in four groups."""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click
from click.shell_completion import CompletionItem

import fedpower
from fedpower.cli.console import INTERRUPTED, exit_status

_GROUPS = {
    "Analyse": {
        "inspect": ("plan", "Show what tables contain, and draft a code book."),
        "plan": ("plan", "Show cost and expected accuracy of a fit beforehand."),
        "fit": ("fit", "Compute private principal components of several silos."),
        "analyze": ("analyze", "Correlations, factors, regression and more of a result."),
    },
    "Results": {
        "show": ("results", "Print or open a result, or compare two."),
        "transform": ("results", "Project rows onto fitted components."),
        "export": ("results", "Write a result for other tools: ONNX, PLINK, AnnData, CSV."),
    },
    "Privacy": {
        "ledger": ("privacy", "Create, show and verify a silo's ledger; set its cap."),
        "audit": ("privacy", "Measure the privacy that the code delivers."),
    },
    "Federate": {
        "study": ("study", "Write, check, show and run a study."),
        "node": ("node", "Make keys and certificates, and run a party."),
        "doctor": ("doctor", "Check this installation."),
    },
}
COMMANDS = {name: found for group in _GROUPS.values() for name, found in group.items()}
"""By command, which is a function of that name: its module, and its line in the listing."""

NAME = "fedpower"
_TRACEBACK = "--traceback"
_Listing = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By heading and command what is known of it, its line last."""
_PIPE_CLOSED = 141  # what a shell reports of a command whose reader has closed the pipe, such as `| head`


class LazyGroup(click.Group):
    """Commands that are listed and completed without being imported."""

    def __init__(
        self, *given: Any, listing: _Listing, load: Callable[[str], click.Command], **more: Any
    ) -> None:
        super().__init__(*given, **more)
        self.listing, self.load = listing, load

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for commands in self.listing.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.load(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        self.commands: Any = dict.fromkeys(self.list_commands(ctx))  # of which click suggests one
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        known = [item for commands in self.listing.values() for item in commands.items()]
        matching = [
            CompletionItem(name, help=line) for name, (*_, line) in known if name.startswith(incomplete)
        ]
        return matching + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in self.listing.items():
            with formatter.section(heading):
                formatter.write_dl([(name, line) for name, (*_, line) in commands.items()])


class CommandLine(LazyGroup):
    """The commands, and errors that are one sentence."""

    def main(self, args: Any = None, *given: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line and end the process with 0, 1 (our fault), 2 (refused), 130 or 141."""
        words = list(sys.argv[1:] if args is None else args)
        traceback = _TRACEBACK in words or os.environ.get("FEDPOWER_TRACEBACK", "") not in ("", "0")
        words = self._asking_help([word for word in words if word != _TRACEBACK])
        extra |= {"prog_name": NAME, "standalone_mode": False, "obj": [NAME, *words]}
        run = partial(super().main, words, *given, **extra)
        verbose = "--verbose" in words
        status = exit_status(run, traceback=traceback, command=" ".join(words[:2]), verbose=verbose)
        if not standalone_mode:
            return status
        if status == INTERRUPTED:  # a second Ctrl-C, while threads end, ends them without a word
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit(status)

    def _asking_help(self, words: list[str]) -> list[str]:
        """Return the words of a request for help, wherever it is: the command, and then --help."""
        asked = [word for word in words if word in ("-h", "--help", "--help-all")]
        path: list[str] = []
        command: Any = self
        for word in (word for word in words if not word.startswith("-")):
            command = command.get_command(click.Context(command), word) if asked and command else None
            path += [word] if command else []
            command = command if isinstance(command, click.Group) else None
        return [*path, asked[0]] if path else words

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a closed pipe ends it, and is no error."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered goes nowhere, without a word at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(_PIPE_CLOSED)
        return status


def _load(name: str) -> click.Command:
    command: click.Command = getattr(importlib.import_module(f"fedpower.cli.{COMMANDS[name][0]}"), name)
    return command


@click.group(
    cls=CommandLine,
    listing=_GROUPS,
    load=_load,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="--traceback, or FEDPOWER_TRACEBACK=1, shows the traceback of an error.",
)
@click.version_option(fedpower.__version__, prog_name=NAME)
@click.pass_context
def main(ctx: click.Context) -> None:
    """PCA across organisations that cannot pool their rows, with differential privacy."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
