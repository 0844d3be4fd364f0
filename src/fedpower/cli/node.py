"""`fedpower node`: keys and certificates of the parties of a study, and each party's one process."""

import math
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import click

from fedpower.cli.console import print_facts, print_json, print_table, say
from fedpower.cli.options import PATH, option, options, output
from fedpower.estimator.fit_warnings import weights_summary
from fedpower.exceptions import BudgetError, InputError
from fedpower.federation import needs_flare
from fedpower.federation.processes import end_with_starter, log_to_console, wait_for_signal
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.federation.study_file import read_study
from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.budget import COVARIANCE, MEAN, PRODUCT, SCORES
from fedpower.protocol.silo import PrivateReleases, Silo
from fedpower.protocol.study import Budget, worst_epsilon
from fedpower.report.text import human_bytes
from fedpower.rows.inspecting import doubtful
from fedpower.rows.networks import weighed_edges
from fedpower.sums.survey import ONLY_YOU, STAGES, Survey, cells_warnings, other_words, units_warning

AUTHORITY_DAYS, PARTY_DAYS = 3650, 365


def _days(default: int) -> Any:
    return option("--days", "Days of validity.", click.IntRange(1, 36500), default=default)


_REQUESTS = options("AUTHORITY REQUESTS...", _days(PARTY_DAYS))


def _kits() -> Any:
    """Return the module of kits, which needs packages of an extra."""
    needs_flare()
    from fedpower.federation import kits  # noqa: PLC0415

    return kits


@click.group()
def node() -> None:
    """Make the keys and certificates of a study's parties, and run a party.

    One party makes an authority (ca-init). Every party makes a kit with its key, and a request (request).
    The authority signs the requests (sign). Every party adds its certificate to its kit (accept) and
    starts (start). Private keys never leave the kit.
    """


@node.command()
@options(
    "STUDY",
    output(help="New folder: `authority` by default, `kits` with --with-keys."),
    _days(AUTHORITY_DAYS),
    option("--with-keys", "For rehearsals: make the kits of all parties here."),
)
def ca_init(study: Path, *, output: Path | None, days: int, with_keys: bool) -> None:
    """Make the authority of STUDY, which signs the parties' requests.

    Anyone with its key can sign a certificate for any party. Keep the folder offline once all is signed.
    """
    kits, read = _kits(), read_study(study)
    folder = output or Path("kits" if with_keys else "authority")
    if not with_keys:
        made = kits.Authority.make(read, folder, days=days)
        _print([("authority", f"{folder}", made.certificate)], f"Authority of study {read.name}")
        say(
            "Next: each party runs `fedpower node request` and sends you its request.",
            f"Then: fedpower node sign {folder} REQUEST...",
        )
        return
    kits.make_kits(read, folder, authority_days=days, days=min(days, PARTY_DAYS))
    rows = [(f"{folder / party}", party, _next(party, folder / party)) for party in kits.parties(read)]
    title = f"Kits of study {read.name} ({read.digest[:12]})"
    print_table(title, ("folder", "for", "next"), [*rows, (f"{folder / kits.AUTHORITY}", "authority", "")])
    say("For rehearsals only: in a real study every party makes its own key with `fedpower node request`.")


@node.command()
@options(
    "STUDY",
    click.argument("party"),
    output(help="New folder for the kit; kits/PARTY next to STUDY by default."),
    option("--renew", "Make a new key for an existing kit, which keeps working."),
)
def request(study: Path, party: str, *, output: Path | None, renew: bool) -> None:
    """Make the kit of PARTY for STUDY, and a request to sign its key.

    PARTY is a silo, `coordinator` or `runner`. Send the request, which is public, to the authority, and
    tell it the fingerprint over another channel, such as the telephone. The key stays in the kit.
    """
    kits = _kits()
    made = kits.ask(read_study(study), party, output or study.parent / "kits" / party, renew=renew)
    say(f"Request: {made}. Send it to the authority, but not the key next to it.")
    click.echo(f"fingerprint of the key: {kits.fingerprint(kits.Request.read(made).key)}")


@node.command()
@_REQUESTS
def sign(authority: Path, *, requests: tuple[Path, ...], days: int) -> None:
    """Sign the first REQUESTS of parties with the folder AUTHORITY.

    Compare each fingerprint with the one that its party tells you. Then send each party its certificate
    from AUTHORITY/signed; certificates are public.
    """
    _sign(authority, requests, days, renew=False)


