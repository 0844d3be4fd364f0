"""`fedpower federation`: the kits with which the parties of a study reach each other."""

from pathlib import Path

import click

from fedpower.cli.console import console, table
from fedpower.cli.extras import needs_flare
from fedpower.federation.study_file import read_study

PATH = click.Path(path_type=Path)


@click.group()
def federation() -> None:
    """Make the kits with which the parties of a study reach each other."""


@federation.command()
@click.argument("study", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="New folder for the kits.")
def init(study: Path, output: Path) -> None:
    """Make a kit for every party of STUDY: keys, certificates, the study and a site policy.

    Hand each folder to its party over a channel that you trust, and delete it here. `authority` can make
    certificates in the study's name: keep it in a safe or delete it too.
    """
    needs_flare()
    from fedpower.federation.kits import AUTHORITY, COORDINATOR, RUNNER, make_kits  # noqa: PLC0415

    read = read_study(study)
    make_kits(read, output)
    shown = table(f"Kits of study {read.name} ({read.digest[:12]})", "folder", "for", "then")
    shown.add_row(f"{output / COORDINATOR}", f"{read.host}", f"fedpower coordinator {COORDINATOR}")
    for name in read.silos:
        shown.add_row(f"{output / name}", name, f"fedpower silo {name} {name}/silo.toml")
    shown.add_row(
        f"{output / RUNNER}",
        "whoever starts the run",
        f"fedpower run {study} --kit {output / RUNNER}",
    )
    shown.add_row(f"{output / AUTHORITY}", "a safe", "")
    console().print(shown)
