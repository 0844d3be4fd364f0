"""``fedpower audit``: play the distinguishing game against the real code, and say what it shows."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import click

from fedpower.cli.console import console, note, print_json, table
from fedpower.cli.progress import bars, quiet_option
from fedpower.errors import InputError

STEPS = 5
Mode = Literal["paper", "step", "moment", "secure", "prepared", "clipped", "scores"]
MODES: tuple[Mode, ...] = ("paper", "step", "moment", "secure", "prepared", "clipped", "scores")
Show = Callable[[str], Callable[[int, int], None]]


@click.command()
@click.option(
    "--mode",
    type=click.Choice(["all", *MODES]),
    default="all",
    show_default=True,
    help="Which noise mode to audit; secure is a secure sum, as its coordinator sees it.",
)
@click.option("--epsilon", type=float, default=4.0, show_default=True, help="The promise to put to the test.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Its δ.")
@click.option("--runs", type=click.IntRange(20), default=1000, show_default=True, help="Runs of each world.")
@click.option(
    "--confidence", type=float, default=0.999, show_default=True, help="That a sound silo is not accused."
)
@click.option(
    "--control",
    type=float,
    default=0.5,
    show_default=True,
    help="How much of the noise that is needed controls keep.",
)
@click.option("--halved", is_flag=True, help="Audit only the controls, whose noise is too small on purpose.")
@click.option(
    "--unit",
    type=click.Choice(["row", "person"]),
    default="row",
    show_default=True,
    help="What neighbours differ in: one row, or all rows of one person, as with `fit --unit`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@quiet_option
def audit(
    *,
    mode: str,
    epsilon: float,
    delta: float,
    runs: int,
    confidence: float,
    control: float,
    halved: bool,
    unit: Literal["row", "person"],
    as_json: bool,
) -> int:
    """Try to tell two neighbouring data sets apart by what a silo releases.

    They differ in the one row, or the one person, that is hardest to hide. How well the attempt
    succeeds bounds ε from below: a bound above what was promised is a VIOLATION, and the exit status is
    1. Controls with half of the noise that is needed show that the audit would notice. A small ε needs
    many runs.
    """
    from fedpower.experiments.audit import AuditReport, audit_mode, control_factor  # noqa: PLC0415

    if not math.isfinite(epsilon):
        raise InputError(
            f"an audit must put a finite epsilon to the test, got {epsilon}, no promise at all; give one"
        )
    chosen = _available() if mode == "all" else tuple(each for each in MODES if each == mode)
    plans: list[tuple[Mode, bool, float]] = []
    for each in chosen:
        factor = control_factor(each, epsilon=epsilon, delta=delta, n_steps=STEPS, of_needed=control)
        sound = [] if halved else [(each, center, 1.0) for center in _centrings(each)]
        plans += [*sound, (each, False, factor)]
    reports: list[AuditReport] = []
    with _progress(2 * runs * len(plans)) as show:
        for name, center, factor in plans:
            reports.append(
                audit_mode(
                    name,
                    epsilon=epsilon,
                    delta=delta,
                    n_runs=runs,
                    n_steps=STEPS,
                    center=center,
                    noise_factor=factor,
                    confidence=confidence,
                    on_progress=show(_label(name, center, factor, unit)),
                    unit=unit,
                )
            )
    audited = reports if halved else [report for report in reports if report.noise_factor == 1]
    violated = any(report.violation for report in audited)
    if as_json:
        print_json(
            {"violation": violated, "verdict": _sentence(reports, audited, control), "audits": _rows(reports)}
        )
    else:
        _print(reports, _sentence(reports, audited, control))
    unseen = [report for report in reports if report.noise_factor != 1 and not report.violation]
    if unseen:
        note(
            f"{runs} runs are too few to catch {_lack(control)} at epsilon={epsilon:g}; "
            "use a larger --runs or --epsilon"
        )
    return int(violated)


def _available() -> tuple[Mode, ...]:
    """Return all modes; without secure sums, and with a note, where their package is not installed."""
    from fedpower.protocol.secure import require_cryptography  # noqa: PLC0415

    try:
        require_cryptography()
    except InputError as error:
        note(f"secure sums are not audited: {error}")
        return tuple(each for each in MODES if each != "secure")
    return MODES


def _part(control: float) -> str:
    return "half" if control == 0.5 else f"{control:.3g}"


def _lack(control: float) -> str:
    return "halved noise" if control == 0.5 else f"{control:.3g} of the noise"


def _centrings(mode: Mode) -> tuple[bool, ...]:
    return (False, True) if mode in ("moment", "secure") else (False,)


def _label(mode: str, center: bool, factor: float, unit: str) -> str:
    name = f"{mode}, centred" if center else mode
    name += ", persons" if unit == "person" else ""
    if factor == 1:
        return name
    share = "halved noise" if factor == 0.5 else f"1/{1 / factor:.3g} of its noise"
    return f"{name}, control with {share}"


def _rows(reports: list[Any]) -> list[dict[str, Any]]:
    return [report.as_dict() for report in reports]


def _print(reports: list[Any], sentence: str) -> None:
    numbers = ("promised ε", "exact ε", "ε is at least", "runs")
    made = table(None, "what was audited", *numbers, "finding", numbers=numbers)
    for report in reports:
        control = report.noise_factor != 1
        finding = report.verdict
        if control:
            finding = "caught" if report.violation else "not caught"
        made.add_row(
            _label(report.mode, report.center, report.noise_factor, report.unit),
            f"{report.claimed_epsilon:g}",
            f"{report.reachable_epsilon if control else report.exact_epsilon:.3g}",
            f"{report.epsilon_lower:.3g}",
            f"2 × {report.found.n_runs}",
            finding,
        )
    console().print(made)
    click.echo(sentence)


def _sentence(reports: list[Any], audited: list[Any], control: float) -> str:
    first = reports[0]
    at = f"epsilon={first.claimed_epsilon:g} at delta={first.found.delta:g}"
    broken = [report for report in audited if report.violation]
    if broken:
        worst = max(broken, key=lambda report: report.epsilon_lower)
        return (
            f"VIOLATION: mode {worst.mode!r} loses at least epsilon={worst.epsilon_lower:.3g} where "
            f"{at} was promised (confidence {worst.found.confidence:g})."
        )
    controls = [report for report in reports if report.noise_factor != 1]
    caught = sum(report.violation for report in controls)
    return (
        f"No violation of {at} was found in {sum(2 * r.found.n_runs for r in audited)} runs; "
        f"{caught} of {len(controls)} controls with {_part(control)} of the noise needed were caught."
    )


@contextmanager
def _progress(total: int) -> Iterator[Show]:
    """Give what makes an audit's progress callback; shown on stderr where that is a terminal."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with bars(*columns) as progress:
        if progress is None:
            yield lambda label: lambda done, runs: None
            return
        task = progress.add_task("", total=total)

        def show(label: str) -> Callable[[int, int], None]:
            start = progress.tasks[0].completed
            progress.update(task, description=label)
            return lambda done, runs: progress.update(task, completed=start + 2 * done)

        yield show
