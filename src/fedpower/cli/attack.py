"""``fedpower attack``: rebuild a silo's moment from its messages, with and without noise."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import console, note, print_json, table
from fedpower.cli.progress import bars, quiet_option


@click.command()
@click.option(
    "--epsilon",
    "epsilons",
    type=float,
    multiple=True,
    default=(0.5, 1.0, 4.0, 10.0),
    show_default=True,
    help="Promise of each silo; may be given several times.",
)
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Its δ.")
@click.option("--rows", type=click.IntRange(2), default=1000, show_default=True, help="Of a silo.")
@click.option(
    "--n-steps", type=click.IntRange(1), default=10, show_default=True, help="Rounds to read along."
)
@click.option("--seeds", type=click.IntRange(1), default=15, show_default=True, help="Runs of each kind.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the results: a PNG, SVG or PDF file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@quiet_option
def attack(
    *,
    epsilons: tuple[float, ...],
    delta: float,
    rows: int,
    n_steps: int,
    seeds: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Play a coordinator that follows the paper's Algorithm 1 and reads along (its Example 1).

    From the bases it sent and the products it got it solves for the second moment of one silo, and
    reads off it the row of the one person with an entry in the last column.
    """
    from fedpower.experiments.attack import AttackSetting, chance_cosine, error_by_round  # noqa: PLC0415
    from fedpower.experiments.attack import attack as play  # noqa: PLC0415

    setting = AttackSetting(n_rows=rows, n_steps=n_steps, delta=delta)
    with _progress() as show:
        results = play(sorted(epsilons), setting=setting, seeds=range(seeds), on_progress=show)
    by_round = error_by_round(setting)
    if output is not None:
        from fedpower.experiments.attack import draw_attack  # noqa: PLC0415

        draw_attack(results, output, setting)
    if as_json:
        print_json(
            {
                "setting": asdict(setting),
                "chance_cosine": chance_cosine(setting),
                "error_by_round_without_noise": by_round,
                "results": [each.as_dict() for each in results],
            }
        )
    else:
        _print(results, by_round, chance_cosine(setting))
    if output is not None:
        note(f"the picture is in {output}")


def _print(results: list[Any], by_round: list[float], chance: float) -> None:
    numbers = ("epsilon", "error of the moment", "its range", "cosine of the row", "range of it")
    made = table(None, "noise", *numbers, numbers=numbers)
    for each in results:
        made.add_row(
            each.mode,
            f"{each.epsilon:g}" if math.isfinite(each.epsilon) else "inf",
            f"{each.error:.2g}",
            f"{each.error_range[0]:.2g} – {each.error_range[1]:.2g}",
            f"{each.row_cosine:.2f}",
            f"{each.row_cosine_range[0]:.2f} – {each.row_cosine_range[1]:.2f}",
        )
    console().print(made)
    known = next((count for count, error in enumerate(by_round, 1) if error < 1e-6), None)
    when = (
        f"after {known} rounds the coordinator knows the moment to {by_round[known - 1]:.0e}"
        if known
        else f"{len(by_round)} rounds were too few to know the whole moment"
    )
    click.echo(
        f"Without noise {when}, and with it a person's row; with noise the row is a guess "
        f"(a blind one has cosine {chance:.2f})."
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Give a progress callback; shown on stderr where that is a terminal."""
    from rich.progress import BarColumn, TimeRemainingColumn  # noqa: PLC0415

    with bars(BarColumn(), TimeRemainingColumn()) as progress:
        if progress is None:
            yield None
            return
        task = progress.add_task("")
        yield lambda done, total: progress.update(task, completed=done, total=total)