@node.command()
@_REQUESTS
def renew(authority: Path, *, requests: tuple[Path, ...], days: int) -> None:
    """Sign REQUESTS of parties that already have a certificate.

    The party runs `fedpower node request --renew` for a new key, or sends its old request again to keep
    its key. The earlier certificate stays valid until it expires.
    """
    _sign(authority, requests, days, renew=True)


def _sign(authority: Path, requests: tuple[Path, ...], days: int, *, renew: bool) -> None:
    kits = _kits()
    signer, read = kits.Authority(authority), [kits.Request.read(path) for path in requests]
    asking = [one.party for one in read]
    twice = sorted({party for party in asking if asking.count(party) > 1})
    if twice:
        raise InputError(f"a party must ask once, got two requests from {twice[0]!r}")
    rows = [
        (one.party, f"{signer.signed(one.party)}", signer.sign(one, days=days, renew=renew)) for one in read
    ]
    _print(rows, f"Signed in study {signer.study.name} ({signer.study.digest[:12]})")


@node.command()
@options("KIT CERTIFICATE")
def accept(kit: Path, certificate: Path) -> None:
    """Add the CERTIFICATE from the authority to the KIT with its key.

    Compare the authority's fingerprint with that of the other parties.
    """
    done = _kits().accept(kit, certificate)
    rows = [(done.party, f"{kit}", done.certificate), ("authority", f"{certificate}", done.authority)]
    _print(rows, f"The kit of {done.party} is complete")
    say(f"Next: {_next(done.party, kit)}")


@node.command()
@options("FOLDERS... as_json")
def status(folders: tuple[Path, ...], *, as_json: bool) -> None:
    """Show the certificates in kits or an authority, and their expiry."""
    kits = _kits()
    rows: list[tuple[str, str, Any]] = []
    for folder in folders:
        if (folder / "authority.key").is_file():
            held = kits.Authority(folder)
            rows.append(("authority", f"{folder}", held.certificate))
            signed = [(party, held.signed(party)) for party in kits.parties(held.study)]
            rows += [
                (party, f"{path}", kits.read_certificate(path)) for party, path in signed if path.exists()
            ]
        else:
            kit = kits.Kit(folder)
            rows.append((kit.party, f"{folder}", kit.certificate))
    _print(rows, "Certificates", as_json=as_json)


def _print(rows: list[tuple[str, str, Any]], title: str, *, as_json: bool = False) -> None:
    """Print certificates: whose they are, where, and until when they are valid."""
    kits = _kits()
    records = [
        {
            "party": party,
            "place": place,
            "fingerprint": kits.fingerprint(certificate.public_key()),
            "since": certificate.not_valid_before_utc.isoformat(),
            "until": certificate.not_valid_after_utc.isoformat(),
            "days_left": kits.days_left(certificate),
        }
        for party, place, certificate in rows
    ]
    if as_json:
        print_json(records)
        return
    shown = [(one["party"], one["place"], one["until"][:10], f"{one['days_left']}") for one in records]
    print_table(title, ("party", "file or folder", "expires", "days left"), shown, numbers=["days left"])
    for one in records:
        click.echo(f"fingerprint of {one['party']}: {one['fingerprint']}")


def _next(party: str, kit: Path) -> str:
    """Return the command that a party runs with its kit."""
    if party == "runner":
        return f"fedpower study run {kit / 'study.toml'} --kit {kit}"
    return f"fedpower node start {kit}"


@node.command()
@options("FILE")
def key(file: Path) -> None:
    """Print a silo's public key from FILE; a new FILE gets a new key.

    The study file lists every silo's public key, and a silo joins a secure sum only with listed silos. So
    a coordinator cannot invent silos. The private key never leaves the file.
    """
    from fedpower.protocol.secure import Identity  # noqa: PLC0415

    held = Identity.load(file) if file.exists() else Identity.new()
    if not file.exists():
        held.save(file)
    click.echo(held.public)


# --- a party's process -----------------------------------------------------------------------------


