"""`fedpower node`: keys and certificates of a federation's parties, their processes, and approval."""

import contextlib
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from fedpower.cli.console import print_facts, print_json, print_table, say
from fedpower.cli.options import PATH, option, options, output
from fedpower.exceptions import FedpowerError, InputError, require
from fedpower.federation import CERTIFICATE, REVOKED, TLS, kits, needs_flare
from fedpower.federation.certificates import (
    days_left,
    ends,
    fingerprint,
    list_number,
    party_of,
    read_certificate,
    revoked_serials,
    warning,
)
from fedpower.federation.events import EventLog
from fedpower.federation.inbox import Inbox, proposal_in
from fedpower.federation.node import become_node
from fedpower.federation.processes import end_with_starter, log_to_console, wait_for_signal
from fedpower.federation.review import MOST_NAMED, leaving, price, review, review_rows
from fedpower.federation.silo_file import open_silo, read_silo
from fedpower.federation.study_file import AUTHORITY, COORDINATOR, RUNNER, read_parties
from fedpower.federation.vault import node_settings, open_vault, run_silo, run_vault
from fedpower.protocol.secure import Identity
from fedpower.protocol.study import worst_epsilon
from fedpower.report.text import and_more, count, human_bytes

_MOST_ADVICE = 8  # of notes on the screen of an approval
_HASH_DIGITS = 64


def _days(default: int) -> Any:
    return option("--days", "Days of validity.", click.IntRange(1, 36500), default=default)


_REQUESTS = options("AUTHORITY REQUESTS...", _days(kits.PARTY_DAYS))


@click.group()
def node() -> None:
    """Make the keys and certificates of a federation's parties, run a party, and approve studies.

    One party makes an authority (ca-init). Every party makes a kit with its key, and a request (request).
    The authority signs the requests (sign). Every party adds its certificate to its kit (accept) and
    starts (start). Private keys never leave the kit.
    """


@node.command()
@options(
    "FEDERATION",
    output(help="New folder: `authority` by default, `kits` with --with-keys."),
    _days(kits.AUTHORITY_DAYS),
    option("--with-keys", "For rehearsals: make the kits of all parties here."),
)
def ca_init(federation: Path, *, output: Path | None, days: int, with_keys: bool) -> None:
    """Make the authority of FEDERATION, which signs the parties' requests.

    Anyone with its key can sign a certificate for any party. Keep the folder offline once all is signed.
    """
    read = read_parties(federation)
    folder = output or Path("kits" if with_keys else "authority")
    if not with_keys:
        made = kits.Authority.make(read, folder, days=days)
        _print([("authority", f"{folder}", made.certificate)], f"Authority of federation {read.name}")
        say(
            "Next: each party runs `fedpower node request` and sends you its request.",
            f"Then: fedpower node sign {folder} REQUEST...",
        )
        return
    kits.make_kits(read, folder, authority_days=days, days=min(days, kits.PARTY_DAYS))
    rows = [(f"{folder / party}", party, _next(party, folder / party)) for party in read.parties]
    title = f"Kits of federation {read.name} ({read.digest[:12]})"
    print_table(title, ("folder", "for", "next"), [*rows, (f"{folder / AUTHORITY}", "authority", "")])
    say("For rehearsals only: otherwise every party makes its own key with `fedpower node request`.")


