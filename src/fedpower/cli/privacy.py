"""`fedpower ledger` and `audit`: what a silo has spent, and the privacy that the code delivers."""

import math
from dataclasses import asdict, fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, get_args

import click

from fedpower.cli.console import bar_of, note, print_facts, print_json, print_table, say
from fedpower.cli.options import Command, option, options
from fedpower.exceptions import InputError, require
from fedpower.privacy import Ledger
from fedpower.privacy.ledger import Account, jsonable, rounded_down, unit_of
from fedpower.privacy.statement import in_symbols
from fedpower.report.text import date_and_time, measured

# --- ledger ----------------------------------------------------------------------------------------


@click.group()
def ledger() -> None:
    """Create, show and verify the ledger of a silo, and set its cap.

    A ledger is a file that records what a silo has spent. A fit charges it before anything leaves the
    silo, and is refused if it would exceed the cap.
    """


def _cap(purpose: str) -> tuple[Any, Any]:
    return (
        option("--epsilon", f"{purpose}.", float, required=True),
        option("--delta", "The δ of the cap; 1e-6 is usual.", float, required=True),
    )


@ledger.command()
@options(
    "LEDGER",
    *_cap("The cap: ε of all releases together"),
    option("--silo NAME", "Its silo; by default `north` for north.ledger."),
    "data_set as_json",
)
def create(
    ledger: Path, *, epsilon: float, delta: float, silo: str | None, data_set: str | None, as_json: bool
) -> None:
    """Create the file LEDGER with a cap. An existing file is never overwritten."""
    owner = silo if silo is not None or ledger.suffix != ".ledger" else ledger.stem
    Ledger.in_memory(epsilon, delta, silo=owner, data_set=data_set).close()  # refuses a bad cap first
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with Ledger.create(ledger, epsilon=epsilon, delta=delta, silo=owner, data_set=data_set) as made:
        statement = made.statement()
    if as_json:
        print_json({"ledger": str(ledger), **statement})
        return
    say(f"Created {ledger} for {_whose(statement)} with a cap of {_terms(statement['cap'])}.")


@ledger.command()
@options(
    "LEDGER",
    option("--what-if EPSILON", "Also show whether a fit with this epsilon is allowed.", float),
    "as_json",
)
def show(ledger: Path, what_if: float | None, as_json: bool) -> None:
    """Show the cap of LEDGER, every charge and decision, and what is left. The file is only read."""
    with Ledger.open(ledger, read_only=True) as opened:
        statement, decisions = opened.statement(), opened.decisions()
        if what_if is not None:
            require(0 < what_if < math.inf, "--what-if", "positive and finite", what_if)
            after = opened.what_if(what_if)
            forecast = {"epsilon": what_if, "fits": after.fits, "spent": after.epsilon, "left": after.left}
            statement["what_if"] = jsonable(forecast)
    if as_json:
        print_json(statement)
    else:
        _print(ledger, statement, {made.charged_as: made.name for made in reversed(decisions)})
        say(*(f"Study {made.name} ({made.study[:12]}) {made.in_words}" for made in decisions))


@ledger.command()
@options(
    "LEDGER",
    *_cap("The new cap"),
    option("--reason TEXT", "Reason, which is recorded.", required=True),
    "as_json",
)
def set_cap(ledger: Path, epsilon: float, delta: float, reason: str, as_json: bool) -> None:
    """Change the cap of LEDGER, and record why. With a higher cap the promise is weaker."""
    if not reason.strip():
        raise InputError("a change of cap must have a reason on record, got none; give --reason")
    with Ledger.open(ledger) as opened:
        opened.set_cap(epsilon, delta, reason=reason)
        statement = opened.statement()
    if as_json:
        print_json({"ledger": str(ledger), **statement})
        return
    say(
        f"The cap of {ledger} is now {_terms(statement['cap'])}. "
        f"The next fit may use up to {rounded_down(statement['left'], 3)}."
    )


@ledger.command()
@options(
    "LEDGER", option("--log FOLDER", "Folder of its log; by default north.log for north.ledger."), "as_json"
)
def verify(ledger: Path, log: Path | None, as_json: bool) -> None:
    """Check that nobody changed LEDGER, or the audit log of its silo. Both are only read.

    Every line of the log has the hash of the line before, and LEDGER has that of the last one. So the check
    finds a line that was removed, changed, added or moved. If you archived the oldest files of the log, it
    begins at the first line that is there. The key of the decisions must be the silo's own, which `node key`
    prints.
    """
    from fedpower.federation import events, inbox  # noqa: PLC0415

    folder = events.log_folder(ledger) if log is None else log
    with Ledger.open(ledger, read_only=True) as opened:
        opened.check_releases()
        inbox.check_decisions(opened)
        found, statement = events.verify(folder, opened), opened.statement()
        decisions = opened.decisions()
    facts = {
        "ledger": str(ledger),
        "entries": statement["seal"]["seq"],
        "releases": statement["spent"]["n_releases"],
        "decisions": len(decisions),
        "keys_of_decisions": list(dict.fromkeys(made.key for made in decisions)),
        "seal": statement["seal"]["sha256"],
        "log": None if found is None else str(folder),
        **{field.name: getattr(found, field.name, None) for field in fields(events.Checked)},
    }
    title, since = "is intact, and has no log yet", ""
    if found is not None:
        since = "" if found.first_line == 1 else f" from line {found.first_line} on"
        title = f"and its log are intact{since}"
    print_facts(f"{ledger} {title}", facts, as_json=as_json)
    if since and not as_json:
        say("Earlier lines are not there: archived, or removed.", alarming=True)


