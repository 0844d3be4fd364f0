"""`fedpower study`: the file that a consortium agrees on, and its run from the runner's chair."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedpower import toml
from fedpower.cli.console import print_facts, print_json, print_table, say
from fedpower.cli.options import (
    PATH,
    READING,
    Command,
    by_name,
    names,
    option,
    options,
    output,
    reading_of,
    shared,
)
from fedpower.cli.results import print_result
from fedpower.cli.silos import note_doubts, own_tables, read_nodes, read_vector
from fedpower.exceptions import InputError, require
from fedpower.federation import needs_flare
from fedpower.federation.inbox import message_to_sign, read_signatures, signatures_of
from fedpower.federation.kits import Kit
from fedpower.federation.local import local_federation, rehearsal_data
from fedpower.federation.processes import wait_for_signal
from fedpower.federation.review import rules_in_words
from fedpower.federation.runner import Runner, last_runs, open_session, understood
from fedpower.federation.study_file import PAGE, RUNNER, STATUS, StudyFile, read_study, to_toml
from fedpower.federation.study_status import in_words, study_facts
from fedpower.files import new_file, new_folder, write_whole
from fedpower.options import FLAT, option_name
from fedpower.protocol.secure import Identity
from fedpower.protocol.study import worst_epsilon
from fedpower.report.record import plain
from fedpower.report.result import KNOWN, read_result
from fedpower.report.text import human_bytes, measured
from fedpower.rows.opening import open_source
from fedpower.rows.source import match_columns
from fedpower.rows.units import by_unit
from fedpower.rules.codebook import CodeBook, ranges_of
from fedpower.rules.rules import TableRules


@click.group()
def study() -> None:
    """Write, check and show a study file, which all parties agree on, and run it."""


_AGREED = tuple(name for name, spec in FLAT.items() if spec.option is not None and spec.section)
"""Parameters of a fit that a consortium agrees on, and a rehearsal varies: each a key of the study file."""

_OTHERWISE: dict[str, dict[str, Any]] = {
    "delta": {"default": 1e-6, "help": "The δ of the privacy promise."},
    "deadline": {"default": 600.0},
    "min_silos": {"help": "Fewest silos for a round; all by default."},
}
"""What a study file must contain that a fit finds out by itself."""


@study.command(cls=Command)
@click.argument("path", type=PATH, default=Path("study.toml"))
@options(
    option("--name TEXT", "Name of the study.", required=True),
    option("--silos A,B,...", "Names of the silos.", callback=names, required=True),
    option("--columns A,B,...", "Names of the columns, in this order.", callback=names),
    option("--columns-of FILE", "Take the column names from this file."),
    "nodes",
    *(shared(name, **_OTHERWISE.get(name, {})) for name in _AGREED),
    "codebook ranges center_file scale_file",
    shared(
        "identities",
        help="Public key of a silo; repeatable.",
        metavar="SILO=KEY",
        callback=by_name("SILO=KEY"),
    ),
    option("--grace", "Seconds to wait for more silos once enough have answered.", float, group="rounds"),
    option("--host TEXT", "The coordinator's host name.", group="running", default="localhost"),
    option("--port", "The coordinator's port.", int, group="running", default=8002),
    f"{READING} force",
)
def init(path: Path, *, force: bool, **given: Any) -> None:
    """Write a study file to PATH. All parties read it and agree on it.

    Example: fedpower study init --name heart-2026 --silos north,south,east --columns-of north.csv
    -k 4 --epsilon 1 --host coordinator.example.org
    """
    with new_file(path, force=force) as place:
        place.write_text(to_toml(_content(given)), encoding="utf-8")
        made = read_study(place)
    say(
        f"Study: {path}, hash {made.digest}.",
        f"Edit it if needed, run `fedpower study check {path}`, and send it to every party.",
    )


@study.command()
@options("PATH as_json")
def check(path: Path, *, as_json: bool) -> None:
    """Check that the study in PATH is valid."""
    read = read_study(path)
    if as_json:
        print_json({"study": str(path), "name": read.name, "hash": read.digest})
        return
    say(f"{path} is valid: study {read.name}, hash {read.digest}.")


@study.command()
@options("PATH as_json")
def show(path: Path, *, as_json: bool) -> None:
    """Show the study in PATH, with its defaults and its hash."""
    read = read_study(path)
    facts = _facts(read)
    if not as_json:  # a table shows the first of many names
        facts |= {name: ", ".join(facts[name]) for name in _ALL_NAMES if name in facts}
        facts |= {"rules": "\n".join(rules)} if (rules := rules_in_words(read)) else {}
    print_facts(f"Study {read.name}", facts, as_json=as_json)


_ALL_NAMES = ("silos", "nodes", "columns", "columns_of_tables")


def _content(given: dict[str, Any]) -> dict[str, Any]:
    """Return a study file's content from the command's options."""
    book = None if given["codebook"] is None else CodeBook.load(given["codebook"])
    rules = None if book is None else book.table_rules
    columns = _columns(given, rules)
    features = columns if rules is None else rules.completed(columns).features
    files = {"offset": given["center_file"], "scale": given["scale_file"]}
    numbers = {name: read_vector(path, features).tolist() for name, path in files.items() if path is not None}
    tables: dict[str, dict[str, Any]] = {"rows": {"center": given["network"] is None}}
    for name, spec in FLAT.items():
        if spec.section not in (None, "columns") and given.get(name) is not None:
            tables.setdefault(spec.section, {})[name] = given[name]
    rows = tables["rows"]
    if book is not None and not book.is_draft and not book.follows_rules:
        if numbers or given["ranges"] or {"row_norm", "normalize"} & rows.keys():
            raise InputError("--codebook must go without files, ranges and bounds, which it has, got both")
        book.check_columns(features, len(features))
        ranges = np.column_stack([book.low, book.high]).tolist()
        numbers = {"offset": book.offset.tolist(), "scale": book.scale.tolist(), "ranges": ranges}
        rows["row_norm"] = book.bound
    elif given["ranges"]:
        known = ranges_of(given["ranges"], features, len(features))
        numbers["ranges"] = [[] if ends is None else list(ends) for ends in known]
    if given["epsilon"] == float("inf"):
        del tables["privacy"]["delta"]
    if given["identities"]:
        tables["privacy"]["aggregation"] = "secure"
        tables["identities"] = given["identities"]
    if given["grace"] is not None:
        tables["rounds"]["grace"] = given["grace"]
    return {
        **tables,
        "name": given["name"],
        "columns": {"names": list(columns), **numbers},
        **({} if rules is None else {"rules": rules.as_content()}),
        "silos": {"names": list(given["silos"])},
        "coordinator": {"host": given["host"], "port": given["port"]},
    }


def _columns(given: dict[str, Any], rules: TableRules | None) -> tuple[str, ...]:
    """Return the tables' columns that the study has, those that rules drop left out."""
    columns, file = given["columns"], given["columns_of"]
    if (given["network"] is None) != (given["nodes"] is None):
        raise InputError("--network and --nodes must go together, got one of them")
    named = [f"--{name.replace('_', '-')}" for name in ("columns", "columns_of", "nodes") if given[name]]
    if len(named) > 1 or (not named and rules is None):
        got = " and ".join(named) or "none of them"
        raise InputError(f"one of --columns, --columns-of and --nodes must be given, got {got}")
    if given["nodes"] is not None:
        return tuple(read_nodes(given["nodes"]))
    if not named and rules is not None:
        columns = rules.columns
    if columns is None:
        source = open_source(file, **reading_of(given, "rename"))
        note_doubts({str(file): source})
        columns, _ = match_columns([source if given["unit"] is None else by_unit(source, given["unit"])])
        if columns is None:
            raise InputError(f"{file} must have column names, got none; list them with --columns")
    if rules is not None:
        columns = tuple(name for name in columns if name not in rules.dropped)
        missing = [name for name in rules.columns if name not in columns]
        if missing:
            raise InputError(f"--columns must be those with rules in the code book, got no {missing[0]!r}")
    return tuple(columns)


