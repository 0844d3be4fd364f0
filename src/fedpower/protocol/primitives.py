"""Every cryptographic primitive that a secure sum uses, from the package ``cryptography``.

None is written here. The package is imported when first used: only secure sums need it
(the extra ``secure``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedpower.errors import InputError, ProtocolError, installing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY_BYTES = 32
SIGNATURE_BYTES = 64


def require_cryptography() -> None:
    """Refuse in one sentence where the package is not installed."""
    try:
        import cryptography  # noqa: F401, PLC0415
    except ImportError:
        raise InputError(
            "a secure sum must have the package cryptography, got none installed; run "
            + installing("secure")
        ) from None


def new_exchange_key() -> "X25519PrivateKey":
    """Return a fresh X25519 key from the operating system's generator."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415

    return X25519PrivateKey.generate()


def agreed_key(own: "X25519PrivateKey", other: bytes, *, salt: bytes, info: bytes) -> bytes:
    """Return 32 bytes that the two holders of the keys share and nobody else: X25519, HKDF-SHA256."""
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise ProtocolError(
            "a key on the roll must be a point that gives a secret, got one that gives none; "
            "leave that silo out"
        ) from None
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)


def gives_secret(public: bytes) -> bool:
    """Return whether an X25519 public key gives a secret to whoever uses it; a few points give none."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415

    try:
        new_exchange_key().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def keystream(key: bytes) -> Callable[[memoryview, memoryview], None]:
    """Return what fills its second argument with the next bytes of the ChaCha20 stream of ``key``.

    The first argument is as many zero bytes. A key gives one stream, so the nonce is zero.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20  # noqa: PLC0415

    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def fill(zeros: memoryview, out: memoryview) -> None:
        stream.update_into(zeros, out)

    return fill


def new_signing_key() -> "Ed25519PrivateKey":
    """Return a fresh Ed25519 key from the operating system's generator."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    return Ed25519PrivateKey.generate()


def signing_key_to_pem(key: "Ed25519PrivateKey") -> bytes:
    """Return a signing key as PKCS #8 PEM, not encrypted: the file's mode protects it."""
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def signing_key_from_pem(text: bytes) -> "Ed25519PrivateKey | None":
    """Return the Ed25519 key in a PEM text; None where there is none that can be read."""
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PrivateKey) else None


def is_signed(public: bytes, signature: bytes, content: bytes) -> bool:
    """Return whether ``signature`` is the Ed25519 signature of ``content`` under a public key."""
    require_cryptography()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True
