"""Kits: one folder per party, with its key, the certificate an authority signed for it, and the study."""

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
STUDY_FILE, SILO_FILE = "study.toml", "silo.toml"
CERTIFICATE, KEY, SIGNED = "authority.crt", "authority.key", "signed"

PARTY_DAYS, AUTHORITY_DAYS = 365, 3650
"""How long certificates are valid by default; a party's never outlives its authority's."""

LONGEST_COMMON_NAME = 64
_CURVE = ec.SECP256R1()
_PEM = serialization.Encoding.PEM
NEXT_KEY = "next.key"  # a key whose certificate has not come yet
_PARTY, _ROOT = "party", "rootCA.pem"
"""The file with the name of a kit's party, and the one with the authority's certificate."""

_SILO_TEMPLATE = """\
# This organisation's own terms. Nothing in here leaves it, and nobody else can change it.
silo = "{name}"

[data]
path = "rows.parquet"        # also .csv, .npy, .npz, .feather, .svm; from this file's folder
version = "1"                # public: give another whenever the rows change, which is a new charge
# name = "heart"             # of the data set, if the ledger is to be for it and no other
# or, in place of path, a query; its password comes from a variable or a file, never from here:
# query = "SELECT age, bmi FROM patients"
# database = "postgresql://db.internal:5432/clinic"    # or "sqlite:///clinic.db"
# user = "fedpower"
# password_env = "CLINIC_DB_PASSWORD"
# drop = ["patient_id"]      # columns that are not for the study
# extra_columns = "drop"     # or refuse (default) columns beyond the study's

[ledger]
# every release is charged here before it leaves; made once, by you:
# fedpower budget init {name}.ledger --silo {name} --epsilon 3 --delta 1e-6
# (its cap: what all studies together may spend, best at the study's delta)
path = "{name}.ledger"
# epsilon = 3.0              # the cap, if it is to be checked against the ledger's at every start
# delta = 1e-6

# [identity]                 # only for a study with aggregation = "secure"
# path = "{name}.pem"        # made with `fedpower identity new`; its public key is in the study

[agrees]
study = "{digest}"   # this study and no other
# epsilon = 1.0              # the most that any one study may spend
"""


def parties(study: StudyFile) -> tuple[str, ...]:
    """Return who has a key in a study; refuse names under which two parties would be one."""
    for name in study.silos:
        if name in (COORDINATOR, RUNNER, AUTHORITY, study.host):
            raise InputError(f"a silo must not have the name of another party or of the host, got {name!r}")
    return COORDINATOR, RUNNER, *study.silos


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a new private key, written as gRPC reads it: PEM, without a password."""
    key = ec.generate_private_key(_CURVE)
    form = serialization.PrivateFormat.PKCS8
    write_private(path, key.private_bytes(_PEM, form, serialization.NoEncryption()))
    return key


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
        private_folder(folder)
        key = _new_key(folder / KEY)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, study.name)])
        builder = _builder(name, name, key.public_key(), key, datetime.now(UTC), timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.add_extension(_usage(authority=True), critical=True).sign(key, hashes.SHA256())
        write_private(folder / STUDY_FILE, to_toml(study.content))
        write_private(folder / CERTIFICATE, pem(certificate))
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
                f"{party!r} must not have a certificate yet, got one until {ended}; see `federation renew`"
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


def make_kits(
    study: StudyFile, folder: Path, *, days: int = PARTY_DAYS, authority_days: int = AUTHORITY_DAYS
) -> None:
    """Write the kits of all parties into a new folder, keys included, and the authority's."""
    require_new(folder)
    private_folder(folder)
    authority = Authority.make(study, folder / AUTHORITY, days=authority_days)
    for party in parties(study):
        authority.sign(Request.read(ask(study, party, folder / party)), days=days)
        accept(folder / party, authority.signed(party))


def ask(study: StudyFile, party: str, kit: Path, *, renew: bool = False) -> Path:
    """Return a party's request, after its key was made in its kit."""
    known = parties(study)
    if party not in known:
        raise InputError(f"a party of the study must be {', '.join(known)}, got {party!r}")
    if not renew:
        require_new(kit)
    elif kit_study(kit, party).digest != study.digest:
        raise InputError(f"the kit must be of study {study.digest[:12]}, got one of another")
    private_folder(kit)
    private_folder(kit / "startup")
    key, request = _new_key(kit / "startup" / NEXT_KEY), kit / f"{party}.csr"
    write_private(kit / STUDY_FILE, to_toml(study.content))
    write_private(request, new_request(study, party, key))
    return request


