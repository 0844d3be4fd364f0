"""`fedpower fit`: files in, a result folder out."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedpower.cli.budget import share_used
from fedpower.cli.console import (
    MOST_NAMES,
    console,
    note,
    print_json,
    print_result,
)
from fedpower.cli.findings import print_findings
from fedpower.cli.fit_options import PASSED_ON, fit_options
from fedpower.cli.options import Command
from fedpower.cli.progress import progress_of_fit
from fedpower.cli.silos import Silos, agreed_columns, find_ledgers, open_silos, read_vector
from fedpower.cli.words import in_options
from fedpower.data import RowSource
from fedpower.errors import InputError
from fedpower.estimator import FedPCA
from fedpower.estimator.terms import PRIVATE_STEPS
from fedpower.privacy import Ledger
from fedpower.report.atomic import new_folder
from fedpower.report.folder import FILES, write_files
from fedpower.report.page.words import human_bytes, most_variance
from fedpower.report.record import plain, run_record


@click.command(
    cls=Command,
    epilog="Example: fedpower fit north.csv south.parquet -k 4 --epsilon 1 --row-norm 10",
)
@fit_options
@click.pass_context
def fit(ctx: click.Context, /, **options: Any) -> None:
    """Compute the principal components of FILES, each a silo whose rows are not pooled.

    A silo is called by its file's name up to the first dot; write NAME=PATH to call it otherwise. A
    .toml file names a query on a database (docs/data.md).
    --epsilon is each silo's privacy budget for this fit: 1 is usual, inf is exact and NOT private.
    A finite one needs --row-norm or --normalize.
    """
    started = datetime.now(UTC)
    _check_promise(options)
    with new_folder(options["output"], known=FILES, force=options["force"]) as place:
        silos = open_silos(
            options["files"],
            groups=options["groups"],
            columns=options["columns"],
            drop=options["drop"],
            n_features=options["n_features"],
        )
        ledgers = find_ledgers(
            list(silos), folder=options["ledgers"], named=options["named_ledgers"]
        )
        model = FedPCA(options["n_components"], **_parameters(options, silos))
        told: dict[str, dict[str, Any]] = {name: _origin(silos[name], options) for name in silos}
        with _saying_how_to_go_on(model, ledgers):
            with progress_of_fit(silos, _steps(model)) as show:
                model.fit_silos(
                    silos,
                    ledgers=ledgers,
                    data_version=options["data_version"],
                    data_set=options["data_set"],
                    identities=options["identities"],
                    on_round=None if show is None else show.round,
                    on_rows=None if show is None else show.rows,
                    on_clipped=partial(_tell_clipped, options["row_norm"]),
                )
            for name, ledger in (ledgers or {}).items():
                told[name]["budget"] = _budget(ledger)
            told_of = run_record(model, command=ctx.find_root().obj, silos=told, started=started)
            record = write_files(place, model, told_of)
    if options["as_json"]:
        print_json({"result": str(options["output"]), **record, **_numbers(model)})
    else:
        _print(model, record, options["output"])
    if model.privacy_.is_private and ledgers is None:
        note("no ledger was given, so what this fit spent is on no record; see --ledgers")
    elif not model.privacy_.is_private and options["as_json"]:
        note(str(model.privacy_))


@contextmanager
def _saying_how_to_go_on(model: FedPCA, ledgers: dict[str, Path] | None) -> Iterator[None]:
    """Turn Ctrl-C into a sentence about what was charged, and what the same command would charge."""
    try:
        yield
    except KeyboardInterrupt:
        if ledgers is None:
            charged = "run the same command again to start anew"
        elif model.aggregation == "secure":
            charged = (
                "what the ledgers were charged stays charged, and a secure sum is asked for and charged "
                "afresh: see `fedpower budget`"
            )
        else:
            charged = "run the same command again: nothing that was charged is charged again"
        raise click.Abort(f"interrupted, so no result was written; {charged}") from None


def _steps(model: FedPCA) -> int | None:
    """Return how many steps there will be, where that is known beforehand."""
    noised = math.isfinite(model.epsilon) and model.noise in ("step", "paper")
    return PRIVATE_STEPS if noised and model.n_steps is None else model.n_steps


def _check_promise(options: dict[str, Any]) -> None:
    """Refuse options that contradict each other about privacy, before anything is read."""
    private = math.isfinite(options["epsilon"])
    if private and options["row_norm"] is None and not options["normalize"]:
        raise InputError(
            f"a fit with epsilon={options['epsilon']:g} must know a public bound on the norm of a "
            "row, got none; give --row-norm B, or --normalize to scale every row to norm 1"
        )
    if not private and (options["ledgers"] or options["named_ledgers"]):
        raise InputError(
            "a ledger must be charged a finite epsilon, got --epsilon inf, which releases exact "
            "numbers; give a finite one, or leave the ledgers out"
        )
    if options["center_file"] is not None and not options["center"]:
        raise InputError(
            "--center-file must not go with --no-center, got both; leave one of them out"
        )


def _parameters(options: dict[str, Any], silos: Silos) -> dict[str, Any]:
    """Return FedPCA's parameters; those not given are left out."""
    parameters = {name: options[name] for name in PASSED_ON if options[name] is not None}
    parameters["center"] = options["center"]
    files = {name: options[f"{name}_file"] for name in ("center", "scale")}
    if any(files.values()):
        columns = agreed_columns(silos, options["extra_columns"] or "refuse")
        for name, path in files.items():
            if path is not None:
                parameters[name] = read_vector(path, columns)
    return parameters


