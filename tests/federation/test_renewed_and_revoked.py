"""Certificates that are renewed or revoked while their parties run, over real TLS."""

import shutil
import socket
import ssl
import threading
import time

import pytest
from cryptography import x509
from ground import running, wait_for
from nvflare.fuel.f3.sfm import conn_manager
from studies import signed_kit, write_study

from fedpower.federation import CERTIFICATE, REVOKED, TLS, certificates
from fedpower.federation import links as links_module
from fedpower.federation.kits import Authority, Request, accept, accept_list, ask
from fedpower.federation.links import ANSWER, ASK, Links
from fedpower.federation.local import free_port
from fedpower.federation.study_file import COORDINATOR

pytestmark = pytest.mark.federation


class Consortium:
    """An authority, kits of a coordinator and two silos, and their connections."""

    def __init__(self, folder):
        self.folder = folder
        self.study = write_study(folder, coordinator={"port": free_port()})
        self.authority = Authority.make(self.study.federation, folder / "authority")
        self.parties = (COORDINATOR, "north", "south")
        for party in self.parties:
            signed_kit(self.authority, party, folder / party)
        self.opened: list[Links] = []

    def tls(self, party):
        return self.folder / party / TLS

    def renew(self, party):
        """Sign a new key of a party, also of one that was revoked."""
        request = Request.read(ask(self.study.federation, party, self.folder / party, renew=True))
        self.authority.sign(request, renew=self.authority.signed(party).exists())

    def accept(self, party):
        return accept(self.folder / party, self.authority.signed(party)).certificate.serial_number

    def revoke(self, party, *accepting):
        self.authority.revoke(party)
        for one in accepting:
            accept_list(self.folder / one, self.authority.folder / REVOKED)

    def links(self, party, port=None, tls=None):
        """Return connections of a party and what it got; a coordinator listens."""
        got: list[bytes] = []
        peers = ("north", "south") if party == COORDINATOR else (COORDINATOR,)
        kind = ANSWER if party == COORDINATOR else ASK
        made = Links(
            party,
            accepts=dict.fromkeys(peers, kind),
            most_bytes=1000,
            on_message=lambda *message: got.append(message[-1]),
        )
        self.opened.append(made)
        start = made.listen if party == COORDINATOR else made.connect
        start("localhost", port or self.study.port, tls or self.tls(party))
        return made, got

    def serial_shown(self):
        try:
            shown = ssl.get_server_certificate(("127.0.0.1", self.study.port))
        except OSError:  # it does not listen just now
            return None
        return x509.load_pem_x509_certificate(shown.encode()).serial_number


def serials(chair):
    """Return the numbers of the certificates with which a coordinator's peers are connected."""
    return {links_module._serial(each.conn) for each in list(chair.sfm_conns.values())}


@pytest.fixture
def consortium(tmp_path, monkeypatch):
    monkeypatch.setattr(links_module, "_WATCH_S", 0.1)
    for name in ("INIT_WAIT", "MAX_WAIT"):
        monkeypatch.setattr(conn_manager, name, 0.1)
    made = Consortium(tmp_path)
    yield made
    for opened in made.opened:
        threading.Thread(target=opened.stop, daemon=True).start()


def test_parties_connect_again_with_a_renewed_certificate_and_the_coordinator_shows_its_own(consortium):
    chair, got = consortium.links(COORDINATOR)
    north, asked = consortium.links("north")
    wait_for(lambda: chair.connected() == ["north"], "the connection")
    consortium.renew("north")
    assert north.connected() == [COORDINATOR], "a request changes nothing"
    serial = consortium.accept("north")
    wait_for(lambda: serials(chair) == {serial}, "north's new certificate")
    wait_for(lambda: chair.send("north", ASK, 1, b"with a new key"), "a question")
    wait_for(lambda: asked == [b"with a new key"], "the question")
    consortium.renew(COORDINATOR)
    serial = consortium.accept(COORDINATOR)
    wait_for(lambda: consortium.serial_shown() == serial, "the coordinator's new certificate")
    wait_for(lambda: chair.connected() == ["north"], "north's return")
    south, _ = consortium.links("south")
    wait_for(lambda: set(chair.connected()) == {"north", "south"}, "south")
    south.send(COORDINATOR, ANSWER, 1, b"to a new key")
    wait_for(lambda: got == [b"to a new key"], "the answer")