def _facts(read: StudyFile) -> dict[str, Any]:
    terms, _, choice = read.terms()
    given = read.options.flat()
    facts = {
        "name": read.name,
        "hash": read.digest,
        **({"hash_in_ledgers": terms.ledger_name} if terms.is_private else {}),
        "silos": list(read.silos),
        "nodes" if terms.network else "columns": list(read.columns),
        **({} if read.rules is None else {"columns_of_tables": list(read.table_columns)}),
        **{name: plain(given[name]) for name in FLAT if name in given and FLAT[name].section},
        "prepared_privately": bool(terms.preparation),
        "min_silos": read.min_silos,
        "grace": read.grace,
        **{name: plain(getattr(terms, name)) for name in ("iteration_rank", "delta", "noise")},
        "solver": choice.solver,
        "why_this_solver": choice.reason,
        "coordinator": f"{read.host}:{read.port}",
    }
    if terms.is_secure:
        facts |= {"attempts": terms.attempts, "epsilon_of_all_attempts": float(f"{worst_epsilon(terms):.4g}")}
    return facts


@study.command()
@options("STUDY KEY")
def sign(study: Path, *, key: Path) -> None:
    """Sign STUDY with the private KEY of a silo, as one who vouches for it.

    The signature is added to the file STUDY.signatures next to the study. Other silos may approve by a
    standing rule what your key has signed.
    """
    read, held, place = read_study(study), Identity.load(key), signatures_of(study)
    signatures = read_signatures(place) | {held.public: held.sign(message_to_sign(read)).hex()}
    write_whole(place, toml.to_toml(signatures))
    say(f"{place}: study {read.name} ({read.digest[:12]}) is signed by {held.public}.")


