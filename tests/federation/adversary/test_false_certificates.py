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
from cryptography.hazmat.primitives import hashes
from ground import wait_for

from adversary.hostile import HONEST, Peer, stage_fixture, untouched
from fedpower.errors import ProtocolError
from fedpower.federation import kits
from fedpower.federation.kits import COORDINATOR, Authority, Request, make_kits
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


def knock(stage, startup, name="east") -> Peer:
    """Return a peer that tried for a while to connect with the key and certificate of a folder."""
    made = Peer(stage, "east", name=name)
    made._startup = startup
    made.join()
    made.put(COORDINATOR, {"kind": "answer", "number": 1}, b"x")
    made.put(COORDINATOR, {"kind": "call", "number": 1}, json.dumps({"do": "status"}).encode())
    time.sleep(0.5)
    return made


def greeted(stage, startup: Path | None) -> bool:
    """Return whether the coordinator says a word to one who shows the certificate of a kit."""
    context = ssl.create_default_context(cafile=stage.startup("north") / "rootCA.pem")
    context.set_alpn_protocols(["h2"])
    if startup is not None:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with socket.create_connection(("127.0.0.1", stage.study.port), timeout=30) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="localhost") as stream:
                stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                return bool(stream.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False


def certified(stage, startup: Path, issuer, signer, *, since: timedelta) -> Path:
    """Put a certificate in the name of east, valid for eight days, into a copy of its kit."""
    shutil.copytree(stage.startup("east"), startup)
    request = Request.read(stage.kits / "east" / "east.csr")
    name = kits.subject(stage.study, "east")
    built = kits._builder(
        name, issuer or name, request.key, signer, datetime.now(UTC) - since, timedelta(days=8)
    )
    (startup / "client.crt").write_bytes(kits.pem(built.sign(signer, hashes.SHA256())))
    return startup


def test_the_real_certificate_connects_and_none_or_a_false_one_does_not(stage, foreign, tmp_path):
    """None; one that ended; one signed by its bearer; one of another authority."""
    made = knock(stage, stage.startup("east"))
    assert made.connected() == [COORDINATOR]
    made.leave()
    assert greeted(stage, stage.startup("east"))
    authority = Authority(stage.kits / "authority")
    issuer = authority.certificate.subject
    own = kits.read_key(stage.startup("east") / "client.key")
    other = foreign / "east" / "startup"
    shutil.copyfile(stage.startup("east") / "rootCA.pem", other / "rootCA.pem")
    with untouched(stage):
        assert not greeted(stage, None)
        for startup in (
            certified(stage, tmp_path / "ended", issuer, authority.key, since=timedelta(days=9)),
            certified(stage, tmp_path / "own", None, own, since=timedelta(days=1)),
            other,
        ):
            assert not greeted(stage, startup)
            made = knock(stage, startup)
            assert made.connected() == []
            assert made.got == []
            made.leave()


def test_the_coordinator_s_certificate_makes_nobody_a_silo_or_the_runner(stage, tmp_path):
    startup = tmp_path / "startup"
    shutil.copytree(stage.startup(COORDINATOR), startup)
    for kind in ("crt", "key"):
        (startup / f"server.{kind}").rename(startup / f"client.{kind}")
    for name in (*HONEST, "east", "runner"):
        with untouched(stage):
            made = knock(stage, startup, name=name)
            assert made.got == []
            made.leave()
        assert f"claimed endpoint '{name}'" in stage.log(COORDINATOR)


def test_a_runner_of_another_authority_gets_no_session(stage, foreign):
    with (
        untouched(stage),
        pytest.raises(ProtocolError, match="the coordinator must answer at localhost"),
        open_session(foreign / "runner", patience=5.0),
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
    with party(log, "silo", str(kit), str(kit / "silo.toml")):
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
            with open_session(foreign / "runner", patience=60.0) as session:
                assert session.status()["connected"] == []
        startup = tmp_path / "startup"
        shutil.copytree(stage.startup("east"), startup)
        for kind in ("crt", "key"):
            (startup / f"client.{kind}").rename(startup / f"server.{kind}")
        made = Peer(stage, COORDINATOR)
        made.listen("localhost", stage.study.port, startup)
        time.sleep(8.0)
        assert made.connected() == []
        made.leave()
        time.sleep(1.0)
