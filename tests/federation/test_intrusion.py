"""What strangers get from a federation: no connection, nothing charged."""

import shutil
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from ground import SILOS, Ground, wait_for

from fedpower.errors import ProtocolError
from fedpower.federation.kits import COORDINATOR, make_kits
from fedpower.federation.processes import start_party, stop
from fedpower.federation.runner import open_session

pytestmark = pytest.mark.federation

REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""What TLS says, in the words of the library under gRPC."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    made = Ground(tmp_path_factory.mktemp("intrusion"), min_silos=4)
    made.start()
    wait_for_all(made)
    yield made
    made.stop()


def wait_for_all(ground) -> None:
    with open_session(ground.runner, patience=60.0) as session:
        wait_for(lambda: set(session.status()["connected"]) == set(SILOS), "four silos")


def assert_untouched(ground):
    assert all(not ground.charges(name) for name in SILOS)


def test_a_silo_of_another_authority_gets_no_connection(ground, tmp_path):
    """Its kit names the same study, silo and address; the silo does not trust this coordinator either."""
    make_kits(ground.study, tmp_path / "foreign")
    kit, log = tmp_path / "foreign" / "west", tmp_path / "foreign.log"
    shutil.copyfile(ground.place("west") / "silo.toml", kit / "silo.toml")
    shutil.copy(ground.ledger("west"), kit / "west.ledger")
    ground.stop("west")
    try:
        with log.open("w") as file:
            child = start_party("silo", str(kit), str(kit / "silo.toml"), log=file.fileno())
            try:
                wait_for(lambda: REFUSED in log.read_text(errors="replace"), "a refusal")
                with open_session(ground.runner, patience=60.0) as session:
                    assert set(session.status()["connected"]) == set(SILOS) - {"west"}
            finally:
                stop(child)
        assert "connected to the coordinator" not in log.read_text(errors="replace")
        assert "west connected" not in ground.log(COORDINATOR).rpartition("west disconnected")[2]
        assert_untouched(ground)
    finally:
        ground.start("west")
        wait_for_all(ground)


def test_a_runner_of_another_authority_gets_no_session(ground, tmp_path):
    make_kits(ground.study, tmp_path / "foreign")
    with (
        pytest.raises(ProtocolError, match="the coordinator must answer at localhost"),
        open_session(tmp_path / "foreign" / "runner", patience=5.0),
    ):
        pytest.fail("a stranger has a session")
    assert_untouched(ground)


def greeted(ground, startup: Path | None) -> bool:
    """Return whether the coordinator says a word to whoever shows the certificate of a kit."""
    context = ssl.create_default_context(cafile=ground.place("north") / "startup" / "rootCA.pem")
    context.set_alpn_protocols(["h2"])
    if startup is not None:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with socket.create_connection(("127.0.0.1", ground.study.port), timeout=30) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="localhost") as stream:
                stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                return bool(stream.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False


def test_an_unknown_certificate_or_none_gets_no_connection(ground, tmp_path):
    """No certificate, one made by its bearer, one of another study with the same names; then ours."""
    make_kits(ground.study, tmp_path / "foreign")
    make_certificate(tmp_path)
    assert not greeted(ground, None)
    assert not greeted(ground, tmp_path)
    assert not greeted(ground, tmp_path / "foreign" / "north" / "startup")
    assert greeted(ground, ground.place("north") / "startup")


def make_certificate(startup: Path) -> None:
    """Put a self-signed certificate in the name of north into a kit."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=9))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.TraditionalOpenSSL
    (startup / "client.crt").write_bytes(made.public_bytes(pem))
    (startup / "client.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))


def test_a_silo_does_not_speak_to_a_coordinator_of_another_authority(ground, tmp_path):
    """Whoever sits at the coordinator's address without its certificate learns nothing."""
    kits, log = tmp_path / "foreign", tmp_path / "foreign.log"
    make_kits(ground.study, kits)
    ground.stop(COORDINATOR)
    before = {name: ground.log(name).count(REFUSED) for name in SILOS}
    with log.open("w") as file:
        child = start_party(COORDINATOR, str(kits / COORDINATOR), log=file.fileno())
        try:
            wait_for(
                lambda: all(ground.log(name).count(REFUSED) > before[name] for name in SILOS), "refusals"
            )
            with open_session(kits / "runner", patience=60.0) as session:
                assert session.status()["connected"] == []
        finally:
            stop(child)
            ground.start(COORDINATOR)
    wait_for_all(ground)
    assert_untouched(ground)