@pytest.mark.parametrize("party", [COORDINATOR, "north"])
def test_a_party_that_reads_between_two_writes_of_its_files_connects_once_they_fit(consortium, party):
    chair, _ = consortium.links(COORDINATOR)
    consortium.links("north")
    wait_for(lambda: chair.connected() == ["north"], "the connection")
    consortium.renew(party)
    tls = consortium.tls(party)
    old, before = (tls / CERTIFICATE).read_bytes(), serials(chair)
    shutil.copyfile(consortium.authority.signed(party), tls / CERTIFICATE)
    time.sleep(1.0)
    if party == COORDINATOR:  # which goes on with what it has
        assert consortium.serial_shown() == x509.load_pem_x509_certificate(old).serial_number
        assert serials(chair) == before
        serial = consortium.accept(party)
        wait_for(lambda: consortium.serial_shown() == serial, "the coordinator's new certificate")
    else:
        assert chair.connected() == []
        serial = consortium.accept(party)
        wait_for(lambda: serials(chair) == {serial}, "north's new certificate")


def test_a_revoked_silo_is_cut_off_and_does_not_connect_until_it_has_a_new_key(consortium, caplog):
    stolen = consortium.folder / "stolen"
    shutil.copytree(consortium.tls("north"), stolen)
    chair, got = consortium.links(COORDINATOR)
    consortium.links("north")
    consortium.links("south")
    wait_for(lambda: set(chair.connected()) == {"north", "south"}, "the silos")
    consortium.revoke("north", COORDINATOR)
    wait_for(lambda: chair.connected() == ["south"], "the end of north's connection", 5.0)
    thief, asked = consortium.links("north", tls=stolen)
    sentence = "refused a connection of north: its certificate is revoked"
    wait_for(lambda: sentence in caplog.messages, "a refusal")
    time.sleep(1.0)
    assert chair.connected() == ["south"]
    assert not chair.send("north", ASK, 1, b"secret")
    assert not thief.send(COORDINATOR, ANSWER, 1, b"forged")
    consortium.renew("north")
    serial = consortium.accept("north")
    wait_for(lambda: set(chair.connected()) == {"north", "south"}, "north with its new key")
    assert serial in serials(chair)
    assert (asked, got) == ([], [])
    assert caplog.messages.count(sentence) == 1


def test_a_list_that_cannot_be_read_closes_every_connection(consortium, caplog):
    chair, _ = consortium.links(COORDINATOR)
    consortium.links("north")
    wait_for(lambda: chair.connected() == ["north"], "the connection")
    (consortium.tls(COORDINATOR) / REVOKED).write_bytes(b"damaged")
    wait_for(lambda: chair.connected() == [], "the end of the connection", 5.0)
    assert any(sentence.startswith("refused all connections: ") for sentence in caplog.messages)
    (consortium.tls(COORDINATOR) / REVOKED).unlink()
    wait_for(lambda: chair.connected() == ["north"], "the connection")


class Relay:
    """Somebody in the network: passes each connection to the port that is the target at its time."""

    def __init__(self, port, *, is_proxy=False):
        self.target, self._is_proxy = 0, is_proxy
        self.passed: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            here, _ = self._listener.accept()
            self.passed.append(self.target)
            if self._is_proxy:
                assert here.recv(4096).startswith(b"CONNECT localhost:")
                here.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                there = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # what it stands for does not listen just now
                here.close()
                continue
            for ends in ((here, there), (there, here)):
                threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source, sink):
        try:
            while content := source.recv(65536):
                sink.sendall(content)
        except OSError:
            pass
        for end in (source, sink):
            end.close()


