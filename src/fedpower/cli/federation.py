"""`fedpower federation`: the keys and certificates with which the parties of a study reach each other."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpower.cli.console import console, print_json, table
from fedpower.errors import InputError
from fedpower.federation import needs_flare
from fedpower.federation.study_file import read_study

if TYPE_CHECKING:
    from cryptography import x509

PATH = click.Path(path_type=Path)
AUTHORITY_DAYS, PARTY_DAYS = 3650, 365
_DAYS = click.IntRange(1, 36500)


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
    "-o",
    "--output",
    type=PATH,
    help="New folder for the authority; `authority` by default. With --with-keys: for the kits.",
)
@click.option("--days", type=_DAYS, default=AUTHORITY_DAYS, show_default=True, help="How long it is valid.")
@click.option(
    "--with-keys",
    is_flag=True,
    help="For rehearsals: make the keys and kits of all parties here, as one who is to hold them all.",
)
def init(study: Path, *, output: Path | None, days: int, with_keys: bool) -> None:
    """Make the authority of STUDY, which signs the requests of its parties.

    It holds its own key and nobody else's. Whoever has that key can let others in under any party's name,
    so keep the folder in a safe once all is signed.
    """
    needs_flare()
    from fedpower.federation.certificates import Authority  # noqa: PLC0415
    from fedpower.federation.kits import make_kits  # noqa: PLC0415

    read = read_study(study)
    if with_keys:
        folder = output or Path("kits")
        make_kits(read, folder, authority_days=days, days=min(days, PARTY_DAYS))
        _show_kits(folder, study)
        return
    folder = output or Path("authority")
    made = Authority.make(read, folder, days=days)
    _show([("authority", f"{folder}", made.certificate)], f"Authority of study {read.name}")
    click.echo(
        "Each party now runs `fedpower federation request` and sends its request; sign them with "
        f"`fedpower federation sign {folder} REQUEST...`."
    )


@federation.command()
@click.argument("study", type=PATH)
@click.argument("party")
@click.option("-o", "--output", type=PATH, help="New folder for the kit; kits/PARTY beside STUDY by default.")
@click.option("--renew", is_flag=True, help="Make a new key in a kit that is there; it works meanwhile.")
def request(study: Path, party: str, *, output: Path | None, renew: bool) -> None:
    """Make the key of PARTY (a silo, `coordinator` or `runner`) of STUDY, and a request to sign it.

    The key stays in the folder; the request is public. Tell the authority the fingerprint over another
    channel, by telephone say, so that it signs your key and nobody else's.
    """
    needs_flare()
    from fedpower.federation.certificates import Request, fingerprint  # noqa: PLC0415
    from fedpower.federation.kits import ask  # noqa: PLC0415

    made = ask(read_study(study), party, output or study.parent / "kits" / party, renew=renew)
    click.echo(f"wrote {made}: send it to the authority; the key beside it stays here")
    click.echo(f"fingerprint of the key: {fingerprint(Request.read(made).key)}")


@federation.command()
@click.argument("authority", type=PATH)
@click.argument("requests", type=PATH, nargs=-1, required=True)
@click.option("--days", type=_DAYS, default=PARTY_DAYS, show_default=True, help="How long they are valid.")
def sign(authority: Path, *, requests: tuple[Path, ...], days: int) -> None:
    """Sign the first REQUESTS of parties with the AUTHORITY in a folder.

    Compare each fingerprint with what its party tells you. The certificates are in AUTHORITY/signed, and
    are no secret: send each to its party.
    """
    _sign(authority, requests, days, renew=False)


@federation.command()
@click.argument("authority", type=PATH)
@click.argument("requests", type=PATH, nargs=-1, required=True)
@click.option("--days", type=_DAYS, default=PARTY_DAYS, show_default=True, help="How long they are valid.")
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
    from fedpower.federation.kits import kit_party  # noqa: PLC0415

    bundle = put_in(kit, certificate)
    party = kit_party(kit)
    rows = [(party, f"{kit}", bundle.party), ("authority", f"{certificate}", bundle.authority)]
    _show(rows, f"The kit of {party} is complete")
    click.echo(f"then: {_then(party, kit)}")


@federation.command()
@click.argument("folders", type=PATH, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(folders: tuple[Path, ...], *, as_json: bool) -> None:
    """Show whose certificates are in FOLDERS (kits, or an authority), and when they end."""
    needs_flare()
    from fedpower.federation.certificates import Authority, Bundle, days_left, fingerprint, parties  # noqa: PLC0415
    from fedpower.federation.kits import kit_certificates, kit_party, kit_study  # noqa: PLC0415

    rows: list[tuple[str, str, x509.Certificate]] = []
    for folder in folders:
        if (folder / "authority.key").is_file():
            held = Authority(folder)
            rows.append(("authority", f"{folder}", held.certificate))
            signed = [each for each in parties(held.study) if held.signed(each).exists()]
            rows += [(each, f"{held.signed(each)}", Bundle.read(held.signed(each)).party) for each in signed]
        else:
            kit_study(folder)
            rows.append((kit_party(folder), f"{folder}", kit_certificates(folder).party))
    if as_json:
        print_json(
            [
                {
                    "party": party,
                    "place": place,
                    "fingerprint": fingerprint(each.public_key()),
                    "since": each.not_valid_before_utc.isoformat(),
                    "until": each.not_valid_after_utc.isoformat(),
                    "days_left": days_left(each),
                }
                for party, place, each in rows
            ]
        )
        return
    _show(rows, "Certificates")


def _sign(authority: Path, requests: tuple[Path, ...], days: int, *, renew: bool) -> None:
    needs_flare()
    from fedpower.federation.certificates import Authority, Request  # noqa: PLC0415

    signer = Authority(authority)
    read = [Request.read(each) for each in requests]
    asking = [each.party for each in read]
    twice = sorted({each for each in asking if asking.count(each) > 1})
    if twice:
        raise InputError(
            f"a party must ask once, got two requests from {twice[0]!r}; ask that party which is its own"
        )
    rows = [
        (each.party, f"{signer.signed(each.party)}", signer.sign(each, days=days, renew=renew).party)
        for each in read
    ]
    _show(rows, f"Signed in study {signer.study.name} ({signer.study.digest[:12]})")


def _show(rows: "list[tuple[str, str, x509.Certificate]]", title: str) -> None:
    from fedpower.federation.certificates import days_left, ends, fingerprint  # noqa: PLC0415

    shown = table(title, "party", "file or folder", "ends", "days left", numbers=["days left"])
    for party, place, certificate in rows:
        shown.add_row(party, place, ends(certificate), f"{days_left(certificate)}")
    console().print(shown)
    for party, _, certificate in rows:
        click.echo(f"fingerprint of {party}: {fingerprint(certificate.public_key())}")


def _then(party: str, kit: Path) -> str:
    if party == "coordinator":
        return f"fedpower coordinator {kit}"
    if party == "runner":
        return f"fedpower run {kit / 'study.toml'} --kit {kit}"
    return f"fedpower silo {kit} {kit / 'silo.toml'}"


def _show_kits(folder: Path, study: Path) -> None:
    from fedpower.federation.certificates import AUTHORITY, RUNNER, parties  # noqa: PLC0415

    read = read_study(study)
    shown = table(f"Kits of study {read.name} ({read.digest[:12]})", "folder", "for", "then")
    for party in parties(read):
        whose = "whoever starts the run" if party == RUNNER else party
        shown.add_row(f"{folder / party}", whose, _then(party, folder / party))
    shown.add_row(f"{folder / AUTHORITY}", "a safe", "")
    console().print(shown)
    click.echo(
        "Every private key was made here: fit for a rehearsal. Between organisations let each make its "
        "own, with `fedpower federation request`."
    )
