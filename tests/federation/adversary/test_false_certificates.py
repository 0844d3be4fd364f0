"""Certificates that ended, are of another authority or somebody else's: no connection, no charge."""

import json
import shutil
import socket
import ssl
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from ground import wait_for

from adversary.hostile import HONEST, Peer, stage_fixture, untouched
from fedpower.errors import ProtocolError
from fedpower.federation import AUTHORITY_CERTIFICATE, CERTIFICATE, KEY, TLS, kits
from fedpower.federation.kits import COORDINATOR, Authority, Kit, make_kits
from fedpower.federation.processes import start_party, stop
from fedpower.federation.runner import open_session

pytestmark = pytest.mark.federation

REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""What TLS says, in the words of the library under gRPC."""

stage = stage_fixture()


@pytest.fixture(scope="module")
def foreign(stage, tmp_path_factory):
    """Kits of another authority for the same study, silos and address."""
    kits = tmp_path_factory.mktemp("foreign") / "kits"
    make_kits(stage.study, kits)
    return kits


def knock(stage, tls, name="east") -> Peer:
    """Return a peer that tried for a while to connect with the key and certificate of a folder."""
    made = Peer(stage, "east", name=name)
    made._tls = tls
    made.join()
    made.put(COORDINATOR, {"kind": "answer", "number": 1}, b"x")
    made.put(COORDINATOR, {"kind": "call", "number": 1}, json.dumps({"do": "status"}).encode())
    time.sleep(0.5)
    return made


def greeted(stage, tls: Path | None) -> bool:
    """Return whether the coordinator says a word to one who shows the certificate of a kit."""
    context = ssl.create_default_context(cafile=stage.tls("north") / AUTHORITY_CERTIFICATE)
    context.set_alpn_protocols(["h2"])
    if tls is not None:
        context.load_cert_chain(tls / CERTIFICATE, tls / KEY)
    with socket.create_connection(("127.0.0.1", stage.study.port), timeout=30) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="localhost") as stream:
                stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                return bool(stream.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False


def certified(stage, tls: Path, signer, issuer: str, *, minutes: float) -> Path:
    """Put a certificate in the name of east, that ends in so many minutes, into a copy of its kit."""
    shutil.copytree(stage.tls("east"), tls)
    key = kits.read_key(tls / KEY).public_key()
    until = datetime.now(UTC) + timedelta(minutes=minutes)
    hosts = kits._hosts(stage.study, "east")
    made = kits.new_certificate("east", key, signer=signer, issuer=issuer, until=until, hosts=hosts)
    (tls / CERTIFICATE).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return tls


def test_the_real_certificate_connects_and_none_or_a_false_one_does_not(stage, foreign, tmp_path):
    """None; one that ended; one signed by its bearer; one of another authority."""
    made = knock(stage, stage.tls("east"))
    assert made.connected() == [COORDINATOR]
    made.leave()
    assert greeted(stage, stage.tls("east"))
    authority = Authority(stage.kits / "authority")
    own = kits.read_key(stage.tls("east") / KEY)
    other = foreign / "east" / TLS
    shutil.copyfile(stage.tls("east") / AUTHORITY_CERTIFICATE, other / AUTHORITY_CERTIFICATE)
    with untouched(stage):
        assert not greeted(stage, None)
        for tls in (
            certified(stage, tmp_path / "ended", authority.key, stage.study.name, minutes=-1),
            certified(stage, tmp_path / "own", own, "east", minutes=60),
            other,
        ):
            assert not greeted(stage, tls)
            made = knock(stage, tls)
            assert made.connected() == []
            assert made.got == []
            made.leave()


def test_the_coordinator_s_certificate_makes_nobody_a_silo_or_the_runner(stage, tmp_path):
    tls = tmp_path / "tls"
    shutil.copytree(stage.tls(COORDINATOR), tls)
    for name in (*HONEST, "east", "runner"):
        with untouched(stage):
            made = knock(stage, tls, name=name)
            assert made.got == []
            made.leave()
        assert f"claimed endpoint '{name}'" in stage.log(COORDINATOR)


def test_a_runner_of_another_authority_gets_no_session(stage, foreign):
    with (
        untouched(stage),
        pytest.raises(ProtocolError, match="the coordinator must answer at localhost"),
        open_session(Kit(foreign / "runner"), patience=5.0),
    ):
        pytest.fail("a stranger has a session")


@contextmanager
def party(log: Path, *words: str):
    """Give a party that logs to a file, and stop it afterwards."""
    with log.open("w") as file:
        child = start_party(*words, log=file.fileno())
        try:
            yield
        finally:
            stop(child)


def test_a_silo_of_another_authority_gets_no_connection(stage, foreign, tmp_path):
    """The silo does not trust this coordinator either."""
    kit, log = foreign / "north", tmp_path / "foreign.log"
    shutil.copyfile(stage.place("north") / "silo.toml", kit / "silo.toml")
    shutil.copy(stage.ledger("north"), kit / "north.ledger")
    before = stage.record().charges
    stage.stop("north")
    with party(log, "node", "start", str(kit), str(kit / "silo.toml")):
        wait_for(lambda: REFUSED in log.read_text(errors="replace"), "a refusal")
        assert stage.connected() == set(HONEST) - {"north"}
    assert "connected to the coordinator" not in log.read_text(errors="replace")
    assert "north connected" not in stage.log(COORDINATOR).rpartition("north disconnected")[2]
    stage.start("north")
    stage.wait_for_honest()
    assert stage.record().charges == before


@contextmanager
def no_coordinator(stage):
    """Take the honest coordinator away; assert that silos' charges and processes stay as they are."""
    before = stage.record()
    stage.stop(COORDINATOR)
    yield
    stage.start(COORDINATOR)
    stage.wait_for_honest()
    after = stage.record()
    assert after.charges == before.charges
    assert all(after.processes[name] == before.processes[name] for name in HONEST)


def test_silos_do_not_speak_to_a_coordinator_of_another_authority_or_with_a_silo_s_key(
    stage, foreign, tmp_path
):
    """A listener at the coordinator's address without its certificate learns nothing."""
    with no_coordinator(stage):
        before = {name: stage.log(name).count(REFUSED) for name in HONEST}
        with party(tmp_path / "foreign.log", COORDINATOR, str(foreign / COORDINATOR)):
            wait_for(
                lambda: all(stage.log(name).count(REFUSED) > before[name] for name in HONEST), "refusals"
            )
            with open_session(Kit(foreign / "runner"), patience=60.0) as session:
                assert session.status()["connected"] == []
        tls = tmp_path / "tls"
        shutil.copytree(stage.tls("east"), tls)
        made = Peer(stage, COORDINATOR)
        made.listen("localhost", stage.study.port, tls)
        time.sleep(8.0)
        assert made.connected() == []
        made.leave()
        time.sleep(1.0)
