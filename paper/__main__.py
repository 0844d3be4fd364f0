"""``python -m paper``: the experiments of the paper's section 5, with a test of every claim."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import bars, exit_status, note, print_json, print_table
from fedpower.cli.options import options
from paper.pictures import drawing
from paper.settings import FIGURES, Settings
from paper.store import Store, claims_record, verdicts_on, write_outputs
from paper.store import reproduce as run

USUAL, QUICK = 20, 3
"""How many repetitions run by default."""


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for table, claims and pictures. An interrupted run in it is resumed.",
)
@click.option(
    "--only",
    "figures",
    type=click.Choice(list(FIGURES)),
    multiple=True,
    help="Only this figure. May be repeated.",
)
@click.option("--quick", is_flag=True, help="Small models instead of the paper's size, under a minute.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Determines every random number."
)
@click.option(
    "--repetitions",
    type=click.IntRange(2),
    help=f"Each with its own rows, start and noise. Default: {USUAL}, or {QUICK} with --quick.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the claims as JSON.")
@options("quiet")
def reproduce(
    *, output: Path, figures: tuple[str, ...], quick: bool, seed: int, repetitions: int | None, as_json: bool
) -> None:
    """Run the paper's experiments at its size, test what its text says, and draw the figures.

    About a quarter of an hour on two cores. An interrupted run resumes when the same command is given
    again. The same seed gives the same files, byte for byte.
    """
    with drawing():  # refused before anything is computed
        pass
    settings = Settings(
        seed=seed,
        repetitions=repetitions or (QUICK if quick else USUAL),
        quick=quick,
        figures=tuple(name for name in FIGURES if not figures or name in figures),
    )
    store = Store(output, settings)
    try:
        with _progress() as show:
            runs = run(settings, store, on_progress=show)
        verdicts = verdicts_on(settings, runs)
        files = write_outputs(output, settings, runs, verdicts)
    except KeyboardInterrupt:
        raise click.Abort(
            f"interrupted; finished repetitions are in {output}, and the same command continues"
        ) from None
    if as_json:
        print_json(claims_record(settings, verdicts))
    else:
        _print(verdicts)
        click.echo(f"{len(files)} files are in {output}: {', '.join(path.name for path in files)}")
    if quick:
        note("this was a quick run, not the paper's size: few claims can hold")


def _print(verdicts: list[Any]) -> None:
    rows = [
        (
            verdict.claim.name,
            verdict.claim.whose,
            verdict.weakest.part.what,
            f"{verdict.weakest.found.value:.3g}",
            str(verdict.weakest.part.bound),
            "yes" if verdict.holds else "no",
        )
        for verdict in verdicts
    ]
    headings = ("claim", "whose", "statistic", "value", "bound", "holds")
    print_table(None, headings, rows, numbers=("value",))
    count = sum(verdict.holds for verdict in verdicts)
    click.echo(f"{count} of {len(verdicts)} claims hold. claims.json explains the others.")


@contextmanager
def _progress() -> Iterator[Callable[[int, int, bool], None] | None]:
    # The speed of many minutes: runs of one model are much slower than those of the other.
    with bars(speed_estimate_period=600.0) as progress:
        if progress is None:
            yield None
            return
        task = progress.add_task("runs", total=None, note="")

        def show(done: int, total: int, kept: bool) -> None:
            if kept:  # read back: says nothing about the speed
                progress.reset(task, completed=done, total=total)
            else:
                progress.update(task, completed=done, total=total)

        yield show


def main(*words: str) -> int:
    """Return the exit status of the command; whatever stops it is one sentence on stderr."""
    return exit_status(
        lambda: reproduce.main(list(words), "python -m paper", standalone_mode=False), traceback=False
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