def _origin(silo: Path | RowSource, options: dict[str, Any]) -> dict[str, Any]:
    """Return where a silo's rows are, for the record."""
    if options["groups"]:
        return {"source": options["files"][0]}
    return {"source": str(silo) if isinstance(silo, Path) else silo.name}


def _budget(path: Path) -> dict[str, Any]:
    """Return what a ledger says after the fit, for the record: here one operator holds all of them."""
    with Ledger.open(path) as ledger:
        told = ledger.statement()
    return {
        "spent": told["spent"]["epsilon"],
        "left": told["left"],
        "cap": told["cap"]["epsilon"],
        "delta": told["cap"]["delta"],
        "used": share_used(told),
    }


def _tell_clipped(row_norm: float, counts: dict[str, tuple[int, int]]) -> None:
    """Tell the operator what the bound did to the rows.

    It goes into no result, nor into whether there is one.
    """
    if all(count == rows for count, rows in counts.values()):
        note(
            f"all {sum(rows for _, rows in counts.values())} rows are longer than --row-norm "
            f"{row_norm:g} and were clipped, so that their directions alone count (for your eyes, kept "
            "nowhere); give public centres and scales with --center-file and --scale-file, or a larger "
            "bound"
        )
        return
    clipped = {name: count for name, (count, _) in counts.items() if count}
    if clipped:
        listed = ", ".join(f"{count} in {name}" for name, count in clipped.items())
        note(f"rows longer than --row-norm were clipped: {listed} (for your eyes, kept nowhere)")


def _numbers(model: FedPCA) -> dict[str, Any]:
    names = ("components", "explained_variance", "explained_variance_ratio", "mean")
    return {
        "feature_names": plain(getattr(model, "feature_names_in_", None)),
        **{name: plain(getattr(model, f"{name}_")) for name in names},
    }


def _print(model: FedPCA, record: dict[str, Any], output: Path) -> None:
    print_findings(
        model.explained_variance_,
        model.explained_variance_ratio_,
        n_features=model.n_features_in_,
        edge=model.noise_edge_,
        n_above=model.n_above_noise_,
        explained=0.0
        if model.n_above_noise_ is None
        else float(np.nansum(model.denoised_variance_ratio_)),
        most=most_variance(record, model.n_samples_),
    )
    out = console()
    sizes = ", ".join(f"{silo['name']} ({silo.get('rows', '?')} rows)" for silo in record["silos"])
    lines = (
        f"Silos: {sizes}; {model.n_samples_} rows of {_columns(model)} in all.",
        f"Solver: {model.solver_.solver}, because {in_options(model.solver_.reason)}.",
        f"Rounds: {record['n_rounds']}, with {human_bytes(record['bytes_up'])} up and "
        f"{human_bytes(record['bytes_down'])} down.",
        "",
    )
    for line in lines:
        out.print(line, soft_wrap=True)
    out.print(
        str(model.privacy_), soft_wrap=True, style=None if model.privacy_.is_private else "bold red"
    )
    print_result(output)


def _columns(model: FedPCA) -> str:
    """Return what the columns are, so that an identifier among them is seen."""
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = f" ({', '.join(names[:MOST_NAMES])}{more})" if names else ""
    return f"{model.n_features_in_} columns{listed}"
