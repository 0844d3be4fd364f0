"""Identities: made, kept in private files, read back, and refused in one sentence where they are not."""

import builtins
import stat
import sys

import pytest

from fedpower.errors import InputError
from fedpower.protocol.secure import Identity, is_signed, new_exchange_key, require_cryptography


def test_a_saved_identity_is_private_and_the_same_when_read(tmp_path):
    path = tmp_path / "north.pem"
    made = Identity.new()
    made.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    read = Identity.load(path)
    assert read.public == made.public
    assert is_signed(bytes.fromhex(made.public), read.sign(b"words"), b"words")
    assert not is_signed(bytes.fromhex(made.public), read.sign(b"words"), b"other words")
    assert not is_signed(bytes.fromhex(Identity.new().public), read.sign(b"words"), b"words")


def test_an_identity_is_never_overwritten_and_never_shows_its_private_key(tmp_path):
    path = tmp_path / "north.pem"
    one = Identity.new()
    one.save(path)
    before = path.read_bytes()
    assert before.decode().splitlines()[1] not in repr(one)
    with pytest.raises(InputError, match="must go to a new file"):
        Identity.new().save(path)
    assert path.read_bytes() == before


def test_files_that_are_no_private_identity_are_refused(tmp_path):
    path, crypto = tmp_path / "north.pem", require_cryptography()
    with pytest.raises(InputError, match="must be a file that can be read"):
        Identity.load(path)
    Identity.new().save(path)
    path.chmod(0o644)
    with pytest.raises(InputError, match="must be private to its owner but has mode 0644"):
        Identity.load(path)
    path.chmod(0o600)
    pem = crypto.serialization
    other = new_exchange_key().private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    for content in (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", other):
        path.write_bytes(content)
        with pytest.raises(InputError, match="must hold an Ed25519 private key"):
            Identity.load(path)


def test_without_the_package_the_extra_to_install_is_named(monkeypatch):
    importing = builtins.__import__

    def without_cryptography(name, *args, **kwargs):
        if name.split(".")[0] == "cryptography":
            raise ImportError(name)
        return importing(name, *args, **kwargs)

    for name in [each for each in sys.modules if each.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_cryptography)
    monkeypatch.setattr("fedpower.protocol.secure.require_cryptography", require_cryptography.__wrapped__)
    with pytest.raises(InputError, match=r"pip install '\.\[secure\]'"):
        Identity.new()
