"""`fedpower audit`, `attack` and `simulate`: what noise delivers, what it prevents, and made-up silos."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import click

from fedpower.cli.console import advancing, bar_of, note, print_json, print_table
from fedpower.cli.options import Command, option, options
from fedpower.errors import InputError, require
from fedpower.experiments.models import (
    FORMATS,
    Format,
    Model,
    spiked_covariance,
    stochastic_block,
    write_model,
)

# --- audit -----------------------------------------------------------------------------------------

STEPS = 5
Mode = Literal["paper", "step", "moment", "secure", "prepared", "clipped", "scores"]
MODES: tuple[Mode, ...] = ("paper", "step", "moment", "secure", "prepared", "clipped", "scores")


@click.command(cls=Command)
@options(
    option("--mode", "Noise mode to audit.", click.Choice(["all", *MODES]), default="all"),
    option("--epsilon", "The promise to test.", float, default=4.0),
    option("--delta", "Its δ.", float, default=1e-5),
    option("--runs", "Runs of each world.", click.IntRange(20), default=1000),
    option("--confidence", "That a sound silo is not accused.", float, default=0.999),
    option("--control", "Share of the needed noise that controls keep.", float, default=0.5),
    option("--halved", "Audit only the controls, whose noise is too small on purpose."),
    option("--unit", "What neighbours differ in.", click.Choice(["row", "person"]), default="row"),
    "as_json quiet",
)
def audit(mode: str, *, halved: bool, as_json: bool, **given: Any) -> int:
    """Try to tell two neighbouring data sets apart by what a silo releases.

    They differ in the one row, or the one person, that is hardest to hide. How well the attempt
    succeeds bounds ε from below: a bound above what was promised is a VIOLATION, and the exit status is
    1. Controls with half of the noise that is needed show that the audit would notice. A small ε needs
    many runs.
    """
    from fedpower.experiments.audit import AuditReport, audit_mode, control_factor  # noqa: PLC0415

    epsilon, delta, runs, unit = (given[name] for name in ("epsilon", "delta", "runs", "unit"))
    control = given["control"]
    require(math.isfinite(epsilon), "epsilon", "finite to be audited", epsilon)
    reports: list[AuditReport] = []
    plans: list[tuple[Mode, bool, float]] = []
    for name in _available() if mode == "all" else (cast("Mode", mode),):
        centrings = (False, True) if name in ("moment", "secure") else (False,)
        plans += [] if halved else [(name, center, 1.0) for center in centrings]
        factor = control_factor(name, epsilon=epsilon, delta=delta, n_steps=STEPS, of_needed=control)
        plans.append((name, False, factor))
    with bar_of("runs", 2 * runs * len(plans)) as advance:
        for name, center, factor in plans:
            report = audit_mode(
                name,
                epsilon=epsilon,
                delta=delta,
                n_runs=runs,
                n_steps=STEPS,
                center=center,
                noise_factor=factor,
                confidence=given["confidence"],
                on_progress=advancing(advance, 2),
                unit=unit,
            )
            reports.append(report)
    audited = reports if halved else [report for report in reports if report.noise_factor == 1]
    violated = any(report.violation for report in audited)
    verdict = _verdict(reports, audited, control)
    if as_json:
        audits = [report.as_dict() for report in reports]
        print_json({"violation": violated, "verdict": verdict, "audits": audits})
    else:
        _print_audit(reports)
        click.echo(verdict)
    if any(report.noise_factor != 1 and not report.violation for report in reports):
        lack = "halved noise" if control == 0.5 else f"{control:.3g} of the noise"
        note(f"{runs} runs are too few to catch {lack} at epsilon={epsilon:g}; use more --runs")
    return int(violated)


def _available() -> tuple[Mode, ...]:
    """Return all modes; without secure sums, and with a note, where their package is not installed."""
    from fedpower.protocol.secure import require_cryptography  # noqa: PLC0415

    try:
        require_cryptography()
    except InputError as error:
        note(f"secure sums are not audited: {error}")
        return tuple(mode for mode in MODES if mode != "secure")
    return MODES


def _label(mode: str, center: bool, factor: float, unit: str) -> str:
    name = f"{mode}{', centred' if center else ''}{', persons' if unit == 'person' else ''}"
    if factor == 1:
        return name
    return f"{name}, control with {'halved noise' if factor == 0.5 else f'1/{1 / factor:.3g} of its noise'}"


def _print_audit(reports: list[Any]) -> None:
    numbers = ("promised ε", "exact ε", "ε is at least", "runs")
    rows = []
    for report in reports:
        control = report.noise_factor != 1
        caught = "caught" if report.violation else "not caught"
        rows.append(
            (
                _label(report.mode, report.center, report.noise_factor, report.unit),
                f"{report.claimed_epsilon:g}",
                f"{report.reachable_epsilon if control else report.exact_epsilon:.3g}",
                f"{report.epsilon_lower:.3g}",
                f"2 × {report.found.n_runs}",
                caught if control else report.verdict,
            )
        )
    print_table(None, ("what was audited", *numbers, "finding"), rows, numbers=numbers)


def _verdict(reports: list[Any], audited: list[Any], control: float) -> str:
    at = f"epsilon={reports[0].claimed_epsilon:g} at delta={reports[0].found.delta:g}"
    broken = [report for report in audited if report.violation]
    if broken:
        worst = max(broken, key=lambda report: report.epsilon_lower)
        return (
            f"VIOLATION: mode {worst.mode!r} loses at least epsilon={worst.epsilon_lower:.3g} where "
            f"{at} was promised (confidence {worst.found.confidence:g})."
        )
    controls = [report for report in reports if report.noise_factor != 1]
    caught = sum(report.violation for report in controls)
    part = "half" if control == 0.5 else f"{control:.3g}"
    return (
        f"No violation of {at} was found in {sum(2 * r.found.n_runs for r in audited)} runs; "
        f"{caught} of {len(controls)} controls with {part} of the noise needed were caught."
    )


# --- attack ----------------------------------------------------------------------------------------


@click.command(cls=Command)
@options(
    option(
        "--epsilon", "Promise of each silo; repeatable.", float, multiple=True, default=(0.5, 1.0, 4.0, 10.0)
    ),
    option("--delta", "Its δ.", float, default=1e-5),
    option("--rows", "Rows of a silo.", click.IntRange(2), default=1000),
    option("--n-steps", "Rounds to overhear.", click.IntRange(1), default=10),
    option("--seeds", "Runs of each kind.", click.IntRange(1), default=15),
    option("-o --output FILE", "Draw the results: a PNG, SVG or PDF file."),
    "as_json quiet",
)
def attack(
    epsilon: tuple[float, ...],
    delta: float,
    *,
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
    from fedpower.experiments import attack as played  # noqa: PLC0415

    setting = played.AttackSetting(n_rows=rows, n_steps=n_steps, delta=delta)
    with bar_of("runs") as advance:
        show = advancing(advance)
        results = played.attack(sorted(epsilon), setting=setting, seeds=range(seeds), on_progress=show)
    by_round, chance = played.error_by_round(setting), played.chance_cosine(setting)
    if output is not None:
        played.draw_attack(results, output, setting)
    if as_json:
        print_json(
            {
                "setting": asdict(setting),
                "chance_cosine": chance,
                "error_by_round_without_noise": by_round,
                "results": [result.as_dict() for result in results],
            }
        )
    else:
        _print_attack(results, by_round, chance)
    if output is not None:
        note(f"the picture is in {output}")


def _print_attack(results: list[Any], by_round: list[float], chance: float) -> None:
    numbers = ("epsilon", "error of the moment", "its range", "cosine of the row", "range of it")
    rows = [
        (
            result.mode,
            f"{result.epsilon:g}",
            f"{result.error:.2g}",
            f"{result.error_range[0]:.2g} – {result.error_range[1]:.2g}",
            f"{result.row_cosine:.2f}",
            f"{result.row_cosine_range[0]:.2f} – {result.row_cosine_range[1]:.2f}",
        )
        for result in results
    ]
    print_table(None, ("noise", *numbers), rows, numbers=numbers)
    known = next((count for count, error in enumerate(by_round, 1) if error < 1e-6), None)
    when = f"{len(by_round)} rounds were too few to know the whole moment"
    if known:
        when = f"after {known} rounds the coordinator knows the moment to {by_round[known - 1]:.0e}"
    click.echo(
        f"Without noise {when}, and with it a person's row; with noise the row is a guess "
        f"(a blind one has cosine {chance:.2f})."
    )


# --- simulate --------------------------------------------------------------------------------------


@click.group()
def simulate() -> None:
    """Write silos of simulated rows, and the truth they hide."""


_MODEL = options(
    option(
        "-o --output FOLDER", "Folder to write: silo-01, silo-02, …, truth.npz and model.json.", required=True
    ),
    option("--silos", "Number of silos.", click.IntRange(1)),
    option("--format", "File format of the silos.", click.Choice(FORMATS), name="kind", default="npy"),
    option("--seed", "Determines every row.", click.IntRange(0), default=0),
    option("--paper-size", "The paper's size where no option gives another."),
    option("--no-normalize", "Leave rows as drawn; the paper scales them to norm 1."),
    "force as_json quiet",
)
_WRITING = ("output", "kind", "force", "as_json")


@simulate.command()
@_MODEL
@options(
    option("--rows", "Rows of all silos together.", click.IntRange(1)),
    option("--features", "Columns.", click.IntRange(1), default=100),
    option("--rank", "Planted directions.", click.IntRange(1), default=4),
    option("--noise", "σ of the noise around them.", float, default=0.6),
)
def spiked(**given: Any) -> None:
    """Rows with RANK planted directions under noise: the paper's Model I.

    20,000 rows in 4 silos by default; 2,000,000 in 20 with --paper-size.
    """
    model = spiked_covariance(
        n_rows=given["rows"] or (2_000_000 if given["paper_size"] else 20_000),
        n_features=given["features"],
        n_silos=given["silos"] or (20 if given["paper_size"] else 4),
        rank=given["rank"],
        noise=given["noise"],
        normalize=not given["no_normalize"],
        seed=given["seed"],
    )
    _write(model, **{name: given[name] for name in _WRITING})


@simulate.command()
@_MODEL
@options(
    option("--nodes", "Nodes of each network.", click.IntRange(1)),
    option("--communities", "Communities.", click.IntRange(1), default=2),
)
def sbm(**given: Any) -> None:
    """Networks on the same nodes, one per silo, with communities in common: the paper's Model II.

    200 nodes in 4 silos by default; 1000 in 20 with --paper-size.
    """
    model = stochastic_block(
        n_nodes=given["nodes"] or (1000 if given["paper_size"] else 200),
        n_silos=given["silos"] or (20 if given["paper_size"] else 4),
        n_communities=given["communities"],
        normalize=not given["no_normalize"],
        seed=given["seed"],
    )
    _write(model, **{name: given[name] for name in _WRITING})


def _write(model: Model, *, output: Path, kind: Format, force: bool, as_json: bool) -> None:
    with bar_of("rows", model.n_rows) as advance:
        files = write_model(model, output, kind=kind, force=force, on_rows=advance)
    size = sum(path.stat().st_size for path in files)
    if as_json:
        written = {"folder": str(output), "bytes": size, "files": [str(path) for path in files]}
        print_json(model.facts | written)
        return
    bound = "--epsilon 1 --row-norm 1" if model.normalize else "--epsilon inf"
    click.echo(
        f"wrote {model.n_silos} silos of {model.n_features} columns, {model.n_rows:,} rows, "
        f"{size / 1e6:,.1f} MB, to {output}"
    )
    click.echo(f"next: fedpower fit {output}/silo-*.{kind} -k {model.rank} {bound} -o RESULT")
