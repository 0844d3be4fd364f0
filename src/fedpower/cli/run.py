"""`fedpower run` and `fedpower status`: a study from the runner's chair."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import console, print_json, print_result, table
from fedpower.cli.findings import print_findings
from fedpower.cli.options import Command, declared, option, parameter, reading_options, verbose_option
from fedpower.cli.silos import own_tables
from fedpower.errors import InputError
from fedpower.federation import needs_flare
from fedpower.federation.study_file import StudyFile, read_study
from fedpower.options import FLAT, option_name
from fedpower.report.files import new_folder
from fedpower.report.result import KNOWN, read_result
from fedpower.report.text import human_bytes

PATH = click.Path(path_type=Path)
KIT = Path("kits") / "runner"


_VARIED = tuple(name for name, spec in FLAT.items() if spec.option is not None and spec.section is not None)
"""Parameters of a fit that a study has: a rehearsal may try others."""

_rehearsal_options = declared(
    (
        option("--drop", group="rows", multiple=True, metavar="COLUMN",
               help="With --data: leave a column out, where it is; repeatable."),
        option("--extra", "extra_columns", group="rows", type=click.Choice(["refuse", "drop"]),
               help="What to do with columns that not every silo has."),
        reading_options,
        *(parameter(name, required=False) for name in _VARIED),
    )
)  # fmt: skip
"""Declares what `fedpower fit` takes too, for rehearsals."""


@click.command(cls=Command)
@click.argument("study", type=PATH)
@option("-o", "--output", group="main", type=PATH, default=Path("result"), show_default=True,
        help="Result folder.")  # fmt: skip
@option("--kit", group="main", type=PATH,
        help="The runner's kit; kits/runner beside STUDY by default.")  # fmt: skip
@option("--resume", group="main", is_flag=True, help="Take up the last run where it was left.")
@option("--wait", "patience", group="main", type=click.FloatRange(0), default=120.0,
        show_default=True, help="Seconds to wait for silos and coordinator.")  # fmt: skip
@option("--local", "n_local", group="main", type=int, metavar="N",
        help="Rehearse with N silos on this machine.")  # fmt: skip
@option("--data", group="main", type=PATH,
        help="With --local: a folder with a file SILO.* or folder SILO for each silo.")  # fmt: skip
@option("--force", group="main", is_flag=True, help="Replace an earlier result in the folder.")
@option("--json", "as_json", group="main", is_flag=True, help="Print one JSON object at the end.")
@_rehearsal_options
@verbose_option
def run(study: Path, *, output: Path, as_json: bool, force: bool, verbose: bool, **options: Any) -> None:
    """Run STUDY over its federation and put the result into a folder, the same as `fedpower fit` writes.

    Rounds and who answered are shown as they happen. A coordinator or a silo that dies meanwhile is
    waited for; a run that was interrupted is taken up with --resume, and nothing is charged twice.
    A rehearsal (--local) takes the options of `fedpower fit` and tries them in place of the study's; if
    it fails, its folder is kept and what the parties said is shown.
    """
    needs_flare()
    from fedpower.federation.runner import Runner  # noqa: PLC0415

    read = read_study(study)
    _check_rehearsed(options)
    with new_folder(output, known=KNOWN, force=force) as place, _runner_kit(study, read, options) as kit:
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
    out.print(str(found.privacy) if verbose else found.privacy.brief, soft_wrap=True)
    print_result(output)
    if record["parameters"].get("network") is not None:
        out.print(
            f"Communities: `fedpower derive {output} communities -k K` finds them, at no cost.",
            soft_wrap=True,
        )


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
        status = session.status()
    silos = {name: name in status["connected"] for name in read.silos}
    if as_json:
        under_way = status["run"] if status["under_way"] else None
        print_json({"study": read.digest, "silos": silos, "run": under_way})
        return
    shown = table(f"Study {read.name} ({read.digest[:12]})", "silo", "connected")
    for name, there in silos.items():
        shown.add_row(name, "yes" if there else "no")
    console().print(shown)
    if not status["under_way"]:
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

    with _rehearsal_folder() as folder:
        given = {name: options[name] for name in _VARIED if options[name] is not None}
        if given:
            tried = folder / "tried.toml"
            tried.write_text(read.with_parameters(given), encoding="utf-8")
            read = read_study(tried)
            _say(f"the study is tried with other settings, as {read.digest[:12]}")
        data = rehearsal_data(read, options["n_local"], folder / "data", options["data"], say=_say)
        own = own_tables(data, options) if options["data"] is not None else {}
        with local_federation(read, folder, data, own) as made:
            _say(f"a coordinator and {len(data)} silos are starting on this machine, in {folder}")
            yield made.runner


@contextmanager
def _rehearsal_folder() -> Iterator[Path]:
    """Give a new folder, removed in the end; kept, and its logs shown, where parties ran and failed."""
    folder = Path(tempfile.mkdtemp(prefix="fedpower-"))
    try:
        yield folder
    except click.Abort:
        shutil.rmtree(folder)
        raise
    except Exception:
        if not _show_logs(folder):
            shutil.rmtree(folder)
        raise
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


_LOG_LINES = 12
"""Last lines of a party's log that are shown."""


def _show_logs(folder: Path) -> bool:
    """Show how each party's log ends, and return whether there is any."""
    logs = sorted(folder.glob("*.log"))
    for log in logs:
        lines = log.read_text(errors="replace").rstrip().splitlines()
        _say(f"the log of {log.stem} ends so:" if lines else f"the log of {log.stem} is empty")
        for line in lines[-_LOG_LINES:]:
            click.echo(f"  {line}", err=True)
    if logs:
        _say(f"the rehearsal failed, and its folder is kept: {folder}")
    return bool(logs)


def _check_rehearsed(options: dict[str, Any]) -> None:
    """Refuse options of a rehearsal where there is none, or where its rows are made up."""
    reads = [name for name in _READS if options[name]]
    given = [name for name in (*_VARIED, *_READS) if options[name] not in (None, ())]
    if options["n_local"] is None and given:
        raise InputError(
            f"{_option_of(given[0])} must go with --local, for a real run is the study's "
            "and its silos' to settle, got none; change the study, or the silos' files"
        )
    if options["data"] is None and reads:
        raise InputError(
            f"{_option_of(reads[0])} must go with --data, got none: rows that are made up "
            "need it not; leave it out"
        )


_READS = ("drop", "extra_columns", "separator", "decimal", "encoding", "rename")


def _option_of(name: str) -> str:
    return "--extra" if name == "extra_columns" else option_name(name)


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
