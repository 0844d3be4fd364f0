"""`fedpower identity`: the key with which a silo signs at the roll call of a secure sum."""

from pathlib import Path

import click

from fedpower.protocol.secure import Identity

PATH = click.Path(path_type=Path)


@click.group()
def identity() -> None:
    """Make or show the signing key of a silo.

    The study lists every silo's public key, and silos take part in a secure sum only with those
    listed: a coordinator cannot invent any. The private key never leaves its file.
    """


@identity.command()
@click.option("-o", "--output", type=PATH, required=True, help="New file for the private key, of mode 0600.")
def new(output: Path) -> None:
    """Make a new key and print its public half, for the study."""
    made = Identity.new()
    made.save(output)
    click.echo(made.public)


@identity.command()
@click.argument("file", type=PATH)
def show(file: Path) -> None:
    """Print the public half of the key in FILE, for the study."""
    click.echo(Identity.load(file).public)
