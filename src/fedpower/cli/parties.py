"""`fedpower coordinator` and `fedpower silo`: a party's one process, in the foreground."""

import logging
import math
import os
import sys
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import print_facts
from fedpower.cli.options import PATH
from fedpower.errors import InputError
from fedpower.estimator.fit_warnings import weights_summary
from fedpower.federation import needs_flare
from fedpower.federation.processes import end_with_starter, wait_for_signal
from fedpower.federation.silo_file import OpenSilo, open_silo, read_silo
from fedpower.federation.study_file import StudyFile
from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.budget import SCORES, Budget
from fedpower.protocol.silo import PrivateReleases
from fedpower.protocol.study import budget_of, worst_epsilon
from fedpower.report.text import count, human_bytes
from fedpower.rows.inspecting import doubtful
from fedpower.rows.networks import weighed_edges
from fedpower.sums.survey import ONLY_YOU, STAGES, Survey, levels_warnings, other_words, units_warning


@click.command()
@click.argument("kit", type=PATH)
def coordinator(kit: Path) -> None:
    """Run the coordinator with its KIT, until Ctrl-C.

    It listens at the host and port of the study, asks the silos, keeps a checkpoint of every round in
    KIT/runs, and never sees a row. After a crash it continues after the last closed round.
    """
    end_with_starter()  # also while rows are read, which takes time
    needs_flare()
    from fedpower.federation.coordinator import CoordinatorService  # noqa: PLC0415
    from fedpower.federation.kits import COORDINATOR, Kit  # noqa: PLC0415

    own = Kit(kit, COORDINATOR)
    own.check()
    _log_to_console()
    CoordinatorService(own).start()
    study = own.study
    _say(f"coordinator of study {study.name} ({study.digest[:12]}) at {study.host}:{study.port}")
    wait_for_signal()
    _say("stopping; closed rounds are on disk")
    sys.stdout.flush()
    os._exit(0)  # threads of FLARE would wait for their peers


@click.command()
@click.argument("kit", type=PATH)
@click.argument("silo_file", type=PATH, required=False)
@click.option("--dry-run", is_flag=True, help="Show what would leave and its price; contact nobody.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print one JSON object.")
@click.option("--part", type=click.Choice(["vault", "node"]), help="Run one process only, as its own user.")
@click.option("--socket", "place", type=PATH, help="With --part: the socket at which the vault listens.")
def silo(
    kit: Path, silo_file: Path | None, *, dry_run: bool, as_json: bool, part: str | None, place: Path | None
) -> None:
    """Run this organisation's silo with its KIT and its own SILO_FILE, until Ctrl-C.

    It starts two processes. The vault holds rows, ledger and signing key, and has no network. It answers
    only questions of the study it agreed to, and charges its ledger before each answer. The node connects
    to the coordinator (it opens no port), passes messages on, and cannot open the vault's files.
    """
    end_with_starter()  # also while rows are read, which takes time
    needs_flare()
    from fedpower.federation.kits import Kit  # noqa: PLC0415
    from fedpower.federation.node import become_node  # noqa: PLC0415
    from fedpower.federation.vault import Vault, node_settings, run_silo, run_vault  # noqa: PLC0415

    if as_json and not dry_run:
        raise InputError("--json must go with --dry-run")
    if (part is None) != (place is None):
        raise InputError("--part and --socket must be given together, got one of them")
    if part == "node":
        if dry_run:
            raise InputError("--dry-run must go with the vault, which has the rows, got --part node")
        opened = Kit(kit)
        if opened.party not in opened.study.silos:
            raise InputError(f"{kit} must be the kit of a silo, got that of {opened.party!r}")
        opened.check()
        become_node(node_settings(opened, vault=str(place)))
    if silo_file is None:
        raise InputError("a silo must have its own file, got none; give it after the kit")
    own = read_silo(silo_file)
    opened = Kit(kit, own.name)
    study = opened.study
    with open_silo(study, own) as node:
        if dry_run:
            title = f"What would leave {node.silo.name} in study {study.name}"
            facts = _facts(study, node, own.data.version)
            print_facts(title, facts, as_json=as_json)
            if not as_json:
                click.echo("Nobody was contacted and nothing was charged.")
            return
        opened.check(with_key=part is None)
        _say(_size(node), *_advice(node))
        for column, why in doubtful(own.source(study)):
            _say(
                f"column {column!r} {why} (for your eyes only): unless it is a measurement, propose a "
                "study that drops it"
            )
        _say(f"silo {own.name} of study {study.name} ({study.digest[:12]})")
        _log_to_console()
        vault = Vault(node.silo, study)
        if place is not None:
            status = run_vault(vault, place, own, say=_say)
        else:
            status = run_silo(vault, node_settings(opened), own, say=_say)
    raise SystemExit(status)


def _log_to_console() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    logging.getLogger("nvflare").setLevel(logging.ERROR)


def _say(*sentences: str) -> None:
    for sentence in sentences:
        click.echo(f"fedpower: {sentence}", color=False)
    sys.stdout.flush()


