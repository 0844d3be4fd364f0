"""`fedpower report`: the page of a result, made anew from its folder."""

import webbrowser
from pathlib import Path

import click

from fedpower.cli.console import note, print_json
from fedpower.report.result import write_report


@click.command(epilog="Example: fedpower report result --open")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(folder: Path, show: bool, as_json: bool) -> None:
    """Make report.html in the result folder DIR anew, from the other files in it.

    `fedpower fit` and `fedpower run` make it by themselves; this is for results of earlier versions. The
    same folder always gives the same page.
    """
    made = write_report(folder)
    if as_json:
        print_json({"report": str(made)})
    else:
        click.echo(made)
    if show and not webbrowser.open(made.absolute().as_uri()):
        note(f"no browser could be started; open {made} yourself")
