"""`fedpower federation` and `identity`: keys and certificates of the parties of a study."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpower.cli.console import print_json, print_table
from fedpower.cli.options import PATH, options
from fedpower.errors import InputError
from fedpower.federation import needs_flare
from fedpower.federation.study_file import read_study

if TYPE_CHECKING:
    from cryptography import x509

AUTHORITY_DAYS, PARTY_DAYS = 3650, 365


def _days(default: int) -> Callable[[Any], Any]:
    return click.option("--days", type=click.IntRange(1, 36500), default=default, help="Days of validity.")


@click.group()
def federation() -> None:
    """Make the keys and certificates with which the parties of a study reach each other.

    One party makes an authority (init); every party makes its key and a request (request); the authority
    signs (sign); every party puts its certificate in (accept). No private key leaves the folder in which
    it was made.
    """


@federation.command()
@click.argument("study", type=PATH)
@click.option(
    "-o", "--output", type=PATH, help="New folder: `authority` by default, `kits` with --with-keys."
)
@_days(AUTHORITY_DAYS)
@click.option("--with-keys", is_flag=True, help="For rehearsals: make the keys and kits of all parties here.")
def init(study: Path, *, output: Path | None, days: int, with_keys: bool) -> None:
    """Make the authority of STUDY, which signs the requests of its parties.

    It holds its own key and nobody else's. Anyone who has that key can let others in under any party's
    name, so keep the folder in a safe once all is signed.
    """
    needs_flare()
    from fedpower.federation.kits import AUTHORITY, RUNNER, Authority, make_kits, parties  # noqa: PLC0415

    read = read_study(study)
    if with_keys:
        folder = output or Path("kits")
        make_kits(read, folder, authority_days=days, days=min(days, PARTY_DAYS))
        rows = [
            (
                f"{folder / party}",
                "the party that starts the run" if party == RUNNER else party,
                _next(party, folder / party),
            )
            for party in parties(read)
        ]
        title = f"Kits of study {read.name} ({read.digest[:12]})"
        print_table(title, ("folder", "for", "then"), [*rows, (f"{folder / AUTHORITY}", "a safe", "")])
        click.echo(
            "Every private key was made here: fit for a rehearsal. Between organisations let each make its "
            "own, with `fedpower federation request`."
        )
        return
    folder = output or Path("authority")
    made = Authority.make(read, folder, days=days)
    _print([("authority", f"{folder}", made.certificate)], f"Authority of study {read.name}")
    click.echo(
        "Each party now runs `fedpower federation request` and sends its request; sign them with "
        f"`fedpower federation sign {folder} REQUEST...`."
    )


@federation.command()
@click.argument("study", type=PATH)
@click.argument("party")
@click.option(
    "-o", "--output", type=PATH, help="New folder for the kit; kits/PARTY next to STUDY by default."
)
@click.option("--renew", is_flag=True, help="Make a new key in an existing kit, which keeps working.")
def request(study: Path, party: str, *, output: Path | None, renew: bool) -> None:
    """Make the key of PARTY (a silo, `coordinator` or `runner`) of STUDY, and a request to sign it.

    The key stays in the folder; the request is public. Give the authority the fingerprint over another
    channel, such as the telephone, so that it signs your key and nobody else's.
    """
    needs_flare()
    from fedpower.federation.kits import Request, ask, fingerprint  # noqa: PLC0415

    made = ask(read_study(study), party, output or study.parent / "kits" / party, renew=renew)
    click.echo(f"wrote {made}: send it to the authority; the key next to it stays here")
    click.echo(f"fingerprint of the key: {fingerprint(Request.read(made).key)}")


@federation.command()
@click.argument("authority", type=PATH)
@click.argument("requests", type=PATH, nargs=-1, required=True)
@_days(PARTY_DAYS)
def sign(authority: Path, *, requests: tuple[Path, ...], days: int) -> None:
    """Sign the first REQUESTS of parties with the AUTHORITY in a folder.

    Compare each fingerprint with the one that its party gives you. The certificates are in
    AUTHORITY/signed, and are no secret: send each to its party.
    """
    _sign(authority, requests, days, renew=False)


@federation.command()
@click.argument("authority", type=PATH)
@click.argument("requests", type=PATH, nargs=-1, required=True)
@_days(PARTY_DAYS)
def renew(authority: Path, *, requests: tuple[Path, ...], days: int) -> None:
    """Sign REQUESTS of parties that have a certificate already; the others' stay as they are.

    A party asks with `fedpower federation request --renew`, for a new key, or sends its old request
    again, for its old one. The earlier certificate stays valid until it ends.
    """
    _sign(authority, requests, days, renew=True)


@federation.command()
@click.argument("kit", type=PATH)
@click.argument("certificate", type=PATH)
def accept(kit: Path, certificate: Path) -> None:
    """Put the CERTIFICATE that came from the authority into the KIT in which the key was made.

    Compare the authority's fingerprint with what the other parties got.
    """
    needs_flare()
    from fedpower.federation.kits import accept as put_in  # noqa: PLC0415

    done = put_in(kit, certificate)
    rows = [(done.party, f"{kit}", done.certificate), ("authority", f"{certificate}", done.authority)]
    _print(rows, f"The kit of {done.party} is complete")
    click.echo(f"then: {_next(done.party, kit)}")


@federation.command()
@click.argument("folders", type=PATH, nargs=-1, required=True)
@options("as_json")
def show(folders: tuple[Path, ...], *, as_json: bool) -> None:
    """Show whose certificates are in FOLDERS (kits, or an authority), and when they end."""
    needs_flare()
    from fedpower.federation.kits import Authority, Kit, days_left, fingerprint, parties, read_certificate  # noqa: PLC0415

    rows: list[tuple[str, str, x509.Certificate]] = []
    for folder in folders:
        if (folder / "authority.key").is_file():
            held = Authority(folder)
            rows.append(("authority", f"{folder}", held.certificate))
            signed = [(party, held.signed(party)) for party in parties(held.study)]
            rows += [(party, f"{path}", read_certificate(path)) for party, path in signed if path.exists()]
        else:
            kit = Kit(folder)
            rows.append((kit.party, f"{folder}", kit.certificate))
    if not as_json:
        _print(rows, "Certificates")
        return
    print_json(
        [
            {
                "party": party,
                "place": place,
                "fingerprint": fingerprint(certificate.public_key()),
                "since": certificate.not_valid_before_utc.isoformat(),
                "until": certificate.not_valid_after_utc.isoformat(),
                "days_left": days_left(certificate),
            }
            for party, place, certificate in rows
        ]
    )


def _sign(authority: Path, requests: tuple[Path, ...], days: int, *, renew: bool) -> None:
    needs_flare()
    from fedpower.federation.kits import Authority, Request  # noqa: PLC0415

    signer = Authority(authority)
    read = [Request.read(path) for path in requests]
    asking = [one.party for one in read]
    twice = sorted({party for party in asking if asking.count(party) > 1})
    if twice:
        raise InputError(f"a party must ask once, got two requests from {twice[0]!r}")
    rows = [
        (one.party, f"{signer.signed(one.party)}", signer.sign(one, days=days, renew=renew)) for one in read
    ]
    _print(rows, f"Signed in study {signer.study.name} ({signer.study.digest[:12]})")


def _print(rows: "list[tuple[str, str, x509.Certificate]]", title: str) -> None:
    from fedpower.federation.kits import days_left, ends, fingerprint  # noqa: PLC0415

    shown = [(party, place, ends(signed), f"{days_left(signed)}") for party, place, signed in rows]
    print_table(title, ("party", "file or folder", "ends", "days left"), shown, numbers=["days left"])
    for party, _, certificate in rows:
        click.echo(f"fingerprint of {party}: {fingerprint(certificate.public_key())}")


def _next(party: str, kit: Path) -> str:
    """Return the command that a party runs with its kit."""
    if party == "coordinator":
        return f"fedpower coordinator {kit}"
    if party == "runner":
        return f"fedpower run {kit / 'study.toml'} --kit {kit}"
    return f"fedpower silo {kit} {kit / 'silo.toml'}"


# --- signing keys ----------------------------------------------------------------------------------


@click.group()
def identity() -> None:
    """Make or show the signing key of a silo.

    The study lists every silo's public key, and silos take part in a secure sum only with those
    listed: a coordinator cannot invent any. The private key never leaves its file.
    """


@identity.command("new")
@click.option("-o", "--output", type=PATH, required=True, help="New file for the private key, of mode 0600.")
def new_key(output: Path) -> None:
    """Make a new key and print its public half, for the study."""
    from fedpower.protocol.secure import Identity  # noqa: PLC0415

    made = Identity.new()
    made.save(output)
    click.echo(made.public)


@identity.command("show")
@click.argument("file", type=PATH)
def show_key(file: Path) -> None:
    """Print the public half of the key in FILE, for the study."""
    from fedpower.protocol.secure import Identity  # noqa: PLC0415

    click.echo(Identity.load(file).public)
