"""Keys, requests and certificates: each party makes its key, and an authority signs what it asks for."""

import hashlib
import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpower.errors import InputError
from fedpower.federation.files import private_folder, write_private
from fedpower.federation.study_file import StudyFile, read_study, to_toml

COORDINATOR, RUNNER, AUTHORITY = "coordinator", "runner", "authority"
STUDY_FILE = "study.toml"
CERTIFICATE, KEY, SIGNED = "authority.crt", "authority.key", "signed"

PARTY_DAYS, AUTHORITY_DAYS = 365, 3650
"""How long certificates are valid unless said otherwise; a party's never outlives its authority's."""

LONGEST_COMMON_NAME = 64
_KEY_BITS = 2048


def parties(study: StudyFile) -> tuple[str, ...]:
    """Return who has a key in a study; refuse names under which two parties would be one."""
    taken = {COORDINATOR, RUNNER, AUTHORITY} & set(study.silos)
    if taken:
        raise InputError(
            f"a silo must not be called {sorted(taken)[0]!r}, which names another kit; rename it"
        )
    if study.host in study.silos:
        raise InputError(
            f"a silo must not be called like the coordinator's host, got {study.host!r} for both; rename "
            "the silo or give the host's full name"
        )
    return COORDINATOR, RUNNER, *study.silos


def new_key() -> rsa.RSAPrivateKey:
    """Return a fresh private key."""
    return rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)


def key_text(key: rsa.RSAPrivateKey) -> bytes:
    """Return a private key as gRPC reads it: PEM, without a password."""
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def read_key(path: Path) -> rsa.RSAPrivateKey:
    """Return the private key in a file."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise InputError(
            f"{path} must be a private key, got something else; make one with `fedpower federation request`"
        )
    return key


def fingerprint(key: object) -> str:
    """Return the SHA-256 of a public key, 64 hexadecimal digits: what two people compare by telephone."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    der = key.public_bytes(serialization.Encoding.DER, form)  # type: ignore[attr-defined]
    return hashlib.sha256(der).hexdigest()


