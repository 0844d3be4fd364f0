"""Kits: a party's key, the certificate that an authority signed for it, and the federation."""

import functools
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from string import Template
from typing import Self, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpower.exceptions import InputError
from fedpower.federation import (
    AUTHORITY_CERTIFICATE,
    CERTIFICATE,
    FEDERATION_FILE,
    IDENTITY,
    KEY,
    REVOKED,
    SILO_FILE,
    TLS,
)
from fedpower.federation.certificates import (
    UNREADABLE,
    attribute,
    days_left,
    ends,
    list_number,
    party_of,
    read_as,
    read_certificate,
    read_list,
    revoked_serials,
)
from fedpower.federation.study_file import AUTHORITY, COORDINATOR, RUNNER, Federation, read_federation
from fedpower.files import write_whole
from fedpower.protocol.secure import Identity

AUTHORITY_KEY, SIGNED = "authority.key", "signed"
EARLIER = "earlier"  # certificates that were signed for a party before its present one
NEXT_KEY = "next.key"  # a key whose certificate has not come yet

PARTY_DAYS, AUTHORITY_DAYS = 365, 3650
"""How long certificates are valid by default; a party's never outlives its authority's."""

_CURVE = ec.SECP256R1()
_PEM = serialization.Encoding.PEM


# Keys, checkpoints and kits have mode 0600 in folders of mode 0700, whatever the umask.
def private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter, and its parents where they are missing."""
    if not folder.parent.exists():
        private_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    folder.chmod(0o700)


write_private = functools.partial(write_whole, private=True)


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    def load(content: bytes) -> ec.EllipticCurvePrivateKey:
        key = serialization.load_pem_private_key(content, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError
        return key

    return read_as(path, load, "a private key made by `fedpower node request`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a party asks for: its name, the federation's hash and its public key."""

    party: str
    federation: str
    key: ec.EllipticCurvePublicKey

    @classmethod
    def read(cls, path: Path) -> "Request":
        """Return the request in a file; refuse one whose sender does not have the key."""

        def load(content: bytes) -> Request:
            request = x509.load_pem_x509_csr(content)
            names = (NameOID.COMMON_NAME, NameOID.SERIAL_NUMBER)
            party, federation = (attribute(request.subject, name) for name in names)
            key = request.public_key()
            is_known = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == _CURVE.name
            if not (is_known and request.is_signature_valid):
                raise ValueError
            return cls(party=party, federation=federation, key=cast("ec.EllipticCurvePublicKey", key))

        return read_as(path, load, "a request made by `fedpower node request`")


