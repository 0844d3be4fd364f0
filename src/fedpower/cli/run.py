"""`fedpower run` and `fedpower status`: a study from the runner's chair."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import print_json, print_table, say
from fedpower.cli.options import PATH, READING, Command, option, options, output, shared
from fedpower.cli.results import json_of, print_result
from fedpower.cli.silos import own_tables
from fedpower.errors import InputError
from fedpower.federation import needs_flare
from fedpower.federation.study_file import StudyFile, read_study
from fedpower.options import FLAT, option_name
from fedpower.report.files import new_folder
from fedpower.report.result import KNOWN, read_result
from fedpower.report.text import human_bytes

_VARIED = tuple(name for name, spec in FLAT.items() if spec.option is not None and spec.section is not None)
"""Parameters of a fit that a study has: a rehearsal may try others."""

_READ = f"drop extra_columns {READING}"
_KIT = option("--kit FOLDER", "The runner's kit; kits/runner next to STUDY by default.")
_SECONDS = click.FloatRange(0)
_LOG_LINES = 12
"""Last lines of a party's log that are shown."""


@click.command(cls=Command)
@click.argument("study", type=PATH)
@options(
    output("result"),
    _KIT,
    option("--resume", "Resume the last run."),
    option("--wait", "Seconds to wait for silos and coordinator.", _SECONDS, name="patience", default=120.0),
    option("--local N", "Rehearse with N silos on this machine.", int, name="n_local"),
    option("--data FOLDER", "With --local: a folder with a file or folder SILO for each silo."),
    f"force as_json {_READ}",
    *(shared(name, required=False) for name in _VARIED),
    "verbose",
)
def run(study: Path, *, output: Path, as_json: bool, force: bool, verbose: bool, **given: Any) -> None:
    """Run STUDY over its federation and put the result into a folder, the same as `fedpower fit` writes.

    Rounds and who answered are shown as they happen. A coordinator or a silo that dies meanwhile is
    waited for; an interrupted run continues with --resume, and nothing is charged twice.
    A rehearsal (--local) takes the options of `fedpower fit` in place of the study's; if it fails, its folder
    is kept and the parties' logs are shown.
    """
    needs_flare()
    from fedpower.federation.kits import RUNNER, Kit  # noqa: PLC0415
    from fedpower.federation.runner import Runner  # noqa: PLC0415

    read = read_study(study)
    _check_rehearsed(given)
    local = given["n_local"] is not None
    with new_folder(output, known=KNOWN, force=force) as place, _runner_kit(study, read, given) as kit:
        runner = Runner(kit=Kit(kit, RUNNER), patience=given["patience"], say=_say, on_round=_round)
        if not local and runner.kit.study.digest != read.digest:
            raise InputError(
                f"--kit must be of study {read.digest[:12]}, got one of study {runner.kit.study.digest[:12]}"
            )
        try:
            state = runner.run(place, resume=given["resume"])
        except KeyboardInterrupt:
            then = "run the rehearsal again" if local else "continue with --resume: nothing is charged twice"
            raise click.Abort(f"interrupted, so no result was written; {then}") from None
    result = read_result(output)
    if as_json:
        print_json(json_of(result, output))
    else:
        print_result(result, output, verbose=verbose)
        say(f"Run: {state['run']}.")


@click.command(cls=Command)
@click.argument("study", type=PATH)
@options(_KIT, "as_json")
def status(study: Path, *, kit: Path | None, as_json: bool) -> None:
    """Show who of STUDY is connected, and how far its run is."""
    needs_flare()
    from fedpower.federation.kits import RUNNER, Kit  # noqa: PLC0415
    from fedpower.federation.runner import open_session  # noqa: PLC0415

    read = read_study(study)
    with open_session(Kit(kit or study.parent / "kits" / "runner", RUNNER)) as session:
        status = session.status()
    run, silos = status["run"], {name: name in status["connected"] for name in read.silos}
    if as_json:
        print_json({"study": read.digest, "silos": silos, "run": run if status["under_way"] else None})
        return
    rows = [(name, "yes" if connected else "no") for name, connected in silos.items()]
    print_table(f"Study {read.name} ({read.digest[:12]})", ("silo", "connected"), rows)
    if not status["under_way"]:
        click.echo("No run is under way.")
    else:
        waiting = ", ".join(run["waiting_for"]) or "nobody"
        click.echo(f"Run {run['run']}: {len(run['rounds'])} rounds closed, waiting for {waiting}.")