# --- run and status ---------------------------------------------------------------------------------

_KIT = option("--kit FOLDER", "Kit of the runner; kits/runner next to STUDY by default.")
_PAGE_PORT = 8005
_LOG_LINES = 12  # of a party's log, the last, are shown


@study.command(cls=Command)
@options(
    "STUDY",
    output("result"),
    _KIT,
    option("--resume", "Continue the last run."),
    option(
        "--wait",
        "Seconds to wait for all silos to connect and approve.",
        click.FloatRange(0),
        name="patience",
        default=120.0,
    ),
    option("--local N", "Rehearse with N silos on this machine.", int, name="n_local"),
    option("--data FOLDER", "With --local: folder with a file or folder for each silo."),
    f"force as_json drop {READING}",
    shared("extra_columns", default=None),
    *(shared(name, required=False, default=None) for name in _AGREED),
    "verbose",
)
def run(study: Path, *, output: Path, as_json: bool, force: bool, verbose: bool, **given: Any) -> None:
    """Run STUDY over its federation and write a result folder.

    The run shows every round and who answered. It waits for a party that restarts. After an interruption
    --resume continues it, and nothing is charged twice.

    --local rehearses the study on this machine, with options of `fedpower fit` instead of the study's.
    """
    needs_flare()
    read = read_study(study)
    require(given["patience"] >= 0.0, "--wait", "a number of seconds", given["patience"])
    _check_rehearsed(given)
    local = given["n_local"] is not None
    with new_folder(output, known=KNOWN, force=force) as place, _run_with(study, read, given) as (kit, tried):
        opened = Kit(kit, RUNNER)
        opened.federation.check(tried)
        runner = Runner(
            kit=opened,
            study=tried,
            signatures=read_signatures(signatures_of(study)),
            patience=given["patience"],
            say=_say,
            on_round=_round,
        )
        try:
            state = runner.run(place, resume=given["resume"])
        except KeyboardInterrupt:
            then = "run the rehearsal again" if local else "continue with --resume: nothing is charged twice"
            raise click.Abort(f"interrupted, so no result was written; {then}") from None
    if not as_json:
        say(f"Run {state['run']} is complete.")
    print_result(read_result(output), output, verbose=verbose, as_json=as_json)


