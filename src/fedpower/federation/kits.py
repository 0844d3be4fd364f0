"""Kits: a party's key, the certificate that an authority signed for it, and the study."""

import functools
import hashlib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from string import Template
from typing import Any, Self, TypeVar, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpower.exceptions import InputError
from fedpower.federation import AUTHORITY_CERTIFICATE, CERTIFICATE, KEY, SILO_FILE, STUDY_FILE, TLS
from fedpower.federation.study_file import StudyFile, read_study, to_toml
from fedpower.files import write_whole

COORDINATOR, RUNNER, AUTHORITY = "coordinator", "runner", "authority"
AUTHORITY_KEY, SIGNED = "authority.key", "signed"
NEXT_KEY = "next.key"  # a key whose certificate has not come yet

PARTY_DAYS, AUTHORITY_DAYS = 365, 3650
"""How long certificates are valid by default; a party's never outlives its authority's."""

_CURVE = ec.SECP256R1()
_PEM = serialization.Encoding.PEM
_UNREADABLE = (OSError, ValueError, TypeError, LookupError, InvalidSignature, UnsupportedAlgorithm)

_T = TypeVar("_T")


# Keys, checkpoints and kits have mode 0600 in folders of mode 0700, whatever the umask.
def private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter, and its parents where they are missing."""
    if not folder.parent.exists():
        private_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    folder.chmod(0o700)


write_private = functools.partial(write_whole, private=True)


def parties(study: StudyFile) -> tuple[str, ...]:
    """Return who has a key in a study; refuse names under which two parties would be one."""
    for name in study.silos:
        if name in (COORDINATOR, RUNNER, AUTHORITY, study.host):
            raise InputError(f"a silo's name must not be that of another party or the host, got {name!r}")
    return COORDINATOR, RUNNER, *study.silos


def fingerprint(key: Any) -> str:
    """Return the SHA-256 of a public key, 64 hexadecimal digits: two people can compare it by telephone."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def read_certificate(path: Path) -> x509.Certificate:
    return _read(path, x509.load_pem_x509_certificate, "a certificate signed by `fedpower node sign`")


def party_of(certificate: x509.Certificate) -> str:
    return _attribute(certificate.subject, NameOID.COMMON_NAME)


def ends(certificate: x509.Certificate) -> str:
    return certificate.not_valid_after_utc.strftime("%Y-%m-%d")


def days_left(certificate: x509.Certificate) -> int:
    """Return how many whole days a certificate is still valid; negative once it has ended."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    def load(content: bytes) -> ec.EllipticCurvePrivateKey:
        key = serialization.load_pem_private_key(content, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError
        return key

    return _read(path, load, "a private key made by `fedpower node request`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a party asks for: its name, the study's hash and its public key."""

    party: str
    study: str
    key: ec.EllipticCurvePublicKey

    @classmethod
    def read(cls, path: Path) -> "Request":
        """Return the request in a file; refuse one whose sender does not have the key."""

        def load(content: bytes) -> Request:
            request = x509.load_pem_x509_csr(content)
            names = (NameOID.COMMON_NAME, NameOID.SERIAL_NUMBER)
            party, study = (_attribute(request.subject, name) for name in names)
            key = request.public_key()
            is_known = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == _CURVE.name
            if not (is_known and request.is_signature_valid):
                raise ValueError
            return cls(party=party, study=study, key=cast("ec.EllipticCurvePublicKey", key))

        return _read(path, load, "a request made by `fedpower node request`")


def _read(path: Path, load: Callable[[bytes], _T], must: str) -> _T:
    try:
        return load(path.read_bytes())
    except _UNREADABLE:
        raise InputError(f"{path} must be {must}") from None


