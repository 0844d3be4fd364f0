"""Certificates in files: what they say, when they end, and whether their authority has revoked them."""

import hashlib
import math
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from fedpower.exceptions import InputError
from fedpower.federation import AUTHORITY_CERTIFICATE, CERTIFICATE, KEY, REVOKED

WARN_DAYS = 30
"""A certificate that ends sooner is warned about."""

UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.ExtensionNotFound,
)
_TIMEOUT_S = 10.0

_T = TypeVar("_T")


def read_as(path: Path, load: Callable[[bytes], _T], must: str) -> _T:
    try:
        return load(path.read_bytes())
    except UNREADABLE:
        got = "something else" if path.exists() else "no file"
        raise InputError(f"{path} must be {must}, got {got}") from None


def read_certificate(path: Path) -> x509.Certificate:
    return read_as(path, x509.load_pem_x509_certificate, "a certificate signed by `fedpower node sign`")


def fingerprint(key: Any) -> str:
    """Return the SHA-256 of a public key, 64 hexadecimal digits: two people can compare it by telephone."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def attribute(name: x509.Name, kind: x509.ObjectIdentifier) -> str:
    return str(name.get_attributes_for_oid(kind)[0].value)


def party_of(certificate: x509.Certificate) -> str:
    return attribute(certificate.subject, NameOID.COMMON_NAME)


def ends(certificate: x509.Certificate) -> str:
    return certificate.not_valid_after_utc.strftime("%Y-%m-%d")


def days_left(certificate: x509.Certificate) -> int:
    """Return how many whole days a certificate is still valid; negative once it has ended."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def pair_fits(tls: Path) -> bool:
    """Return whether the key and the certificate of a kit are there and belong together."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls / CERTIFICATE, tls / KEY)
    except (ssl.SSLError, OSError):
        return False
    return True


def await_pair(tls: Path, seconds: float = math.inf) -> None:
    """Wait until key and certificate belong together: one of the two may just be being replaced."""
    end = time.monotonic() + seconds
    while not pair_fits(tls) and time.monotonic() < end:
        time.sleep(0.1)


def warning(certificate: x509.Certificate, party: str, revoked: frozenset[int] = frozenset()) -> str | None:
    """Return what a party must know about a certificate; nothing while it is good for long enough."""
    is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    left, how = days_left(certificate), "ca-init" if is_authority else "request --renew"
    if certificate.serial_number in revoked:
        state = "is revoked"
    elif left >= WARN_DAYS:
        return None
    else:
        state = (
            f"ended on {ends(certificate)}" if left < 0 else f"ends on {ends(certificate)}, in {left} days"
        )
    return f"the certificate of {party} {state}; request another with `fedpower node {how}`"


def warnings(tls: Path) -> list[str]:
    """Return what a party must know about its own certificate and its authority's."""
    own, authority = (read_certificate(tls / name) for name in (CERTIFICATE, AUTHORITY_CERTIFICATE))
    told = warning(own, party_of(own), revoked_serials(tls)), warning(authority, "authority")
    return [sentence for sentence in told if sentence is not None]


# --- revocation ------------------------------------------------------------------------------------


def read_list(path: Path, authority: x509.Certificate) -> x509.CertificateRevocationList:
    """Return a list of revoked certificates; refuse one that this authority has not signed."""

    def load(content: bytes) -> x509.CertificateRevocationList:
        read = x509.load_pem_x509_crl(content)
        list_number(read)
        if not read.is_signature_valid(authority.public_key()):  # type: ignore[arg-type]
            raise ValueError
        return read

    return read_as(path, load, "a list of revoked certificates, signed by the authority of this federation")


def list_number(read: x509.CertificateRevocationList) -> int:
    """Return the number of a list; that of a later one is higher."""
    return read.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def revoked_serials(tls: Path) -> frozenset[int]:
    """Return the numbers of the certificates on a kit's list; none where it has no list."""
    if not (tls / REVOKED).exists():
        return frozenset()
    held = read_list(tls / REVOKED, read_certificate(tls / AUTHORITY_CERTIFICATE))
    return frozenset(entry.serial_number for entry in held)


def coordinator_roots(host: str, port: int, tls: Path) -> bytes:
    """Return the certificate that the next connection to the coordinator must trust, and no other.

    gRPC does not say which certificate a server has shown. So where a kit has a list, a handshake before the
    connection gets the coordinator's. If it is not on the list, the connection trusts this one only: somebody
    with a revoked key who comes in between does not have the key that the connection needs.
    """
    revoked = revoked_serials(tls)
    if not revoked:
        return (tls / AUTHORITY_CERTIFICATE).read_bytes()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tls / AUTHORITY_CERTIFICATE)
    context.load_cert_chain(tls / CERTIFICATE, tls / KEY)
    context.set_alpn_protocols(["h2"])
    proxies = {} if proxy_bypass(host) else getproxies()  # as gRPC takes them from the environment
    proxy = urlsplit(next((proxies[kind] for kind in ("grpc", "https", "http") if kind in proxies), ""))
    line = HTTPSConnection(proxy.hostname or host, proxy.port or port, context=context, timeout=_TIMEOUT_S)
    if proxy.hostname:
        line.set_tunnel(host, port)
    try:
        line.connect()
        shown = x509.load_der_x509_certificate(line.sock.getpeercert(binary_form=True) or b"")
    finally:
        line.close()
    if shown.serial_number in revoked:
        raise InputError("the coordinator must have a valid certificate, got one that is revoked")
    return shown.public_bytes(serialization.Encoding.PEM)
