"""`fedpower run` and `fedpower status`: a study from the runner's chair."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import console, print_json, print_result, table
from fedpower.cli.findings import print_findings
from fedpower.errors import InputError
from fedpower.federation import needs_flare
from fedpower.federation.study_file import StudyFile, read_study
from fedpower.report.atomic import new_folder
from fedpower.report.files import KNOWN
from fedpower.report.folder import read_result
from fedpower.report.page.markup import human_bytes

PATH = click.Path(path_type=Path)
KIT = Path("kits") / "runner"


@click.command()
@click.argument("study", type=PATH)
@click.option(
    "-o", "--output", type=PATH, default=Path("result"), show_default=True, help="Result folder."
)
@click.option("--kit", type=PATH, help="The runner's kit; kits/runner beside STUDY by default.")
@click.option("--resume", is_flag=True, help="Take up the last run where it was left.")
@click.option(
    "--wait",
    "patience",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    help="Seconds to wait for silos and coordinator.",
)
@click.option(
    "--local", "n_local", type=int, metavar="N", help="Rehearse with N silos on this machine."
)
@click.option("--data", type=PATH, help="With --local: a folder with a file SILO.* for each silo.")
@click.option("--force", is_flag=True, help="Replace an earlier result in the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def run(study: Path, *, output: Path, as_json: bool, force: bool, **options: Any) -> None:
    """Run STUDY over its federation and put the result into a folder, the same as `fedpower fit` writes.

    Rounds and who answered are shown as they happen. A coordinator or a silo that dies meanwhile is
    waited for; a run that was interrupted is taken up with --resume, and nothing is charged twice.
    """
    needs_flare()
    from fedpower.federation.runner import Runner  # noqa: PLC0415

    read = read_study(study)
    with (
        new_folder(output, known=KNOWN, force=force) as place,
        _runner_kit(study, read, options) as kit,
    ):
        runner = Runner(kit=kit, patience=options["patience"], say=_say, on_round=_round)
        if options["n_local"] is None and runner.study.digest != read.digest:
            raise InputError(
                f"the kit must be of study {read.digest[:12]}, got one of study "
                f"{runner.study.digest[:12]}; make kits anew with `fedpower federation request`"
            )
        try:
            state = runner.run(place, resume=options["resume"])
        except KeyboardInterrupt:
            raise click.Abort(_how_to_go_on(rehearsed=options["n_local"] is not None)) from None
    found = read_result(output)
    record = found.run
    if as_json:
        print_json({"result": str(output), **record})
        return
    print_findings(found)
    out = console()
    out.print(
        f"Rounds: {record['n_rounds']}, with {human_bytes(record['bytes_up'])} up and "
        f"{human_bytes(record['bytes_down'])} down; run {state['run']}.",
        soft_wrap=True,
    )
    out.print(str(found.privacy), soft_wrap=True)
    print_result(output)


@click.command()
@click.argument("study", type=PATH)
@click.option("--kit", type=PATH, help="The runner's kit; kits/runner beside STUDY by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(study: Path, *, kit: Path | None, as_json: bool) -> None:
    """Show who of STUDY is connected, and how far its run is."""
    needs_flare()
    from fedpower.federation.runner import open_session  # noqa: PLC0415

    read = read_study(study)
    with open_session(_kit(study, kit)) as session:
        status = session.report()
    silos = {name: name in status["connected"] for name in read.silos}
    if as_json:
        print_json({"study": read.digest, "silos": silos, "run": status["run"]})
        return
    shown = table(f"Study {read.name} ({read.digest[:12]})", "silo", "connected")
    for name, there in silos.items():
        shown.add_row(name, "yes" if there else "no")
    console().print(shown)
    if status["run"] is None:
        click.echo("No run is under way.")
    else:
        waiting = ", ".join(status["run"]["waiting_for"]) or "nobody"
        closed = len(status["run"]["rounds"])
        click.echo(f"Run {status['run']['run']}: {closed} rounds closed, waiting for {waiting}.")


@contextmanager
def _runner_kit(study: Path, read: StudyFile, options: dict[str, Any]) -> Iterator[Path]:
    """Give the runner's kit, of the real federation or of one on this machine."""
    if options["n_local"] is None:
        yield _kit(study, options["kit"])
        return
    from fedpower.federation.local import local_federation, rehearsal_data  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="fedpower-") as scratch:
        folder = Path(scratch)
        data = rehearsal_data(read, options["n_local"], folder / "data", options["data"], say=_say)
        with local_federation(read, folder, data) as made:
            _say(f"a coordinator and {len(data)} silos are starting on this machine, in {folder}")
            yield made.runner


def _how_to_go_on(*, rehearsed: bool) -> str:
    if rehearsed:
        return "interrupted, so no result was written; the rehearsal is gone, run it again"
    return (
        "interrupted, so no result was written; take the run up again with --resume: nothing that was "
        "charged is charged again"
    )


def _kit(study: Path, kit: Path | None) -> Path:
    return study.parent / KIT if kit is None else kit


def _say(sentence: str) -> None:
    click.echo(f"fedpower: {sentence}", err=True)


def _round(closed: dict[str, Any]) -> None:
    """Show a closed round."""
    moved = "" if not closed["change"] else f", subspace moved by sin θ = {closed['change']:.1e}"
    names = ", ".join(closed["restarted"])
    restarted = f"; started again since the roll call: {names}" if names else ""
    missing = f"; silent: {', '.join(closed['silent'])}" if closed["silent"] else ""
    _say(
        f"round {closed['round']} ({closed['kind']}): {len(closed['answered'])} answered{missing}"
        f"{restarted}, {human_bytes(closed['bytes_up'])} up{moved}"
    )
    for name, problem in closed.get("set_aside", {}).items():
        _say(f"what {name} sent in round {closed['round']} was set aside: {problem}")