def _size(node: OpenSilo) -> str:
    """Return how many rows, or persons and their rows, or nodes a silo has, for its operator."""
    terms, moment = node.study, node.moment
    if terms.network:
        return f"read a network on {terms.n_features} nodes"
    if not terms.unit:
        return f"read {moment.n_rows} rows of {terms.n_features} columns"
    read = f"read {moment.n_read} rows of {terms.n_features} columns, of "
    if terms.rows_per_unit == 1:
        return f"{read}{moment.n_rows} persons"
    return f"{read}which {moment.n_rows} count"


def _advice(node: OpenSilo) -> list[str]:
    """Return what an operator should consider before taking part; it goes no further."""
    moment, study = node.moment, node.study
    if study.network == "edge":
        odd = weights_summary(weighed_edges({node.silo.name: moment.source}).values())
        return [] if odd is None else [f"{odd} {ONLY_YOU}"]
    advice = []
    if not isinstance(moment, Survey) and moment.treatment.row_norm is not None and moment.n_clipped:
        clipped, rows = moment.n_clipped, moment.n_read
        more = ""
        if 2 * clipped > rows:
            more = ": propose public centres and scales, or a larger bound, for the next study"
        advice.append(
            f"{clipped} of {rows} rows ({clipped / rows:.1%}) are longer than the study's row_norm and "
            f"clipped {ONLY_YOU}{more}"
        )
    levels = {place for group in study.groups for place in group}
    units = units_warning(moment, levels=levels, columns=study.columns)
    return [*advice, *([] if units is None else [units]), *levels_warnings(moment.source)]


def _facts(study: StudyFile, node: OpenSilo, version: str) -> dict[str, Any]:
    """Return what an operator wants to know before taking part; clipped rows are for their eyes only."""
    terms, moment = node.study, node.moment
    budget = budget_of(terms)
    by_edge, secure = terms.network == "edge", terms.aggregation == "secure"
    facts: dict[str, Any] = {"study": study.digest}
    if terms.unit:
        facts |= {"persons": moment.n_rows, "rows_of_theirs": moment.n_read}
    else:
        facts["networks" if by_edge else "rows"] = moment.n_rows
    facts["nodes" if terms.network else "columns"] = terms.n_features
    if by_edge:
        (weighed,) = weighed_edges({node.silo.name: moment.source}).values()
        facts["edges_capped_at_the_maximum"] = weighed.n_capped
    else:
        facts["rows_clipped_by_the_bound"] = None if isinstance(moment, Survey) else moment.n_clipped
        others = {name: count for name, (count, _) in other_words(moment.source).items() if count}
        facts |= {"rows_with_other_levels": others} if others else {}
    if advice := _advice(node):
        facts["advice"] = "; ".join(advice)
    if budget is None:
        return {**facts, "leaves": "exact numbers: this study is NOT private"}
    things = "persons" if terms.unit and terms.rows_per_unit == 1 else "rows"
    without = f"the number of {'networks, which is 1' if by_edge else things}"
    noise = "noise_std_of_an_edge_in_units_of_edge_weight" if by_edge else "noise_std_for_rows_of_norm_1"
    std = f"{budget.std(moment.n_rows) / (math.sqrt(2.0) if by_edge else 1.0):.3g}"
    if secure:
        without += "; in each session a key, a signature and how many attempts were charged"
        std = f"of the sum, by the {'networks' if by_edge else 'rows'} in the session"
    one = epsilon_of(budget.study_mu, budget.left_delta)
    facts |= {
        "leaves": _leaves(budget, secure=secure, what="adjacency" if by_edge else "moment"),
        "leaves_without_noise": without,
        "largest_release": human_bytes(8 * max(query.size for query in budget.queries)),
        noise: std,
    }
    if secure and isinstance(node.silo.releases, PrivateReleases):
        facts |= {
            "epsilon_of_one_attempt": f"{one:.4g}",
            "attempts_at_most": terms.attempts,
            "attempts_charged_so_far": node.silo.releases.attempts_charged,
        }
    facts |= {
        "epsilon_of_this_study": f"{worst_epsilon(terms) if secure else one:.4g}",
        "delta": f"{budget.delta:g}",
    }
    if node.ledger is not None:
        facts |= {
            "data_version_told_to_all": version,
            "ledger_cap": f"{node.ledger.spent().cap:g}",
            "ledger_spent": f"{node.ledger.spent().epsilon:.4g}",
            "ledger_left": f"{node.ledger.spent().left:.4g}",
            "affordable": node.affordable,
        }
    return facts


def _leaves(budget: Budget, *, secure: bool, what: str) -> str:
    """Return what leaves the silo in a private study, noised."""
    scores = ", then counts of rows by their scores" if budget.share(SCORES) else ""
    if budget.mode != "moment":
        parts = f"{count(budget.n_steps, 'product')} of d×{budget.iteration_rank}"
        parts += " with the trace" if budget.with_trace else ""
        parts += " and the mean row" if budget.center else ""
        return f"{parts}{scores}, each noised{' as printed' if budget.mode == 'paper' else ''}"
    prepares = bool(budget.share(*STAGES))
    parts = f"the {what}, the mean row and the trace" if budget.center else f"the {what} and its trace"
    if prepares:
        parts = f"tallies of where cells lie and how long rows are, then {parts}"
    parts += f"{scores} on two components" if scores else ""
    if not secure:
        return f"{parts}, {'each ' if prepares or scores else ''}noised once"
    return (
        f"{parts} under masks, with this silo's share of the noise: readable only in the sum over all "
        "silos of a session"
    )
