"""Kits: one folder per party, with its key, its certificate, and the study."""

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from fedpower.errors import InputError
from fedpower.federation.certificates import (
    AUTHORITY,
    AUTHORITY_DAYS,
    COORDINATOR,
    PARTY_DAYS,
    RUNNER,
    STUDY_FILE,
    Authority,
    Bundle,
    Request,
    days_left,
    ends,
    fingerprint,
    key_text,
    new_key,
    new_request,
    parties,
    pem,
    read_key,
    require_new,
    subject,
)
from fedpower.federation.files import private_folder, write_private
from fedpower.federation.study_file import StudyFile, read_study, to_toml

SILO_FILE = "silo.toml"
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
    key, request = new_key(), kit / f"{party}.csr"
    write_private(kit / "startup" / NEXT_KEY, key_text(key))
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
            f"{kit} must be a complete kit, got one without its certificate; put it in with "
            "`fedpower federation accept`"
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
    key = bundle.party.public_key()
    own = key  # a vault's kit has no private key
    if with_key:
        own = read_key(kit / "startup" / f"{_side(kit_party(kit))}.key").public_key()
    try:
        bundle.party.verify_directly_issued_by(bundle.authority)
        fits = fingerprint(key) == fingerprint(own)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        fits = False
    if not fits:
        raise InputError(
            f"key, certificate and authority in {kit / 'startup'} must belong together; put the signed "
            "certificate in with `fedpower federation accept`"
        )
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
