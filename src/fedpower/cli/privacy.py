"""`fedpower ledger` and `audit`: what a silo has spent, and the privacy that the code delivers."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import click

from fedpower.cli.console import advancing, bar_of, note, print_json, print_table, say
from fedpower.cli.options import Command, option, options
from fedpower.exceptions import InputError, require
from fedpower.privacy import Ledger, mu_of
from fedpower.privacy.ledger import jsonable, rounded_down
from fedpower.report.text import date_and_time

# --- ledger ----------------------------------------------------------------------------------------


@click.group()
def ledger() -> None:
    """Create and show the ledger of a silo, and set its cap.

    A ledger is one file of one silo. Everything that leaves the silo is charged to it first, and
    what would overspend its cap is refused.
    """


def _cap(purpose: str) -> tuple[Any, Any]:
    return (
        option("--epsilon", f"{purpose}.", float, required=True),
        option("--delta", "Its δ; 1e-6 is usual.", float, required=True),
    )


@ledger.command()
@options(
    "LEDGER",
    *_cap("Cap on all that may ever be spent"),
    option("--silo NAME", "The silo it belongs to; NORTH for a file called NORTH.ledger."),
    "data_set as_json",
)
def create(
    ledger: Path, *, epsilon: float, delta: float, silo: str | None, data_set: str | None, as_json: bool
) -> None:
    """Create the file LEDGER with a cap.

    An existing ledger is never overwritten.
    """
    owner = silo if silo is not None or ledger.suffix != ".ledger" else ledger.stem
    Ledger.in_memory(epsilon, delta, silo=owner, data_set=data_set).close()  # refuses a bad cap first
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with Ledger.create(ledger, epsilon=epsilon, delta=delta, silo=owner, data_set=data_set) as made:
        statement = made.statement()
    if as_json:
        print_json({"ledger": str(ledger), **statement})
        return
    click.echo(
        f"{ledger} is the ledger of {_whose(statement)}: it may spend {_terms(statement['cap'])} "
        "in all. Keep this one file safe: restoring an old copy erases recorded spending."
    )


@ledger.command()
@options("LEDGER", option("--what-if EPSILON", "Would a fit with this epsilon be allowed?", float), "as_json")
def show(ledger: Path, what_if: float | None, as_json: bool) -> None:
    """Show the cap of LEDGER, every charge, and what is left.

    The file is only read: it need not be writable, and no other file is made.
    """
    with Ledger.open(ledger, read_only=True) as opened:
        statement = opened.statement()
        if what_if is not None:
            after = opened.what_if(what_if)
            forecast = {"epsilon": what_if, "fits": after.fits, "spent": after.epsilon, "left": after.left}
            statement["what_if"] = jsonable(forecast)
    if as_json:
        print_json(statement)
    else:
        _print(ledger, statement)


@ledger.command()
@options(
    "LEDGER", *_cap("The new cap"), option("--reason TEXT", "Why, for the record.", required=True), "as_json"
)
def set_cap(ledger: Path, epsilon: float, delta: float, reason: str, as_json: bool) -> None:
    """Set another cap on LEDGER, on record.

    After a rise the promise is that of the higher cap.
    """
    if not reason.strip():
        raise InputError("a change of cap must have a reason on record, got none; give --reason")
    with Ledger.open(ledger) as opened:
        before = opened.statement()["cap"]
        opened.set_cap(epsilon, delta, reason=reason)
        statement = opened.statement()
    if as_json:
        print_json({"ledger": str(ledger), **statement})
        return
    click.echo(
        f"The cap of {ledger} was {_terms(before)} and is {_terms(statement['cap'])} now; "
        f"epsilon={rounded_down(statement['left'], 4)} is left."
    )


def share_used(statement: dict[str, Any]) -> float:
    """Return the part of the cap that is used: epsilons do not add up, μ² does."""
    limit, spent = statement["cap"], statement["spent"]
    delta = limit["delta"] - spent["slack_delta"]
    return 1.0 if delta <= 0 else min(1.0, float(spent["mu"] / mu_of(limit["epsilon"], delta)) ** 2)


def _print(ledger: Path, statement: dict[str, Any]) -> None:
    left, spent, forecast = statement["left"], statement["spent"], statement.get("what_if")
    say(f"Ledger {ledger} of {_whose(statement)}; it protects {statement['unit']}.")
    if statement["for_experiments"]:
        say("It was made for experiments: noise of its charges may come from a seed.")
    headings = ("#", "what", "study", "epsilon alone", "total so far", "when")
    rows = [
        (
            str(entry["seq"]),
            entry["purpose"],
            entry["study"][:12],
            _epsilon(entry["epsilon"]),
            _epsilon(entry["total_epsilon"]),
            date_and_time(entry["time"]),
        )
        for entry in statement["entries"]
    ]
    if rows:
        print_table(None, headings, rows, numbers=("#", "epsilon alone", "total so far"))
    else:
        say("Nothing has been released yet.")
    for change in statement["cap_changes"][1:]:
        say(f"Cap set to {_terms(change)} on {date_and_time(change['time'])}: {change['reason']}")
    say(
        f"{share_used(statement):.0%} of the cap is used (releases cost less together than their epsilons "
        "add up to)",
        f"Cap {_terms(statement['cap'])}; spent {_epsilon(spent['epsilon'])}, "
        f"left {rounded_down(left, 4)} for one further fit.",
    )
    if forecast is not None:
        fits = f"would be refused: at most epsilon={rounded_down(left, 4)} is left"
        if forecast["fits"]:
            fits = f"would be allowed and leave {rounded_down(forecast['left'], 4)}"
        say(f"A fit with epsilon={forecast['epsilon']:g} {fits}.")


def _terms(cap: dict[str, Any]) -> str:
    return f"epsilon={cap['epsilon']:g} at delta={cap['delta']:g}"


def _whose(statement: dict[str, Any]) -> str:
    """Return the silo that a ledger belongs to, and its data where they have a name."""
    silo = "a silo" if statement["silo"] is None else f"silo {statement['silo']!r}"
    named = statement["data_set"] is not None
    return f"{silo} and its data set {statement['data_set']!r}" if named else silo


def _epsilon(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.4g}"


# --- audit -----------------------------------------------------------------------------------------

STEPS = 5
Mode = Literal["paper", "step", "covariance", "secure", "prepared", "clipped", "scores"]
MODES: tuple[Mode, ...] = get_args(Mode)
_RUNS, _ATTACKS = 1000, 15
_AUDITED, _ATTACKED = (4.0,), (0.5, 1.0, 4.0, 10.0)


@click.command(cls=Command)
@options(
    option("--epsilon", "The promise to test, 4 by default; repeatable.", float, multiple=True),
    option("--delta", "Its δ.", float, default=1e-5),
    option("--mode", "Noise mode to audit.", click.Choice(["all", *MODES]), default="all"),
    option(
        "--neighbours", "What neighbours differ in.", click.Choice(["row", "person"]), name="unit",
        default="row",
    ),
    option("--runs", "Runs of each world, 1000 by default; of each attack, 15.", click.IntRange(1)),
    option("--confidence", "That a sound silo is not accused.", float, default=0.999),
    option("--control", "Share of the needed noise that controls keep.", float, default=0.5),
    option("--halved", "Audit only the controls, whose noise is too small on purpose."),
    option("--attack", "Play the attack that noise prevents."),
    option("--rows", "With --attack: rows of a silo.", click.IntRange(2), default=1000),
    option("--n-steps", "With --attack: rounds to overhear.", click.IntRange(1), default=10),
    option("-o --output FILE", "With --attack: draw the results as PNG, SVG or PDF."),
    "as_json quiet",
)  # fmt: skip
def audit(*, attack: bool, epsilon: tuple[float, ...], runs: int | None, **given: Any) -> int:
    """Try to tell two neighbouring data sets apart by what a silo releases.

    They differ in the one row, or the one person, that is hardest to hide. How well the attempt
    succeeds bounds ε from below: a bound above what was promised is a VIOLATION, and the exit status is
    1. Controls with half of the noise that is needed show that the audit would notice. A small ε needs
    many runs.

    With --attack: play a coordinator that follows the paper's Algorithm 1 and reads along (its Example 1).
    From the bases it sent and the products it got it solves for the second moment of one silo, and
    reads off it the row of the one person with an entry in the last column.
    """
    if attack:
        _play_attack(sorted(epsilon or _ATTACKED), runs or _ATTACKS, **given)
        return 0
    require(given["output"] is None, "output", "left out without --attack", str(given["output"]))
    require(runs is None or runs >= 20, "runs", "at least 20", runs)
    verdicts = [_audit(promise, runs or _RUNS, **given) for promise in epsilon or _AUDITED]
    return int(any(verdicts))


def _audit(epsilon: float, runs: int, **given: Any) -> bool:
    """Audit one promise, print what was found, and return whether it is broken."""
    from fedpower.experiments.audit import audit_mode, control_factor  # noqa: PLC0415

    require(math.isfinite(epsilon), "epsilon", "finite to be audited", epsilon)
    mode, halved, control = given["mode"], given["halved"], given["control"]
    terms = {"epsilon": epsilon, "delta": given["delta"], "n_steps": STEPS}
    plans: list[tuple[Any, bool, float]] = []
    for name in _available() if mode == "all" else (mode,):
        centrings = (False, True) if name in ("covariance", "secure") else (False,)
        plans += [] if halved else [(name, center, 1.0) for center in centrings]
        plans.append((name, False, control_factor(name, **terms, of_needed=control)))
    with bar_of("runs", 2 * runs * len(plans)) as advance:
        reports = [
            audit_mode(
                name,
                **terms,
                n_runs=runs,
                center=center,
                noise_factor=factor,
                confidence=given["confidence"],
                on_progress=advancing(advance, 2),
                unit=given["unit"],
            )
            for name, center, factor in plans
        ]
    controls = [report for report in reports if report.noise_factor != 1]
    audited = controls if halved else [report for report in reports if report.noise_factor == 1]
    worst = max(audited, key=lambda report: report.epsilon_lower)
    promise, caught = f"epsilon={epsilon:g} at delta={given['delta']:g}", sum(r.violation for r in controls)
    part = f"{'half' if control == 0.5 else f'{control:.3g}'} of the noise needed"
    if worst.violation:
        verdict = (
            f"VIOLATION: mode {worst.mode!r} loses at least epsilon={worst.epsilon_lower:.3g} where "
            f"{promise} was promised (confidence {worst.confidence:g})."
        )
    else:
        verdict = (
            f"No violation of {promise} was found in {sum(2 * report.n_runs for report in audited)} runs; "
            f"{caught} of {len(controls)} controls with {part} were caught."
        )
    if given["as_json"]:
        audits = [report.as_dict() for report in reports]
        print_json({"violation": worst.violation, "verdict": verdict, "audits": audits})
    else:
        headings = ("what was audited", "promised ε", "exact ε", "ε is at least", "runs", "finding")
        print_table(None, headings, map(_audit_row, reports), numbers=headings[1:5])
        click.echo(verdict)
    if caught < len(controls):
        note(f"{runs} runs are too few to catch {part} at epsilon={epsilon:g}; use more --runs")
    return bool(worst.violation)


def _available() -> tuple[Mode, ...]:
    """Return all modes; without secure sums, and with a note, where their package is not installed."""
    from fedpower.protocol.secure import require_cryptography  # noqa: PLC0415

    try:
        require_cryptography()
    except InputError as error:
        note(f"secure sums are not audited: {error}")
        return tuple(mode for mode in MODES if mode != "secure")
    return MODES


def _audit_row(report: Any) -> tuple[str, ...]:
    finding, exact = report.verdict, report.exact_epsilon
    name = f"{report.mode}{', centred' if report.center else ''}"
    name += ", persons" if report.unit == "person" else ""
    if report.noise_factor != 1:
        name, exact = f"{name}, control with {report.noise_factor:.3g} of its noise", report.reachable_epsilon
        finding = "caught" if report.violation else "not caught"
    numbers = (f"{report.claimed_epsilon:g}", f"{exact:.3g}", f"{report.epsilon_lower:.3g}")
    return (name, *numbers, f"2 × {report.n_runs}", finding)


# --- attack ----------------------------------------------------------------------------------------


def _play_attack(
    epsilons: list[float], runs: int, *, delta: float, rows: int, n_steps: int, output: Path | None,
    as_json: bool, **_: Any,
) -> None:  # fmt: skip
    """Play the attack at every ε, and print what it reads."""
    from fedpower.experiments import attack as played  # noqa: PLC0415

    setting = played.AttackSetting(n_rows=rows, n_steps=n_steps, delta=delta)
    with bar_of("runs") as advance:
        show = advancing(advance)
        results = played.attack(epsilons, setting=setting, seeds=range(runs), on_progress=show)
    by_round, chance = played.error_by_round(setting), played.chance_cosine(setting)
    if output is not None:
        played.draw_attack(results, output, setting)
        note(f"the picture is in {output}")
    if as_json:
        record = {"setting": asdict(setting), "chance_cosine": chance}
        record |= {"error_by_round_without_noise": by_round}
        print_json(record | {"results": jsonable(results)})
        return
    headings = (
        "noise",
        "epsilon",
        "error of the covariance",
        "its range",
        "cosine of the row",
        "range of it",
    )
    shown = [
        (
            result.mode,
            f"{result.epsilon:g}",
            f"{result.error:.2g}",
            " – ".join(f"{end:.2g}" for end in result.error_range),
            f"{result.row_cosine:.2f}",
            " – ".join(f"{end:.2f}" for end in result.row_cosine_range),
        )
        for result in results
    ]
    print_table(None, headings, shown, numbers=headings[1:])
    known = next((count for count, error in enumerate(by_round, 1) if error < 1e-6), None)
    when = f"{len(by_round)} rounds were too few to know the whole covariance"
    if known:
        when = f"after {known} rounds the coordinator knows the covariance to {by_round[known - 1]:.0e}"
    click.echo(
        f"Without noise {when}, and with it a person's row; with noise the row is a guess "
        f"(a blind one has cosine {chance:.2f})."
    )
