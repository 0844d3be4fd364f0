"""`fedpower budget`: a silo's ledger, for the person who answers for it."""

from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import bar, print_json, print_table, say
from fedpower.cli.options import PATH, options
from fedpower.errors import InputError
from fedpower.privacy import Ledger, mu_of
from fedpower.privacy.ledger import jsonable, rounded_down


class _ShowByDefault(click.Group):
    """Commands of which `show` needs no name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `show` in front of words that name no command."""
        named = args and args[0] in (*self.commands, "--help", "-h")
        if not named and not (ctx.resilient_parsing and not args):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowByDefault)
def budget() -> None:
    """Show what a silo has spent on what, and what is left: `fedpower budget LEDGER`.

    A ledger is one file of one silo. Everything that leaves the silo is charged to it first, and
    what would overspend its cap is refused.
    """


@budget.command()
@click.argument("ledger", type=PATH)
@click.option("--epsilon", type=float, required=True, help="Cap on all that may ever be spent.")
@click.option("--delta", type=float, required=True, help="The δ of that cap; 1e-6 is usual.")
@click.option("--silo", help="The silo it belongs to; NORTH for a file called NORTH.ledger.")
@click.option("--data", "data_set", metavar="NAME", help="The data set it belongs to.")
@options("as_json")
def init(
    ledger: Path, *, epsilon: float, delta: float, silo: str | None, data_set: str | None, as_json: bool
) -> None:
    """Create the file LEDGER with a cap.

    An existing ledger is never overwritten.
    """
    owner = silo if silo is not None or ledger.suffix != ".ledger" else ledger.stem
    Ledger.in_memory(
        epsilon, delta, silo=owner, data_set=data_set
    ).close()  # refuses a bad cap before a folder is made
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with Ledger.create(ledger, epsilon=epsilon, delta=delta, silo=owner, data_set=data_set) as made:
        statement = made.statement()
    if as_json:
        print_json({"ledger": str(ledger), **statement})
        return
    click.echo(
        f"{ledger} is the ledger of {_whose(statement)}: it may spend epsilon={epsilon:g} at "
        f"delta={delta:g} in all. Keep this one file safe: restoring an old copy erases recorded spending."
    )


@budget.command()
@click.argument("ledger", type=PATH)
@click.option("--what-if", type=float, metavar="EPSILON", help="Would a fit with this epsilon be allowed?")
@options("as_json")
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


@budget.command()
@click.argument("ledger", type=PATH)
@click.option("--epsilon", type=float, required=True, help="The new cap.")
@click.option("--delta", type=float, required=True, help="Its δ.")
@click.option("--reason", required=True, help="Why, for the record.")
@options("as_json")
def cap(ledger: Path, epsilon: float, delta: float, reason: str, as_json: bool) -> None:
    """Set another cap on LEDGER, on record.

    After a rise the promise is that of the higher cap.
    """
    if not reason.strip():
        raise InputError("a change of cap must have a reason on record, got none; give --reason")
    with Ledger.open(ledger) as opened:
        before = opened.caps()[-1]
        opened.set_cap(epsilon, delta, reason=reason)
        left = opened.spent().left
        statement = opened.statement()
    if as_json:
        print_json({"ledger": str(ledger), **statement})
        return
    click.echo(
        f"The cap of {ledger} was epsilon={before.epsilon:g} at delta={before.delta:g} and is "
        f"epsilon={epsilon:g} at delta={delta:g} now; epsilon={_left(left)} is left."
    )


def share_used(statement: dict[str, Any]) -> float:
    """Return the part of the cap that is used: epsilons do not add up, μ² does."""
    limit, spent = statement["cap"], statement["spent"]
    delta = limit["delta"] - spent["slack_delta"]
    if delta <= 0:
        return 1.0
    used: float = (spent["mu"] / mu_of(limit["epsilon"], delta)) ** 2
    return min(1.0, used)


def _print(ledger: Path, statement: dict[str, Any]) -> None:
    limit, spent, forecast = statement["cap"], statement["spent"], statement.get("what_if")
    say(f"Ledger {ledger} of {_whose(statement)}; it protects {statement['unit']}.")
    if statement["for_experiments"]:
        say("It was made for experiments: noise of its charges may come from a seed.")
    if statement["entries"]:
        headings = ("#", "what", "study", "epsilon alone", "total so far", "when (UTC)")
        rows = [
            (
                str(entry["seq"]),
                entry["purpose"],
                entry["study"][:12],
                _epsilon(entry["epsilon"]),
                _epsilon(entry["total_epsilon"]),
                _minute(entry["time"]),
            )
            for entry in statement["entries"]
        ]
        print_table(None, headings, rows, numbers=("#", "epsilon alone", "total so far"))
    else:
        say("Nothing has been released yet.")
    for change in statement["cap_changes"][1:]:
        say(
            f"Cap set to epsilon={change['epsilon']:g} at delta={change['delta']:g} on "
            f"{_minute(change['time'])} UTC: {change['reason']}"
        )
    share = share_used(statement)
    say(
        f"{bar(share)} {share:.0%} of the cap is used (releases cost less together than their epsilons "
        "add up to)",
        f"Cap epsilon={limit['epsilon']:g} at delta={limit['delta']:g}; spent "
        f"{_epsilon(spent['epsilon'])}, left {_left(statement['left'])} for one further fit.",
    )
    if forecast is not None:
        fits = f"would be refused: at most epsilon={_left(statement['left'])} is left"
        if forecast["fits"]:
            fits = f"would be allowed and leave {_left(forecast['left'])}"
        say(f"A fit with epsilon={forecast['epsilon']:g} {fits}.")


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _whose(statement: dict[str, Any]) -> str:
    """Return the silo that a ledger belongs to, and its data where they have a name."""
    silo = "a silo" if statement["silo"] is None else f"silo {statement['silo']!r}"
    if statement["data_set"] is None:
        return silo
    return f"{silo} and its data set {statement['data_set']!r}"


def _epsilon(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.4g}"


def _left(value: float) -> str:
    """Return what is left, rounded as the refusal of more is: down."""
    return rounded_down(value, 4)