def new_request(federation: Federation, party: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    subject = _name({NameOID.COMMON_NAME: party, NameOID.SERIAL_NUMBER: federation.digest})
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(_PEM)


class Authority:
    """Signs the requests of a federation's parties; it holds its own key and no other."""

    def __init__(self, folder: Path) -> None:
        if not (folder / AUTHORITY_KEY).is_file() or not (folder / AUTHORITY_CERTIFICATE).is_file():
            raise InputError(f"{folder} must be an authority made by `fedpower node ca-init`")
        self.folder = folder
        self.federation = read_federation(folder / FEDERATION_FILE)
        self.key = read_key(folder / AUTHORITY_KEY)
        self.certificate = read_certificate(folder / AUTHORITY_CERTIFICATE)

    @classmethod
    def make(cls, federation: Federation, folder: Path, *, days: int = AUTHORITY_DAYS) -> Self:
        """Return a new authority in a folder that is new or empty; it has no party's key."""
        _check_new(folder)
        private_folder(folder)
        key = _new_key(folder / AUTHORITY_KEY)
        until = datetime.now(UTC) + timedelta(days=days)
        certificate = new_certificate(federation.name, key.public_key(), key, federation.name, until=until)
        write_private(folder / FEDERATION_FILE, federation.to_toml())
        write_private(folder / AUTHORITY_CERTIFICATE, certificate.public_bytes(_PEM))
        return cls(folder)

    def signed(self, party: str) -> Path:
        return self.folder / SIGNED / f"{party}.crt"

    def sign(self, request: Request, *, days: int = PARTY_DAYS, renew: bool = False) -> x509.Certificate:
        """Return a party's certificate, and keep it; a second one only where it renews the first."""
        party, known = request.party, self.federation.parties
        if party not in known or request.federation != self.federation.digest:
            must = f"a request must come from {', '.join(known)} in federation {self.federation.digest[:12]}"
            raise InputError(f"{must}, got a request from {party!r} in federation {request.federation[:12]}")
        signed = {name: read_certificate(self.signed(name)) for name in known if self.signed(name).exists()}
        if renew and party not in signed:
            raise InputError(f"{party!r} must have a certificate to renew, got none")
        if party in signed and not renew:
            got = f"one until {ends(signed[party])}; see `fedpower node renew`"
            raise InputError(f"{party!r} must not have a certificate yet, got {got}")
        for other, certificate in signed.items():
            if other != party and certificate.public_key() == request.key:
                raise InputError(f"{party!r} must have its own key, got the key of {other!r}")
        revoked = revoked_serials(self.folder)
        for certificate in map(read_certificate, (self.folder / EARLIER).glob("*.crt")):
            if certificate.serial_number in revoked and certificate.public_key() == request.key:
                raise InputError(f"{party!r} must have a new key, got one whose certificate was revoked")
        self._check_end()
        until = min(datetime.now(UTC) + timedelta(days=days), self.certificate.not_valid_after_utc)
        hosts = _hosts(self.federation, party)
        made = new_certificate(party, request.key, self.key, self.federation.name, until=until, hosts=hosts)
        self._put_aside(party)
        private_folder(self.folder / SIGNED)
        write_private(self.signed(party), made.public_bytes(_PEM) + self.certificate.public_bytes(_PEM))
        return made

    def revoke(self, party: str) -> x509.CertificateRevocationList:
        """Return a new list, on which are also all certificates that were ever signed for a party.

        The list has no end: parties use it until they get the next one.
        """
        self._check_end()
        if party not in self.federation.parties:
            raise InputError(f"a party must be {', '.join(self.federation.parties)}, got {party!r}")
        self._put_aside(party)
        signed = list((self.folder / EARLIER).glob(f"{party}.*.crt"))
        if not signed:
            raise InputError(f"{party!r} must have a certificate to revoke, got none")
        now, path = datetime.now(UTC), self.folder / REVOKED
        held = read_list(path, self.certificate) if path.exists() else None
        entries = {entry.serial_number: entry for entry in held or ()}
        for certificate in map(read_certificate, signed):
            serial = certificate.serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            entries.setdefault(serial, entry)
        number = x509.CRLNumber(1 if held is None else list_number(held) + 1)
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        made = (
            x509.CertificateRevocationListBuilder(revoked_certificates=list(entries.values()))
            .issuer_name(self.certificate.subject)
            .last_update(now)
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(number, critical=False)
            .add_extension(by, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        write_private(path, made.public_bytes(_PEM))
        return made

    def _check_end(self) -> None:
        if days_left(self.certificate) < 0:
            raise InputError(f"the authority must be valid, but it expired on {ends(self.certificate)}")

    def _put_aside(self, party: str) -> None:
        """Remember a party's certificate, which another takes the place of or which was revoked."""
        if self.signed(party).exists():
            private_folder(self.folder / EARLIER)
            serial = read_certificate(self.signed(party)).serial_number
            self.signed(party).rename(self.folder / EARLIER / f"{party}.{serial:x}.crt")


class Kit:
    """The folder of a party: key and certificates for the network, the federation, a silo's own file."""

    def __init__(self, folder: Path, party: str | None = None) -> None:
        """Open a complete kit; refuse one of another than ``party``, where it is given."""
        self.folder, self.tls = folder.absolute(), folder.absolute() / TLS
        if not (self.tls / AUTHORITY_CERTIFICATE).is_file() or not (folder / FEDERATION_FILE).is_file():
            problem = "a kit made by `fedpower node request`"
            if (self.tls / NEXT_KEY).is_file():
                problem = "complete, got one without its certificate; see `fedpower node accept`"
            raise InputError(f"{folder} must be {problem}")
        self.authority = read_certificate(self.tls / AUTHORITY_CERTIFICATE)
        self.certificate = read_certificate(self.tls / CERTIFICATE)
        self.party = party_of(self.certificate)
        if party not in (None, self.party):
            wanted = party if party in (COORDINATOR, RUNNER) else f"silo {party!r}"
            raise InputError(f"{folder} must be the kit of the {wanted}, got the kit of {self.party!r}")

    @functools.cached_property
    def federation(self) -> Federation:
        return read_federation(self.folder / FEDERATION_FILE)

    def check(self, *, with_key: bool = True) -> int:
        """Return how many days the certificate is still valid; refuse a kit that could not connect."""
        held = self.certificate.public_key()
        fits = not with_key or read_key(self.tls / KEY).public_key() == held  # a vault's kit has no key
        try:
            self.certificate.verify_directly_issued_by(self.authority)
        except UNREADABLE:
            fits = False
        if not fits:
            raise InputError(f"key, certificate and authority in {self.tls} must belong together")
        for certificate, renewed in ((self.certificate, "request --renew"), (self.authority, "ca-init")):
            if days_left(certificate) < 0:
                got = f"one that expired on {ends(certificate)}"
                hint = f"request another with `fedpower node {renewed}`"
                raise InputError(f"certificates in {self.folder} must be valid, got {got}; {hint}")
        if self.certificate.serial_number in revoked_serials(self.tls):
            hint = "request another with `fedpower node request --renew`"
            raise InputError(f"certificates in {self.folder} must be valid, got a revoked one; {hint}")
        return days_left(self.certificate)


def make_kits(
    federation: Federation, folder: Path, *, days: int = PARTY_DAYS, authority_days: int = AUTHORITY_DAYS
) -> None:
    """Write the kits of all parties into a new folder, keys included, and the authority's."""
    _check_new(folder)
    private_folder(folder)
    authority = Authority.make(federation, folder / AUTHORITY, days=authority_days)
    for party in federation.parties:
        authority.sign(Request.read(ask(federation, party, folder / party)), days=days)
        accept(folder / party, authority.signed(party))


def ask(federation: Federation, party: str, folder: Path, *, renew: bool = False) -> Path:
    """Return a party's request, after its key was made in its kit."""
    known = federation.parties
    if party not in known:
        raise InputError(f"a party of the federation must be {', '.join(known)}, got {party!r}")
    if not renew:
        _check_new(folder, "add --renew for another key in this kit")
    elif Kit(folder, party).federation != federation:
        raise InputError(f"the kit must be of federation {federation.digest[:12]}, got a kit of another")
    private_folder(folder)
    private_folder(folder / TLS)
    key, request = _new_key(folder / TLS / NEXT_KEY), folder / f"{party}.csr"
    write_private(folder / FEDERATION_FILE, federation.to_toml())
    if party in federation.silos and not (folder / IDENTITY).exists():
        Identity.new().save(folder / IDENTITY)
    write_private(request, new_request(federation, party, key))
    return request


def accept(folder: Path, signed: Path) -> Kit:
    """Return a kit that is complete, after its certificate and its authority's were put into it."""
    if not folder.is_dir():
        raise InputError(f"{folder} must be a kit made by `fedpower node request`, got no folder there")
    requests = sorted(folder.glob("*.csr"))
    if len(requests) != 1:
        raise InputError(f"{folder} must hold exactly one request, the signed one, got {len(requests)}")
    request, federation = Request.read(requests[0]), read_federation(folder / FEDERATION_FILE)
    tls = folder / TLS

    def load(content: bytes) -> list[x509.Certificate]:
        chain = x509.load_pem_x509_certificates(content)
        chain[0].verify_directly_issued_by(chain[1])
        return chain

    certificate, authority = read_as(signed, load, "a certificate signed by `fedpower node sign`")
    waiting, known = tls / NEXT_KEY, tls / AUTHORITY_CERTIFICATE
    own = read_key(waiting if waiting.exists() else tls / KEY).public_key()
    if certificate.public_key() != own:
        raise InputError(f"{signed} must certify the key in {folder}, got another key")
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if party_of(certificate) != request.party or hosts != _hosts(federation, request.party):
        raise InputError(
            f"{signed} must name {request.party!r} and the host as {folder / FEDERATION_FILE} does"
        )
    if known.exists() and read_certificate(known) != authority:
        raise InputError(f"{signed} must be signed by the same authority as before, got another")
    write_private(tls / CERTIFICATE, certificate.public_bytes(_PEM))
    if waiting.exists():
        waiting.replace(tls / KEY)
    if request.party in federation.silos and not (folder / SILO_FILE).exists():
        text = Template(Path(__file__).with_name(SILO_FILE).read_text(encoding="utf-8"))
        write_private(folder / SILO_FILE, text.substitute(name=request.party))
    write_private(known, authority.public_bytes(_PEM))  # last: a kit that has it is complete
    return Kit(folder)


def accept_list(folder: Path, given: Path) -> x509.CertificateRevocationList:
    """Return a list of revoked certificates that was put into a kit; refuse one older than the kit's."""
    kit = Kit(folder)
    new, held = read_list(given, kit.authority), kit.tls / REVOKED
    old = read_list(held, kit.authority) if held.exists() else new
    if old != new and list_number(new) <= list_number(old):
        must = f"the list must be newer than that in {folder}, number {list_number(old)}"
        raise InputError(f"{must}, got number {list_number(new)}")
    write_private(held, new.public_bytes(_PEM))
    return new


def new_certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    issuer: str,
    *,
    until: datetime,
    hosts: x509.SubjectAlternativeName | None = None,
) -> x509.Certificate:
    """Return a party's certificate; one without hosts is an authority's."""
    is_authority = hosts is None
    path_length, no = (0 if is_authority else None), (False,) * 4
    # For signatures; an authority's for those of certificates and of their revocation
    usage = x509.KeyUsage(True, *no, is_authority, is_authority, False, False)
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    built = (
        x509.CertificateBuilder()
        .subject_name(_name({NameOID.COMMON_NAME: name}))
        .issuer_name(_name({NameOID.COMMON_NAME: issuer}))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(minutes=5))  # clocks of parties differ
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(by, critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=path_length), critical=True)
        .add_extension(usage, critical=True)
    )
    if hosts is not None:
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        uses += [ExtendedKeyUsageOID.SERVER_AUTH] if name == COORDINATOR else []
        built = built.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        built = built.add_extension(hosts, critical=False)
    return built.sign(signer, hashes.SHA256())


def _hosts(federation: Federation, party: str) -> x509.SubjectAlternativeName:
    """Return the host for which a party's certificate is good: TLS compares the coordinator's."""
    host = federation.host if party == COORDINATOR else party
    try:
        return x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    except ValueError:
        return x509.SubjectAlternativeName([x509.DNSName(host)])


def _name(attributes: Mapping[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes.items()])


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a new private key, written as gRPC reads it: PEM, without a password."""
    key = ec.generate_private_key(_CURVE)
    form = serialization.PrivateFormat.PKCS8
    write_private(path, key.private_bytes(_PEM, form, serialization.NoEncryption()))
    return key


def _check_new(folder: Path, otherwise: str = "") -> None:
    """Refuse a folder with files; a silo may have made its signing key there, for a study to name it."""
    if folder.exists() and any(path.name != IDENTITY for path in folder.iterdir()):
        hint = f"name another with -o{otherwise and f', or {otherwise}'}"
        raise InputError(f"{folder} must be new or empty, got a folder with files; {hint}")