@study.command()
@options(
    "STUDY",
    _KIT,
    option("--serve", "Show the status as a page for a browser on this machine, until Ctrl-C."),
    option("--port", f"With --serve: the page's port; {_PAGE_PORT} by default.", click.IntRange(0, 65535)),
    "as_json",
)
def status(study: Path, *, kit: Path | None, serve: bool, port: int | None, as_json: bool) -> None:
    """Show how STUDY stands: its silos, its rounds, what is waited for, and whether there is a result."""
    needs_flare()
    if serve and as_json:
        raise InputError("--serve and --json must not be given together, got both")
    if port is not None and not serve:
        raise InputError("--port must go with --serve")
    read, opened = read_study(study), Kit(kit or study.parent / "kits" / "runner", RUNNER)
    if serve:
        from fedpower.federation.status_page import StatusPage, served  # noqa: PLC0415

        page = StatusPage(read, lambda: last_runs(opened).get(read.digest))
        with (
            served(page, _PAGE_PORT if port is None else port, opened.folder) as address,
            open_session(opened, PAGE, patience=None) as session,
        ):
            _say(f"study {read.name} is shown at {address} until Ctrl-C")
            wait_for_signal(until=lambda: page.update(session), every=1.0)
        return
    with open_session(opened, STATUS) as session, understood():
        last = last_runs(opened).get(read.digest)
        facts = study_facts(read, session.status(last), last)
        words = in_words(facts)
    if as_json:
        print_json(facts)
        return
    print_table(f"Study {read.name} ({read.digest[:12]})", *words["silos"])
    say(words["sentence"], *(f"{name}: {value}" for name, value in words["summary"].items()))
    if facts["result"] is not None:
        say("Add --serve to see the report of the result.")


@contextmanager
def _run_with(study: Path, read: StudyFile, given: dict[str, Any]) -> Iterator[tuple[Path, StudyFile]]:
    """Give the runner's kit and the study, of the real federation or of one on this machine."""
    if given["n_local"] is None:
        yield given["kit"] or study.parent / "kits" / "runner", read
        return
    with _rehearsal_folder() as folder:
        varied = {name: given[name] for name in _AGREED if given[name] is not None}
        if varied:
            tried = folder / "tried.toml"
            tried.write_text(read.with_parameters(varied), encoding="utf-8")
            read = read_study(tried)
            _say(f"the rehearsal changes settings of the study: hash {read.digest[:12]}")
        data = rehearsal_data(read, given["n_local"], folder / "data", given["data"], say=_say)
        own = own_tables(data, given) if given["data"] is not None else {}
        with local_federation(read, folder, data, own) as made:
            _say(f"starting a coordinator and {len(data)} silos on this machine, in {folder}")
            yield made.runner, made.study


@contextmanager
def _rehearsal_folder() -> Iterator[Path]:
    """Give a new folder, removed in the end; kept, and its logs shown, where parties ran and failed."""
    folder = Path(tempfile.mkdtemp(prefix="fedpower-"))
    logs: list[Path] = []
    try:
        yield folder
    except click.Abort:
        raise
    except Exception:
        logs = sorted(folder.glob("*.log"))
        for log in logs:
            lines = log.read_text(errors="replace").rstrip().splitlines()[-_LOG_LINES:]
            _say("\n  ".join([f"last lines of the log of {log.stem}:", *(lines or ["none"])]))
        if logs:
            _say(f"the rehearsal failed; its files are in {folder}")
        raise
    finally:
        if not logs:
            shutil.rmtree(folder)


def _check_rehearsed(given: dict[str, Any]) -> None:
    """Refuse options of a rehearsal where there is none, or where its rows are made up."""
    if given["resume"] and given["n_local"] is not None:
        raise InputError("--resume must not go with --local, as a rehearsal leaves nothing to continue")
    reading = ("drop", "extra_columns", *READING.split())
    for listed, needed, missing in ((_AGREED + reading, "n_local", "--local"), (reading, "data", "--data")):
        named = [name for name in listed if given[name] not in (None, ())]
        if named and given[needed] is None:
            raise InputError(f"{option_name(named[0])} must go with {missing}")


def _say(sentence: str) -> None:
    click.echo(f"fedpower: {sentence}", err=True)


def _round(closed: dict[str, Any]) -> None:
    """Show a closed round."""
    moved = "" if not closed["change"] else f", change sin θ = {closed['change']:.1e}"
    names = ", ".join(closed["restarted"])
    restarted = f"; restarted: {names}" if names else ""
    missing = f"; no answer from {', '.join(closed['silent'])}" if closed["silent"] else ""
    _say(
        f"round {closed['round']} ({measured(closed['kind'])}): {len(closed['answered'])} answered{missing}"
        f"{restarted}, {human_bytes(closed['bytes_up'])} received{moved}"
    )
    for name, problem in closed.get("set_aside", {}).items():
        _say(f"rejected the answer of {name} in round {closed['round']}: {problem}")
