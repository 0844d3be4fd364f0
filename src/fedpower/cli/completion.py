"""`fedpower completion`: what makes a shell complete fedpower's words."""

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS = ("bash", "zsh", "fish")
HELP = """Print the script that makes SHELL complete commands, options, their choices and paths.

\b
bash:  fedpower completion bash > ~/.local/share/bash-completion/completions/fedpower
zsh:   fedpower completion zsh > ~/.zfunc/_fedpower   (a folder in $fpath, before compinit)
fish:  fedpower completion fish > ~/.config/fish/completions/fedpower.fish
"""
"""After the sign for backspace click leaves lines as they are."""


@click.command(help=HELP)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that a shell reads."""
    root = ctx.find_root()
    name = root.command_path
    made = get_completion_class(shell)
    assert made is not None, "click knows every shell that the choice names"
    # of the base class: bash's own would run bash to look at its version
    click.echo(ShellComplete.source(made(root.command, {}, name, f"_{name}_COMPLETE".upper())))