@node.command()
@options(
    "FEDERATION",
    click.argument("party"),
    output(help="New folder for the kit; kits/PARTY next to FEDERATION by default."),
    option("--renew", "Make a new key for an existing kit, which keeps working."),
)
def request(federation: Path, party: str, *, output: Path | None, renew: bool) -> None:
    """Make the kit of PARTY in FEDERATION, and a request to sign its key.

    PARTY is a silo, `coordinator` or `runner`. Send the request, which is public, to the authority, and
    tell it the fingerprint over another channel, such as the telephone. The key stays in the kit.
    """
    place = output or federation.parent / "kits" / party
    made = kits.ask(read_parties(federation), party, place, renew=renew)
    say(f"Request: {made}. Send it to the authority, and nothing else of the kit.")
    click.echo(f"fingerprint of the key: {fingerprint(kits.Request.read(made).key)}")


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
    its key. The earlier certificate stays valid until it expires or is revoked.
    """
    _sign(authority, requests, days, renew=True)


def _sign(authority: Path, requests: tuple[Path, ...], days: int, *, renew: bool) -> None:
    signer, read = kits.Authority(authority), [kits.Request.read(path) for path in requests]
    asking = [one.party for one in read]
    twice = sorted({party for party in asking if asking.count(party) > 1})
    if twice:
        raise InputError(f"a party must ask once, got two requests from {twice[0]!r}")
    rows = [
        (one.party, f"{signer.signed(one.party)}", signer.sign(one, days=days, renew=renew)) for one in read
    ]
    _print(rows, f"Signed in federation {signer.federation.name} ({signer.federation.digest[:12]})")


@node.command()
@options("AUTHORITY", click.argument("party"))
def revoke(authority: Path, *, party: str) -> None:
    """Revoke all certificates of PARTY, as when its key was stolen.

    Send every party the list AUTHORITY/revoked.crl, which is public, to accept it. PARTY can then request
    another certificate with a new key.
    """
    made = kits.Authority(authority).revoke(party)
    say(
        f"{authority / REVOKED} is list {list_number(made)}, of {len(made)} revoked certificates.",
        f"Next: every party runs `fedpower node accept KIT {REVOKED}`.",
    )


@node.command()
@options("KIT FILE")
def accept(kit: Path, *, file: Path) -> None:
    """Add FILE from the authority to KIT: a certificate for its key, or a list of revoked certificates.

    Compare the authority's fingerprint with that of the other parties. A party that runs uses the new file
    within seconds; do not restart it.
    """
    if file.is_file() and b"X509 CRL" in file.read_bytes():
        held = kits.accept_list(kit, file)
        say(f"The kit has list {list_number(held)}, of {len(held)} revoked certificates.")
        return
    is_renewal = (kit / TLS / CERTIFICATE).exists()
    done = kits.accept(kit, file)
    if is_renewal and done.party in done.federation.silos:
        _log_renewal(kit, until=ends(done.certificate))
    rows = [(done.party, f"{kit}", done.certificate), ("authority", f"{file}", done.authority)]
    _print(rows, f"The kit of {done.party} is complete")
    if is_renewal:
        say("A party that runs uses it within seconds.")
        return
    if done.party in done.federation.silos:
        say(f"First: edit {kit / 'silo.toml'}, and create the ledger as it says.")
    say(f"Next: {_next(done.party, kit)}")


def _log_renewal(kit: Path, *, until: str) -> None:
    with contextlib.suppress(FedpowerError):  # a silo without a ledger has no log yet
        own = read_silo(kit / "silo.toml")
        with own.open_ledger() as ledger:
            EventLog(own.log, ledger).add("renewed", until=until)


@node.command()
@options("FOLDERS... as_json")
def status(folders: tuple[Path, ...], *, as_json: bool) -> None:
    """Show the certificates in kits or an authority, and their expiry."""
    rows: list[tuple[str, str, Any]] = []
    revoked: frozenset[int] = frozenset()
    for folder in folders:
        if (folder / "authority.key").is_file():
            held = kits.Authority(folder)
            rows.append(("authority", f"{folder}", held.certificate))
            signed = [(party, held.signed(party)) for party in held.federation.parties]
            rows += [(party, f"{path}", read_certificate(path)) for party, path in signed if path.exists()]
            revoked |= revoked_serials(folder)
            earlier = (
                (path, read_certificate(path)) for path in sorted((folder / kits.EARLIER).glob("*.crt"))
            )
            rows += [(party_of(one), f"{path}", one) for path, one in earlier if one.serial_number in revoked]
        else:
            kit = kits.Kit(folder)
            rows.append((kit.party, f"{folder}", kit.certificate))
            revoked |= revoked_serials(kit.tls)
    _print(rows, "Certificates", revoked, as_json=as_json)


def _print(
    rows: list[tuple[str, str, Any]],
    title: str,
    revoked: frozenset[int] = frozenset(),
    *,
    as_json: bool = False,
) -> None:
    """Print certificates: whose they are, where, and until when they are valid."""
    records = [
        {
            "party": party,
            "place": place,
            "fingerprint": fingerprint(certificate.public_key()),
            "since": certificate.not_valid_before_utc.isoformat(),
            "until": certificate.not_valid_after_utc.isoformat(),
            "days_left": days_left(certificate),
            "warning": warning(certificate, party, revoked),
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
    for one in records:
        if one["warning"] is not None:
            say(f"Warning: {one['warning']}.", alarming=True)


def _next(party: str, kit: Path) -> str:
    """Return the command that a party runs with its kit."""
    if party == "runner":
        return f"fedpower study run STUDY --kit {kit}"
    return f"fedpower node start {kit}"


@node.command()
@options("FILE")
def key(file: Path) -> None:
    """Print a silo's public key from FILE; a new FILE gets a new key.

    The study file lists every silo's public key, and a silo joins a secure sum only with listed silos. So
    a coordinator cannot invent silos. The private key never leaves the file.
    """
    held = Identity.load(file) if file.exists() else Identity.new()
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        held.save(file)
    click.echo(held.public)


# --- a party's process -----------------------------------------------------------------------------


def _address(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise click.BadParameter(f"must be HOST:PORT, such as 127.0.0.1:8003, got {text!r}")
    return host, int(port)


@node.command()
@options(
    "KIT [SILO_FILE]",
    option("--part", "Run only one of the two processes.", click.Choice(["vault", "node"])),
    option("--socket", "With --part: socket at which the vault listens.", PATH, name="place"),
    option(
        "--health HOST:PORT",
        "Address for health and metrics; 127.0.0.1:8003 for a silo, 127.0.0.1:8004 for the coordinator.",
        callback=_address,
    ),
    option("--no-health", "Serve no health and metrics."),
)
def start(
    kit: Path,
    silo_file: Path | None,
    *,
    part: str | None,
    place: Path | None,
    health: tuple[str, int] | None,
    no_health: bool,
) -> None:
    """Run the coordinator, or a silo, of KIT until Ctrl-C.

    The coordinator listens at the host and port of the federation. It saves every round in KIT/runs and
    continues there after a crash. It never sees rows.

    A silo reads SILO_FILE, or KIT/silo.toml, and runs two processes. The vault holds rows, ledger and signing
    key, and has no network. It answers only questions of an approved study, and charges its ledger before
    each answer. The node connects to the coordinator and cannot read the vault's files. Its only port is
    that for health and metrics, which others cannot reach unless --health says so.
    """
    end_with_starter()  # also while rows are read, which takes time
    needs_flare()
    if (part is None) != (place is None):
        raise InputError("--part and --socket must be given together, got one of them")
    if part == "vault" and health is not None:
        raise InputError("--health must be given with the node, as the vault has no network")
    opened = kits.Kit(kit)
    federation = opened.federation
    if opened.party == RUNNER and silo_file is None and part is None:
        raise InputError(
            f"{kit} must be the kit of a silo or the coordinator, got the runner's; see `study run`"
        )
    if no_health:
        health = None
    elif health is None:
        health = "127.0.0.1", 8004 if opened.party == COORDINATOR else 8003
    if part == "node":
        if opened.party not in federation.silos:
            raise InputError(f"{kit} must be the kit of a silo, got that of {opened.party!r}")
        opened.check()
        become_node(node_settings(opened, vault=str(place), health=health))
    if opened.party == COORDINATOR and silo_file is None:
        _coordinate(opened, health)
    own = read_silo(silo_file or kit / "silo.toml")
    opened = kits.Kit(kit, own.name)
    with open_vault(federation, own) as vault:
        opened.check(with_key=part is None)
        _say(f"silo {own.name} of federation {federation.name} ({federation.digest[:12]})")
        for study in vault.inbox.waiting():
            _say(f"study {study.name} waits for approval: fedpower node approve {kit} {study.digest[:12]}")
        log_to_console()
        if place is not None:
            raise SystemExit(run_vault(vault, place, own, say=_say))
        raise SystemExit(run_silo(vault, node_settings(opened, health=health), own, say=_say))


def _coordinate(opened: Any, health: tuple[str, int] | None) -> NoReturn:
    from fedpower.federation.coordinator import CoordinatorService  # noqa: PLC0415
    from fedpower.federation.health import serve_health  # noqa: PLC0415

    opened.check()
    log_to_console()
    service = CoordinatorService(opened)
    if health is not None:
        serve_health(health, service.facts)
    service.start()
    held = opened.federation
    _say(f"coordinator of federation {held.name} ({held.digest[:12]}) at {held.host}:{held.port}")
    wait_for_signal()
    _say("stopping; completed rounds are saved")
    sys.stdout.flush()
    os._exit(0)  # threads of FLARE would wait for their peers


def _say(*sentences: str) -> None:
    for sentence in sentences:
        click.echo(f"fedpower: {sentence}", color=False)
    sys.stdout.flush()


# --- approval ---------------------------------------------------------------------------------------


@node.command()
@options(
    "KIT",
    click.argument("study", required=False),
    option("--silo-file FILE", "The silo's own file; KIT/silo.toml by default.", PATH),
    option("--yes", "Approve without a question."),
    option("--refuse REASON", "Refuse the study; the reason is sent to the coordinator."),
    "as_json",
)
def approve(
    kit: Path, study: str | None, *, silo_file: Path | None, yes: bool, refuse: str | None, as_json: bool
) -> None:
    """Show a study that waits in the inbox of the silo of KIT, and approve or refuse it.

    STUDY is a name, a hash or a file; by default the study that waits. The decision is signed with the silo's
    key and stored in its ledger. --json decides nothing without --yes or --refuse.
    """
    if yes and refuse is not None:
        raise InputError("--yes and --refuse must not be given together, got both")
    is_there = study is None or not study.endswith(".toml") or Path(study).is_file()
    require(is_there, "STUDY", "a file that is there, or the name or hash of a study", study)
    if yes and not (study and (Path(study).is_file() or len(study) == _HASH_DIGITS)):
        raise InputError(f"--yes must go with the file of a study or all {_HASH_DIGITS} digits of its hash")
    own = read_silo(silo_file or kit / "silo.toml")
    federation = kits.Kit(kit, own.name).federation
    with own.open_ledger() as ledger:
        inbox = Inbox(federation, own, ledger)
        proposal = _asked(inbox, study)
        if proposal is None:
            if as_json:
                print_json(None)
            else:
                say("No study waits for approval.")
            return
        read, signatures = inbox.opened(proposal)
        shown, problem = _reviewed(read, signatures, inbox, own)
        if not as_json:
            _print_review(shown, own.name)
        if problem is not None and refuse is None:
            raise InputError(f"{problem}; until that is solved, you can only refuse it, with --refuse REASON")
        decided = refuse is not None or yes
        if not (decided or as_json or shown["approved"]):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which reading rows may have replaced
            try:
                asked = "Approve? To refuse it, add --refuse REASON to the command."
                decided = yes = click.confirm(asked, default=False)
            except click.Abort:
                raise click.Abort("interrupted, so nothing was decided") from None
        if decided:
            inbox.keep(read, signatures)
            made = inbox.decide(read, approved=yes, reason=refuse or "")
            EventLog(own.log, ledger).add()
            shown["approved"] = made.approved
        if as_json:
            print_json(shown)
        else:
            done = f"{'Approved' if yes else 'Refused'}: signed, and stored in the ledger."
            waits = "It is approved" if shown["approved"] else "Nothing is decided"
            stays = "It stays refused." if shown["approved"] is False else f"{waits}."
            say(done if decided else stays)


def _asked(inbox: Any, study: str | None) -> Any:
    """Return what an operator means, with its signatures; nothing where no study waits."""
    if study is not None and Path(study).is_file():
        return proposal_in(Path(study))
    if study is not None:
        return inbox.proposal(inbox.find(study))
    waiting = inbox.waiting()
    if len(waiting) > 1:
        rows = [(one.name, one.digest[:12], f"{worst_epsilon(one.terms()[0]):.4g}") for one in waiting]
        print_table("Studies that wait, the latest first", ("study", "hash", "ε"), rows, numbers=["ε"])
        raise InputError(f"STUDY must be given where several wait, got none of these {len(waiting)}")
    return inbox.proposal(waiting[0]) if waiting else None


def _reviewed(read: Any, signatures: Any, inbox: Any, own: Any) -> tuple[dict[str, Any], str | None]:
    """Return what an operator reads, and why this silo could not take part, if so."""
    decision = inbox.decision(read.digest)
    shown = review(read, signatures) | {"approved": decision and decision.approved}
    if decision is not None:
        shown["decided"] = decision.in_words
    if own.approve is not None:
        shown["against_the_rules"] = list(inbox.objections(read, signatures))
    try:
        with open_silo(read, own) as silo:
            shown["data"] = "a query" if own.data.path is None else own.data.path
            shown |= review_rows(silo, own.data.version) | {"leaves": leaving(silo)} | price(silo)
    except FedpowerError as error:
        return shown, str(error)
    return shown, None if shown.get("affordable", True) else "the ledger cannot pay for this study"


def _print_review(shown: dict[str, Any], silo: str) -> None:
    """Print all on one screen; a label has at most 12 letters, so that the whole hash is on one line."""
    asked: dict[str, Any] = {
        "hash": shown["study"],
        "silos": f"{', '.join(shown['silos'])}; at least {shown['goes_on_with']} must answer",
        "coordinator": f"{shown['coordinator']}; sees {shown['coordinator_sees']}",
        "result": "goes to the runner, who starts the study",
        "signed by": "\n".join(shown["signed_by"]) or "nobody: compare the hash with what was agreed",
        "protects": shown["protects"],
    }
    if keys := shown["keys"]:
        helping = count(shown["colluders"], "silo")
        asked["assumes"] = f"that at most {helping} will help the coordinator, and these keys:"
        asked["keys"] = "\n".join(f"{name}:\n{key}" for name, key in keys.items())
    name = "nodes" if "nodes" in shown else "columns"
    asked[name] = "\n".join(shown["rules"]) or ", ".join(and_more(shown[name], MOST_NAMED))
    things = ("person", "row", "network")
    sizes = [count(shown[f"{thing}s"], thing) for thing in things if f"{thing}s" in shown]
    if sizes:
        asked["your data"] = f"{' with '.join(sizes)}, {shown['data']}, version {shown['data_version']}"
    if against := shown.get("against_the_rules"):
        asked["your rules"] = f"do not approve it: {'; '.join(against)}"
    asked |= {"decided": shown["decided"]} if "decided" in shown else {}
    print_facts(f"Study {shown['name']}, proposed to {silo}", asked, as_json=False)
    if len(shown[name]) > MOST_NAMED:
        say("Not all names fit here: read them with --json before you decide.", alarming=True)
    advice = shown.get("advice", ())
    for sentence in advice[:_MOST_ADVICE]:
        say(f"Note: {sentence}.")
    if len(advice) > _MOST_ADVICE:
        say(f"{len(advice) - _MOST_ADVICE} more notes: add --json.")
    if "leaves" not in shown:
        return
    rows = [
        (
            one["what"],
            "–" if one["numbers"] is None else f"{one['numbers'] * one['times']:,}",
            "–" if one["numbers"] is None else human_bytes(8 * one["numbers"] * one["times"]),
            "–" if not one["share"] else f"{one['share']:.1%}",
        )
        for one in shown["leaves"]
    ]
    headings = ("what", "numbers", "size", "of the price")
    click.echo()
    print_table(f"What leaves {silo}, {shown['sent']}", headings, rows, numbers=headings[1:])
    click.echo()
    print_table("Price", ("what", "ε"), _price_rows(shown, silo), numbers=["ε"])
    if (epsilon := shown["epsilon_of_this_study"]) is not None:
        guess, most = shown["protects"].partition(",")[0], _rounded_up(math.exp(min(epsilon, 700)))
        say(
            f"What leaves changes the odds of any guess about {guess} by at most {most} times, except with "
            f"probability {shown['delta']:g}."
        )
    else:
        say("Exact sums can show single values, as of outliers or where rows are few.", alarming=True)


def _rounded_up(value: float) -> str:
    """Return a number of at least 1 to two digits, and not less than it is."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit - 1e-9) * unit:,.10g}"


def _price_rows(shown: dict[str, Any], silo: str) -> list[tuple[str, str]]:
    if shown["epsilon_of_this_study"] is None:
        return [("this study: NOT private", "∞")]
    epsilon, at = shown["epsilon_of_this_study"], f"at δ = {shown['delta']:g}"
    once = shown.get("epsilon_of_one_attempt")
    study = [(f"this study, charged once, {at}", f"{epsilon:.4g}")]
    if once is not None:
        all_of_them = f"if all {shown['attempts_at_most']} attempts are needed"
        study = [(f"one attempt at this study, {at}", f"{once:.4g}"), (all_of_them, f"{epsilon:.4g}")]
    after = "spent after it" + ("" if once is None else ", at most")
    after += "; ε add up to less" if shown["spent_before"] else ""
    return [
        *study,
        (f"spent by {silo} so far", f"{shown['spent_before']:.4g}"),
        (after, f"{shown['spent_after']:.4g}"),
        (f"cap: more is refused, at δ = {shown['delta_of_the_cap']:g}", f"{shown['cap']:g}"),
    ]