@contextmanager
def _runner_kit(study: Path, read: StudyFile, given: dict[str, Any]) -> Iterator[Path]:
    """Give the runner's kit, of the real federation or of one on this machine."""
    if given["n_local"] is None:
        yield given["kit"] or study.parent / "kits" / "runner"
        return
    from fedpower.federation.local import local_federation, rehearsal_data  # noqa: PLC0415

    with _rehearsal_folder() as folder:
        varied = {name: given[name] for name in _VARIED if given[name] is not None}
        if varied:
            tried = folder / "tried.toml"
            tried.write_text(read.with_parameters(varied), encoding="utf-8")
            read = read_study(tried)
            _say(f"the study is tried with other settings, as {read.digest[:12]}")
        data = rehearsal_data(read, given["n_local"], folder / "data", given["data"], say=_say)
        own = own_tables(data, given) if given["data"] is not None else {}
        with local_federation(read, folder, data, own) as made:
            _say(f"a coordinator and {len(data)} silos are starting on this machine, in {folder}")
            yield made.runner


@contextmanager
def _rehearsal_folder() -> Iterator[Path]:
    """Give a new folder, removed in the end; kept, and its logs shown, where parties ran and failed."""
    folder = Path(tempfile.mkdtemp(prefix="fedpower-"))
    keep = False
    try:
        yield folder
    except click.Abort:
        raise
    except Exception:
        keep = _show_logs(folder)
        raise
    finally:
        if not keep:
            shutil.rmtree(folder)


def _show_logs(folder: Path) -> bool:
    """Show the last lines of each party's log, and return whether there is any."""
    logs = sorted(folder.glob("*.log"))
    for log in logs:
        lines = log.read_text(errors="replace").rstrip().splitlines()
        _say(f"last lines of the log of {log.stem}:" if lines else f"the log of {log.stem} is empty")
        for line in lines[-_LOG_LINES:]:
            click.echo(f"  {line}", err=True)
    if logs:
        _say(f"the rehearsal failed, and its folder is kept: {folder}")
    return bool(logs)


def _check_rehearsed(given: dict[str, Any]) -> None:
    """Refuse options of a rehearsal where there is none, or where its rows are made up."""
    read, varied = (
        [name for name in names if given[name] not in (None, ())] for names in (_READ.split(), _VARIED)
    )
    for names, needed in (([*varied, *read], "n_local"), (read, "data")):
        if names and given[needed] is None:
            name = "--extra" if names[0] == "extra_columns" else option_name(names[0])
            raise InputError(f"{name} must go with --{'local' if needed == 'n_local' else needed}")


def _say(sentence: str) -> None:
    click.echo(f"fedpower: {sentence}", err=True)


def _round(closed: dict[str, Any]) -> None:
    """Show a closed round."""
    moved = "" if not closed["change"] else f", subspace moved by sin θ = {closed['change']:.1e}"
    names = ", ".join(closed["restarted"])
    restarted = f"; restarted in this session: {names}" if names else ""
    missing = f"; silent: {', '.join(closed['silent'])}" if closed["silent"] else ""
    _say(
        f"round {closed['round']} ({closed['kind']}): {len(closed['answered'])} answered{missing}"
        f"{restarted}, {human_bytes(closed['bytes_up'])} up{moved}"
    )
    for name, problem in closed.get("set_aside", {}).items():
        _say(f"the answer of {name} in round {closed['round']} was set aside: {problem}")