def new_request(study: StudyFile, party: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    subject = _name({NameOID.COMMON_NAME: party, NameOID.SERIAL_NUMBER: study.digest})
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(_PEM)


class Authority:
    """Signs the requests of a study's parties; it holds its own key and no other."""

    def __init__(self, folder: Path) -> None:
        if not (folder / AUTHORITY_KEY).is_file() or not (folder / AUTHORITY_CERTIFICATE).is_file():
            raise InputError(f"{folder} must be an authority made by `fedpower node ca-init`")
        self.folder = folder
        self.study = read_study(folder / STUDY_FILE)
        self.key = read_key(folder / AUTHORITY_KEY)
        self.certificate = read_certificate(folder / AUTHORITY_CERTIFICATE)

    @classmethod
    def make(cls, study: StudyFile, folder: Path, *, days: int = AUTHORITY_DAYS) -> Self:
        """Return a new authority in a folder that is new or empty; it has no party's key."""
        parties(study)
        _check_new(folder)
        private_folder(folder)
        key = _new_key(folder / AUTHORITY_KEY)
        until = datetime.now(UTC) + timedelta(days=days)
        certificate = new_certificate(study.name, key.public_key(), key, study.name, until=until)
        write_private(folder / STUDY_FILE, to_toml(study.content))
        write_private(folder / AUTHORITY_CERTIFICATE, certificate.public_bytes(_PEM))
        return cls(folder)

    def signed(self, party: str) -> Path:
        return self.folder / SIGNED / f"{party}.crt"

    def sign(self, request: Request, *, days: int = PARTY_DAYS, renew: bool = False) -> x509.Certificate:
        """Return a party's certificate, and keep it; a second one only where it renews the first."""
        party, known = request.party, parties(self.study)
        if party not in known or request.study != self.study.digest:
            must = f"a request must come from {', '.join(known)} in study {self.study.digest[:12]}"
            raise InputError(f"{must}, got a request from {party!r} in study {request.study[:12]}")
        signed = {name: read_certificate(self.signed(name)) for name in known if self.signed(name).exists()}
        if renew and party not in signed:
            raise InputError(f"{party!r} must have a certificate to renew, got none")
        if party in signed and not renew:
            got = f"one until {ends(signed[party])}; see `fedpower node renew`"
            raise InputError(f"{party!r} must not have a certificate yet, got {got}")
        for other, certificate in signed.items():
            if other != party and certificate.public_key() == request.key:
                raise InputError(f"{party!r} must have its own key, got the key of {other!r}")
        if days_left(self.certificate) < 0:
            raise InputError(f"the authority must be valid, but it expired on {ends(self.certificate)}")
        until = min(datetime.now(UTC) + timedelta(days=days), self.certificate.not_valid_after_utc)
        hosts = _hosts(self.study, party)
        made = new_certificate(party, request.key, self.key, self.study.name, until=until, hosts=hosts)
        private_folder(self.folder / SIGNED)
        write_private(self.signed(party), made.public_bytes(_PEM) + self.certificate.public_bytes(_PEM))
        return made


class Kit:
    """The folder of a party: key and certificates for the network, the study, a silo's own file."""

    def __init__(self, folder: Path, party: str | None = None) -> None:
        """Open a complete kit; refuse one of another than ``party``, where it is given."""
        self.folder, self.tls = folder.absolute(), folder.absolute() / TLS
        if not (self.tls / AUTHORITY_CERTIFICATE).is_file() or not (folder / STUDY_FILE).is_file():
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
    def study(self) -> StudyFile:
        return read_study(self.folder / STUDY_FILE)

    def check(self, *, with_key: bool = True) -> int:
        """Return how many days the certificate is still valid; refuse a kit that could not connect."""
        held = self.certificate.public_key()
        fits = not with_key or read_key(self.tls / KEY).public_key() == held  # a vault's kit has no key
        try:
            self.certificate.verify_directly_issued_by(self.authority)
        except _UNREADABLE:
            fits = False
        if not fits:
            raise InputError(f"key, certificate and authority in {self.tls} must belong together")
        for certificate, renewed in ((self.certificate, "request --renew"), (self.authority, "ca-init")):
            if days_left(certificate) < 0:
                got = f"one that expired on {ends(certificate)}"
                hint = f"request another with `fedpower node {renewed}`"
                raise InputError(f"certificates in {self.folder} must be valid, got {got}; {hint}")
        return days_left(self.certificate)


def make_kits(
    study: StudyFile, folder: Path, *, days: int = PARTY_DAYS, authority_days: int = AUTHORITY_DAYS
) -> None:
    """Write the kits of all parties into a new folder, keys included, and the authority's."""
    _check_new(folder)
    private_folder(folder)
    authority = Authority.make(study, folder / AUTHORITY, days=authority_days)
    for party in parties(study):
        authority.sign(Request.read(ask(study, party, folder / party)), days=days)
        accept(folder / party, authority.signed(party))


def ask(study: StudyFile, party: str, folder: Path, *, renew: bool = False) -> Path:
    """Return a party's request, after its key was made in its kit."""
    known = parties(study)
    if party not in known:
        raise InputError(f"a party of the study must be {', '.join(known)}, got {party!r}")
    if not renew:
        _check_new(folder)
    elif Kit(folder, party).study.digest != study.digest:
        raise InputError(f"the kit must be of study {study.digest[:12]}, got a kit of another study")
    private_folder(folder)
    private_folder(folder / TLS)
    key, request = _new_key(folder / TLS / NEXT_KEY), folder / f"{party}.csr"
    write_private(folder / STUDY_FILE, to_toml(study.content))
    write_private(request, new_request(study, party, key))
    return request


def accept(folder: Path, signed: Path) -> Kit:
    """Return a kit that is complete, after its certificate and its authority's were put into it."""
    requests = sorted(folder.glob("*.csr"))
    if len(requests) != 1:
        raise InputError(f"{folder} must hold exactly one request, the signed one, got {len(requests)}")
    request, study, tls = Request.read(requests[0]), read_study(folder / STUDY_FILE), folder / TLS

    def load(content: bytes) -> list[x509.Certificate]:
        chain = x509.load_pem_x509_certificates(content)
        chain[0].verify_directly_issued_by(chain[1])
        return chain

    certificate, authority = _read(signed, load, "a certificate signed by `fedpower node sign`")
    waiting, known = tls / NEXT_KEY, tls / AUTHORITY_CERTIFICATE
    own = read_key(waiting if waiting.exists() else tls / KEY).public_key()
    if certificate.public_key() != own:
        raise InputError(f"{signed} must certify the key in {folder}, got another key")
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if party_of(certificate) != request.party or hosts != _hosts(study, request.party):
        raise InputError(f"{signed} must name {request.party!r} and the host as {folder / STUDY_FILE} does")
    if known.exists() and read_certificate(known) != authority:
        raise InputError(f"{signed} must be signed by the same authority as before, got another")
    write_private(tls / CERTIFICATE, certificate.public_bytes(_PEM))
    if waiting.exists():
        waiting.replace(tls / KEY)
    if request.party in study.silos and not (folder / SILO_FILE).exists():
        text = Template(Path(__file__).with_name(SILO_FILE).read_text(encoding="utf-8"))
        write_private(folder / SILO_FILE, text.substitute(name=request.party, digest=study.digest))
    write_private(known, authority.public_bytes(_PEM))  # last: a kit that has it is complete
    return Kit(folder)


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


def _hosts(study: StudyFile, party: str) -> x509.SubjectAlternativeName:
    """Return the host for which a party's certificate is good: TLS compares the coordinator's."""
    host = study.host if party == COORDINATOR else party
    try:
        return x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    except ValueError:
        return x509.SubjectAlternativeName([x509.DNSName(host)])


def _name(attributes: Mapping[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes.items()])


def _attribute(name: x509.Name, kind: x509.ObjectIdentifier) -> str:
    return str(name.get_attributes_for_oid(kind)[0].value)


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a new private key, written as gRPC reads it: PEM, without a password."""
    key = ec.generate_private_key(_CURVE)
    form = serialization.PrivateFormat.PKCS8
    write_private(path, key.private_bytes(_PEM, form, serialization.NoEncryption()))
    return key


def _check_new(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} must be new or empty, got a folder with files; name another with -o")