def test_a_revoked_coordinator_gets_nothing_also_where_the_handshake_before_is_the_real_one_s(
    consortium, monkeypatch, caplog
):
    """It holds its old key and the network, so it can let the silo look at the real certificate first."""
    stolen = consortium.folder / "stolen"
    shutil.copytree(consortium.tls(COORDINATOR), stolen)
    real, false = free_port(), free_port()
    assert real != false
    relay = Relay(consortium.study.port)
    thief, got = consortium.links(COORDINATOR, false, stolen)
    relay.target = false
    consortium.links("north")
    wait_for(lambda: thief.connected() == ["north"], "the connection that a key allows until it is revoked")

    consortium.revoke(COORDINATOR, "north")
    wait_for(lambda: thief.connected() == [], "the end of the connection", 5.0)
    sentence = "the coordinator must have a valid certificate, got one that is revoked"
    wait_for(lambda: sentence in caplog.messages, "a refusal")

    consortium.renew(COORDINATOR)
    consortium.accept(COORDINATOR)
    chair, _ = consortium.links(COORDINATOR, real)
    look = certificates.coordinator_roots

    def looked_at(*where):
        relay.target = real
        try:
            return look(*where)
        finally:
            relay.target = false

    monkeypatch.setattr(links_module, "coordinator_roots", looked_at)
    relay.passed.clear()
    wait_for(lambda: relay.passed.count(real) > 3 and relay.passed.count(false) > 3, "some attempts")
    assert (thief.connected(), chair.connected(), got) == ([], [], [])
    assert consortium.opened[1].connected() == []

    monkeypatch.setattr(links_module, "coordinator_roots", look)
    relay.target = real
    wait_for(lambda: chair.connected() == ["north"], "the real coordinator")
    assert thief.connected() == []


def test_a_silo_with_a_list_looks_at_the_coordinator_through_a_proxy(consortium, monkeypatch):
    at = free_port()
    proxy = Relay(at, is_proxy=True)
    proxy.target = consortium.study.port
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{at}")
    consortium.revoke("south", "north")
    chair, _ = consortium.links(COORDINATOR)
    consortium.links("north")
    wait_for(lambda: chair.connected() == ["north"], "the connection")
    assert len(proxy.passed) > 1


def test_keys_are_renewed_and_a_silo_is_revoked_while_a_study_runs(tmp_path):
    """Its nodes are confined; the study goes on without a restart, and without the revoked silo."""
    with running(tmp_path, min_silos=3, deadline=40.0, grace=4.0) as ground:
        authority = Authority(ground.kits / "authority")
        ground.hold("west", "before-2")
        run = ground.run("renewed")
        ground.reached("west", "before-2")
        pids = {name: child.pid for name, child in ground.processes.items()}
        for party in ("north", COORDINATOR):
            request = Request.read(ask(ground.study.federation, party, ground.place(party), renew=True))
            authority.sign(request, renew=True)
            accept(ground.place(party), authority.signed(party))
        authority.revoke("west")
        for party in (COORDINATOR, "north", "south", "east", "runner"):
            accept_list(ground.place(party), authority.folder / REVOKED)
        wait_for(lambda: "west disconnected" in ground.log(COORDINATOR), "the end of west's connection", 20.0)
        ground.release("west", "before-2")
        run()
        assert {name: child.pid for name, child in ground.processes.items()} == pids
        last = ground.rounds[-1]
        assert {"north", "south", "east"} <= set(last["answered"])
        assert "west" not in last["answered"]
        assert "refused a connection of west: its certificate is revoked" in ground.log(COORDINATOR)
        assert ground.log("north").count(" connected to the coordinator") >= 2