def _print(ledger: Path, statement: dict[str, Any], names: dict[str, str]) -> None:
    left, spent, forecast = statement["left"], statement["spent"], statement.get("what_if")
    further = f"the next fit may use up to {rounded_down(left, 3)}" if left > 0 else "nothing is left"
    say(f"Spent ε = {_epsilon(spent['epsilon'])} of {statement['cap']['epsilon']:.2f}; {further}.")
    if forecast is not None:
        verdict = "would be refused"
        if forecast["fits"]:
            verdict = f"is allowed and would leave {rounded_down(forecast['left'], 3)}"
        say(f"A fit with ε = {forecast['epsilon']:g} {verdict}.")
    headings = ("", "released", "study", "ε", "spent so far", "on")
    rows = [
        _row(list(alike), names.get(study.partition("/")[0], study[:8]), statement["cap"])
        for (study, _), alike in groupby(statement["entries"], key=itemgetter("study", "purpose"))
    ]
    if rows:
        print_table(None, headings, rows, numbers=("", "ε", "spent so far"))
        if statement["unit"] != unit_of([""]):
            say(f"The ledger is about {statement['unit']}.")
    for change in statement["cap_changes"][1:]:
        say(f"Cap set to {_terms(change)} on {date_and_time(change['time'])}: {change['reason']}")
    if statement["for_experiments"]:
        say("This ledger is for experiments: the noise of its charges may come from a seed.")


def _row(alike: list[dict[str, Any]], study: str, cap: dict[str, float]) -> tuple[str, ...]:
    """Return the line of consecutive releases for one purpose, such as the products of all rounds."""
    last, many = alike[-1], len(alike)
    together = Account(cap=cap["epsilon"], delta=cap["delta"])
    for entry in alike:
        together = together.charged(entry["mu"], entry["slack_delta"])
    return (
        str(last["seq"]) if many == 1 else f"{alike[0]['seq']}–{last['seq']}",
        measured(last["purpose"]),
        study,
        _epsilon(together.epsilon),
        _epsilon(last["total_epsilon"]),
        date_and_time(last["time"]),
    )


def _terms(cap: dict[str, Any]) -> str:
    return in_symbols(cap["epsilon"], cap["delta"])


def _whose(statement: dict[str, Any]) -> str:
    """Return the silo that a ledger belongs to, and its data where they have a name."""
    silo = "a silo" if statement["silo"] is None else f"silo {statement['silo']!r}"
    named = statement["data_set"] is not None
    return f"{silo} and its data set {statement['data_set']!r}" if named else silo


def _epsilon(value: float | None) -> str:
    return "∞" if value is None else f"{value:.2f}"


# --- audit -----------------------------------------------------------------------------------------

STEPS = 5
Mode = Literal["paper", "step", "covariance", "secure", "prepared", "clipped", "scores"]
MODES: tuple[Mode, ...] = get_args(Mode)
_RUNS, _ATTACKS = 1000, 15
_AUDITED, _ATTACKED = (4.0,), (0.5, 1.0, 4.0, 10.0)


@click.command(cls=Command)
@options(
    option("--epsilon", "Promise to test; 4 by default, repeatable.", float, multiple=True),
    option("--delta", "The δ of the promise.", float, default=1e-5),
    option("--mode", "Kind of noise to audit.", click.Choice(["all", *MODES]), default="all"),
    option(
        "--neighbours", "What the two tables differ in.", click.Choice(["row", "person"]), name="unit",
        default="row",
    ),
    option("--runs", "Runs per table, 1000 by default; 15 with --attack.", click.IntRange(1)),
    option("--confidence", "Probability that sound code passes.", float, default=0.999),
    option("--halved", "Run only the controls, whose noise is too small."),
    option("--attack", "Show the attack that noise prevents."),
    "as_json quiet",
)  # fmt: skip
def audit(*, attack: bool, epsilon: tuple[float, ...], runs: int | None, **given: Any) -> int:
    """Measure the privacy that the code delivers.

    The audit releases results from two tables that differ in one row, or one person, and tries to tell
    them apart. Its success bounds ε from below. A bound above the promise is a violation, with exit
    status 1. Controls with half of the noise check that the audit would notice. A small ε needs many runs.

    --attack shows what noise prevents: a coordinator of the paper's Algorithm 1 computes a silo's second
    moment from the messages, and reads the row of one person from it (Example 1 of the paper).
    """
    if attack:
        _play_attack(sorted(epsilon or _ATTACKED), runs or _ATTACKS, **given)
        return 0
    require(runs is None or runs >= 20, "runs", "at least 20", runs)
    verdicts = [_audit(promise, runs or _RUNS, **given) for promise in epsilon or _AUDITED]
    return int(any(verdicts))