@node.command()
@options(
    "KIT [SILO_FILE]",
    option("--part", "Run only one of the two processes.", click.Choice(["vault", "node"])),
    option("--socket", "With --part: socket at which the vault listens.", PATH, name="place"),
)
def start(kit: Path, silo_file: Path | None, *, part: str | None, place: Path | None) -> None:
    """Run the coordinator, or a silo, of KIT until Ctrl-C.

    The coordinator listens at the host and port of the study. It saves every round in KIT/runs and
    continues there after a crash. It never sees rows.

    A silo reads SILO_FILE, or KIT/silo.toml, and runs two processes. The vault holds rows, ledger and signing
    key, and has no network. It answers only questions of the agreed study, and charges its ledger before
    each answer. The node connects to the coordinator, opens no port, and cannot read the vault's files.
    """
    end_with_starter()  # also while rows are read, which takes time
    kits = _kits()
    from fedpower.federation.node import become_node  # noqa: PLC0415
    from fedpower.federation.vault import Vault, node_settings, run_silo, run_vault  # noqa: PLC0415

    if (part is None) != (place is None):
        raise InputError("--part and --socket must be given together, got one of them")
    opened = kits.Kit(kit)
    if part == "node":
        if opened.party not in opened.study.silos:
            raise InputError(f"{kit} must be the kit of a silo, got that of {opened.party!r}")
        opened.check()
        become_node(node_settings(opened, vault=str(place)))
    if opened.party == kits.COORDINATOR and silo_file is None:
        _coordinate(opened)
    own = read_silo(silo_file or kit / "silo.toml")
    opened = kits.Kit(kit, own.name)
    study = opened.study
    with open_silo(study, own) as held:
        opened.check(with_key=part is None)
        _say(_size(held), *_advice(held))
        for column, why in doubtful(held.releases.rows.source):
            _say(f"column {column!r} {why} {ONLY_YOU}; if it is not a measurement, propose to drop it")
        _say(f"silo {own.name} of study {study.name} ({study.digest[:12]})")
        log_to_console()
        vault = Vault(held, study)
        if place is not None:
            raise SystemExit(run_vault(vault, place, own, say=_say))
        raise SystemExit(run_silo(vault, node_settings(opened), own, say=_say))


def _coordinate(opened: Any) -> NoReturn:
    from fedpower.federation.coordinator import CoordinatorService  # noqa: PLC0415

    opened.check()
    log_to_console()
    CoordinatorService(opened).start()
    study = opened.study
    _say(f"coordinator of study {study.name} ({study.digest[:12]}) at {study.host}:{study.port}")
    wait_for_signal()
    _say("stopping; completed rounds are saved")
    sys.stdout.flush()
    os._exit(0)  # threads of FLARE would wait for their peers


@node.command()
@options("KIT [SILO_FILE] as_json")
def approve(kit: Path, silo_file: Path | None, *, as_json: bool) -> None:
    """Show what would leave the silo of KIT, and what it costs.

    The command contacts nobody. It also shows how to agree to the study.
    """
    kits, own = _kits(), read_silo(silo_file or kit / "silo.toml")
    study = kits.Kit(kit, own.name).study
    with open_silo(study, own) as held:
        title = f"What would leave {held.name} in study {study.name}"
        print_facts(title, {"study": study.digest, **_facts(held, own.data.version)}, as_json=as_json)
    if not as_json:
        say(
            "Nobody was contacted and nothing was charged.",
            f'To agree to exactly this study, add to {own.path}:\n[agrees]\nstudy = "{study.digest}"',
        )


def _say(*sentences: str) -> None:
    for sentence in sentences:
        click.echo(f"fedpower: {sentence}", color=False)
    sys.stdout.flush()


def _size(silo: Silo) -> str:
    """Return how many rows, or persons and their rows, or nodes a silo has, for its operator."""
    terms, moment = silo.study, silo.releases.rows
    if terms.network:
        return f"read a network on {terms.n_features} nodes"
    read = f"read {moment.n_read} rows of {terms.n_features} columns"
    if terms.unit:
        read += (
            f", of {moment.n_rows} persons"
            if terms.rows_per_unit == 1
            else f", of which {moment.n_rows} count"
        )
    return read


def _advice(silo: Silo) -> list[str]:
    """Return what an operator should consider before taking part; it goes no further."""
    moment, study = silo.releases.rows, silo.study
    if study.network == "edge":
        odd = weights_summary(weighed_edges({silo.name: moment.source}).values())
        return [] if odd is None else [f"{odd} {ONLY_YOU}"]
    advice = []
    if not isinstance(moment, Survey) and moment.treatment.row_norm is not None and moment.n_clipped:
        clipped, rows = moment.n_clipped, moment.n_read
        more = ": propose public centres and scales, or a larger bound, for the next study"
        advice.append(
            f"{clipped} of {rows} rows ({clipped / rows:.1%}) exceed the study's row_norm and are clipped "
            f"{ONLY_YOU}{more if 2 * clipped > rows else ''}"
        )
    units = units_warning(moment, study.groups, study.columns)
    return [*advice, *units, *cells_warnings(moment.source)]


