"""Keys, requests and certificates: each party makes its key, and an authority signs its request."""

import hashlib
import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpower.errors import InputError
from fedpower.federation.files import private_folder, write_private
from fedpower.federation.study_file import StudyFile, read_study, to_toml

COORDINATOR, RUNNER, AUTHORITY = "coordinator", "runner", "authority"
STUDY_FILE = "study.toml"
CERTIFICATE, KEY, SIGNED = "authority.crt", "authority.key", "signed"

PARTY_DAYS, AUTHORITY_DAYS = 365, 3650
"""How long certificates are valid by default; a party's never outlives its authority's."""

LONGEST_COMMON_NAME = 64
_CURVE = ec.SECP256R1()
_PEM = serialization.Encoding.PEM


def parties(study: StudyFile) -> tuple[str, ...]:
    """Return who has a key in a study; refuse names under which two parties would be one."""
    for name in study.silos:
        if name in (COORDINATOR, RUNNER, AUTHORITY, study.host):
            raise InputError(f"a silo must not have the name of another party or of the host, got {name!r}")
    return COORDINATOR, RUNNER, *study.silos


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(_CURVE)


def key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as gRPC reads it: PEM, without a password."""
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} must be a private key made by `fedpower federation request`")
    return key


def fingerprint(key: object) -> str:
    """Return the SHA-256 of a public key, 64 hexadecimal digits: two people can compare it by telephone."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    der = key.public_bytes(serialization.Encoding.DER, form)  # type: ignore[attr-defined]
    return hashlib.sha256(der).hexdigest()


def new_request(study: StudyFile, party: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a party's request, PEM."""
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, party),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, study.digest),
        ]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(_PEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a party asks for: its name, the study's hash and its public key."""

    party: str
    study: str
    key: ec.EllipticCurvePublicKey

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the request in a file; refuse one whose sender does not have the key."""
        try:
            request = x509.load_pem_x509_csr(path.read_bytes())
            party, study = (
                str(request.subject.get_attributes_for_oid(oid)[0].value)
                for oid in (NameOID.COMMON_NAME, NameOID.SERIAL_NUMBER)
            )
            key, sound = request.public_key(), request.is_signature_valid
        except (OSError, ValueError, LookupError, InvalidSignature, UnsupportedAlgorithm):
            key, sound = None, False
        if not sound or not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE.name:
            raise InputError(f"{path} must be a request made by `fedpower federation request`")
        return cls(party=party, study=study, key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A party's certificate and its authority's."""

    party: x509.Certificate
    authority: x509.Certificate

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the two certificates in a file; refuse a pair of which one did not sign the other."""
        try:
            party, authority = x509.load_pem_x509_certificates(path.read_bytes())
            party.verify_directly_issued_by(authority)
        except (OSError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            raise InputError(f"{path} must be a certificate signed by `fedpower federation sign`") from None
        return cls(party=party, authority=authority)

    def text(self) -> bytes:
        return pem(self.party) + pem(self.authority)


def pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as text."""
    return certificate.public_bytes(_PEM)


def subject(study: StudyFile, party: str) -> x509.Name:
    """Return the name in a party's certificate: the coordinator's is that of its host."""
    name = study.host[:LONGEST_COMMON_NAME] if party == COORDINATOR else party
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Signs the requests of a study's parties; it holds its own key and no other."""

    def __init__(self, folder: Path) -> None:
        if not (folder / KEY).is_file() or not (folder / CERTIFICATE).is_file():
            raise InputError(f"{folder} must be an authority made by `fedpower federation init`")
        self.folder = folder
        self.study = read_study(folder / STUDY_FILE)
        self.key = read_key(folder / KEY)
        self.certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())

    @classmethod
    def make(cls, study: StudyFile, folder: Path, *, days: int = AUTHORITY_DAYS) -> Self:
        """Return a new authority in a folder that is new or empty; it has no party's key."""
        require_new(folder)
        parties(study)
        key = new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, study.name)])
        builder = _builder(name, name, key.public_key(), key, datetime.now(UTC), timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.add_extension(_usage(authority=True), critical=True).sign(key, hashes.SHA256())
        private_folder(folder)
        write_private(folder / STUDY_FILE, to_toml(study.content))
        write_private(folder / CERTIFICATE, pem(certificate))
        write_private(folder / KEY, key_text(key))
        return cls(folder)

    def signed(self, party: str) -> Path:
        """Return where a party's certificate is, or would be."""
        return self.folder / SIGNED / f"{party}.crt"

    def sign(self, request: Request, *, days: int = PARTY_DAYS, renew: bool = False) -> Bundle:
        """Return a party's certificate, and keep it; a second one only where it renews the first."""
        party, known = request.party, parties(self.study)
        if party not in known or request.study != self.study.digest:
            raise InputError(
                f"a request must come from {', '.join(known)} in study {self.study.digest[:12]}, got one "
                f"from {party!r} in study {request.study[:12]}"
            )
        place = self.signed(party)
        if place.exists() and not renew:
            ended = ends(Bundle.read(place).party)
            raise InputError(
                f"{party!r} must not have a certificate yet, got one that ends on {ended}; renew it with "
                "`fedpower federation renew`"
            )
        if renew and not place.exists():
            raise InputError(f"{party!r} must have a certificate to renew, got none")
        for other in known:
            if other != party and self.signed(other).exists():
                key = Bundle.read(self.signed(other)).party.public_key()
                if fingerprint(key) == fingerprint(request.key):
                    raise InputError(f"{party!r} must have a key of its own, got that of {other!r}")
        bundle = Bundle(party=self._certificate(request, days), authority=self.certificate)
        private_folder(place.parent)
        write_private(place, bundle.text())
        return bundle

    def _certificate(self, request: Request, days: int) -> x509.Certificate:
        now = datetime.now(UTC)
        left = self.certificate.not_valid_after_utc - now
        if left <= timedelta(0):
            raise InputError(f"the authority must be valid, got one that ended on {ends(self.certificate)}")
        name, host = subject(self.study, request.party), request.party
        builder = _builder(
            name, self.certificate.subject, request.key, self.key, now, min(timedelta(days=days), left)
        )
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if request.party == COORDINATOR:
            uses, host = [*uses, ExtendedKeyUsageOID.SERVER_AUTH], self.study.host
        try:
            names: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            names = x509.DNSName(host)
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName([names]), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def require_new(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} must be new or empty, got a folder with files; name another with -o")


def ends(certificate: x509.Certificate) -> str:
    """Return the day on which a certificate ends."""
    return certificate.not_valid_after_utc.strftime("%Y-%m-%d")


def days_left(certificate: x509.Certificate) -> int:
    """Return how many whole days a certificate is still valid; negative once it has ended."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def _builder(  # noqa: PLR0917 (the parts of a certificate)
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    since: datetime,
    lasting: timedelta,
) -> x509.CertificateBuilder:
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since - timedelta(minutes=5))  # clocks of parties differ
        .not_valid_after(since + lasting)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(by, critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    others = ("key_encipherment", "content_commitment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        **dict.fromkeys((*others, "encipher_only", "decipher_only"), False),
    )