def new_request(study: StudyFile, party: str, key: rsa.RSAPrivateKey) -> bytes:
    """Return a party's request, PEM."""
    asked = [
        x509.NameAttribute(NameOID.COMMON_NAME, party),
        x509.NameAttribute(NameOID.SERIAL_NUMBER, study.digest),
    ]
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(asked))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a party asks for: its name, the study's hash and its public key."""

    party: str
    study: str
    key: rsa.RSAPublicKey

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the request in a file; refuse one whose sender does not have the key."""
        try:
            found = x509.load_pem_x509_csr(path.read_bytes())
            party, study = (
                str(found.subject.get_attributes_for_oid(each)[0].value)
                for each in (NameOID.COMMON_NAME, NameOID.SERIAL_NUMBER)
            )
            key, sound = found.public_key(), found.is_signature_valid
        except (OSError, ValueError, LookupError, InvalidSignature):
            key, sound = None, False
        if not sound or not isinstance(key, rsa.RSAPublicKey) or key.key_size < _KEY_BITS:
            raise InputError(
                f"{path} must be a request made by `fedpower federation request`, got "
                f"{'something else' if path.exists() else 'no file'}; give the file that it wrote"
            )
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
        except (OSError, ValueError, TypeError, InvalidSignature):
            raise InputError(
                f"{path} must be a certificate signed by `fedpower federation sign`, got "
                f"{'something else' if path.exists() else 'no file'}; give the file that it wrote"
            ) from None
        return cls(party=party, authority=authority)

    def text(self) -> bytes:
        """Return both, PEM."""
        return b"".join(pem(each) for each in (self.party, self.authority))


def pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as text."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def subject(study: StudyFile, party: str) -> x509.Name:
    """Return the name in a party's certificate: the coordinator's is that of its host."""
    name = study.host[:LONGEST_COMMON_NAME] if party == COORDINATOR else party
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Signs the requests of a study's parties; it holds its own key and no other."""

    def __init__(self, folder: Path) -> None:
        if not (folder / KEY).is_file() or not (folder / CERTIFICATE).is_file():
            raise InputError(
                f"{folder} must be an authority made by `fedpower federation init`, got "
                f"{'something else' if folder.exists() else 'nothing'} there; give the folder it wrote"
            )
        self.folder = folder
        self.study = read_study(folder / STUDY_FILE)
        self.key = read_key(folder / KEY)
        self.certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())

    @classmethod
    def make(cls, study: StudyFile, folder: Path, *, days: int = AUTHORITY_DAYS) -> Self:
        """Return a new authority in a folder that is new or empty."""
        parties(study)
        key = new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, study.name)])
        usage = _usage(signs_certificates=True)
        built = _builder(name, name, key.public_key(), key, datetime.now(UTC), timedelta(days=days))
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = built.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        private_folder(folder)
        write_private(folder / STUDY_FILE, to_toml(study.content))
        write_private(folder / CERTIFICATE, pem(made))
        write_private(folder / KEY, key_text(key))
        return cls(folder)

    def signed(self, party: str) -> Path:
        """Return where a party's certificate is, or would be."""
        return self.folder / SIGNED / f"{party}.crt"

    def sign(self, request: Request, *, days: int = PARTY_DAYS, renew: bool = False) -> Bundle:
        """Return a party's certificate, and keep it; a second one only where it renews the first."""
        known = parties(self.study)
        if request.party not in known or request.study != self.study.digest:
            raise InputError(
                f"a request must come from {', '.join(known)} in study {self.study.digest[:12]}, got one "
                f"from {request.party!r} in study {request.study[:12]}; compare the study files"
            )
        there = self.signed(request.party)
        if there.exists() != renew:
            raise InputError(
                f"{request.party!r} must not have a certificate yet, got one that ends on "
                f"{ends(Bundle.read(there).party)}; renew it with `fedpower federation renew`"
                if there.exists()
                else f"{request.party!r} must have a certificate to renew, got none; sign its first with "
                "`fedpower federation sign`"
            )
        for other in known:
            if other != request.party and self.signed(other).exists():
                held = Bundle.read(self.signed(other)).party.public_key()
                if fingerprint(held) == fingerprint(request.key):
                    raise InputError(
                        f"every party must have a key of its own, got that of {other!r} from "
                        f"{request.party!r}; let {request.party!r} make another"
                    )
        made = Bundle(party=self._certificate(request, days), authority=self.certificate)
        private_folder(there.parent)
        write_private(there, made.text())
        return made

    def _certificate(self, request: Request, days: int) -> x509.Certificate:
        now = datetime.now(UTC)
        left = self.certificate.not_valid_after_utc - now
        if left <= timedelta(0):
            raise InputError(
                f"the authority must be valid, got one that ended on {ends(self.certificate)}; make "
                "another with `fedpower federation init`"
            )
        lasting = min(timedelta(days=days), left)
        name = subject(self.study, request.party)
        built = _builder(name, self.certificate.subject, request.key, self.key, now, lasting)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        host = str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        if request.party == COORDINATOR:
            uses, host = [*uses, ExtendedKeyUsageOID.SERVER_AUTH], self.study.host
        for extension, critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage(uses), False),
            (x509.SubjectAlternativeName([_host(host)]), False),
        ):
            built = built.add_extension(extension, critical=critical)
        return built.sign(self.key, hashes.SHA256())


def ends(certificate: x509.Certificate) -> str:
    """Return the day on which a certificate ends."""
    return certificate.not_valid_after_utc.strftime("%Y-%m-%d")


def days_left(certificate: x509.Certificate) -> int:
    """Return how many whole days a certificate is still valid; negative once it has ended."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def _builder(  # noqa: PLR0917 (what a certificate is made of)
    name: x509.Name,
    issuer: x509.Name,
    key: rsa.RSAPublicKey,
    signer: rsa.RSAPrivateKey,
    since: datetime,
    lasting: timedelta,
) -> x509.CertificateBuilder:
    held = x509.SubjectKeyIdentifier.from_public_key(key)
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since - timedelta(minutes=5))  # clocks of parties differ
        .not_valid_after(since + lasting)
        .add_extension(held, critical=False)
        .add_extension(by, critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        key_encipherment=not signs_certificates,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