def _audit(epsilon: float, runs: int, **given: Any) -> bool:
    """Audit one promise, print what was found, and return whether it is broken."""
    from fedpower.experiments.audit import audit_mode, control_factor  # noqa: PLC0415

    require(math.isfinite(epsilon), "epsilon", "finite to be audited", epsilon)
    mode, halved = given["mode"], given["halved"]
    terms = {"epsilon": epsilon, "delta": given["delta"], "n_steps": STEPS}
    plans: list[tuple[Any, bool, float]] = []
    for name in MODES if mode == "all" else (mode,):
        centrings = (False, True) if name in ("covariance", "secure") else (False,)
        plans += [] if halved else [(name, center, 1.0) for center in centrings]
        plans.append((name, False, control_factor(name, **terms)))
    with bar_of("runs", 2 * runs * len(plans)) as advance:
        reports = [
            audit_mode(
                name,
                **terms,
                n_runs=runs,
                center=center,
                noise_factor=factor,
                confidence=given["confidence"],
                on_progress=advance,
                unit=given["unit"],
            )
            for name, center, factor in plans
        ]
    controls = [report for report in reports if report.noise_factor != 1]
    audited = controls if halved else [report for report in reports if report.noise_factor == 1]
    worst = max(audited, key=lambda report: report.epsilon_lower)
    promise, caught = in_symbols(epsilon, given["delta"]), sum(r.violation for r in controls)
    if worst.violation:
        verdict = (
            f"VIOLATION: mode {worst.mode!r} loses at least ε = {worst.epsilon_lower:.3g}, but {promise} was "
            f"promised (confidence {worst.confidence:g})."
        )
    else:
        verdict = (
            f"No violation of {promise} in {sum(2 * report.n_runs for report in audited):,} runs. Detected "
            f"{caught} of {len(controls)} controls with half of the noise."
        )
    if given["as_json"]:
        audits = [report.as_dict() for report in reports]
        print_json({"violation": worst.violation, "verdict": verdict, "audits": audits})
    else:
        headings = ("mode", "noise", "promised ε", "exact ε", "measured ε ≥", "finding")
        print_table(None, headings, map(_audit_row, reports), numbers=headings[1:5])
        say(verdict)
    if caught < len(controls):
        note(f"{runs} runs are too few to detect half of the noise at ε = {epsilon:g}; use more --runs")
    return bool(worst.violation)


def _audit_row(report: Any) -> tuple[str, ...]:
    finding, exact = report.verdict, report.exact_epsilon
    name = f"{report.mode}{', centred' if report.center else ''}"
    name += ", persons" if report.unit == "person" else ""
    if report.noise_factor != 1:
        exact, finding = report.reachable_epsilon, "detected" if report.violation else "not detected"
    numbers = (f"{report.claimed_epsilon:g}", f"{exact:.3g}", f"{report.epsilon_lower:.3g}")
    return (name, f"{report.noise_factor:.0%}", *numbers, finding)


# --- attack ----------------------------------------------------------------------------------------


def _play_attack(epsilons: list[float], runs: int, *, delta: float, as_json: bool, **_: Any) -> None:
    """Play the attack at every ε, and print what it reads."""
    from fedpower.experiments import attack as played  # noqa: PLC0415

    setting = played.AttackSetting(delta=delta)
    with bar_of("runs") as advance:
        results = played.attack(epsilons, setting=setting, seeds=range(runs), on_progress=advance)
    chance = played.chance_cosine(setting)
    if as_json:
        record = {"setting": asdict(setting), "chance_cosine": chance, "results": jsonable(results)}
        print_json(record)
        return
    headings = ("noise", "ε", "error", "cosine")
    shown = [(it.mode, f"{it.epsilon:g}", f"{it.error:.2g}", f"{it.row_cosine:.2f}") for it in results]
    print_table(None, headings, shown, numbers=headings[1:])
    say(
        "Error: of the covariance that the coordinator computes. Cosine: of its guess of a person's row. "
        f"Without noise it knows both. With noise the row stays a guess: a blind one has cosine {chance:.2f}."
    )