def accept(kit: Path, certificate: Path) -> Bundle:
    """Return the certificates that complete a kit, after they were put into it."""
    (path,) = sorted(kit.glob("*.csr")) or (None,)
    if path is None:
        raise InputError(f"{kit} must hold the request that was signed, got none")
    request, study, bundle = Request.read(path), read_study(kit / STUDY_FILE), Bundle.read(certificate)
    startup, party = kit / "startup", request.party
    side = _side(party)
    waiting, root = startup / NEXT_KEY, startup / _ROOT
    own = waiting if waiting.exists() else startup / f"{side}.key"
    if fingerprint(bundle.party.public_key()) != fingerprint(read_key(own).public_key()):
        raise InputError(f"{certificate} must certify the key that was made in {kit}, got another's")
    if bundle.party.subject != subject(study, party):
        raise InputError(f"{certificate} must name {party!r} and the host as {kit / STUDY_FILE} does")
    if root.exists() and x509.load_pem_x509_certificate(root.read_bytes()) != bundle.authority:
        raise InputError(f"{certificate} must be of the authority that signed before, got one of another")
    write_private(startup / f"{side}.crt", pem(bundle.party))
    if waiting.exists():
        waiting.replace(startup / f"{side}.key")
    write_private(startup / _PARTY, party)
    if party not in (COORDINATOR, RUNNER) and not (kit / SILO_FILE).exists():
        write_private(kit / SILO_FILE, _SILO_TEMPLATE.format(name=party, digest=study.digest))
    write_private(root, pem(bundle.authority))  # last: a kit that has it is complete
    return bundle


def kit_study(kit: Path, party: str | None = None) -> StudyFile:
    """Return the study that a kit was made for; refuse a folder that is no kit."""
    complete = (kit / "startup" / _ROOT).is_file()
    if (kit / "startup" / NEXT_KEY).is_file() and not complete:
        raise InputError(
            f"{kit} must be complete, got one without its certificate; see `fedpower federation accept`"
        )
    if not complete or not (kit / STUDY_FILE).is_file():
        raise InputError(f"{kit} must be a kit made by `fedpower federation request`")
    owner = kit_party(kit)
    if party is not None and owner != party:
        wanted = party if party in (COORDINATOR, RUNNER) else f"silo {party!r}"
        raise InputError(f"{kit} must be the kit of the {wanted}, got that of {owner!r}")
    return read_study(kit / STUDY_FILE)


def check_certificate(kit: Path, *, with_key: bool = True) -> int:
    """Return how many days a kit's certificate is still valid; refuse one that could not connect."""
    bundle = kit_certificates(kit)
    fits = True
    if with_key:  # a vault's kit has none
        own = read_key(kit / "startup" / f"{_side(kit_party(kit))}.key").public_key()
        fits = fingerprint(bundle.party.public_key()) == fingerprint(own)
    try:
        bundle.party.verify_directly_issued_by(bundle.authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        fits = False
    if not fits:
        raise InputError(f"key, certificate and authority in {kit / 'startup'} must belong together")
    for certificate, renewed in ((bundle.party, "request --renew"), (bundle.authority, "init")):
        if days_left(certificate) < 0:
            raise InputError(
                f"certificates in {kit} must be valid, got one that ended on {ends(certificate)}; ask for "
                f"another with `fedpower federation {renewed}`"
            )
    return days_left(bundle.party)


def kit_certificates(kit: Path) -> Bundle:
    """Return a kit's certificate and its authority's."""
    startup = kit / "startup"
    try:
        return Bundle(
            party=x509.load_pem_x509_certificate((startup / f"{_side(kit_party(kit))}.crt").read_bytes()),
            authority=x509.load_pem_x509_certificate((startup / _ROOT).read_bytes()),
        )
    except (OSError, ValueError):
        raise InputError(f"{kit} must hold a certificate and its authority's") from None


def kit_party(kit: Path) -> str:
    """Return the party that a kit was made for."""
    try:
        return (kit / "startup" / _PARTY).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "nobody"


def _side(party: str) -> str:
    """Return what FLARE calls the side of a party, after which its key and certificate are named."""
    return "server" if party == COORDINATOR else "client"