def _facts(silo: Silo, version: str) -> dict[str, Any]:
    """Return what an operator wants to know before taking part; clipped rows stay on this screen."""
    terms, moment = silo.study, silo.releases.rows
    budget, secure = terms.budget, terms.is_secure
    if terms.network == "edge":
        thing, counted = "networks", "networks, which is 1"
        (weighed,) = weighed_edges({silo.name: moment.source}).values()
        odd: dict[str, Any] = {"edges_capped_at_the_maximum": weighed.n_capped}
        noise, unit = "noise_std_of_an_edge_in_units_of_edge_weight", math.sqrt(2.0)
    else:
        thing = "rows"
        counted = "persons" if terms.unit and terms.rows_per_unit == 1 else "rows"
        odd = {"rows_clipped_by_the_bound": None if isinstance(moment, Survey) else moment.n_clipped}
        others = {name: count for name, (count, _) in other_words(moment.source).items() if count}
        odd |= {"rows_with_other_levels": others} if others else {}
        noise, unit = "noise_std_for_rows_of_norm_1", 1.0
    sizes = (
        {"persons": moment.n_rows, "rows_of_theirs": moment.n_read} if terms.unit else {thing: moment.n_rows}
    )
    facts = sizes | {"nodes" if terms.network else "columns": terms.n_features} | odd
    if advice := _advice(silo):
        facts["advice"] = "; ".join(advice)
    if budget is None:
        return {**facts, "leaves": "exact numbers: this study is NOT private"}
    once = epsilon_of(budget.study_mu, budget.left_delta)
    whole = worst_epsilon(terms) if secure else once
    keys = "; in each session a key, a signature and how many attempts were charged" if secure else ""
    std = f"of the sum, by the {thing} in the session"
    facts |= {
        "leaves": _leaves(budget, secure=secure, what="adjacency" if thing == "networks" else "covariance"),
        "leaves_without_noise": f"the number of {counted}{keys}",
        "largest_release": human_bytes(8 * max(query.size for query in budget.queries)),
        noise: std if secure else f"{budget.std(moment.n_rows) / unit:.3g}",
    }
    releases = silo.releases
    assert isinstance(releases, PrivateReleases), "the study is private"
    if secure:
        facts |= {
            "epsilon_of_one_attempt": f"{once:.4g}",
            "attempts_at_most": terms.attempts,
            "attempts_charged_so_far": releases.attempts_charged,
        }
    facts |= {"epsilon_of_this_study": f"{whole:.4g}", "delta": f"{terms.delta:g}"}
    spent, affordable = releases.ledger.spent(), True
    try:  # the whole study, or one more attempt at a secure sum
        releases.check_affordable()
    except BudgetError:
        affordable = False
    return facts | {
        "public_data_version": version,
        "ledger_cap": f"{spent.cap:g}",
        "ledger_spent": f"{spent.epsilon:.4g}",
        "ledger_left": f"{spent.left:.4g}",
        "affordable": affordable,
    }


def _leaves(budget: Budget, *, secure: bool, what: str) -> str:
    """Return what leaves the silo in a private study, noised: the answers to the study's queries."""
    asked: Counter[str] = Counter()
    for query in budget.queries:
        asked[query.label.split()[0]] += query.times
    words: dict[str, str] = {
        COVARIANCE: f"the {what}, the mean row and the trace"
        if budget.study.center
        else f"the {what} and its trace",
        MEAN: "the mean row",
        PRODUCT: f"{asked[PRODUCT]} products of d×{budget.study.iteration_rank}"
        + (" with the trace" if budget.with_trace else ""),
        SCORES: "counts of rows by their scores on two components",
        **dict.fromkeys(STAGES, "counts of cells and of rows by their size"),
    }
    parts = list(dict.fromkeys(words.get(label, label) for label in asked))
    if secure:
        noised = "under masks, with this silo's share of the noise: readable only in the sum of a session"
    else:
        noised = "noised once" if parts == [words[COVARIANCE]] else "each noised once"
    return f"{', then '.join(parts)}, {noised}"
