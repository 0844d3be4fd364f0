"""`fedpower release`: files in, the folder of a released moment out."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import console, note, print_json, print_result_of_release
from fedpower.cli.fit import check_promise, fit_shown, origin_of, release_options, silos_and_parameters
from fedpower.cli.options import Command
from fedpower.cli.silos import find_ledgers
from fedpower.estimator import FedMoment
from fedpower.estimator.fit_warnings import NoiseWarning
from fedpower.report.files import new_folder
from fedpower.report.moment import RELEASED, Moment, write_release
from fedpower.report.record import plain
from fedpower.report.text import number


@click.command(cls=Command, epilog="Example: fedpower release north.csv south.csv --epsilon 1 -o moment")
@release_options
@click.pass_context
def release(ctx: click.Context, /, **options: Any) -> None:
    """Release the pooled moment of FILES, each a silo: paid for once, analysed for ever.

    What it costs is what a fit costs, charged to the same ledgers under the same name. Then `fedpower
    derive` computes whatever is wanted from the folder, which may be published under its statement, at
    no further cost. Files are named as for `fedpower fit`.
    """
    started = datetime.now(UTC)
    check_promise(options)
    with new_folder(options["output"], known=RELEASED, force=options["force"]) as place:
        silos, given = silos_and_parameters(options, moment=True)
        ledgers = find_ledgers(list(silos), folder=options["ledgers"], named=options["named_ledgers"])
        model = FedMoment(**given)
        fit_shown(model, silos, ledgers, options, said=(NoiseWarning,))
        origins = {name: origin_of(silos[name], options) for name in silos}
        moment = model.moment_.with_record(
            model.moment_.record.with_origin(command=ctx.find_root().obj, silos=origins, started=started)
        )
        write_release(place, moment)
    if options["as_json"]:
        facts = moment.account().facts
        print_json({"moment": str(options["output"]), **plain(facts), **_statement(moment)})
    else:
        _print(moment, options["output"])
    if moment.privacy.is_private and ledgers is None:
        note("no ledger was given, so what this release spent is on no record; see --ledgers")


def _statement(moment: Moment) -> dict[str, Any]:
    return {"silos": moment.silo_sizes, "privacy": moment.record.as_dict()["privacy"]}


def _print(moment: Moment, output: Path) -> None:
    out = console()
    things = f"{moment.record.counted}s"
    sizes = ", ".join(f"{name} ({size} {things})" for name, size in moment.silo_sizes.items())
    out.print(
        f"The pooled moment of {moment.n_features} columns: {sizes}; {moment.n_samples} {things} in all.",
        soft_wrap=True,
    )
    if moment.noise_std > 0:
        out.print(
            f"Its noise has a standard deviation of {number(moment.noise_std, 3)} on the diagonal, in "
            "units of the bound on rows, and √2 times less off it.",
            soft_wrap=True,
        )
    out.print("")
    promise = moment.privacy
    out.print(str(promise), soft_wrap=True, style=None if promise.is_private else "bold red")
    print_result_of_release(output)
